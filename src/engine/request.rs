//! A request for a lock: its name, and the options with which it is held.

use std::sync::atomic::{self, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::key::Key;
use crate::loss::Loss;
use crate::options::{LockOptions, OnLost};
use crate::script::{Call, LockSpec, NO_NAME, Origin, Params, Token, Verb, Wait, params};
use crate::store::clock::Time;
use crate::sync::{AtomicBool, Mutex, fence};
use crate::thread_id;

/// One request for a lock. R1 (registered before sent): every attempt at it has a token of its own.
pub(crate) struct Request {
    pub(crate) spec: LockSpec,
    pub(crate) key: Key,
    pub(crate) ttl: Duration,
    pub(crate) fixed: bool,
    pub(crate) hold_at_least: Duration,
    /// How many further guards of this process one grant may serve. Redis reserves a fence for each.
    pub(crate) local_handovers: u32,
    /// It is the request of a line, and not of one of its members.
    pub(crate) is_place: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) on_lost: Option<OnLost>,
    /// When the caller asked for it. `NEVER`: nobody measures how long that takes.
    pub(crate) asked_at: Time,
    /// Redis has said that the lock was taken. For the statistics alone.
    was_taken: atomic::AtomicBool,
    /// The locks that are taken together with this one.
    pub(crate) group: Option<Arc<LockGroup>>,
    /// For the scripts, as [`Params`] writes it.
    pub(crate) params: Arc<str>,
}

impl Request {
    /// A request of its own, without local hand-overs.
    pub(crate) fn new(spec: LockSpec, key: Key, options: &LockOptions, process: u32) -> Request {
        Request::build(spec, key, options, process, 0)
    }

    /// A request that waits in a line, if the options allow local hand-overs.
    pub(crate) fn in_line(
        spec: LockSpec,
        key: Key,
        options: &LockOptions,
        process: u32,
    ) -> Request {
        Request::build(spec, key, options, process, options.most_local_handovers())
    }

    fn build(
        spec: LockSpec,
        key: Key,
        options: &LockOptions,
        process: u32,
        local_handovers: u32,
    ) -> Request {
        let ttl = options.lease_length();
        let thread = thread::current();
        let params = Params {
            ttl_ms: ttl.as_millis() as u64,
            fixed: options.is_fixed(),
            hold_ms: options.least_hold().as_millis() as u64,
            permits: spec.weight,
            local_handovers,
            origin: Origin {
                host: &HOST,
                pid: process,
                thread: thread.name().unwrap_or(NO_NAME),
                thread_id: Some(thread_id::in_process(process)),
                label: options.label_text(),
            },
        };
        Request {
            spec,
            key,
            ttl,
            fixed: options.is_fixed(),
            hold_at_least: options.least_hold(),
            local_handovers,
            is_place: false,
            max_hold: options.hold_limit(),
            on_lost: options.callback().cloned(),
            asked_at: Time::NEVER,
            was_taken: atomic::AtomicBool::new(false),
            group: None,
            params: params.write(spec.family).into(),
        }
    }

    /// The same request of a caller that asked at this time.
    pub(crate) fn asked_at(self, asked_at: Time) -> Request {
        Request { asked_at, ..self }
    }

    /// The request of the line, for the request of a member. `max_hold` and `on_lost` stay with the
    /// turn of each member.
    pub(crate) fn for_place(&self) -> Request {
        Request {
            spec: self.spec,
            key: self.key.clone(),
            ttl: self.ttl,
            fixed: self.fixed,
            hold_at_least: self.hold_at_least,
            local_handovers: self.local_handovers,
            is_place: true,
            max_hold: None,
            on_lost: None,
            asked_at: Time::NEVER,
            was_taken: atomic::AtomicBool::new(false),
            group: None,
            params: Arc::clone(&self.params),
        }
    }

    /// Whether it waits in a line.
    pub(crate) fn is_member(&self) -> bool {
        self.local_handovers > 0 && !self.is_place
    }

    pub(crate) fn note_taken(&self) {
        self.was_taken.store(true, Ordering::Relaxed);
    }

    pub(crate) fn was_taken(&self) -> bool {
        self.was_taken.load(Ordering::Relaxed)
    }

    /// The same request as a member of a group. The group learns of its loss.
    pub(crate) fn in_group(self, group: &Arc<LockGroup>) -> Request {
        Request {
            group: Some(Arc::clone(group)),
            ..self
        }
    }

    /// Whether a granted lease is a guard's already. A member of a group is one when all are
    /// granted.
    pub(crate) fn is_guarded(&self) -> bool {
        self.group.as_ref().is_none_or(|group| {
            // See `mark_guarded`.
            fence(Ordering::SeqCst);
            group.guarded.load(Ordering::Acquire)
        })
    }

    pub(crate) fn call(&self, verb: Verb) -> Call {
        Call {
            spec: self.spec,
            key: self.key.clone(),
            verb,
        }
    }

    pub(crate) fn acquire(&self, token: Token, wait: Wait) -> Call {
        self.call(Verb::Acquire {
            token,
            wait,
            params: Arc::clone(&self.params),
        })
    }

    /// Extends the token's lease. Fence 0: the caller does not know it, and only asks.
    pub(crate) fn renew(&self, token: Token, fence: u64) -> Call {
        self.call(Verb::Renew {
            token,
            fence,
            params: Arc::clone(&self.params),
        })
    }

    /// The label of its options. Empty without one.
    pub(crate) fn label(&self) -> &str {
        params::label_text(&self.params)
    }

    /// For how long a grant of this request can last without a renewal or a release.
    pub(crate) fn longest(&self) -> Duration {
        self.ttl.max(self.hold_at_least)
    }

    /// How often a lease is renewed: each third of its ttl, so that two renewals may fail. `None`
    /// for a fixed lease.
    pub(crate) fn renewal_period(&self) -> Option<Duration> {
        (!self.fixed).then_some(self.ttl / 3)
    }

    /// A lease of this request has nothing due sooner than this after its grant.
    pub(crate) fn soonest_due(&self) -> Duration {
        (self.ttl / 3).min(self.max_hold.unwrap_or(Duration::MAX))
    }
}

/// Several locks under one guard. The loss of one is the loss of all.
pub(crate) struct LockGroup {
    /// All are granted, and the caller has the guard.
    guarded: AtomicBool,
    /// `None` after the first loss, or the release.
    loss_sender: Mutex<Option<Sender<Loss>>>,
    pub(crate) lost: Receiver<Loss>,
}

impl LockGroup {
    pub(crate) fn new() -> Arc<LockGroup> {
        let (sender, lost) = bounded(1);
        Arc::new(LockGroup {
            guarded: AtomicBool::new(false),
            loss_sender: Mutex::new(Some(sender)),
            lost,
        })
    }

    /// The caller then looks at the leases. The renewal thread loses a lease, and then looks here.
    /// The fences make sure that one of them sees the other, so that the loss is reported.
    pub(crate) fn mark_guarded(&self) {
        self.guarded.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Reports the first loss. It covers all later ones.
    pub(crate) fn report_loss(&self, loss: &Loss) {
        if let Some(sender) = self.loss_sender.lock().take() {
            // The one message of this channel, which has room for it.
            let _ = sender.try_send(loss.clone());
        }
    }

    /// The guard was released: no loss is reported any more.
    pub(crate) fn close(&self) {
        drop(self.loss_sender.lock().take());
    }
}

static HOST: LazyLock<String> =
    LazyLock::new(|| params::host_word(&rustix::system::uname().nodename().to_string_lossy()));
