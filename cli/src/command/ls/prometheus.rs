//! The list in Prometheus's text format, for a collector that reads files.

use std::fmt::{self, Write as _};
use std::time::Duration;

use fairlock::inspect::{LockInfo, LockState};

use crate::exit::Failure;
use crate::output;
use crate::parties::live_holders;
use crate::times;

const STATES: [LockState; 5] = [
    LockState::Held,
    LockState::Detached,
    LockState::Cooling,
    LockState::Lapsed,
    LockState::Free,
];

/// A gauge with a series for each name, and its value for a name that has one.
struct NameGauge {
    name: &'static str,
    help: &'static str,
    /// The gauge over all names. Another name, so that a sum over names does not count it.
    total: (&'static str, &'static str, Total),
    value: fn(&LockInfo) -> Option<f64>,
}

#[derive(Clone, Copy)]
enum Total {
    Sum,
    Largest,
}

const NAME_GAUGES: [NameGauge; 5] = [
    NameGauge {
        name: "fairlock_lock_holders",
        help: "Holders of the name whose lease has not lapsed.",
        total: (
            "fairlock_locks_holders",
            "Holders of all names whose lease has not lapsed.",
            Total::Sum,
        ),
        value: |info| Some(live_holders(info).count() as f64),
    },
    NameGauge {
        name: "fairlock_lock_waiters",
        help: "Waiters for the name.",
        total: (
            "fairlock_locks_waiters",
            "Waiters for all names.",
            Total::Sum,
        ),
        value: |info| Some(info.waiters as f64),
    },
    NameGauge {
        name: "fairlock_lock_hold_seconds",
        help: "How long the oldest holder has held the name.",
        total: (
            "fairlock_locks_hold_seconds",
            "How long the oldest holder of any name has held it.",
            Total::Largest,
        ),
        value: |info| seconds(info.holders.iter().map(|holder| times::held(info, holder))),
    },
    NameGauge {
        name: "fairlock_lock_wait_seconds",
        help: "How long the oldest waiter has waited for the name.",
        total: (
            "fairlock_locks_wait_seconds",
            "How long the oldest waiter for any name has waited.",
            Total::Largest,
        ),
        value: |info| seconds(times::oldest_wait(info)),
    },
    NameGauge {
        name: "fairlock_lock_lapsed_seconds",
        help: "How long ago the oldest lease of the name that was not released ended.",
        total: (
            "fairlock_locks_lapsed_seconds",
            "How long ago the oldest lease of any name that was not released ended.",
            Total::Largest,
        ),
        value: |info| seconds(info.lapsed.iter().filter_map(|holder| holder.lapsed_for)),
    },
];

/// Prints all in one go: a reader gets a whole page or none.
pub(super) fn print(infos: &[LockInfo]) -> Result<(), Failure> {
    output::line(Page(infos).to_string().trim_end())
}

/// Prints the sums alone.
pub(super) fn print_totals(infos: &[LockInfo]) -> Result<(), Failure> {
    output::line(Totals(infos).to_string().trim_end())
}

struct Page<'a>(&'a [LockInfo]);

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Page(infos) = self;
        write_states(f, infos)?;
        for gauge in &NAME_GAUGES {
            head(f, gauge.name, gauge.help)?;
            for info in *infos {
                if let Some(value) = (gauge.value)(info) {
                    let (name, kind) = (Label(&info.name), kind(info));
                    writeln!(
                        f,
                        "{}{{name=\"{name}\",kind=\"{kind}\"}} {value}",
                        gauge.name
                    )?;
                }
            }
        }
        Ok(())
    }
}

struct Totals<'a>(&'a [LockInfo]);

impl fmt::Display for Totals<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals(infos) = self;
        write_states(f, infos)?;
        for gauge in &NAME_GAUGES {
            let (name, help, total) = gauge.total;
            let values = infos.iter().filter_map(|info| (gauge.value)(info));
            let value = match total {
                // The sum of none would be -0.
                Total::Sum => values.fold(0.0, |sum, value| sum + value),
                Total::Largest => values.fold(0.0, f64::max),
            };
            head(f, name, help)?;
            writeln!(f, "{name} {value}")?;
        }
        Ok(())
    }
}

fn write_states(f: &mut fmt::Formatter<'_>, infos: &[LockInfo]) -> fmt::Result {
    head(f, "fairlock_locks", "Names that are listed, by state.")?;
    STATES.into_iter().try_for_each(|state| {
        let count = infos.iter().filter(|info| info.state == state).count();
        writeln!(f, "fairlock_locks{{state=\"{state}\"}} {count}")
    })
}

fn head(f: &mut fmt::Formatter<'_>, name: &str, help: &str) -> fmt::Result {
    writeln!(f, "# HELP {name} {help}\n# TYPE {name} gauge")
}

/// The longest, in seconds.
fn seconds(times: impl IntoIterator<Item = Duration>) -> Option<f64> {
    times.into_iter().max().map(|time| time.as_secs_f64())
}

/// Without the number of permits, which is no part of what the kind is.
fn kind(info: &LockInfo) -> Label<'static> {
    Label(match info.kind {
        fairlock::inspect::Kind::Mutex => "mutex",
        fairlock::inspect::Kind::Semaphore { .. } => "semaphore",
        fairlock::inspect::Kind::RwLock => "rw",
        _ => "other",
    })
}

/// A label's value, escaped.
struct Label<'a>(&'a str);

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}
