//! Ids made from the seed of a run. The server sorts holders by their ids, so with random ids the
//! same seed would make another run.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};

use uuid::{Builder, Uuid};

thread_local! {
    /// The seed, and how many ids were made from it.
    static MADE: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
}

/// From now on, this thread makes its ids from the seed.
pub(crate) fn seed(seed: u64) {
    MADE.set(Some((seed, 0)));
}

/// An id of the run that this thread plays, if it plays one.
pub(super) fn next() -> Option<Uuid> {
    let (seed, made) = MADE.get()?;
    MADE.set(Some((seed, made + 1)));
    let half = |which: u8| {
        let mut hasher = DefaultHasher::new();
        (seed, made, which).hash(&mut hasher);
        hasher.finish()
    };
    Some(Builder::from_random_bytes(Uuid::from_u64_pair(half(0), half(1)).into_bytes()).into_uuid())
}
