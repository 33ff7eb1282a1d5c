//! The list in Prometheus's text format, for a collector that reads files.

use std::ops::Add as _;
use std::time::Duration;

use fairlock::inspect::{LockInfo, LockState};

use crate::parties::live_holders;
use crate::times;

const STATES: [LockState; 5] = [
    LockState::Held,
    LockState::Detached,
    LockState::Cooling,
    LockState::Lapsed,
    LockState::Free,
];

/// The end of a gauge's name, its help, and its value for a name that has one. The gauge begins
/// with
/// `fairlock_lock_` for a name, and `fairlock_locks_` for all: a sum over names must not count the
/// total.
type Gauge = (&'static str, &'static str, fn(&LockInfo) -> Option<f64>);

const GAUGES: [Gauge; 5] = [
    ("holders", "Holders whose lease has not lapsed", |info| {
        Some(live_holders(info).count() as f64)
    }),
    ("waiters", "Waiters", |info| Some(info.waiters as f64)),
    ("hold_seconds", "Time since the oldest grant", |info| {
        longest(info.holders.iter().map(|holder| times::held(info, holder)))
    }),
    (
        "wait_seconds",
        "Time since the oldest waiter came",
        |info| longest(times::oldest_wait(info)),
    ),
    (
        "lapsed_seconds",
        "Time since the first lease ended without a release",
        |info| longest(info.lapsed.iter().filter_map(|holder| holder.lapsed_for)),
    ),
];

/// The whole page: with a series for each name, or with the totals alone.
pub(super) fn page(infos: &[LockInfo], only_totals: bool) -> String {
    let mut lines = vec![head("fairlock_locks", "Names that are listed, by state")];
    for state in STATES {
        let count = infos.iter().filter(|info| info.state == state).count();
        lines.push(format!("fairlock_locks{{state=\"{state}\"}} {count}"));
    }
    for (name, help, value) in GAUGES {
        let values = infos.iter().filter_map(|info| Some((info, value(info)?)));
        if only_totals {
            // The total of times is the longest.
            let name = format!("fairlock_locks_{name}");
            let total = match name.ends_with("seconds") {
                true => f64::max,
                false => f64::add,
            };
            let all = values.map(|(_, value)| value).fold(0.0, total);
            lines.extend([
                head(&name, &format!("{help}, of all names")),
                format!("{name} {all}"),
            ]);
        } else {
            let name = format!("fairlock_lock_{name}");
            lines.push(head(&name, &format!("{help}, by name")));
            lines.extend(values.map(|(info, value)| {
                let (of, kind) = (escaped(&info.name), info.kind.to_string());
                // Without the number of permits, which is no part of what the kind is.
                let kind = kind.split(' ').next().unwrap_or_default();
                format!("{name}{{name=\"{of}\",kind=\"{kind}\"}} {value}")
            }));
        }
    }
    lines.join("\n")
}

fn head(name: &str, help: &str) -> String {
    format!("# HELP {name} {help}.\n# TYPE {name} gauge")
}

/// The longest, in seconds.
fn longest(times: impl IntoIterator<Item = Duration>) -> Option<f64> {
    times.into_iter().max().map(|time| time.as_secs_f64())
}

/// A label's value.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}
