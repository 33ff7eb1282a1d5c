//! Signals, as events.

use std::thread;
use std::time::Duration;

use crossbeam_channel::Sender;
use ratatui::crossterm::terminal::disable_raw_mode;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::iterator::Signals;

use super::Event;
use crate::exit::{Exit, Failure};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
    /// HUP, INT, QUIT or TERM: the number.
    End(i32),
    Stop,
    Continue,
    Resize,
}

pub(super) const HANGUP: i32 = SIGHUP;

/// How long the main loop has to end. It may be stuck: nobody reads what it writes to the terminal.
const GRACE: Duration = Duration::from_secs(2);

/// Turns signals into events from now on, in a thread of its own.
pub(super) fn listen(events: Sender<Event>) -> Result<(), Failure> {
    let numbers = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGCONT, SIGWINCH];
    let mut signals = Signals::new(numbers)
        .map_err(|error| Failure::internal(format!("no signal handlers: {error}")))?;
    thread::spawn(move || {
        for number in &mut signals {
            let signal = match number {
                SIGTSTP => Signal::Stop,
                SIGCONT => Signal::Continue,
                SIGWINCH => Signal::Resize,
                number => Signal::End(number),
            };
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
            if let Signal::End(number) = signal {
                thread::sleep(GRACE);
                // This waits for nobody, and a write to the terminal would.
                let _ = disable_raw_mode();
                std::process::exit(i32::from(Exit::of_signal(number).0));
            }
        }
    });
    Ok(())
}

/// Stops this process, until a shell continues it. There must be one.
pub(super) fn stop_here() {
    // It fails for no number but one that is no signal.
    let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
}

/// Stops all processes of the job, as the terminal does for ctrl-z outside raw mode: a script that
/// waits for this one has to stop as well, or its shell would not come back.
pub(super) fn stop_group() {
    let _ = rustix::process::kill_current_process_group(rustix::process::Signal::TSTP);
}
