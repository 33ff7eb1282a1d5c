//! One node: a server with a clock, a keyspace and an uptime of its own.

use super::MS;
use crate::key::Key;
use crate::script::{Call, CallerId, ScriptReply, Token};
use crate::store::memory::keyspace::Keyspace;
use crate::store::memory::server::ScriptServer;

/// A clock that runs a little too fast or too slow, in µs.
#[derive(Debug, Clone, Copy)]
pub(super) struct DriftingClock {
    pub(super) offset: u64,
    pub(super) ppm: i64,
}

impl DriftingClock {
    /// The time that it shows at a true time.
    pub(super) fn at(&self, now: u64) -> u64 {
        (self.offset + now).wrapping_add_signed(now as i64 * self.ppm / 1_000_000)
    }

    /// A true time at which it shows this or a little more.
    pub(super) fn true_time(&self, shown: u64) -> u64 {
        let passed = shown.saturating_sub(self.offset);
        let rate = (1_000_000 + self.ppm) as u128;
        (u128::from(passed) * 1_000_000 / rate) as u64 + 1
    }
}

pub(super) struct SimNode {
    pub(super) clock: DriftingClock,
    keyspace: Keyspace,
    /// True times.
    pub(super) up_since: u64,
    pub(super) down_until: u64,
    pub(super) hangs_until: u64,
}

/// The contents of a record.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct NodeRecord {
    pub(super) owner: Option<Token>,
    /// By the node's clock.
    pub(super) lease_end: u64,
    pub(super) fence: u64,
    pub(super) has_expiry: bool,
}

impl SimNode {
    pub(super) fn new(clock: DriftingClock) -> SimNode {
        SimNode {
            clock,
            keyspace: Keyspace::default(),
            up_since: 0,
            down_until: 0,
            hangs_until: 0,
        }
    }

    /// Stops the server. It comes back without its data.
    pub(super) fn restart(&mut self, now: u64, back_after: u64) {
        self.keyspace = Keyspace::default();
        self.down_until = now + back_after;
        self.up_since = self.down_until;
    }

    /// The least uptime that a client can take from INFO, in µs.
    pub(super) fn least_uptime(&self, now: u64) -> u64 {
        let seconds = (now - self.up_since) / (1000 * MS);
        seconds.saturating_sub(1) * 1000 * MS
    }

    pub(super) fn run(
        &mut self,
        server: &mut ScriptServer,
        now: u64,
        call: &Call,
        caller: &CallerId,
        not_after: u64,
    ) -> Result<ScriptReply, String> {
        std::mem::swap(&mut self.keyspace, &mut server.state().keyspace);
        let reply = server.run_call(self.clock.at(now), call, caller, not_after);
        std::mem::swap(&mut self.keyspace, &mut server.state().keyspace);
        reply
    }

    pub(super) fn record(&self, key: &Key) -> Option<NodeRecord> {
        let (fields, expires_at) = self.keyspace.hash_of(key.record())?;
        let packed = fields.get(&b"g"[..])?;
        let double = |at: usize| {
            let bytes = packed[8 * at..8 * at + 8].try_into().expect("8 bytes");
            f64::from_le_bytes(bytes) as u64
        };
        let owner = fields.get(&b"o"[..]);
        let owner = owner.and_then(|owner| Token::parse(std::str::from_utf8(owner).ok()?));
        Some(NodeRecord {
            owner,
            lease_end: double(0),
            fence: double(2),
            has_expiry: expires_at.is_some(),
        })
    }
}
