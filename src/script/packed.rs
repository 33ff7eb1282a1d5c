//! The packed fields of a record, as mutex_record.lua says.

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
#[cfg(feature = "sim")]
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

/// `m:<manager>`
#[cfg(feature = "sim")]
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
        let mut bytes = [self.end, self.granted, self.fence, self.ended].map(double).concat();
        bytes.extend([self.expires, self.ttl, self.hold].map(u32::to_le_bytes).concat());
        bytes.extend([self.previous, self.how].map(|n| n as u8));
        bytes
    }
}

#[cfg(feature = "sim")]
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
        bytes.extend([self.looked, self.served, self.given, self.taken].map(double).concat());
        bytes.extend(self.expires.to_le_bytes());
        bytes
    }
}

#[cfg(feature = "sim")]
impl Stamp {
    pub(crate) fn unpack(bytes: &[u8]) -> Option<Stamp> {
        let mut packed = Packed(bytes);
        Some(Stamp { until: packed.double()?, since: packed.double()? })
    }

    pub(crate) fn pack(&self) -> Vec<u8> {
        [self.until, self.since].map(double).concat()
    }
}
