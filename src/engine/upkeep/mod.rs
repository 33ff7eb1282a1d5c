//! Requests of other threads to the renewal thread, and how they wake it. `background` runs it.

mod command;
mod token_release;
mod waker;

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::engine::client::Client;
use crate::engine::request::Request;
use crate::script::{Call, Token};
use crate::stats::Count;
use crate::store::clock::Time;
use waker::Waker;

pub(crate) use command::{Command, EndAll, ScheduledLease, ShutdownReport, Task, Timer};
pub(super) use token_release::abandon_call;
pub(crate) use token_release::{ReportTo, TokenRelease, warn_of_drop};

/// The way to the renewal thread, for all others.
pub(crate) struct Upkeep {
    client: Arc<Client>,
    /// Commands to the renewal thread.
    intake: Sender<Command>,
    waker: Arc<Waker>,
}

/// The renewal thread receives these.
pub(super) struct Intake {
    pub(super) commands: Receiver<Command>,
    pub(super) waker: Arc<Waker>,
    /// Receives when the thread is to wake early.
    pub(super) woken: Receiver<()>,
}

impl Upkeep {
    pub(super) fn new(client: &Arc<Client>) -> (Upkeep, Intake) {
        let (intake, commands) = unbounded();
        let (waker, woken) = Waker::new();
        let waker = Arc::new(waker);
        let upkeep = Upkeep {
            client: Arc::clone(client),
            intake,
            waker: Arc::clone(&waker),
        };
        let intake = Intake {
            commands,
            waker,
            woken,
        };
        (upkeep, intake)
    }

    pub(super) fn send(&self, command: Command) {
        // The receiver lives as long as the renewal thread. After its end nothing is left to
        // command.
        let _ = self.intake.send(command);
        self.waker.wake();
    }

    pub(super) fn ask(&self, task: Task) {
        self.send(Command::Do(task));
    }

    /// Has the renewal thread call this at that time, or soon after it. Wakes the thread only if it
    /// would wake later by itself.
    pub(super) fn call_at(&self, at: Time, timer: Arc<dyn Timer>) {
        // As in `send`.
        let _ = self.intake.send(Command::CallAt(at, timer));
        self.waker.wake_if_late_for(at);
    }

    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// To be called after something due at `due` was sent or registered.
    pub(super) fn wake_if_late_for(&self, due: Time) {
        self.waker.wake_if_late_for(due);
    }

    /// Has the renewal thread send a release since a request had no reply or no connection, and counts
    /// that: it is a sign of trouble.
    pub(super) fn abandon(&self, release: TokenRelease) {
        self.note_trouble();
        self.release(release);
    }

    /// A request about a token had no reply, or no connection, and its release is left to the renewal
    /// thread.
    pub(super) fn note_trouble(&self) {
        self.client.meter().count(Count::BackgroundReleases);
    }

    /// Has the renewal thread send a release, since this thread may not block. It counts only if a
    /// request had no reply, so that a copy of it may still come.
    fn release_doubtful(&self, release: TokenRelease) {
        if release.not_after > 0 {
            self.note_trouble();
        }
        self.release(release);
    }

    /// Has the renewal thread send a release, since this thread may not block. That is no trouble.
    pub(super) fn release(&self, release: TokenRelease) {
        self.ask(Task::ReleaseToken(release));
    }

    /// R13 (unwanted grants): the renewal thread releases a token that nobody wants. `about` names
    /// the lock.
    ///
    /// R7 (late copies): it goes on until a reply shows that no copy of the token's acquire can
    /// take it any more: the server's time is past `not_after`. Without a reply it goes on for
    /// `ttl`, after which a lease of the token has lapsed by itself.
    pub(super) fn abandon_token(&self, about: &Call, token: Token, not_after: u64, ttl: Duration) {
        self.release_doubtful(TokenRelease {
            not_after,
            ..TokenRelease::abandon(about, token, self.client.now() + ttl)
        });
    }

    /// Like `abandon_token`, for a token that may be queued. It leaves the queue only by a release,
    /// so the renewal thread goes on until there is a reply.
    pub(super) fn abandon_queued(&self, request: &Request, token: Token, not_after: u64) {
        let about = request.renew(token, 0);
        self.release_doubtful(TokenRelease {
            not_after,
            may_be_queued: true,
            ..TokenRelease::abandon(&about, token, self.client.now() + request.longest())
        });
    }
}
