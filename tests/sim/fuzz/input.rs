//! The bytes of a fuzzer, read as choices.
//!
//! Each target reads its input from front to back, and every choice takes some bytes. So a fuzzer
//! that changes one byte changes one choice. The inputs in `fuzz/corpus` keep their meaning only
//! while the order and the number of these reads stay the same.

/// The input that is left. Past its end, everything reads as zero.
pub(super) struct FuzzInput<'a>(&'a [u8]);

/// Numbers at which sums of µs, ms and ns overflow, and times that a server's clock shows.
const EDGES: [u64; 12] = [
    0,
    1,
    999,
    1_000_000,
    10_000_000,
    86_400_000_000,
    1_700_000_000_000_000,
    1_700_000_010_000_000,
    i64::MAX as u64,
    i64::MAX as u64 + 1,
    u64::MAX / 1000,
    u64::MAX,
];

impl<'a> FuzzInput<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> FuzzInput<'a> {
        FuzzInput(bytes)
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// A number less than `end`, which is at most 255.
    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    pub(super) fn one_in(&mut self, n: u8) -> bool {
        self.byte() % n == n - 1
    }

    pub(super) fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(super) fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.byte().into(),
            1 => self.choose(&EDGES),
            2 => self
                .choose(&EDGES)
                .wrapping_add_signed(i64::from(self.byte() as i8)),
            _ => std::iter::repeat_with(|| self.byte())
                .take(8)
                .fold(0, |n, byte| n << 8 | u64::from(byte)),
        }
    }

    pub(super) fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(super) fn text(&mut self) -> String {
        let length = self.byte().into();
        String::from_utf8_lossy(self.bytes(length)).into_owned()
    }

    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }
}
