//! Served time: how long the server has been there for those who wait, by which the silent are told from the dead (R2).

use std::collections::BTreeMap;

/// All times are in µs, by the server's clock.
#[derive(Debug, Clone)]
pub(super) struct Served {
    step: u64,
    horizon: u64,
    total: u64,
    /// When it was brought up to date last.
    counted: Option<u64>,
    /// Served time at the last sign of life of each client.
    signs: BTreeMap<u8, u64>,
}

impl Served {
    pub(super) fn new(step: u64, horizon: u64) -> Served {
        Served {
            step,
            horizon,
            total: 0,
            counted: None,
            signs: BTreeMap::new(),
        }
    }

    /// That of a record which has yet to be made.
    pub(super) fn anew(&self) -> Served {
        Served::new(self.step, self.horizon)
    }

    /// Of the time between two requests no more than a step counts, and none if the clock went back.
    fn at(&self, clock: u64) -> u64 {
        self.total
            + self
                .counted
                .map_or(0, |counted| clock.saturating_sub(counted).min(self.step))
    }

    pub(super) fn count(&mut self, clock: u64) {
        (self.total, self.counted) = (self.at(clock), Some(clock));
    }

    pub(super) fn sign(&mut self, client: u8) {
        self.signs.insert(client, self.total);
    }

    /// Those of whom nothing was heard for longer than the horizon, a bit for each.
    pub(super) fn silent(&self, clock: u64) -> u128 {
        let now = self.at(clock);
        let silent = self.signs.iter().filter(|(_, at)| *at + self.horizon < now);
        silent.fold(0, |mask, (client, _)| mask | 1 << client)
    }

    /// Nobody was served for longer than a step.
    pub(super) fn is_outage(&self, clock: u64) -> bool {
        self.counted
            .is_some_and(|counted| clock > counted + self.step)
    }
}
