//! The line that shows how far a wait is.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use fairlock::inspect::{LockInfo, LockState, Party};
use unicode_width::UnicodeWidthChar as _;

use crate::printable::printable;

/// How a wait is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Nothing,
    /// One line when it begins, and one if it was in vain: for a log.
    Once,
    /// A line on a terminal that counts on.
    Always,
}

impl Shown {
    /// On a terminal, or with `-v`. Cron mails every line that a job prints.
    pub(super) fn by_stderr() -> Shown {
        if io::stderr().is_terminal() {
            Shown::Always
        } else if log::max_level() >= log::LevelFilter::Info {
            Shown::Once
        } else {
            Shown::Nothing
        }
    }
}

/// The newest look at the lock that is awaited.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    pub(super) position: Option<u64>,
    /// `None`: Redis did not answer.
    pub(super) holder: Option<String>,
}

impl Progress {
    /// `deploy: waiting, number 2 in line, held by make (web1, pid 4711), 12s, 48s left`
    pub(super) fn line(&self, name: &str, waited: Duration, left: Option<Duration>) -> String {
        let mut line = format!("{name}: waiting");
        if let Some(position) = self.position {
            let _ = write!(line, ", number {position} in line");
        }
        match &self.holder {
            Some(holder) => line.push_str(holder),
            None => line.push_str(", redis does not answer"),
        }
        let _ = write!(line, ", {} waited", seconds(waited));
        if let Some(left) = left {
            let _ = write!(line, ", {} left", seconds(left));
        }
        line
    }
}

/// `, held by make (web1, pid 4711)`, or nothing if nobody holds it.
pub(super) fn holder_of(info: Option<&LockInfo>) -> String {
    let Some((info, holder)) = info.and_then(|info| Some((info, info.holder.as_ref()?))) else {
        return String::new();
    };
    let state = match info.state {
        LockState::Detached => "detached by",
        LockState::Cooling => "kept by",
        LockState::Lapsed => "lapsed, last held by",
        _ if holder.keeps => "held or kept by",
        _ => "held by",
    };
    let mut text = format!(", {state} {}", describe(holder));
    if info.holders.len() > 1 {
        let _ = write!(text, " and {} more", info.holders.len() - 1);
    }
    text
}

fn describe(holder: &Party) -> String {
    let Party {
        host, pid, label, ..
    } = holder;
    let text = if label.is_empty() {
        format!("{host}, pid {pid}")
    } else {
        format!("{label} ({host}, pid {pid})")
    };
    // Anybody can write into Redis.
    printable(&text).into_owned()
}

/// Whole seconds. A line that changes more often is hard to read.
fn seconds(time: Duration) -> String {
    humantime::format_duration(Duration::from_secs(time.as_secs())).to_string()
}

/// The beginning of a line that fits into this many columns. A line that wraps cannot be erased.
pub(super) fn fit(line: &str, columns: usize) -> String {
    let mut width = 0;
    let fits = |c: &char| {
        width += c.width().unwrap_or(0);
        width < columns
    };
    printable(line).chars().take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_says_position_holder_and_times() {
        let progress = Progress {
            position: Some(2),
            holder: Some(", held by make (web1, pid 4711)".into()),
        };
        let (waited, left) = (Duration::from_millis(12_900), Duration::from_millis(48_100));
        assert_eq!(
            progress.line("deploy", waited, Some(left)),
            "deploy: waiting, number 2 in line, held by make (web1, pid 4711), 12s waited, 48s left"
        );
        assert_eq!(
            Progress::default().line("deploy", waited, None),
            "deploy: waiting, redis does not answer, 12s waited"
        );
    }

    #[test]
    fn line_never_wraps() {
        assert_eq!(fit("abcdef", 4), "abc");
        assert_eq!(fit("数据库", 6), "数据");
        assert_eq!(fit("a\nb", 80), "a\\nb");
        assert_eq!(fit("abc", 0), "");
    }
}
