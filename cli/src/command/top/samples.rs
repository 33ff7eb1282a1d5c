//! Names as a look sees them, for tests.

use std::time::{Duration, Instant};

use fairlock::inspect::LockState;

use super::seen::{Owner, Row, Seen};

pub(super) fn owner(host: &str, age: Duration) -> Owner {
    Owner {
        label: "nightly".to_owned(),
        host: host.to_owned(),
        pid: 4711,
        thread: "main".to_owned(),
        access: "owner".to_owned(),
        age,
        fence: Some(700),
        lapsed_for: None,
        silent: None,
        has_fixed_lease: false,
        keeps: false,
        is_first_guard: false,
    }
}

/// A mutex that process 4711 on web-1 has held for 12 s. Nobody waits.
pub(super) fn seen(name: &str) -> Seen {
    Seen {
        name: name.into(),
        kind: "mutex".to_owned(),
        state: LockState::Held,
        fence: 700,
        served: 0,
        holder: Some(owner("web-1", Duration::from_secs(12))),
        holders: 1,
        waiters: 0,
        is_awaited: false,
        oldest_wait: None,
        time_left: Duration::from_secs(8),
        at: Instant::now(),
    }
}

pub(super) fn row(name: &str) -> Row {
    Row {
        seen: seen(name),
        rate: None,
    }
}
