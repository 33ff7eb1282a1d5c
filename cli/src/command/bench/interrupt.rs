//! Ends the measurements early: after a signal, and when nobody reads the output any more.
//! Locks that are held are still released.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::exit::{Exit, Failure};
use crate::output;

/// Whether the measurements end early, and by which signal.
#[derive(Debug, Clone)]
pub(super) struct Interrupt {
    signal: Arc<AtomicUsize>,
    is_unread: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes HUP, INT and TERM from now on, and watches the output.
    /// A second signal ends the process at once.
    pub(super) fn listen() -> Result<Interrupt, Failure> {
        let (number, came) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            let exit = i32::from(Exit::of_signal(signal).0);
            // In this order: the first signal sets the flag that the second one finds.
            let registered = flag::register_conditional_shutdown(signal, exit, Arc::clone(&came))
                .and_then(|_| flag::register(signal, Arc::clone(&came)))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&number), signal as usize));
            registered
                .map_err(|error| Failure::internal(format!("no signal handlers: {error}")))?;
        }
        let is_unread = Arc::new(AtomicBool::new(false));
        let unread = Arc::clone(&is_unread);
        let watch = move || {
            while !output::is_closed_within(Duration::from_secs(3600)) {}
            unread.store(true, Ordering::Relaxed);
        };
        thread::Builder::new()
            .name("output".into())
            .spawn(watch)
            .map_err(|error| Failure::internal(format!("cannot watch the output: {error}")))?;
        Ok(Interrupt {
            signal: number,
            is_unread,
        })
    }

    /// Whether the measurements are to end now.
    pub(super) fn has_come(&self) -> bool {
        self.signal().is_some() || self.is_unread.load(Ordering::Relaxed)
    }

    pub(super) fn signal(&self) -> Option<i32> {
        let number = self.signal.load(Ordering::Relaxed);
        i32::try_from(number).ok().filter(|number| *number != 0)
    }
}
