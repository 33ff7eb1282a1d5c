//! Calls of code that is not ours, which may hang or panic: the program's providers, and files on a
//! file system that is gone. Each call has a thread of its own, and its caller a deadline.

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crossbeam_channel::{TryRecvError, bounded};

use super::clock::{Clock, Time};
use crate::logging::Logger;

/// So many calls may go on although their callers have given up. Then no other begins: a provider
/// that hangs for good must not cost a thread for each connection.
const MOST_GIVEN_UP: usize = 8;

/// Why there is no result.
pub(super) type NoResult = Box<dyn StdError + Send + Sync>;

/// Counts the calls that nobody waits for any more.
#[derive(Debug, Clone, Default)]
pub(super) struct ForeignCalls {
    given_up: Arc<AtomicUsize>,
    /// No other call begins now. The log says so once.
    is_full: Arc<AtomicBool>,
}

/// One call. Its thread and its caller find out here which of them was first.
struct Race {
    is_decided: AtomicBool,
    given_up: Arc<AtomicUsize>,
}

impl ForeignCalls {
    /// The result of `call`. An error if it takes longer than until `until`, if it panics, or if too
    /// many calls before it still hang. `what` names the code in the error.
    pub(super) fn run<T: Send + 'static>(
        &self,
        what: &str,
        clock: &Clock,
        until: Time,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoResult> {
        let fault = |why: String| Err(why.into());
        if self.given_up.load(Ordering::Acquire) >= MOST_GIVEN_UP {
            if !self.is_full.swap(true, Ordering::AcqRel) {
                log::warn!(
                    logger: Logger,
                    "{what} hangs in several calls, and is not tried again until one ends"
                );
            }
            return fault(format!(
                "{what} hangs in {MOST_GIVEN_UP} calls, and is not tried again"
            ));
        }
        self.is_full.store(false, Ordering::Release);
        let race = Arc::new(Race {
            is_decided: AtomicBool::new(false),
            given_up: Arc::clone(&self.given_up),
        });
        let (sender, receiver) = bounded(1);
        let of_thread = RaceEnd(Arc::clone(&race));
        thread::Builder::new()
            .name("fairlock-ask".to_owned())
            .spawn(move || {
                // It ends behind the sender, also by a panic.
                let _ended = of_thread;
                let sender = sender;
                let _ = sender.send(call());
            })?;
        if let Some(result) = clock.receive(&receiver, until) {
            return Ok(result);
        }
        match receiver.try_recv() {
            Ok(result) => Ok(result),
            Err(TryRecvError::Disconnected) => fault(format!("{what} panicked")),
            Err(TryRecvError::Empty) => {
                self.given_up.fetch_add(1, Ordering::AcqRel);
                if !race.is_first() {
                    // It ended just now.
                    self.given_up.fetch_sub(1, Ordering::AcqRel);
                }
                fault(format!("{what} took too long"))
            }
        }
    }
}

impl Race {
    fn is_first(&self) -> bool {
        !self.is_decided.swap(true, Ordering::AcqRel)
    }
}

/// The thread's end of the race.
struct RaceEnd(Arc<Race>);

impl Drop for RaceEnd {
    fn drop(&mut self) {
        if !self.0.is_first() {
            self.0.given_up.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(8);

    fn run(
        calls: &ForeignCalls,
        within: Duration,
        call: impl FnOnce() -> u32 + Send + 'static,
    ) -> Result<u32, String> {
        let clock = Clock::default();
        let until = clock.now() + within;
        let ran = calls.run("the thing", &clock, until, call);
        ran.map_err(|why| why.to_string())
    }

    #[test]
    fn calls_that_hang_are_bounded_until_they_end() {
        let calls = ForeignCalls::default();
        let (release, hang) = bounded::<()>(0);
        for _ in 0..MOST_GIVEN_UP {
            let hang = hang.clone();
            let late =
                run(&calls, SHORT, move || hang.recv().map_or(1, |()| 2)).expect_err("it hangs");
            assert!(late.contains("the thing took too long"), "{late}");
        }
        let refused = run(&calls, LONG, || 3).expect_err("too many hang");
        assert!(refused.contains("is not tried again"), "{refused}");
        drop(release);
        let clock = Clock::default();
        let until = clock.now() + LONG;
        while run(&calls, LONG, || 4) != Ok(4) {
            assert!(clock.now() < until, "calls that ended still count");
            thread::yield_now();
        }
    }

    #[test]
    fn panic_is_an_error_of_its_call_alone() {
        let calls = ForeignCalls::default();
        for _ in 0..=MOST_GIVEN_UP {
            let fault = run(&calls, LONG, || panic!("on purpose")).expect_err("it panics");
            assert!(fault.contains("the thing panicked"), "{fault}");
        }
        assert_eq!(run(&calls, LONG, || 5), Ok(5));
    }
}
