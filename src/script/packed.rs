//! The packed fields of a record. The names are those of the scripts' locals: mutex_record.lua,
//! permit_record.lua and queue_record.lua say what each means.

#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
#[path = "../../tests/sim/packed_fields.rs"]
mod packed_fields;

#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
pub(crate) use packed_fields::*;

/// The field `s`: the state of a mutex.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PackedState {
    /// Server time in µs; also of a cooling. 0 when the lock is cleared.
    pub(crate) lease_end: u64,
    pub(crate) granted_at: u64,
    /// The fence of the newest grant.
    pub(crate) fence: u64,
    /// The fence of the last grant that ended without a release.
    pub(crate) ended_fence: u64,
    /// When the record's key expires, in s.
    pub(crate) expires_at: u32,
    /// In ms.
    pub(crate) ttl: u32,
    /// In ms.
    pub(crate) hold: u32,
    /// How the last holder ended.
    pub(crate) previous: i8,
    /// How the grant with `ended_fence` ended.
    pub(crate) ended_how: i8,
}

/// Takes numbers off the front.
struct Packed<'a>(&'a [u8]);

impl Packed<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*number)
    }

    /// A whole number, as all of Lua's are here.
    fn double(&mut self) -> Option<u64> {
        Some(f64::from_le_bytes(self.take()?) as u64)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn byte(&mut self) -> Option<i8> {
        self.take().map(i8::from_le_bytes)
    }
}

/// The packed holder with its lease over at that time, and its grace used up. `None` if it does not
/// hold permits any more.
pub(crate) fn end_lease(holder: &[u8], lease_end: u64) -> Option<Vec<u8>> {
    const PHASE: usize = 20;
    const HAD_GRACE: u8 = 1;
    let mut ended = holder.to_vec();
    ended.get_mut(..8)?.copy_from_slice(&double(lease_end));
    let phase = ended.get_mut(PHASE)?;
    let holds = *phase <= HAD_GRACE;
    *phase = HAD_GRACE;
    holds.then_some(ended)
}

/// How many bytes the numbers in the state of permits have. The cursor of a look follows them.
const STATE_LENGTH: usize = 46;

/// The packed state of permits with this `next_lapse`, and no look under way: from then on the
/// scripts look at all holders.
pub(crate) fn begin_look(state: &[u8], next_lapse: u64) -> Option<Vec<u8>> {
    let mut state = state.get(..STATE_LENGTH)?.to_vec();
    state.get_mut(8..16)?.copy_from_slice(&double(next_lapse));
    Some(state)
}

/// Whether a look at the holders is under way.
pub(crate) fn is_looking(state: &[u8]) -> bool {
    state.len() > STATE_LENGTH
}

fn double(number: u64) -> [u8; 8] {
    (number as f64).to_le_bytes()
}

impl PackedState {
    pub(crate) fn unpack(bytes: &[u8]) -> Option<PackedState> {
        let mut packed = Packed(bytes);
        Some(PackedState {
            lease_end: packed.double()?,
            granted_at: packed.double()?,
            fence: packed.double()?,
            ended_fence: packed.double()?,
            expires_at: packed.word()?,
            ttl: packed.word()?,
            hold: packed.word()?,
            previous: packed.byte()?,
            ended_how: packed.byte()?,
        })
    }

    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut bytes = [
            self.lease_end,
            self.granted_at,
            self.fence,
            self.ended_fence,
        ]
        .map(double)
        .concat();
        bytes.extend(
            [self.expires_at, self.ttl, self.hold]
                .map(u32::to_le_bytes)
                .concat(),
        );
        bytes.extend([self.previous, self.ended_how].map(|n| n as u8));
        bytes
    }
}
