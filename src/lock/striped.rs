//! A fixed number of mutexes for many keys.

use std::fmt;
use std::sync::Arc;

use super::Mutex;
use super::handle::RefusedName;
use crate::error::Error;
use crate::manager::LockManager;

impl LockManager {
    /// A fixed number of mutexes under one name. Each is for a part of all keys (lock striping).
    ///
    /// Never blocks; no I/O. If the name is not allowed, or there is no stripe, the verbs of the
    /// mutexes return [`Misused`](crate::Error::Misused).
    ///
    /// ```no_run
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// let accounts = mgr.striped("accounts", 64);
    /// let _guard = accounts.mutex(b"4711").lock()?;
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    #[must_use = "this handle takes no lock until one of its verbs is called"]
    pub fn striped(&self, name: impl AsRef<str>, stripes: u32) -> Striped {
        let name = name.as_ref();
        let longest = format!("{name}:{}", stripes.saturating_sub(1));
        let refused = if stripes == 0 {
            // Nobody can lock a name that is empty, so `lock_all` refuses it, too.
            Some(RefusedName {
                name: "".into(),
                why: Error::setting("stripes", "at least one; there is none"),
            })
        } else {
            [name, &longest].into_iter().find_map(|name| {
                let why = self.key(name).err()?;
                let name = name.into();
                Some(RefusedName { name, why })
            })
        };
        Striped {
            manager: self.clone(),
            name: name.into(),
            stripes,
            refused,
        }
    }
}

/// A fixed number of mutexes, each for a part of all keys.
///
/// However many keys there are, Redis keeps only one record for each stripe. The mutex of stripe
/// `i`, counted from 0, has the name `{name}:{i}`.
///
/// The stripe of a key is its 64-bit
/// [FNV-1a](https://datatracker.ietf.org/doc/html/draft-eastlake-fnv-21) hash, folded to 32 bits
/// (the upper half xor the lower half, as in section 3 of the draft), modulo the number of stripes.
/// All later versions compute it in the same way. So processes of different versions agree, and
/// other programs can compute it too.
///
/// # Guarantees
/// All that [`Mutex`] guarantees. Two keys of one stripe share one mutex, so no key ever has two
/// holders.
///
/// # Limits
/// - Processes that share a name must use the same number of stripes. With another number a key has
///   another mutex, and both can be held at once.
/// - Two keys can have the same stripe. So a thread that holds the mutex of one key and locks that
///   of another may deadlock. To hold several keys at once, pass the [names](Mutex::name) of their
///   mutexes to [`lock_all`](LockManager::lock_all), which takes each once.
#[derive(Clone)]
pub struct Striped {
    manager: LockManager,
    name: Arc<str>,
    stripes: u32,
    /// Why no stripe can be used. Then their mutexes refuse every verb.
    refused: Option<RefusedName>,
}

impl Striped {
    /// The mutex of a key, which it shares with the other keys of its stripe. Never blocks.
    pub fn mutex(&self, key: impl AsRef<[u8]>) -> Mutex {
        match &self.refused {
            Some(refused) => Mutex::refused(&self.manager, refused.clone()),
            None => self
                .manager
                .mutex(format!("{}:{}", self.name, self.stripe(key.as_ref()))),
        }
    }

    /// The number of the stripe of a key, from 0.
    fn stripe(&self, key: &[u8]) -> u32 {
        let hash = fnv_1a(key);
        // Without the fold, a low bit of the hash depends only on low bits of the key. Then keys
        // like `7:7` share few stripes.
        ((hash >> 32) ^ hash) as u32 % self.stripes.max(1)
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

/// With the offset basis and the prime from section 5 of draft-eastlake-fnv.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vectors from section 7 of draft-eastlake-fnv.
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
