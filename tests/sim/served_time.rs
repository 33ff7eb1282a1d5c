//! R2 (served time): how long the server was there for the waiters. It distinguishes a
//! silent waiter from a dead one.

use std::collections::BTreeMap;

/// All times are in µs, by the server's clock.
#[derive(Debug, Clone)]
pub(super) struct ServedTime {
    step: u64,
    horizon: u64,
    total: u64,
    /// When the total was last brought up to date.
    counted: Option<u64>,
    /// Served time at the last sign of life of each client.
    signs: BTreeMap<u8, u64>,
}

impl ServedTime {
    pub(super) fn new(step: u64, horizon: u64) -> ServedTime {
        ServedTime {
            step,
            horizon,
            total: 0,
            counted: None,
            signs: BTreeMap::new(),
        }
    }

    /// The served time of a record that does not exist yet.
    pub(super) fn restarted(&self) -> ServedTime {
        ServedTime::new(self.step, self.horizon)
    }

    /// Of the time between two requests one step counts at most, unless all of it does, and nothing
    /// if the clock went back.
    fn at(&self, clock: u64, all_counts: bool) -> u64 {
        let most = if all_counts { u64::MAX } else { self.step };
        self.total
            + self
                .counted
                .map_or(0, |counted| clock.saturating_sub(counted).min(most))
    }

    pub(super) fn count(&mut self, clock: u64, all_counts: bool) {
        self.total = self.at(clock, all_counts);
        self.counted = Some(clock);
    }

    pub(super) fn sign(&mut self, client: u8) {
        self.signs.insert(client, self.total);
    }

    /// The clients that gave no sign of life for longer than the horizon, a bit for each.
    pub(super) fn silent(&self, clock: u64, all_counts: bool) -> u128 {
        let now = self.at(clock, all_counts);
        let silent = self.signs.iter().filter(|(_, at)| *at + self.horizon < now);
        silent.fold(0, |mask, (client, _)| mask | 1 << client)
    }

    /// R22 (tries among the dead): whether nobody came for longer than the horizon.
    pub(super) fn is_long_silence(&self, clock: u64) -> bool {
        self.counted
            .is_some_and(|counted| clock > counted + self.horizon)
    }

    /// Whether the server served nobody for longer than a step.
    pub(super) fn is_outage(&self, clock: u64) -> bool {
        self.counted
            .is_some_and(|counted| clock > counted + self.step)
    }
}
