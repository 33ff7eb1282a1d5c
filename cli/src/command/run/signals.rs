//! The signals that this process receives, in a channel.

use std::fs;
use std::io;
use std::thread;

use crossbeam_channel::{Receiver, unbounded};
use rustix::process::{Signal, kill_current_process_group};
use signal_hook::iterator::{Handle, Signals as Incoming};
use signal_hook::low_level::emulate_default_handler;

use super::foreground::Foreground;
use crate::exit::{Exit, Failure};

/// They end a wait for the lock, and go to the command once it runs.
const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// They only go to the command. Before it runs, they do nothing.
const FOR_THE_COMMAND: [Signal; 2] = [Signal::USR1, Signal::USR2];

/// The signals that this process receives from now on. None of them ends the process any more.
pub(super) struct Signals {
    pub(super) received: Receiver<Signal>,
    handle: Handle,
    ignored: Ignored,
}

impl Signals {
    pub(super) fn start() -> Result<Signals, Failure> {
        let failed = |error| Failure::internal(format!("cannot receive signals: {error}"));
        let ignored = Ignored::read();
        let all = ENDING.iter().chain(&FOR_THE_COMMAND);
        let wanted = all.filter(|signal| !ignored.contains(**signal));
        let always = [Signal::CONT, Signal::CHILD];
        let mut incoming =
            Incoming::new(wanted.chain(&always).map(|s| s.as_raw())).map_err(failed)?;
        let handle = incoming.handle();
        let of_thread = handle.clone();
        let (sender, received) = unbounded();
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                while !of_thread.is_closed() {
                    let raw = incoming.wait().filter_map(Signal::from_named_raw);
                    for signal in in_order_sent(raw.collect()) {
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
        if self.ignored.contains(Signal::TSTP) {
            return Ok(());
        }
        self.handle.add_signal(Signal::TSTP.as_raw())
    }

    /// The signals that came between the grant and the start of the command. `Err`: one of them
    /// ends the run before it.
    ///
    /// USR1 and USR2 are dropped, as during the wait. A program that has just begun has no handler
    /// for them yet, and they would end it.
    pub(super) fn early(&self) -> Result<Vec<Signal>, Signal> {
        let mut all: Vec<Signal> = self.received.try_iter().collect();
        if let Some(signal) = all.iter().find(|signal| ends_a_wait(**signal)) {
            return Err(*signal);
        }
        all.retain(|signal| !FOR_THE_COMMAND.contains(signal));
        Ok(all)
    }
}

/// The signals of one look, with a TSTP before a CONT.
///
/// A look finds signals by their numbers, where CONT comes first. But it was sent last: if a TSTP
/// comes after it, the kernel drops the CONT, unless its handler has run by then. A suspension ends
/// with that CONT, so a TSTP that stayed behind it would stop the command again.
fn in_order_sent(mut look: Vec<Signal>) -> Vec<Signal> {
    look.sort_by_key(|signal| *signal == Signal::CONT);
    look
}

/// Whether a wait for the lock ends with this signal.
pub(super) fn ends_a_wait(signal: Signal) -> bool {
    ENDING.contains(&signal)
}

/// Whether a running command gets this signal.
pub(super) fn is_for_the_command(signal: Signal) -> bool {
    ENDING.contains(&signal) || FOR_THE_COMMAND.contains(&signal) || signal == Signal::TSTP
}

/// The end of a run that a signal has ended: 128 + n.
///
/// After Ctrl-C on a terminal, the process ends by the signal itself, which shells show as 130,
/// too. Only then does a shell end its loop or its script.
pub(super) fn end_by(signal: Signal, foreground: Option<&Foreground>) -> Exit {
    if signal == Signal::INT && foreground.is_some_and(Foreground::is_ours) {
        // Returns only if the signal could not be raised.
        let _ = emulate_default_handler(signal.as_raw());
    }
    Exit::of_signal(signal.as_raw())
}

/// Does what the terminal does on Ctrl-C. The command's group had the terminal, so a script around
/// this process has not received the signal yet.
pub(super) fn interrupt_our_group() {
    let _ = kill_current_process_group(Signal::INT);
}

/// The signals that were ignored when this process began. They stay ignored, and the command
/// ignores them too: so `nohup` and a script's `&` keep their meaning.
struct Ignored(u64);

impl Ignored {
    /// No safe call of the standard library or of a crate here asks for this. Linux has it in a
    /// file; other systems count as ignoring nothing.
    fn read() -> Ignored {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        Ignored(mask.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap_or(0)))
    }

    fn contains(&self, signal: Signal) -> bool {
        self.0 & (1 << (signal.as_raw() - 1)) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_comes_before_the_continuation_of_the_same_look() {
        let look = vec![Signal::CHILD, Signal::CONT, Signal::TSTP];
        let order = [Signal::CHILD, Signal::TSTP, Signal::CONT];
        assert_eq!(in_order_sent(look), order);
    }
}
