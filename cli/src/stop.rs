//! Signals to a command that has something to delete before it ends.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};
use signal_hook::flag;

use crate::exit::{Exit, Failure};
use crate::output;

/// The number of the first signal; 0 before it. That of PIPE says that nobody reads the output.
#[derive(Clone)]
pub(crate) struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Takes HUP, INT and TERM from now on. A second one ends the process at once.
    pub(crate) fn listen() -> Result<Stop, Failure> {
        let (came, number) = (Arc::new(AtomicBool::new(false)), Arc::default());
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            // In this order: the first signal sets the flag that the second one finds.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&came))
                .and_then(|_| flag::register(signal, Arc::clone(&came)))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&number), signal as usize))
                .map_err(|error| Failure::internal(format!("no signal handlers: {error}")))?;
        }
        Ok(Stop(number))
    }

    /// It comes also as soon as nobody can read the output any more.
    pub(crate) fn or_unread(self) -> Stop {
        let stop = self.clone();
        thread::spawn(move || {
            output::wait_until_unread();
            stop.0.store(SIGPIPE as usize, Relaxed);
        });
        self
    }

    pub(crate) fn has_come(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    /// The code of a process that a signal ended. `None`: none did.
    pub(crate) fn exit(&self) -> Option<Exit> {
        match self.0.load(Relaxed) as i32 {
            0 | SIGPIPE => None,
            number => Some(Exit::of_signal(number)),
        }
    }
}
