//! The mutexes and atomics of the state that threads share. These are parking_lot's and std's.
//!
//! Under `cfg(fairlock_loom)` they are loom's. Then `engine/loom_models.rs`, `local/loom_models.rs` and
//! `store/node/lane/models.rs` run that state through every possible interleaving of the threads.

#[cfg(not(fairlock_loom))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(fairlock_loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, fence};
#[cfg(not(fairlock_loom))]
pub(crate) use std::thread::yield_now;

#[cfg(fairlock_loom)]
pub(crate) use model::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, fence, yield_now};

/// loom's types, with the methods that parking_lot's have.
#[cfg(fairlock_loom)]
mod model {
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    pub(crate) use loom::sync::MutexGuard;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, fence};
    pub(crate) use loom::thread::yield_now;

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0
                .lock()
                .expect("a model ends at its first panic, so no mutex is poisoned")
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    /// A model never sleeps: its threads look once, as if their deadline had passed. A model can ask
    /// at its end whether somebody would have been woken.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(std::sync::atomic::AtomicBool);

    impl Condvar {
        pub(crate) fn new() -> Condvar {
            Condvar::default()
        }

        pub(crate) fn notify_one(&self) {
            self.0.store(true, Relaxed);
        }

        pub(crate) fn notify_all(&self) {
            self.notify_one();
        }

        pub(crate) fn was_notified(&self) -> bool {
            self.0.load(Relaxed)
        }

        pub(crate) fn wait<T>(&self, _: &mut MutexGuard<'_, T>) {
            unreachable!("models do not sleep")
        }

        pub(crate) fn wait_for<T>(&self, _: &mut MutexGuard<'_, T>, _: Duration) {
            unreachable!("models do not sleep")
        }
    }
}
