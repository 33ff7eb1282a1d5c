//! Many keys on a fixed number of mutexes.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::Mutex;
use crate::manager::LockManager;

impl LockManager {
    /// So many mutexes under one name, each for a part of all keys (lock striping).
    ///
    /// Costs no I/O. A name that is not allowed is refused when a mutex is used.
    ///
    /// ```no_run
    /// # use std::num::NonZeroU32;
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let accounts = mgr.striped("accounts", const { NonZeroU32::new(64).unwrap() });
    /// let _guard = accounts.mutex(b"4711").lock()?;
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    pub fn striped(&self, name: &str, stripes: NonZeroU32) -> Striped {
        let longest = format!("{name}:{}", stripes.get() - 1);
        let refused = [name, &longest]
            .into_iter()
            .find(|name| self.key(name).is_err())
            .map(Arc::from);
        Striped {
            manager: self.clone(),
            name: name.into(),
            stripes,
            refused,
        }
    }
}

/// A fixed number of mutexes, each for a part of all keys: Redis keeps as many records as there are stripes, however many
/// keys there are.
///
/// The mutex of stripe `i` is the one named `{name}:{i}`, from 0. A key's stripe is its 64-bit
/// [FNV-1a](https://datatracker.ietf.org/doc/html/draft-eastlake-fnv-21) hash, folded to 32 bits (the upper half xor the
/// lower, as the draft's section 3 has it), modulo the number of stripes; in this and all later versions, so that processes
/// of different versions agree, and other programs can.
///
/// # Guarantees
/// Whoever holds the mutex of a key holds what all its stripe's keys have in common: two holders never have one key. All
/// that [`Mutex`] guarantees.
///
/// # Limits
/// Processes that share a name must agree on the number of stripes: with another number a key has another mutex, and both
/// can be held. Two keys can have one stripe, so a thread that holds one key's mutex and asks for another key's may wait
/// for itself; to hold several keys at once, pass the [names](Mutex::name) of their mutexes to
/// [`lock_all`](LockManager::lock_all), which takes each once.
#[derive(Clone)]
pub struct Striped {
    manager: LockManager,
    name: Arc<str>,
    stripes: NonZeroU32,
    /// A name that is not allowed, if one of the stripes would have one.
    refused: Option<Arc<str>>,
}

impl Striped {
    /// The mutex that a key has in common with the others of its stripe.
    pub fn mutex(&self, key: impl AsRef<[u8]>) -> Mutex {
        match &self.refused {
            Some(refused) => self.manager.mutex(refused),
            None => self
                .manager
                .mutex(&format!("{}:{}", self.name, self.stripe(key))),
        }
    }

    /// The number of a key's stripe, from 0.
    pub fn stripe(&self, key: impl AsRef<[u8]>) -> u32 {
        let hash = fnv_1a(key.as_ref());
        // Unfolded, a low bit of the hash depends on low bits of the key alone, and keys like `7:7` share few stripes.
        ((hash >> 32) ^ hash) as u32 % self.stripes
    }

    /// How many stripes there are.
    pub fn stripes(&self) -> NonZeroU32 {
        self.stripes
    }
}

impl fmt::Debug for Striped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Striped")
            .field("name", &self.name)
            .field("stripes", &self.stripes)
            .finish_non_exhaustive()
    }
}

/// The offset basis and the prime are those of draft-eastlake-fnv, section 5.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vectors of draft-eastlake-fnv, section 7.
    #[test]
    fn keys_hash_as_the_draft_says() {
        for (bytes, hash) in [
            (&b""[..], 0xcbf2_9ce4_8422_2325),
            (b"a", 0xaf63_dc4c_8601_ec8c),
            (b"foobar", 0x8594_4171_f739_67e8),
        ] {
            assert_eq!(fnv_1a(bytes), hash, "{bytes:?}");
        }
    }
}
