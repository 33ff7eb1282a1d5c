//! Signals that end the measurements early. Locks that are held are still released.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::exit::{Exit, Failure};

/// Whether a signal came, and which.
#[derive(Debug, Clone)]
pub(super) struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// Takes HUP, INT and TERM from now on. A second one ends the process at once.
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
        Ok(Interrupt(number))
    }

    pub(super) fn signal(&self) -> Option<i32> {
        let number = self.0.load(Ordering::Relaxed);
        i32::try_from(number).ok().filter(|number| *number != 0)
    }
}
