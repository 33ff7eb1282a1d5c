//! Looks after the command while it runs under its lock.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, never, select};
use fairlock::{Error, LossReason};
use humantime::format_duration;
use rustix::process::Signal;

use super::lock::Held;
use super::signals::{Received, Signals};
use super::terminal::Terminal;
use super::times::Times;
use super::tree::{End, Tree};
use super::{OnLoss, Run};
use crate::age::short;
use crate::exit::Failure;
use crate::job::can_be_continued;
use crate::logger;
use crate::processes::Process;

/// The longest sleep. The time left of a lease goes on while the host sleeps, and a timer does not.
const LOOK: Duration = Duration::from_secs(1);
/// How often to look whether the last process has died. Nobody tells us.
const POLL: Duration = Duration::from_millis(5);

pub(super) struct Supervisor<'a> {
    run: &'a Run,
    held: &'a Held,
    tree: Tree,
    signals: &'a Signals,
    /// The terminal, whose group the command shares with this process.
    terminal: Option<Terminal>,
    times: Times,
    granted: Instant,
    /// Once the command got TERM for its lock.
    kill_at: Option<Instant>,
    is_lost: bool,
    cut: Option<Cut>,
    /// The warning of a stop is given once.
    has_warned: bool,
}

/// How a run ended: all processes of the command are dead.
pub(super) struct Ended {
    pub(super) end: End,
    /// Why the command was ended before its time, if it was. A loss that was ignored counts, too.
    pub(super) cut: Option<Cut>,
    pub(super) by_ctrl_c: bool,
}

/// Why a command was ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// Its lock was lost, was about to be, or was held for long enough.
    Lock,
    /// The lock was lost, and the command was to go on.
    Ignored,
    /// A signal of this number came that would have ended fairlock alone.
    Signal(i32),
}

/// Looks after the command until it and all of its processes are dead. `orphaned` says that a run
/// around this one has died, which can end nothing then before its lock is another's. Within that
/// time all must be dead.
pub(super) fn supervise(
    run: &Run,
    held: &Held,
    tree: Tree,
    terminal: Option<Terminal>,
    signals: &Signals,
    times: Times,
    (mut orphaned, grace): (Receiver<()>, Duration),
) -> Ended {
    let mut this = Supervisor {
        run,
        held,
        tree,
        signals,
        terminal,
        times,
        granted: Instant::now(),
        kill_at: None,
        is_lost: false,
        cut: None,
        has_warned: false,
    };
    this.take_early_signals();
    let mut lost = held.lost().clone();
    loop {
        if let Some(signal) = this.tree.reap() {
            this.on_stop(signal);
        }
        if this.tree.is_dead()
            && let Some(end) = this.tree.end
        {
            return this.finish(end);
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
                this.cut(Cut::Lock, Signal::TERM, "the run around this one has died");
            }
            default(this.pause()) => {}
        }
    }
}

impl Supervisor<'_> {
    /// Those that came while the command was started.
    fn take_early_signals(&mut self) {
        for early in self.signals.received.try_iter() {
            match early.for_the_command() {
                // The process of the command may have taken it for us, before it executed the
                // command.
                Some(signal) if early.is_typed() => self.tree.signal(signal),
                _ => self.on_signal(early),
            }
        }
    }

    /// Does what is due.
    fn act(&mut self) {
        if self.tree.is_killed {
            return;
        }
        self.look_at_lock();
        if self.kill_at.is_some_and(|at| Instant::now() >= at) {
            self.tree.kill();
        } else if self.kill_at.is_none()
            && let Some(limit) = self.times.max_hold
            && self.granted.elapsed() >= limit
        {
            let limit = format_duration(limit);
            // With `--on-loss ignore` the lock may have been lost before.
            self.cut(
                Cut::Lock,
                Signal::TERM,
                &format!("--max-hold {limit} is over"),
            );
        } else if self.kill_at.is_none() && self.tree.end.is_some() {
            // The command has ended, and some process that it started has not. Without the lock
            // it would go on as if it were protected.
            self.terminate();
        }
    }

    fn look_at_lock(&mut self) {
        if self.is_lost {
            return;
        }
        if let Err(Error::Lost { loss, .. }) = self.held.check() {
            self.is_lost = true;
            return self.on_lost(loss.reason);
        }
        if self.spare().is_zero() {
            let error = self.held.renewal_error().map(Failure::from);
            let why = error.map_or_else(String::new, |error| format!(" ({error})"));
            let is_late = self.held.remaining() <= self.times.margin;
            let signal = if is_late { Signal::KILL } else { Signal::TERM };
            self.cut(
                Cut::Lock,
                signal,
                &format!("the lock cannot be renewed{why}"),
            );
        }
    }

    /// The time until the command gets its next signal for the lease, if nothing renews it.
    fn spare(&self) -> Duration {
        if self.run.on_loss == OnLoss::Ignore || self.is_lost {
            return Duration::MAX;
        }
        let left_then = match self.kill_at {
            None => self.times.left_at_term(),
            Some(_) => self.times.margin,
        };
        self.held.remaining().saturating_sub(left_then)
    }

    fn on_lost(&mut self, reason: LossReason) {
        let why = format!("the lock is lost ({reason})");
        if self.run.on_loss == OnLoss::Ignore {
            self.cut.get_or_insert(Cut::Ignored);
            return self.run.say(&format!("{why}, and the command goes on"));
        }
        let command = self.tree.command();
        let sees_term = command.is_none_or(|command| !command.is_stopped());
        let signal = match reason {
            // It is too late to be dead before others have the lock. So the grace is worth more
            // than a moment.
            LossReason::Forced | LossReason::NotOwner if sees_term => Signal::TERM,
            // The grace was before the loss. A stopped process that gets KILL never runs again.
            _ => Signal::KILL,
        };
        self.cut(Cut::Lock, signal, &why);
    }

    /// Ends the command by TERM, and KILL after the grace, or by KILL.
    fn cut(&mut self, cut: Cut, signal: Signal, why: &str) {
        if self.tree.is_killed {
            return;
        }
        // A loss that was ignored has ended nothing.
        if matches!(self.cut, None | Some(Cut::Ignored)) {
            self.cut = Some(cut);
        }
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
        if self.tree.is_killed {
            return POLL;
        }
        let next_step = match (self.kill_at, self.times.max_hold) {
            (Some(kill_at), _) => kill_at.saturating_duration_since(Instant::now()),
            (None, Some(limit)) => limit.saturating_sub(self.granted.elapsed()),
            (None, None) => LOOK,
        };
        let is_polled = self.tree.end.is_some();
        let pause = if is_polled { POLL } else { LOOK };
        pause.min(next_step).min(self.spare())
    }

    fn on_signal(&mut self, received: Received) {
        // This process may have been stopped: without a lock, CONT must not reach the command.
        self.act();
        if received.ends_a_run() {
            if self.kill_at.is_none() {
                let number = received.number;
                self.cut(
                    Cut::Signal(number),
                    Signal::TERM,
                    &format!("signal {number} has come"),
                );
            }
        } else if received.stops_a_job() && self.terminal.is_some() {
            // The kernel stops nobody where nobody could continue it.
            if can_be_continued() {
                self.suspend();
            }
        } else if self.terminal.is_some() && received.is_typed() {
            // The kernel has sent it to the command, too.
        } else if let Some(signal) = received.for_the_command() {
            self.tree.signal(signal);
        }
    }

    /// The command was stopped by this signal.
    fn on_stop(&mut self, signal: Signal) {
        let in_foreground =
            |process: Option<Process>| process.is_some_and(|it| it.is_in_foreground());
        let has_terminal = || in_foreground(Process::own()) || in_foreground(self.tree.command());
        if self.terminal.is_none() || signal == Signal::STOP && !has_terminal() {
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
        if self.run.on_loss == OnLoss::Term && !self.tree.kill_after(guarded) {
            self.run
                .say("cannot be stopped: no process could end the command before its lock ends");
            self.tree.go_on();
            return;
        }
        if !self.has_warned {
            self.has_warned = true;
            let left = short(left);
            self.run.say(&format!(
                "stopped: the lock will be lost in {left} unless the command continues"
            ));
        }
        logger::flush();
        let received = self.signals.stop_here();
        // The kernel may have continued the command, too. Both calls show whether it may go on. A
        // renewal may take a while, so the other kill is called off after it.
        if self.held.check().is_ok() {
            let _ = self.held.renew();
        }
        let was_killed = self.tree.call_off_kill();
        if self.run.on_loss == OnLoss::Term && self.held.check().is_err() {
            self.act();
        } else if was_killed {
            self.cut(Cut::Lock, Signal::KILL, "it was stopped for too long");
        } else {
            self.tree.go_on();
        }
        for signal in received {
            self.on_signal(signal);
        }
    }

    fn finish(self, end: End) -> Ended {
        if let Some(terminal) = &self.terminal
            && (matches!(end, End::Signal(_)) || self.tree.is_killed)
        {
            terminal.restore_modes();
        }
        let is_interrupted = end == End::Signal(Signal::INT.as_raw());
        Ended {
            end,
            cut: self.cut,
            by_ctrl_c: is_interrupted && self.terminal.is_some(),
        }
    }
}
