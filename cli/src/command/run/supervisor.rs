//! Looks after the command while it runs under its lock.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, never, select};
use fairlock::{Error, LossReason};
use humantime::format_duration;
use rustix::process::Signal;

use super::Run;
use super::guard::Guard;
use super::lock::Held;
use super::signals::{Received, Signals};
use super::times::Times;
use super::tree::Tree;
use crate::age::short;
use crate::exit::Failure;
use crate::logger;
use crate::processes::{Process, can_be_continued};

/// The longest sleep. The time left of a lease goes on while the host sleeps, and a timer does not.
const LOOK: Duration = Duration::from_secs(1);
/// How often to look whether the last process has died. Nobody tells us.
const POLL: Duration = Duration::from_millis(5);

struct Supervisor<'a> {
    run: &'a Run,
    held: &'a Held,
    tree: Tree,
    signals: &'a Signals,
    /// The command shares the group of this process then.
    has_terminal: bool,
    times: Times,
    granted: Instant,
    /// Once the command got TERM for its lock.
    kill_at: Option<Instant>,
    is_lost: bool,
    is_cut: bool,
}

/// Looks after the command until it and all of its processes are dead. `orphaned` says that a run
/// around this one has died, which can end nothing then before its lock is another's. Within that
/// time all must be dead.
///
/// Returns how the command ended, and whether that was before its time: its lock was lost, was
/// about to be, or was held for long enough.
pub(super) fn supervise(
    run: &Run,
    held: &Held,
    tree: Tree,
    has_terminal: bool,
    signals: &Signals,
    times: Times,
    (mut orphaned, grace): (Receiver<()>, Duration),
) -> (ExitStatus, bool) {
    let mut this = Supervisor {
        run,
        held,
        tree,
        signals,
        has_terminal,
        times,
        granted: Instant::now(),
        kill_at: None,
        is_lost: false,
        is_cut: false,
    };
    this.take_early_signals();
    let mut lost = held.lost().clone();
    loop {
        if let Some(signal) = this.tree.reap() {
            this.on_stop(signal);
        }
        if let Some(end) = this.tree.over() {
            return (end, this.is_cut);
        }
        this.act();
        select! {
            recv(signals.received) -> signal => {
                signal.into_iter().for_each(|signal| this.on_signal(signal));
            }
            // It only wakes us: `act` looks at the guard. Then the channel is disconnected, and
            // would wake us for ever.
            recv(lost) -> _ => lost = never(),
            recv(orphaned) -> _ => {
                orphaned = never();
                this.times.grace = this.times.grace.min(grace);
                this.cut(Signal::TERM, "the run around this one has died");
            }
            default(this.pause()) => {}
        }
    }
}

impl Supervisor<'_> {
    /// Those that came while the command was started.
    fn take_early_signals(&mut self) {
        for early in self.signals.received.try_iter() {
            // Its process may have taken Ctrl-C for us, before it executed the command.
            if let Some(signal) = early.for_the_command().filter(|_| early.is_typed()) {
                self.tree.signal(signal);
            }
            self.on_signal(early);
        }
    }

    /// Does what is due.
    fn act(&mut self) {
        if self.tree.is_killed {
            return;
        }
        self.look_at_lock();
        match (self.kill_at, self.run.max_hold) {
            (Some(at), _) if Instant::now() >= at => self.tree.kill(),
            (None, Some(limit)) if self.granted.elapsed() >= limit => {
                let why = format!("--max-hold {} is over", format_duration(limit));
                self.cut(Signal::TERM, &why);
            }
            // The command has ended, and some process that it started has not. Without the lock it
            // would go on as if it were protected.
            (None, _) if self.tree.end.is_some() => self.terminate(),
            _ => {}
        }
    }

    /// Ends the command if its lock is lost, or about to be.
    fn look_at_lock(&mut self) {
        if self.is_lost {
            return;
        }
        let (signal, why) = if let Err(Error::Lost { loss, .. }) = self.held.check() {
            self.is_lost = true;
            let signal = match loss.reason {
                // It is too late to be dead before others have the lock. So the grace is worth more
                // than a moment.
                LossReason::Forced | LossReason::NotOwner => Signal::TERM,
                // The grace was before the loss. A stopped process that gets KILL never runs again.
                _ => Signal::KILL,
            };
            (signal, format!("the lock is lost ({})", loss.reason))
        } else if self.spare().is_zero() {
            let is_late = self.held.remaining() <= self.times.margin;
            let signal = if is_late { Signal::KILL } else { Signal::TERM };
            let error = self.held.renewal_error().map(Failure::from);
            let error = error.map_or_else(String::new, |error| format!(" ({error})"));
            (signal, format!("the lock cannot be renewed{error}"))
        } else {
            return;
        };
        self.cut(signal, &why);
    }

    /// The time until the command gets its next signal for the lease, if nothing renews it.
    fn spare(&self) -> Duration {
        if self.is_lost {
            return Duration::MAX;
        }
        let left_then = match self.kill_at {
            None => self.times.left_at_term(),
            Some(_) => self.times.margin,
        };
        self.held.remaining().saturating_sub(left_then)
    }

    /// Ends the command by TERM, and KILL after the grace, or by KILL.
    fn cut(&mut self, signal: Signal, why: &str) {
        if self.tree.is_killed {
            return;
        }
        self.is_cut = true;
        let then = if signal == Signal::KILL {
            self.tree.kill();
            "was killed"
        } else {
            self.terminate();
            "is ended"
        };
        self.run.say(&format!("{why}, and the command {then}"));
    }

    fn terminate(&mut self) {
        let kill_at = Instant::now() + self.times.grace;
        if self.kill_at.is_none() {
            self.tree.terminate();
        }
        self.kill_at = Some(self.kill_at.map_or(kill_at, |before| before.min(kill_at)));
    }

    fn pause(&self) -> Duration {
        if self.tree.is_killed || self.tree.end.is_some() {
            return POLL;
        }
        let next_step = match (self.kill_at, self.run.max_hold) {
            (Some(kill_at), _) => kill_at.saturating_duration_since(Instant::now()),
            (None, Some(limit)) => limit.saturating_sub(self.granted.elapsed()),
            (None, None) => LOOK,
        };
        LOOK.min(next_step).min(self.spare())
    }

    fn on_signal(&mut self, received: Received) {
        // This process may have been stopped: without a lock, CONT must not reach the command.
        self.act();
        if received.stops_a_job() && self.has_terminal {
            // The kernel stops nobody where nobody could continue it. A shell may have continued
            // the job since.
            if !self.signals.is_continued() && can_be_continued() {
                self.suspend();
            }
        } else if self.has_terminal && received.is_typed() && !self.tree.has_left_group() {
            // The kernel has sent it to the command, too.
        } else if let Some(signal) = received.for_the_command() {
            self.tree.signal(signal);
        }
    }

    /// The command was stopped by this signal.
    fn on_stop(&mut self, signal: Signal) {
        let both = [Process::own(), self.tree.command()];
        let is_in_foreground = || both.iter().flatten().any(Process::is_in_foreground);
        if !self.has_terminal || signal == Signal::STOP && !is_in_foreground() {
            // Somebody else stopped it, and will continue it. The lock is renewed meanwhile.
        } else if can_be_continued() {
            // Some programs that draw on the terminal stop by themselves at Ctrl-Z. While they have
            // the terminal, nobody else can type.
            self.signals.expect_stop();
            self.suspend();
        } else {
            self.tree.go_on();
        }
    }

    /// Stops all processes of the command, and this one. So the shell takes over. Returns when this
    /// process was continued.
    fn suspend(&mut self) {
        if self.kill_at.is_some() || self.tree.is_killed {
            return;
        }
        // It may be that only the command itself has stopped, and not all that it started. Nobody
        // renews the lock for the rest, which may be in another group.
        self.tree.stop();
        let left = self.held.remaining();
        let guarded = left.saturating_sub(self.times.margin);
        let children = self.tree.children();
        let guard = children.and_then(|(command, others)| Guard::start(guarded, command, others));
        let Some(guard) = guard else {
            self.run
                .say("cannot be stopped: no process could end the command before its lock ends");
            return self.tree.go_on();
        };
        let left = short(left);
        self.run.say(&format!(
            "stopped: the lock will be lost in {left} unless the command continues"
        ));
        logger::flush();
        self.signals.stop_here();
        // The kernel may have continued the command, too. Both calls show whether it may go on. A
        // renewal may take a while, so the guard is called off after it.
        if self.held.check().is_ok() {
            let _ = self.held.renew();
        }
        let was_killed = guard.call_off();
        if self.held.check().is_err() {
            self.act();
        } else if was_killed {
            self.cut(Signal::KILL, "it was stopped for too long");
        } else {
            self.tree.go_on();
        }
    }
}
