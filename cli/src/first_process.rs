//! Signals to the first process of a container.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::getpid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag::register_conditional_shutdown;

use crate::exit::Exit;

/// Ends this process by the signals that end other processes, if it is the first of its container.
///
/// The kernel gives such a process only the signals that it handles. Without this, `docker stop`
/// and Ctrl-C would do nothing.
pub(crate) fn end_by_signals() {
    if !getpid().is_init() {
        return;
    }
    let always = Arc::new(AtomicBool::new(true));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        let exit = i32::from(Exit::of_signal(signal).0);
        // Without a handler it goes on, and is ended by KILL in the end.
        let _ = register_conditional_shutdown(signal, exit, Arc::clone(&always));
    }
}
