//! The text of a request for a lock about itself. It goes to the scripts as their parameters,
//! and stays in the record of the holder or the waiter.
//!
//! ```text
//! request    = ticket " " since " " manager " " parameters
//! parameters = ttl " " fixed " " hold " " [number " "] label
//! label      = host TAB pid TAB thread "#" thread_id TAB text
//! ```
//!
//! - `ttl` and `hold` are in ms, `since` is in µs by the server's clock. `fixed` is `1` or `0`.
//! - `number` is the number of permits, always there for permits. For a mutex it is the number of
//!   local hand-overs, and [`HEARS`] more if the owner wants to hear that somebody waits. It is left
//!   out if it is 0. The label has no space before its first tab, so a space shows that there is a
//!   number.
//! - In a waiter's record of permits, the capacity and a space follow the number.
//! - The parts of a label have no tabs and no other control characters. The text may have spaces.

use std::fmt::{self, Write as _};
use std::time::Duration;

use super::spec::Family;

/// Stands in a record where the thread has no name.
pub(crate) const NO_NAME: &str = "-";

/// The number of a mutex's request is larger by this if its owner wants to hear that somebody waits.
/// It is more than any number of local hand-overs.
pub(crate) const HEARS: u32 = 65_536;

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
    pub(crate) origin: Origin<'a>,
}

/// The place that a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin<'a> {
    /// Has no spaces, see [`host_word`].
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
        let number = match family {
            Family::Permit => self.permits,
            _ if self.hears => self.local_handovers + HEARS,
            _ => self.local_handovers,
        };
        if family == Family::Permit || number > 0 {
            let _ = write!(text, "{number} ");
        }
        let origin = &self.origin;
        let _ = write!(text, "{}\t{}\t", origin.host, origin.pid);
        push_plain(origin.thread, &mut text);
        let _ = write!(text, "#{}\t{}", origin.thread_id, origin.label);
        text
    }

    /// `None` if the text does not have this form.
    pub(crate) fn read(text: &'a str, family: Family) -> Option<Params<'a>> {
        let mut parts = text.splitn(4, ' ');
        let ttl_ms = parts.next()?.parse().ok()?;
        let fixed = parts.next()? == "1";
        let hold_ms = parts.next()?.parse().ok()?;
        let (number, label) = number_and_label(parts.next()?);
        let (permits, number) = match family {
            Family::Permit => (number?.parse().ok()?, 0),
            Family::Mutex | Family::Quorum => {
                (1, number.and_then(|text| text.parse().ok()).unwrap_or(0))
            }
        };
        let hears = number >= HEARS;
        let mut label = label.splitn(4, '\t');
        let host = label.next()?;
        let pid = label.next()?.parse().ok()?;
        let (thread, thread_id) = name_and_id(label.next()?)?;
        Some(Params {
            ttl_ms,
            fixed,
            hold_ms,
            permits,
            local_handovers: if hears { number - HEARS } else { number },
            hears,
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

    /// Whether its process keeps the lock after a guard, for the next one.
    pub(crate) fn keeps(&self) -> bool {
        self.hears && self.local_handovers + 1 == HEARS
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

/// A host's name as the label has it: the scripts find a number before it by the space between them.
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

fn number_and_label(text: &str) -> (Option<&str>, &str) {
    let is_digit = |c: char| c.is_ascii_digit();
    match text.split_once(' ') {
        Some((number, label)) if number.chars().all(is_digit) => (Some(number), label),
        _ => (None, text),
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
        assert_eq!(
            PARAMS.write(Family::Mutex),
            "10000 1 250 web-1\t4711\tmain#4712\t16 runs"
        );
        let in_line = Params {
            local_handovers: 16,
            ..PARAMS
        };
        assert_eq!(
            in_line.write(Family::Mutex),
            "10000 1 250 16 web-1\t4711\tmain#4712\t16 runs"
        );
        for (local_handovers, number) in [(0, 65_536), (65_535, 131_071)] {
            let hearing = Params {
                local_handovers,
                hears: true,
                ..PARAMS
            };
            assert_eq!(
                hearing.write(Family::Mutex),
                format!("10000 1 250 {number} web-1\t4711\tmain#4712\t16 runs")
            );
        }
        assert_eq!(
            PARAMS.write(Family::Permit),
            "10000 1 250 1 web-1\t4711\tmain#4712\t16 runs"
        );
    }

    #[test]
    fn owner_that_keeps_the_lock_is_known_by_both_numbers() {
        for (local_handovers, hears, keeps) in [
            (65_535, true, true),
            (65_535, false, false),
            (0, true, false),
            (16, true, false),
        ] {
            let params = Params {
                local_handovers,
                hears,
                ..PARAMS
            };
            assert_eq!(
                (params.keeps(), params.hands_over()),
                (keeps, local_handovers > 0)
            );
        }
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
        ] {
            assert_eq!(Params::read(text, Family::Mutex), None, "{text:?}");
        }
        // Permits without their number.
        let text = "10 0 0 web-1\t4711\tmain#1\t";
        assert_eq!(Params::read(text, Family::Permit), None);
    }
}
