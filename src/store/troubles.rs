//! When a store last had trouble with its servers.

use std::sync::atomic::{AtomicU64, Ordering};

use super::clock::Clock;

/// When something last happened after which a server may lack what it had before, or may be another
/// one: a connection ended, or other servers serve from now on. All connections of a store note it here.
///
/// A reply to a request that was sent after that moment shows what the server has by now.
pub(crate) struct Troubles {
    clock: Clock,
    /// In ns. 0: there was none.
    last: AtomicU64,
}

impl Troubles {
    pub(crate) fn new(clock: Clock) -> Troubles {
        Troubles {
            clock,
            last: AtomicU64::new(0),
        }
    }

    /// To be called before any caller learns of the trouble. Each call makes [`Troubles::last`] larger.
    pub(crate) fn note(&self) {
        let now = self.clock.now().as_nanos();
        // No other memory depends on it.
        let _ = self
            .last
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                Some(now.max(last + 1))
            });
    }

    /// The moment of the last trouble, in ns of the store's clock; 0 if there was none.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trouble_has_a_larger_mark_that_is_no_earlier() {
        let clock = Clock::default();
        let troubles = Troubles::new(clock.clone());
        assert_eq!(troubles.last(), 0);
        let mut last = 0;
        for _ in 0..1000 {
            let before = clock.now().as_nanos();
            troubles.note();
            assert!(troubles.last() > last && troubles.last() >= before);
            last = troubles.last();
        }
    }
}
