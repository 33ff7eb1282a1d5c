//! The signals that this process receives, in a channel.

use std::io;
use std::thread;

use crossbeam_channel::{Receiver, unbounded};
use rustix::process::{Signal, kill_current_process_group};
use signal_hook::iterator::{Handle, Signals as Incoming};
use signal_hook::low_level::emulate_default_handler;

use super::foreground::Foreground;
use crate::exit::{Exit, Failure};
use crate::logger;
use crate::processes::SignalSet;

/// They end a wait for the lock, and go to the command once it runs.
const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// They only go to the command. Before it runs, they do nothing.
const FOR_THE_COMMAND: [Signal; 2] = [Signal::USR1, Signal::USR2];
/// They would end this process by themselves, and the command would get KILL without a warning. So
/// they end the run in good order.
///
/// ILL, FPE, SEGV and BUS are not here: a process with such a fault cannot go on. Rust ignores
/// PIPE.
const FATAL: &[Signal] = &[
    Signal::TRAP,
    Signal::ABORT,
    Signal::ALARM,
    Signal::XCPU,
    Signal::XFSZ,
    Signal::VTALARM,
    Signal::PROF,
    Signal::SYS,
    #[cfg(target_os = "linux")]
    Signal::IO,
    #[cfg(target_os = "linux")]
    Signal::POWER,
    #[cfg(target_os = "linux")]
    Signal::STKFLT,
];

/// A signal that this process has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received(i32);

impl Received {
    /// `None` for a real-time signal.
    pub(super) fn signal(self) -> Option<Signal> {
        Signal::from_named_raw(self.0)
    }

    pub(super) fn number(self) -> i32 {
        self.0
    }

    /// Whether a wait for the lock ends with it.
    pub(super) fn ends_a_wait(self) -> bool {
        self.is_one_of(&ENDING) || self.ends_a_run()
    }

    /// Whether it ends the command in good order, and the run.
    pub(super) fn ends_a_run(self) -> bool {
        self.is_one_of(FATAL) || self.signal().is_none()
    }

    /// The signal, if a running command gets it.
    pub(super) fn for_the_command(self) -> Option<Signal> {
        let is_passed_on = self.is_one_of(&ENDING)
            || self.is_one_of(&FOR_THE_COMMAND)
            || self.signal() == Some(Signal::TSTP);
        self.signal().filter(|_| is_passed_on)
    }

    fn is_one_of(self, signals: &[Signal]) -> bool {
        self.signal()
            .is_some_and(|signal| signals.contains(&signal))
    }
}

/// The real-time signals, which end a process that has no handler for them.
fn real_time() -> impl Iterator<Item = i32> {
    #[cfg(target_os = "linux")]
    return libc::SIGRTMIN()..=libc::SIGRTMAX();
    #[cfg(not(target_os = "linux"))]
    return std::iter::empty();
}

/// The signals that this process receives from now on. None of them ends the process any more.
pub(super) struct Signals {
    pub(super) received: Receiver<Received>,
    handle: Handle,
    /// They were ignored when this process began, and stay so. The command ignores them too: so
    /// `nohup` and a script's `&` keep their meaning.
    ignored: SignalSet,
}

impl Signals {
    pub(super) fn start() -> Result<Signals, Failure> {
        let failed = |error| Failure::internal(format!("cannot receive signals: {error}"));
        let ignored = SignalSet::ignored();
        let named = ENDING.iter().chain(&FOR_THE_COMMAND).chain(FATAL);
        let all = named.map(|signal| signal.as_raw()).chain(real_time());
        let wanted = all.filter(|number| !ignored.contains(*number));
        let always = [Signal::CONT, Signal::CHILD].map(Signal::as_raw);
        let mut incoming = Incoming::new(wanted.chain(always)).map_err(failed)?;
        let handle = incoming.handle();
        let of_thread = handle.clone();
        let (sender, received) = unbounded();
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                while !of_thread.is_closed() {
                    let look = incoming.wait().map(Received);
                    for signal in in_order_sent(look.collect()) {
                        if sender.send(signal).is_err() {
                            return;
                        }
                    }
                }
            })
            .map_err(failed)?;
        Ok(Signals {
            received,
            handle,
            ignored,
        })
    }

    /// Receives TSTP too, for the command. Without a command, it just stops this process.
    pub(super) fn receive_stops(&self) -> io::Result<()> {
        if self.ignored.contains(Signal::TSTP.as_raw()) {
            return Ok(());
        }
        self.handle.add_signal(Signal::TSTP.as_raw())
    }

    /// The signals that came between the grant and the start of the command. `Err`: one of them
    /// ends the run before it.
    ///
    /// USR1 and USR2 are dropped, as during the wait. A program that has just begun has no handler
    /// for them yet, and they would end it.
    pub(super) fn early(&self) -> Result<Vec<Received>, Received> {
        let mut all: Vec<Received> = self.received.try_iter().collect();
        if let Some(signal) = all.iter().find(|signal| signal.ends_a_wait()) {
            return Err(*signal);
        }
        all.retain(|signal| !signal.is_one_of(&FOR_THE_COMMAND));
        Ok(all)
    }
}

/// The signals of one look, with a TSTP before a CONT.
///
/// A look finds signals by their numbers, where CONT comes first. But it was sent last: if a TSTP
/// comes after it, the kernel drops the CONT, unless its handler has run by then. A suspension ends
/// with that CONT, so a TSTP that stayed behind it would stop the command again.
fn in_order_sent(mut look: Vec<Received>) -> Vec<Received> {
    look.sort_by_key(|signal| signal.signal() == Some(Signal::CONT));
    look
}

/// The end of a run that the signal of this number has ended: 128 + n.
///
/// After Ctrl-C on a terminal, the process ends by the signal itself, which shells show as 130,
/// too. Only then does a shell end its loop or its script.
pub(super) fn end_by(number: i32, foreground: Option<&Foreground>) -> Exit {
    if number == Signal::INT.as_raw() && foreground.is_some_and(Foreground::is_ours) {
        logger::flush();
        // Returns only if the signal could not be raised.
        let _ = emulate_default_handler(number);
    }
    Exit::of_signal(number)
}

/// Does what the terminal does on Ctrl-C. The command's group had the terminal, so a script around
/// this process has not received the signal yet.
pub(super) fn interrupt_our_group() {
    let _ = kill_current_process_group(Signal::INT);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_comes_before_the_continuation_of_the_same_look() {
        let received = |signal: Signal| Received(signal.as_raw());
        let look = [Signal::CHILD, Signal::CONT, Signal::TSTP].map(received);
        let order = [Signal::CHILD, Signal::TSTP, Signal::CONT].map(received);
        assert_eq!(in_order_sent(look.to_vec()), order);
    }
}
