//! The packed fields that only the simulator and the small worlds read and write.

use super::{Packed, PackedState, double};

impl PackedState {
    /// The state of a lock that nobody owns. The short way of a release leaves it as it is, and all
    /// scripts take a lease without an owner and without a hold as released.
    pub(crate) fn without_owner(self) -> PackedState {
        if self.hold > 0 || self.lease_end == 0 {
            return self;
        }
        PackedState {
            lease_end: 0,
            previous: 0,
            ..self
        }
    }
}

/// The field `q` of a mutex, `n` of permits: the state of the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PackedQueue {
    /// Entries in the list, dead ones included.
    pub(crate) entries: u32,
    pub(crate) waiter_records: u32,
    /// When `served_time` was brought up to date.
    pub(crate) looked_at: u64,
    /// In µs (R2, served time).
    pub(crate) served_time: u64,
    /// The last ticket that was given out.
    pub(crate) last_ticket: u64,
    /// The last ticket that was served.
    pub(crate) served_ticket: u64,
    /// When the list expires, in s.
    pub(crate) queue_expires_at: u32,
}

/// The field `p` of the holders: the state of permits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PackedPermits {
    /// The last fence that was not a reader's.
    pub(crate) fence: u64,
    /// No holder lapses before this; 0 if there is none.
    pub(crate) next_lapse: u64,
    /// In ms.
    pub(crate) shortest_lease: u32,
    /// In ms.
    pub(crate) longest_lease: u32,
    /// From one look at the holders to the next at least, in ms.
    pub(crate) look_pause: u32,
    /// When the record's key expires, in s.
    pub(crate) expires_at: u32,
    /// When the holders' key expires, in s.
    pub(crate) holders_expire_at: u32,
    pub(crate) capacity: u32,
    pub(crate) permits_taken: u32,
    /// How the last holder ended.
    pub(crate) previous: i8,
    /// 1 if the server may have been away when the look began that is under way.
    pub(crate) look_outage: i8,
}

/// A holder of permits. Its text follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedHolder {
    pub(crate) lease_end: u64,
    /// In ms.
    pub(crate) ttl: u32,
    /// In ms.
    pub(crate) hold: u32,
    /// How many permits it has.
    pub(crate) weight: u32,
    /// 0 and 1 hold, 2 cools, 3 lapsed, 4 was released by force.
    pub(crate) phase: i8,
    /// How the holder before it ended.
    pub(crate) previous: i8,
}

/// The field `m:<manager>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedStamp {
    /// The served time up to which the manager counts as alive.
    pub(crate) alive_until: u64,
    /// The server time at which these stamps began.
    pub(crate) since: u64,
}

impl PackedQueue {
    pub(crate) fn unpack(bytes: &[u8]) -> Option<PackedQueue> {
        let mut packed = Packed(bytes);
        Some(PackedQueue {
            entries: packed.word()?,
            waiter_records: packed.word()?,
            looked_at: packed.double()?,
            served_time: packed.double()?,
            last_ticket: packed.double()?,
            served_ticket: packed.double()?,
            queue_expires_at: packed.word()?,
        })
    }

    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut bytes = [self.entries, self.waiter_records]
            .map(u32::to_le_bytes)
            .concat();
        bytes.extend(
            [
                self.looked_at,
                self.served_time,
                self.last_ticket,
                self.served_ticket,
            ]
            .map(double)
            .concat(),
        );
        bytes.extend(self.queue_expires_at.to_le_bytes());
        bytes
    }
}

impl PackedStamp {
    pub(crate) fn unpack(bytes: &[u8]) -> Option<PackedStamp> {
        let mut packed = Packed(bytes);
        Some(PackedStamp {
            alive_until: packed.double()?,
            since: packed.double()?,
        })
    }

    pub(crate) fn pack(&self) -> Vec<u8> {
        [self.alive_until, self.since].map(double).concat()
    }
}

impl PackedPermits {
    pub(crate) fn unpack(bytes: &[u8]) -> Option<PackedPermits> {
        let mut packed = Packed(bytes);
        Some(PackedPermits {
            fence: packed.double()?,
            next_lapse: packed.double()?,
            shortest_lease: packed.word()?,
            longest_lease: packed.word()?,
            look_pause: packed.word()?,
            expires_at: packed.word()?,
            holders_expire_at: packed.word()?,
            capacity: packed.word()?,
            permits_taken: packed.word()?,
            previous: packed.byte()?,
            look_outage: packed.byte()?,
        })
    }

    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut bytes = [self.fence, self.next_lapse].map(double).concat();
        let words = [
            self.shortest_lease,
            self.longest_lease,
            self.look_pause,
            self.expires_at,
            self.holders_expire_at,
            self.capacity,
            self.permits_taken,
        ];
        bytes.extend(words.map(u32::to_le_bytes).concat());
        bytes.extend([self.previous, self.look_outage].map(|n| n as u8));
        bytes
    }
}

impl PackedHolder {
    /// With its text.
    pub(crate) fn unpack(bytes: &[u8]) -> Option<(PackedHolder, &[u8])> {
        let mut packed = Packed(bytes);
        let holder = PackedHolder {
            lease_end: packed.double()?,
            ttl: packed.word()?,
            hold: packed.word()?,
            weight: packed.word()?,
            phase: packed.byte()?,
            previous: packed.byte()?,
        };
        Some((holder, packed.0))
    }

    pub(crate) fn pack(&self, text: &str) -> Vec<u8> {
        let mut bytes = double(self.lease_end).to_vec();
        bytes.extend(
            [self.ttl, self.hold, self.weight]
                .map(u32::to_le_bytes)
                .concat(),
        );
        bytes.extend([self.phase, self.previous].map(|n| n as u8));
        bytes.extend(text.as_bytes());
        bytes
    }
}
