//! The packed fields of a record, as mutex_record.lua and permit_record.lua say.

/// `s`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) end: u64,
    pub(crate) granted: u64,
    pub(crate) fence: u64,
    /// Of the last grant that ended without a release.
    pub(crate) ended: u64,
    /// In s.
    pub(crate) expires: u32,
    /// In ms.
    pub(crate) ttl: u32,
    pub(crate) hold: u32,
    pub(crate) previous: i8,
    pub(crate) how: i8,
}

/// `q`
#[cfg(any(all(test, feature = "memory"), fuzzing))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) entries: u32,
    pub(crate) waiters: u32,
    pub(crate) looked: u64,
    pub(crate) served: u64,
    pub(crate) given: u64,
    pub(crate) taken: u64,
    /// In s.
    pub(crate) expires: u32,
}

/// `p`
#[cfg(any(all(test, feature = "memory"), fuzzing))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Permits {
    /// The last that was not a reader's.
    pub(crate) fence: u64,
    /// No holder lapses before; 0 if there is none.
    pub(crate) look_from: u64,
    /// In ms.
    pub(crate) shortest: u32,
    pub(crate) longest: u32,
    /// In s.
    pub(crate) expires: u32,
    pub(crate) holders_expire: u32,
    pub(crate) capacity: u32,
    pub(crate) taken: u32,
    pub(crate) how: i8,
}

/// Of a holder of permits; then come its words.
#[cfg(any(all(test, feature = "memory"), fuzzing))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) end: u64,
    /// In ms.
    pub(crate) ttl: u32,
    pub(crate) hold: u32,
    pub(crate) permits: u32,
    pub(crate) stands: i8,
    pub(crate) previous: i8,
}

/// `m:<manager>`
#[cfg(any(all(test, feature = "memory"), fuzzing))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) until: u64,
    pub(crate) since: u64,
}

/// Takes numbers off the front.
struct Packed<'a>(&'a [u8]);

impl Packed<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*number)
    }

    /// Whole, as all of them are.
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

/// A holder of permits whose time is over by then, grace included; `None` for one that holds none any more.
pub(crate) fn over(holder: &[u8], end: u64) -> Option<Vec<u8>> {
    const STANDS: usize = 20;
    const HOLDS: u8 = 1;
    let mut over = holder.to_vec();
    over.get_mut(..8)?.copy_from_slice(&double(end));
    let stands = over.get_mut(STANDS)?;
    let holds = *stands <= HOLDS;
    *stands = HOLDS;
    holds.then_some(over)
}

/// The state of permits, with their holders to be looked at from then on.
pub(crate) fn look_at(state: &[u8], from: u64) -> Option<Vec<u8>> {
    let mut state = state.to_vec();
    state.get_mut(8..16)?.copy_from_slice(&double(from));
    Some(state)
}

fn double(number: u64) -> [u8; 8] {
    (number as f64).to_le_bytes()
}

impl State {
    pub(crate) fn unpack(bytes: &[u8]) -> Option<State> {
        let mut packed = Packed(bytes);
        Some(State {
            end: packed.double()?,
            granted: packed.double()?,
            fence: packed.double()?,
            ended: packed.double()?,
            expires: packed.word()?,
            ttl: packed.word()?,
            hold: packed.word()?,
            previous: packed.byte()?,
            how: packed.byte()?,
        })
    }

    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut bytes = [self.end, self.granted, self.fence, self.ended]
            .map(double)
            .concat();
        bytes.extend(
            [self.expires, self.ttl, self.hold]
                .map(u32::to_le_bytes)
                .concat(),
        );
        bytes.extend([self.previous, self.how].map(|n| n as u8));
        bytes
    }
}

#[cfg(any(all(test, feature = "memory"), fuzzing))]
impl Queue {
    pub(crate) fn unpack(bytes: &[u8]) -> Option<Queue> {
        let mut packed = Packed(bytes);
        Some(Queue {
            entries: packed.word()?,
            waiters: packed.word()?,
            looked: packed.double()?,
            served: packed.double()?,
            given: packed.double()?,
            taken: packed.double()?,
            expires: packed.word()?,
        })
    }

    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut bytes = [self.entries, self.waiters].map(u32::to_le_bytes).concat();
        bytes.extend(
            [self.looked, self.served, self.given, self.taken]
                .map(double)
                .concat(),
        );
        bytes.extend(self.expires.to_le_bytes());
        bytes
    }
}

#[cfg(any(all(test, feature = "memory"), fuzzing))]
impl Stamp {
    pub(crate) fn unpack(bytes: &[u8]) -> Option<Stamp> {
        let mut packed = Packed(bytes);
        Some(Stamp {
            until: packed.double()?,
            since: packed.double()?,
        })
    }

    pub(crate) fn pack(&self) -> Vec<u8> {
        [self.until, self.since].map(double).concat()
    }
}

#[cfg(any(all(test, feature = "memory"), fuzzing))]
impl Permits {
    pub(crate) fn unpack(bytes: &[u8]) -> Option<Permits> {
        let mut packed = Packed(bytes);
        Some(Permits {
            fence: packed.double()?,
            look_from: packed.double()?,
            shortest: packed.word()?,
            longest: packed.word()?,
            expires: packed.word()?,
            holders_expire: packed.word()?,
            capacity: packed.word()?,
            taken: packed.word()?,
            how: packed.byte()?,
        })
    }

    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut bytes = [self.fence, self.look_from].map(double).concat();
        let words = [
            self.shortest,
            self.longest,
            self.expires,
            self.holders_expire,
            self.capacity,
            self.taken,
        ];
        bytes.extend(words.map(u32::to_le_bytes).concat());
        bytes.push(self.how as u8);
        bytes
    }
}

#[cfg(any(all(test, feature = "memory"), fuzzing))]
impl Holder {
    /// With its words.
    pub(crate) fn unpack(bytes: &[u8]) -> Option<(Holder, &[u8])> {
        let mut packed = Packed(bytes);
        let holder = Holder {
            end: packed.double()?,
            ttl: packed.word()?,
            hold: packed.word()?,
            permits: packed.word()?,
            stands: packed.byte()?,
            previous: packed.byte()?,
        };
        Some((holder, packed.0))
    }

    pub(crate) fn pack(&self, words: &str) -> Vec<u8> {
        let mut bytes = double(self.end).to_vec();
        bytes.extend(
            [self.ttl, self.hold, self.permits]
                .map(u32::to_le_bytes)
                .concat(),
        );
        bytes.extend([self.stands, self.previous].map(|n| n as u8));
        bytes.extend(words.as_bytes());
        bytes
    }
}
