//! Parts of the lines that are logged, which leave out what is absent.

use std::fmt;
use std::thread::Thread;

/// `thread "worker" (4711)`
pub(super) struct ThreadText<'a> {
    pub(super) thread: &'a Thread,
    /// Its number, if it is known.
    pub(super) id: Option<u32>,
}

impl fmt::Display for ThreadText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.thread.name(), self.id) {
            (Some(name), Some(id)) => write!(f, "thread {name:?} ({id})"),
            (Some(name), None) => write!(f, "thread {name:?}"),
            (None, Some(id)) => write!(f, "thread {id}"),
            (None, None) => f.write_str("a thread without a name"),
        }
    }
}

/// ` (label "nightly", fence 7)`, or nothing if there is none of them.
pub(super) struct Details<const N: usize>(pub(super) [Option<String>; N]);

impl<const N: usize> fmt::Display for Details<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let present: Vec<&str> = self.0.iter().flatten().map(String::as_str).collect();
        if present.is_empty() {
            return Ok(());
        }
        write!(f, " ({})", present.join(", "))
    }
}

/// `label "nightly"`, if there is one.
pub(super) fn label_detail(label: &str) -> Option<String> {
    (!label.is_empty()).then(|| format!("label {label:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_those_that_are_there() {
        let position = || Some("position 3".to_owned());
        for (label, position, text) in [
            ("x", position(), " (label \"x\", position 3)"),
            ("", position(), " (position 3)"),
            ("x", None, " (label \"x\")"),
            ("", None, ""),
        ] {
            assert_eq!(Details([label_detail(label), position]).to_string(), text);
        }
    }

    #[test]
    fn thread_without_a_name_is_named_by_its_number() {
        let unnamed = std::thread::spawn(std::thread::current);
        let thread = &unnamed.join().expect("it ends");
        let text = |id| ThreadText { thread, id }.to_string();
        assert_eq!(text(Some(7)), "thread 7");
        assert_eq!(text(None), "a thread without a name");
    }
}
