//! A holder or a waiter, as it described itself in its request.

use std::fmt;

use super::spec::Family;

/// Stands in a record where the thread has no name.
pub(crate) const NO_NAME: &str = "-";

/// The origin of a request for a lock. Its texts are parts of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Requester<'a> {
    /// Since when it holds the lock or waits, by the server's clock in µs.
    pub(crate) since: u64,
    pub(crate) manager: &'a str,
    pub(crate) ttl_ms: u64,
    /// Nobody renews its lease.
    pub(crate) fixed_lease: bool,
    /// How many permits it asked for. 1 for a mutex.
    pub(crate) permits: u32,
    pub(crate) host: &'a str,
    pub(crate) pid: u32,
    pub(crate) thread: &'a str,
    /// `None` if an older version wrote the record.
    pub(crate) thread_id: Option<u32>,
    pub(crate) label: &'a str,
}

impl<'a> Requester<'a> {
    /// Parses `ticket since manager ttl fixed hold host⇥pid⇥thread#thread_id⇥label`. For permits
    /// their number comes before the host. For a mutex with local hand-overs, so does their number.
    pub(crate) fn parse(request: &'a str, family: Family) -> Option<Requester<'a>> {
        let has_permits = family == Family::Permit;
        let mut parts = request.splitn(if has_permits { 8 } else { 7 }, ' ');
        let since = parts.nth(1)?.parse().ok()?;
        let manager = parts.next()?;
        let ttl_ms = parts.next()?.parse().ok()?;
        let fixed_lease = parts.next()? == "1";
        let mut rest = parts.skip(1);
        let permits = if has_permits {
            rest.next()?.parse().ok()?
        } else {
            1
        };
        let mut label = rest.next()?.splitn(4, '\t');
        let host = without_number(label.next()?);
        let pid = label.next()?.parse().ok()?;
        let (thread, thread_id) = split_thread(label.next()?);
        Some(Requester {
            since,
            manager,
            ttl_ms,
            fixed_lease,
            permits,
            host,
            pid,
            thread,
            thread_id,
            label: label.next()?,
        })
    }
}

impl fmt::Display for Requester<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = Origin {
            host: self.host,
            pid: self.pid,
            thread: self.thread,
            thread_id: self.thread_id,
            label: self.label,
        };
        origin.fmt(f)
    }
}

/// The origin of a request, as people read it.
pub(crate) struct Origin<'a> {
    pub(crate) host: &'a str,
    pub(crate) pid: u32,
    pub(crate) thread: &'a str,
    pub(crate) thread_id: Option<u32>,
    pub(crate) label: &'a str,
}

/// `process 4711 on web-1, thread main#4711, label "nightly"`. It leaves out an absent name or label.
impl fmt::Display for Origin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {}", self.pid, self.host)?;
        match (self.thread, self.thread_id) {
            (NO_NAME, Some(id)) => write!(f, ", thread {id}")?,
            (NO_NAME, None) => {}
            (name, Some(id)) => write!(f, ", thread {name}#{id}")?,
            (name, None) => write!(f, ", thread {name}")?,
        }
        if !self.label.is_empty() {
            write!(f, ", label {:?}", self.label)?;
        }
        Ok(())
    }
}

/// A host has no spaces. If there is a number and a space before it, they are cut off.
fn without_number(host: &str) -> &str {
    let is_digit = |c: char| c.is_ascii_digit();
    match host.split_once(' ') {
        Some((number, host)) if number.chars().all(is_digit) => host,
        _ => host,
    }
}

/// Splits `name#id`. A name may have a `#` itself, and older versions write no id.
fn split_thread(text: &str) -> (&str, Option<u32>) {
    let is_digit = |c: char| c.is_ascii_digit();
    match text.rsplit_once('#') {
        Some((name, id)) if !id.is_empty() && id.chars().all(is_digit) => match id.parse() {
            Ok(id) => (name, Some(id)),
            Err(_) => (text, None),
        },
        _ => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_is_read_with_its_id_and_without() {
        for (text, thread, id) in [
            ("main#4711", "main", Some(4711)),
            ("-#4711", "-", Some(4711)),
            ("worker#7#4711", "worker#7", Some(4711)),
            ("-", "-", None),
            ("main", "main", None),
            ("worker#", "worker#", None),
            ("worker#x", "worker#x", None),
            ("worker#+7", "worker#+7", None),
            ("worker#99999999999", "worker#99999999999", None),
        ] {
            assert_eq!(split_thread(text), (thread, id), "{text:?}");
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
            ("main", "", "process 4711 on web-1, thread main"),
            ("-#7", "", "process 4711 on web-1, thread 7"),
            ("-", "", "process 4711 on web-1"),
        ] {
            let request = format!("7 1 0123456789abcdef 10 0 0 web-1\t4711\t{thread}\t{label}");
            let requester = Requester::parse(&request, Family::Mutex).expect("it is well formed");
            assert_eq!(requester.to_string(), text);
        }
    }

    #[test]
    fn request_with_local_handovers_is_read() {
        for request in [
            "7 1000 0123456789abcdef 10000 0 0 16 web-1\t4711\tmain#4711\t16 runs",
            "7 1000 0123456789abcdef 10000 0 0 web-1\t4711\tmain#4711\t16 runs",
        ] {
            let requester = Requester::parse(request, Family::Mutex).expect("it is well formed");
            assert_eq!((requester.ttl_ms, requester.permits), (10_000, 1));
            assert_eq!((requester.host, requester.label), ("web-1", "16 runs"));
        }
    }

    #[test]
    fn request_of_a_version_without_ids_is_read() {
        let request = "7 1000 0123456789abcdef 10000 0 0 web-1\t4711\tmain\tnightly run";
        let requester = Requester::parse(request, Family::Mutex).expect("it is well formed");
        assert_eq!((requester.host, requester.pid), ("web-1", 4711));
        assert_eq!((requester.thread, requester.thread_id), ("main", None));
        assert_eq!((requester.label, requester.permits), ("nightly run", 1));
    }
}
