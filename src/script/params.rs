//! The text of a request for a lock about itself. It goes to the scripts as their parameters,
//! and stays in the record of the holder or the waiter.
//!
//! ```text
//! request    = ticket " " since " " manager " " parameters
//! parameters = ttl " " fixed " " hold " " [permits " " | spare " " hears " "] label
//! label      = host TAB pid TAB thread "#" thread_id TAB text
//! ```
//!
//! - `ttl` and `hold` are in ms, `since` is in µs by the server's clock. `fixed` is `1` or `0`.
//! - `permits` is for permits alone, and always there. `spare` is the number of local hand-overs of a
//!   mutex. `hears` is `1` if its owner wants to hear that somebody waits, `2` if its process also keeps
//!   the lock after a guard, else `0`. Both are left out if both are 0: a plain request is short.
//! - In a waiter's record of permits, the capacity and a space follow `permits`.
//! - The parts of a label have no tabs and no other control characters. The text may have spaces. The host
//!   has none, so it is clear where the label begins.

use std::fmt::{self, Write as _};
use std::time::Duration;

use super::spec::Family;

/// Stands in a record where the thread has no name.
pub(crate) const NO_NAME: &str = "-";

/// The parameters of a request for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Params<'a> {
    pub(crate) ttl_ms: u64,
    /// Nobody renews the lease.
    pub(crate) fixed: bool,
    pub(crate) hold_ms: u64,
    /// How many permits it asks for. 1 for a mutex.
    pub(crate) permits: u32,
    /// How many further guards of the process one grant may serve. 0 for permits.
    pub(crate) local_handovers: u32,
    /// The owner wants to hear that somebody waits. False for permits.
    pub(crate) hears: bool,
    /// It hears, and its process keeps the lock after a guard, for the next one.
    pub(crate) keeps: bool,
    pub(crate) origin: Origin<'a>,
}

/// The place that a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin<'a> {
    /// See [`host_word`].
    pub(crate) host: &'a str,
    pub(crate) pid: u32,
    /// [`NO_NAME`] for a thread without a name.
    pub(crate) thread: &'a str,
    pub(crate) thread_id: u32,
    pub(crate) label: &'a str,
}

impl<'a> Params<'a> {
    pub(crate) fn write(&self, family: Family) -> String {
        let mut text = String::with_capacity(112);
        let fixed = u8::from(self.fixed);
        let _ = write!(text, "{} {fixed} {} ", self.ttl_ms, self.hold_ms);
        let hears = u8::from(self.hears) + u8::from(self.keeps);
        let _ = match family {
            Family::Permit => write!(text, "{} ", self.permits),
            Family::Mutex | Family::Quorum if self.local_handovers == 0 && hears == 0 => Ok(()),
            Family::Mutex | Family::Quorum => write!(text, "{} {hears} ", self.local_handovers),
        };
        let origin = &self.origin;
        let _ = write!(text, "{}\t{}\t", origin.host, origin.pid);
        push_plain(origin.thread, &mut text);
        let _ = write!(text, "#{}\t{}", origin.thread_id, origin.label);
        text
    }

    /// `None` if the text does not have this form.
    pub(crate) fn read(text: &'a str, family: Family) -> Option<Params<'a>> {
        let mut label = text.splitn(4, '\t');
        let (numbers, host) = label.next()?.rsplit_once(' ')?;
        let mut words = numbers.split(' ');
        let ttl_ms = words.next()?.parse().ok()?;
        let fixed = words.next()? == "1";
        let hold_ms = words.next()?.parse().ok()?;
        let (permits, local_handovers, hears) = match (family, words.next(), words.next()) {
            (Family::Permit, permits, None) => (permits?.parse().ok()?, 0, 0),
            (Family::Mutex | Family::Quorum, None, _) => (1, 0, 0),
            (Family::Mutex | Family::Quorum, Some(spare), Some(hears)) => {
                (1, spare.parse().ok()?, hears.parse::<u8>().ok()?)
            }
            _ => return None,
        };
        let pid = label.next()?.parse().ok()?;
        let (thread, thread_id) = name_and_id(label.next()?)?;
        Some(Params {
            ttl_ms,
            fixed,
            hold_ms,
            permits,
            local_handovers,
            hears: hears > 0,
            keeps: hears == 2,
            origin: Origin {
                host,
                pid,
                thread,
                thread_id,
                label: label.next()?,
            },
        })
    }

    /// Whether its process may pass the lock from guard to guard. Then it is not known which has it.
    pub(crate) fn hands_over(&self) -> bool {
        self.local_handovers > 0
    }

    /// For how long a grant can last without a renewal or a release.
    pub(crate) fn longest(&self) -> Duration {
        Duration::from_millis(self.ttl_ms.max(self.hold_ms))
    }
}

/// The text of the label alone. Empty without one.
pub(crate) fn label_text(params: &str) -> &str {
    params.splitn(4, '\t').nth(3).unwrap_or("")
}

/// A host's name as the label has it: one word.
pub(crate) fn host_word(name: &str) -> String {
    let mut word = String::new();
    push_plain(name, &mut word);
    word.replace(' ', "-")
}

/// A holder or a waiter, by its request in the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Requester<'a> {
    /// Since when it holds the lock or waits, by the server's clock in µs.
    pub(crate) since: u64,
    pub(crate) manager: &'a str,
    pub(crate) params: Params<'a>,
}

impl<'a> Requester<'a> {
    /// `None` if the text does not have this form.
    pub(crate) fn read(request: &'a str, family: Family) -> Option<Requester<'a>> {
        let since = since_of(request)?;
        let (manager, params) = without_times(request)?.split_once(' ')?;
        Some(Requester {
            since,
            manager,
            params: Params::read(params, family)?,
        })
    }
}

/// Since when a holder holds the lock or a waiter waits, in µs.
pub(crate) fn since_of(request: &str) -> Option<u64> {
    request.split(' ').nth(1)?.parse().ok()
}

/// A request without its ticket and its time: all nodes of a quorum that granted one proposal have
/// the same.
pub(crate) fn without_times(request: &str) -> Option<&str> {
    request.splitn(3, ' ').nth(2)
}

/// A waiter's record of permits as a request, which has no capacity.
pub(crate) fn without_capacity(record: &str) -> String {
    let mut words: Vec<&str> = record.splitn(9, ' ').collect();
    if words.len() == 9 {
        words.remove(7);
    }
    words.join(" ")
}

/// `process 4711 on web-1, thread main#4711, label "nightly"`. It leaves out an absent name or label.
impl fmt::Display for Origin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {}", self.pid, self.host)?;
        match self.thread {
            NO_NAME => write!(f, ", thread {}", self.thread_id)?,
            name => write!(f, ", thread {name}#{}", self.thread_id)?,
        }
        if !self.label.is_empty() {
            write!(f, ", label {:?}", self.label)?;
        }
        Ok(())
    }
}

/// Splits `name#id`. A name may have a `#` itself.
fn name_and_id(text: &str) -> Option<(&str, u32)> {
    let (name, id) = text.rsplit_once('#')?;
    let is_number = id.chars().all(|c| c.is_ascii_digit());
    is_number.then_some((name, id.parse().ok()?))
}

/// At most 64 characters, without control characters.
fn push_plain(text: &str, out: &mut String) {
    out.extend(
        text.chars()
            .take(64)
            .map(|c| if c.is_control() { ' ' } else { c }),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: Params<'static> = Params {
        ttl_ms: 10_000,
        fixed: true,
        hold_ms: 250,
        permits: 1,
        local_handovers: 0,
        hears: false,
        keeps: false,
        origin: Origin {
            host: "web-1",
            pid: 4711,
            thread: "main",
            thread_id: 4712,
            label: "16 runs",
        },
    };

    #[test]
    fn written_parameters_are_read_back() {
        let of = |thread, label| Origin {
            thread,
            label,
            ..PARAMS.origin
        };
        let origins = [
            of("main", "16 runs"),
            of("7 up#9", ""),
            of(NO_NAME, "a#b c"),
        ];
        for origin in origins {
            let params = Params { origin, ..PARAMS };
            let in_line = Params {
                local_handovers: 16,
                ..params
            };
            let hearing = Params {
                hears: true,
                ..params
            };
            let keeping = Params {
                keeps: true,
                local_handovers: 65_535,
                ..hearing
            };
            let of_permits = Params {
                permits: 5,
                ..params
            };
            for (params, family) in [
                (params, Family::Mutex),
                (params, Family::Quorum),
                (in_line, Family::Mutex),
                (hearing, Family::Mutex),
                (keeping, Family::Mutex),
                (of_permits, Family::Permit),
            ] {
                let text = params.write(family);
                assert_eq!(Params::read(&text, family), Some(params), "{text:?}");
                assert_eq!(label_text(&text), params.origin.label, "{text:?}");
            }
        }
    }

    #[test]
    fn parameters_have_the_form_that_scripts_read() {
        for (local_handovers, hears, keeps, words) in [
            (0, false, false, ""),
            (16, false, false, " 16 0"),
            (65_535, false, false, " 65535 0"),
            (0, true, false, " 0 1"),
            (16, true, false, " 16 1"),
            (65_535, true, true, " 65535 2"),
        ] {
            let params = Params {
                local_handovers,
                hears,
                keeps,
                ..PARAMS
            };
            assert_eq!(
                params.write(Family::Mutex),
                format!("10000 1 250{words} web-1\t4711\tmain#4712\t16 runs")
            );
        }
        assert_eq!(
            PARAMS.write(Family::Permit),
            "10000 1 250 1 web-1\t4711\tmain#4712\t16 runs"
        );
    }

    #[test]
    fn control_characters_in_names_are_replaced() {
        let origin = Origin {
            thread: "a\tb\nc",
            ..PARAMS.origin
        };
        let text = Params { origin, ..PARAMS }.write(Family::Mutex);
        let params = Params::read(&text, Family::Mutex).expect("it is well formed");
        assert_eq!(params.origin.thread, "a b c");
        assert_eq!(host_word("my host\t1"), "my-host-1");
    }

    #[test]
    fn thread_is_read_with_its_id() {
        for (text, name_and_number) in [
            ("main#4711", Some(("main", 4711))),
            ("-#4711", Some(("-", 4711))),
            ("worker#7#4711", Some(("worker#7", 4711))),
            ("main", None),
            ("worker#", None),
            ("worker#x", None),
            ("worker#+7", None),
            ("worker#99999999999", None),
        ] {
            assert_eq!(name_and_id(text), name_and_number, "{text:?}");
        }
    }

    #[test]
    fn text_leaves_out_an_absent_name_and_label() {
        for (thread, label, text) in [
            (
                "main#7",
                "x",
                "process 4711 on web-1, thread main#7, label \"x\"",
            ),
            ("-#7", "", "process 4711 on web-1, thread 7"),
        ] {
            let params = format!("10 0 0 web-1\t4711\t{thread}\t{label}");
            let params = Params::read(&params, Family::Mutex).expect("it is well formed");
            assert_eq!(params.origin.to_string(), text);
        }
    }

    #[test]
    fn request_of_every_kind_is_read() {
        let mutex = "7 1000 0123456789abcdef 10000 1 250 web-1\t4711\tmain#4712\t16 runs";
        let permits = "7 1000 0123456789abcdef 10000 1 250 1 web-1\t4711\tmain#4712\t16 runs";
        let waiter = "7 1000 0123456789abcdef 10000 1 250 1 8 web-1\t4711\tmain#4712\t16 runs";
        let waiter = without_capacity(waiter);
        for (request, family) in [
            (mutex, Family::Mutex),
            (mutex, Family::Quorum),
            (permits, Family::Permit),
            (&waiter, Family::Permit),
        ] {
            let read = Requester {
                since: 1000,
                manager: "0123456789abcdef",
                params: PARAMS,
            };
            assert_eq!(Requester::read(request, family), Some(read), "{request:?}");
        }
    }

    #[test]
    fn text_of_another_form_is_not_read() {
        for text in [
            "",
            "10",
            "10 0 0 ",
            "10 0 0 web-1\t4711\tmain#1",
            "10 0 0 web-1\t4711\tmain\t",
            "x 0 0 h\t1\tm#1\t",
            "10 0 0 x 0 h\t1\tm#1\t",
            "10 0 0 0 x h\t1\tm#1\t",
            // As permits.
            "10 0 0 1 h\t1\tm#1\t",
        ] {
            assert_eq!(Params::read(text, Family::Mutex), None, "{text:?}");
        }
        // Permits without their number.
        let text = "10 0 0 web-1\t4711\tmain#1\t";
        assert_eq!(Params::read(text, Family::Permit), None);
    }
}
