//! Looks after the command while it runs under its lock.

mod stops;

use std::io;
use std::time::{Duration, Instant};

use crossbeam_channel::{never, select};
use fairlock::{Error, Loss, LossReason};
use humantime::format_duration;
use rustix::process::Signal;

use super::OnLoss;
use super::ancestors::Orphaned;
use super::foreground::Foreground;
use super::lock::Held;
use super::messages::Messages;
use super::signals::{Received, Signals};
use super::times::Times;
use super::tree::{End, Life, Tree};
use crate::exit::Failure;
use stops::HadTerminal;

/// The longest sleep. The time left of a lease goes on while the host sleeps, and a timer does not.
const LOOK: Duration = Duration::from_secs(1);
/// How often to look whether the last process has died. Nobody tells us.
const POLL: Duration = Duration::from_millis(5);

pub(super) struct Supervisor<'a> {
    held: &'a Held,
    tree: Tree,
    foreground: Option<Foreground>,
    times: Times,
    on_loss: OnLoss,
    orphaned: Orphaned,
    messages: &'a Messages,
    granted: Instant,
    stage: Stage,
    /// Set once the lock is lost.
    loss: Option<Loss>,
    cut: Option<Cut>,
    /// The command was stopped, and we have not continued it.
    is_stopped: bool,
    /// We stopped with the command. `Some`: whether its group had the terminal.
    suspended: Option<HadTerminal>,
    /// The warning about it is given once.
    has_warned: bool,
}

/// When to end a command before its time.
pub(super) struct Rules {
    pub(super) times: Times,
    pub(super) orphaned: Orphaned,
    pub(super) on_loss: OnLoss,
}

/// How far the end of the command is.
///
/// | stage     | becomes                                                                     |
/// |-----------|-----------------------------------------------------------------------------|
/// | `Running` | `Ending`: TERM was sent · `Killed`: KILL was sent                           |
/// | `Ending`  | `Killed`: the grace is over, or only the margin is left of the lease        |
/// | `Killed`  | –                                                                           |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Ending { kill_at: Instant },
    Killed,
}

/// How a run ended: all processes of the command are dead.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) end: End,
    /// Why the command was ended before its time, if it was. A loss that was ignored counts, too.
    pub(super) cut: Option<Cut>,
    /// The command ended by Ctrl-C, while its group had the terminal.
    pub(super) by_ctrl_c: bool,
}

/// Why a command was ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    Lost,
    /// The lock was lost, and the command was to go on.
    Ignored,
    NotRenewed,
    MaxHold,
    /// A run around this one has died, and its lock ends.
    Orphaned,
    /// A signal of this number came that would have ended fairlock alone.
    Signal(i32),
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(
        held: &'a Held,
        tree: Tree,
        foreground: Option<Foreground>,
        rules: Rules,
        messages: &'a Messages,
    ) -> Supervisor<'a> {
        Supervisor {
            held,
            tree,
            foreground,
            times: rules.times,
            on_loss: rules.on_loss,
            orphaned: rules.orphaned,
            messages,
            granted: Instant::now(),
            stage: Stage::Running,
            loss: None,
            cut: None,
            is_stopped: false,
            suspended: None,
            has_warned: false,
        }
    }

    /// The main loop: until the command and all of its processes are dead.
    pub(super) fn run(mut self, signals: &Signals, early: Vec<Received>) -> Ended {
        for signal in early {
            self.on_signal(signal);
        }
        let mut lost = self.held.lost().clone();
        loop {
            if let Some(signal) = self.tree.reap() {
                self.on_stop(signal);
            }
            if let Some(end) = self.tree_end() {
                return self.finish(end);
            }
            self.act();
            select! {
                recv(signals.received) -> signal => {
                    if let Ok(signal) = signal {
                        self.on_signal(signal);
                    }
                }
                // It only wakes us: `act` looks at the guard. Then the channel is disconnected,
                // and would wake us for ever.
                recv(lost) -> _ => lost = never(),
                recv(self.orphaned.received) -> _ => self.on_orphaned(),
                default(self.pause()) => {}
            }
        }
    }

    /// Does what is due.
    fn act(&mut self) {
        if self.stage == Stage::Killed {
            return;
        }
        self.look_at_lock();
        if let Stage::Ending { kill_at } = self.stage
            && Instant::now() >= kill_at
        {
            self.kill();
        }
        if self.stage != Stage::Running {
            return;
        }
        if let Some(limit) = self.times.max_hold
            && self.granted.elapsed() >= limit
        {
            self.cut(Cut::MaxHold);
            let limit = format_duration(limit);
            // With `--on-loss ignore` the lock may have been lost before.
            self.say(&format!(
                "--max-hold {limit} is over, and the command is ended"
            ));
        } else if self.tree.end().is_some() {
            // The command has ended, and some process that it started has not. Without the lock
            // it would go on as if it were protected.
            self.terminate();
        }
    }

    fn look_at_lock(&mut self) {
        if self.loss.is_some() {
            return;
        }
        if let Err(Error::Lost { loss, .. }) = self.held.check() {
            return self.on_lost(loss);
        }
        let left = self.held.remaining();
        if self.on_loss == OnLoss::Ignore || left > self.left_at_next_step() {
            return;
        }
        if left <= self.times.margin {
            self.cut.get_or_insert(Cut::NotRenewed);
            self.kill();
            self.say_why("the lock cannot be renewed", "the command was killed");
        } else {
            self.cut(Cut::NotRenewed);
            self.say_why("the lock cannot be renewed", "the command is ended");
        }
    }

    /// How much of the lease is left when the command gets its next signal for it.
    fn left_at_next_step(&self) -> Duration {
        // A stopped command does not see TERM, and its lock may still be renewed.
        if self.stage == Stage::Running && self.suspended.is_none() {
            self.times.left_at_term()
        } else {
            self.times.margin
        }
    }

    /// A run around this one is dead, and can end nothing before its lock is another's.
    fn on_orphaned(&mut self) {
        self.orphaned.received = never();
        self.times.grace = self.times.grace.min(self.orphaned.grace);
        if self.stage != Stage::Killed {
            self.cut(Cut::Orphaned);
            self.say("the run around this one has died, and the command is ended");
        }
    }

    fn on_lost(&mut self, loss: Loss) {
        let reason = loss.reason;
        self.loss = Some(loss);
        if self.on_loss == OnLoss::Ignore {
            self.cut.get_or_insert(Cut::Ignored);
            self.say(&format!(
                "the lock is lost, and the command goes on: {reason}"
            ));
            return;
        }
        self.cut.get_or_insert(Cut::Lost);
        match reason {
            // It is too late to be dead before others have the lock. So the grace is worth more
            // than a moment. A stopped command would not use it.
            LossReason::Forced | LossReason::NotOwner if !self.is_stopped => {
                if self.stage == Stage::Running {
                    self.terminate();
                }
                self.say(&format!(
                    "the lock is lost, and the command is ended: {reason}"
                ));
            }
            // The grace was before the loss.
            _ => {
                self.kill();
                self.say(&format!(
                    "the lock is lost, and the command was killed: {reason}"
                ));
            }
        }
    }

    fn cut(&mut self, cut: Cut) {
        // A loss that was ignored has ended nothing.
        if matches!(self.cut, None | Some(Cut::Ignored)) {
            self.cut = Some(cut);
        }
        self.terminate();
    }

    fn terminate(&mut self) {
        let sent = self.tree.terminate();
        self.check_sent(Signal::TERM, sent);
        self.stage = Stage::Ending {
            kill_at: Instant::now() + self.times.grace,
        };
    }

    /// A stopped process that gets KILL never runs again, unlike with TERM and CONT.
    fn kill(&mut self) {
        let sent = self.tree.kill();
        self.check_sent(Signal::KILL, sent);
        self.stage = Stage::Killed;
    }

    fn send(&mut self, signal: Signal) {
        let sent = self.tree.signal(signal);
        self.check_sent(signal, sent);
    }

    fn check_sent(&self, signal: Signal, sent: io::Result<()>) {
        if let Err(error) = sent {
            self.say(&format!("cannot send signal {}: {error}", signal.as_raw()));
        }
    }

    fn pause(&self) -> Duration {
        let mut pause = LOOK;
        if self.tree.end().is_some() || self.stage == Stage::Killed {
            pause = POLL;
        }
        match self.stage {
            Stage::Running => {
                if let Some(limit) = self.times.max_hold {
                    pause = pause.min(limit.saturating_sub(self.granted.elapsed()));
                }
            }
            Stage::Ending { kill_at } => {
                pause = pause.min(kill_at.saturating_duration_since(Instant::now()));
            }
            Stage::Killed => return pause,
        }
        if self.on_loss == OnLoss::Term && self.loss.is_none() {
            let left = self.held.remaining();
            pause = pause.min(left.saturating_sub(self.left_at_next_step()));
        }
        pause
    }

    fn on_signal(&mut self, received: Received) {
        if received.ends_a_run() {
            if self.stage == Stage::Running {
                let number = received.number();
                self.cut(Cut::Signal(number));
                self.say(&format!("signal {number} ends the command"));
            }
            return;
        }
        let signal = received.signal();
        if signal == Some(Signal::CONT) {
            self.on_continue();
        } else if signal == Some(Signal::TSTP) && self.suspended.is_some() {
            // It came before the CONT that ends the suspension: from the suspension itself, or from
            // another fairlock of the same job.
        } else if let Some(signal) = received.for_the_command() {
            self.send(signal);
        }
    }

    /// How the command ended, if none of its processes is alive.
    fn tree_end(&mut self) -> Option<End> {
        let life = self.tree.life();
        let end = self.tree.end()?;
        match life {
            Life::Alive => None,
            Life::Foreign => {
                self.say("processes of another user are left, and cannot be ended");
                Some(end)
            }
            Life::Dead => Some(end),
        }
    }

    fn finish(self, end: End) -> Ended {
        let had_terminal = self.foreground.as_ref().is_some_and(Foreground::is_given);
        if let Some(foreground) = &self.foreground {
            foreground.take_back();
            if had_terminal && (matches!(end, End::Signal(_)) || self.stage == Stage::Killed) {
                foreground.restore_modes();
            }
        }
        let is_interrupted = end == End::Signal(Signal::INT.as_raw());
        Ended {
            end,
            cut: self.cut,
            by_ctrl_c: is_interrupted && had_terminal,
        }
    }

    /// Names the error of the last renewal, if there was one.
    fn say_why(&self, what: &str, then: &str) {
        match self.held.renewal_error() {
            Some(error) => {
                let why = Failure::from(error);
                self.say(&format!("{what}, and {then}: {why}"));
            }
            None => self.say(&format!("{what}, and {then}")),
        }
    }

    fn say(&self, text: &str) {
        self.messages.say(format!("{}: {text}", self.held.name()));
    }
}
