//! The list in Prometheus's text format, for a collector that reads files.

use std::fmt::{self, Write as _};
use std::time::Duration;

use fairlock::{LockInfo, LockState};

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
    value: fn(&LockInfo) -> Option<f64>,
}

const NAME_GAUGES: [NameGauge; 5] = [
    NameGauge {
        name: "fairlock_lock_holders",
        help: "Holders of the name whose lease has not lapsed.",
        value: |info| Some(live_holders(info).count() as f64),
    },
    NameGauge {
        name: "fairlock_lock_waiters",
        help: "Waiters for the name.",
        value: |info| Some(info.waiters as f64),
    },
    NameGauge {
        name: "fairlock_lock_hold_seconds",
        help: "How long the oldest holder has held the name.",
        value: |info| {
            let live = info
                .holders
                .iter()
                .filter(|holder| holder.lapsed_for.is_none());
            seconds(live.map(|holder| times::held(info, holder)))
        },
    },
    NameGauge {
        name: "fairlock_lock_wait_seconds",
        help: "How long the oldest waiter has waited for the name.",
        value: |info| seconds(times::oldest_wait(info)),
    },
    NameGauge {
        name: "fairlock_lock_lapsed_seconds",
        help: "How long ago the oldest lease of the name that was not released ended.",
        value: |info| seconds(info.holders.iter().filter_map(|holder| holder.lapsed_for)),
    },
];

/// Prints all in one go: a reader gets a whole page or none.
pub(super) fn print(infos: &[LockInfo]) -> Result<(), Failure> {
    output::line(Page(infos).to_string().trim_end())
}

struct Page<'a>(&'a [LockInfo]);

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Page(infos) = self;
        head(f, "fairlock_locks", "Names that are listed, by state.")?;
        for state in STATES {
            let count = infos.iter().filter(|info| info.state == state).count();
            writeln!(f, "fairlock_locks{{state=\"{state}\"}} {count}")?;
        }
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
        fairlock::Kind::Mutex => "mutex",
        fairlock::Kind::Semaphore { .. } => "semaphore",
        fairlock::Kind::RwLock => "rw",
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
