//! A request for a lock: its name, and the options with which it is held.

use std::panic::RefUnwindSafe;
use std::sync::atomic::{self, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use crate::key::Key;
use crate::loss::{Loss, LossWatcher};
use crate::options::{LockOptions, OnLost};
use crate::script::{
    Call, Family, LockSpec, Mode, NO_NAME, Origin, Params, PassedFrom, Secret, Token, Verb, Wait,
    params,
};
use crate::store::clock::Time;
use crate::thread_id;

/// The owner of leases that are not simply one guard's. The renewal thread calls it, with no mutex
/// held. It sends nothing and does not block.
pub(crate) trait LeaseOwner: Send + Sync + RefUnwindSafe {
    /// The lease that this request got by this token is lost. This comes once for each lease.
    fn on_lost(&self, request: &Request, token: Token, loss: &Loss) -> LostBy;

    /// Whether it lends its leases. Then a thread that takes a guard has a lease that was lent to it.
    fn lends(&self) -> bool {
        false
    }
}

/// Who has lost a lease, as its owner says.
pub(crate) enum LostBy {
    /// A guard, for which the loss is reported as any other. It watches in this way.
    Guard(LossWatcher),
    /// Nobody whom the owner has not told.
    Owner {
        /// How the token is released.
        mode: Mode,
        /// The token of a waiter that is registered and not sent yet. It is queued before that
        /// release, so that no waiter behind it is served first.
        queue_first: Option<Token>,
    },
}

/// A lock that was detached, as its bearer knows it.
#[derive(Clone)]
struct Attached {
    secret: Secret,
    fence: u64,
}

/// The uses of a grant that this process may make, besides holding it.
#[derive(Clone, Copy)]
pub(crate) struct Handovers {
    /// See [`Request::handovers`].
    pub(crate) most: u32,
    pub(crate) spare_fences: u32,
    pub(crate) hears: bool,
    pub(crate) keep: Option<Duration>,
    /// See [`Request::shared_as`].
    pub(crate) shared_as: u64,
}

impl Handovers {
    pub(crate) const NONE: Handovers = Handovers {
        most: 0,
        spare_fences: 0,
        hears: false,
        keep: None,
        shared_as: 0,
    };
}

/// One request for a lock. R1 (registered before sent): every attempt at it has a token of its own.
pub(crate) struct Request {
    pub(crate) spec: LockSpec,
    pub(crate) key: Key,
    pub(crate) ttl: Duration,
    pub(crate) fixed: bool,
    pub(crate) hold_at_least: Duration,
    /// How many fences after its own Redis reserves for a grant.
    pub(crate) spare_fences: u32,
    /// How often the process may pass a grant on while others wait for it.
    pub(crate) handovers: u32,
    /// The owner wants to be told when somebody waits.
    pub(crate) hears: bool,
    /// For how long an unused lock is kept once it is released here.
    pub(crate) keep: Option<Duration>,
    /// The owner of the grant lends it. Requests with the same number share a place in the queue. 0: one
    /// guard has the grant, and it is not lent.
    pub(crate) shared_as: u64,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) on_lost: Option<OnLost>,
    label: Option<Arc<str>>,
    /// When the caller asked for it. `NEVER`: nobody measures how long that takes.
    pub(crate) asked_at: Time,
    /// Redis has said that the lock was taken. For the statistics alone.
    was_taken: atomic::AtomicBool,
    /// `None`: the lock is acquired. Else this lock, which was detached, is attached.
    attached: Option<Box<Attached>>,
    /// `None`: one guard has the lease, once it is granted.
    pub(crate) owner: Option<Arc<dyn LeaseOwner>>,
    /// For the scripts, as [`Params`] writes it.
    pub(crate) params: Arc<str>,
}

impl Request {
    /// A request of its own, whose grant this process does not pass on.
    pub(crate) fn new(spec: LockSpec, key: Key, options: &LockOptions, process: u32) -> Request {
        Request::with_handovers(spec, key, options, process, Handovers::NONE)
    }

    /// A request whose grant this process may pass on.
    pub(crate) fn with_handovers(
        spec: LockSpec,
        key: Key,
        options: &LockOptions,
        process: u32,
        handovers: Handovers,
    ) -> Request {
        let ttl = options.lease_length();
        let thread = thread::current();
        let params = Params {
            ttl_ms: ttl.as_millis() as u64,
            fixed: options.is_fixed(),
            hold_ms: options.least_hold().as_millis() as u64,
            permits: spec.weight,
            local_handovers: handovers.spare_fences,
            hears: handovers.hears,
            keeps: handovers.keep.is_some(),
            origin: Origin {
                host: &HOST,
                pid: process,
                thread: thread.name().unwrap_or(NO_NAME),
                thread_id: thread_id::in_process(process),
                label: options.label_text(),
            },
        };
        Request {
            spec,
            key,
            ttl,
            fixed: options.is_fixed(),
            hold_at_least: options.least_hold(),
            spare_fences: handovers.spare_fences,
            handovers: handovers.most,
            hears: handovers.hears,
            keep: handovers.keep,
            shared_as: handovers.shared_as,
            max_hold: options.hold_limit(),
            on_lost: options.callback().cloned(),
            label: options.label_if_set().cloned(),
            asked_at: Time::NEVER,
            was_taken: atomic::AtomicBool::new(false),
            attached: None,
            owner: None,
            params: params.write(spec.family).into(),
        }
    }

    /// The same request of a caller that asked at this time.
    pub(crate) fn asked_at(self, asked_at: Time) -> Request {
        Request { asked_at, ..self }
    }

    /// The same lock, for an owner whose callers have it one after the other. `max_hold` and `on_lost`
    /// stay with each caller.
    pub(crate) fn for_owner(&self, owner: Arc<dyn LeaseOwner>) -> Request {
        Request {
            owner: Some(owner),
            ..self.copy()
        }
    }

    /// The same for a request that is sent once: if it attaches a lock, so does this.
    pub(crate) fn once_for_owner(&self, owner: Arc<dyn LeaseOwner>) -> Request {
        Request {
            attached: self.attached.clone(),
            ..self.for_owner(owner)
        }
    }

    /// The same request of the same caller, which shares its grant with others than this one.
    pub(crate) fn sharing_as(&self, shared_as: u64) -> Request {
        Request {
            shared_as,
            asked_at: self.asked_at,
            attached: self.attached.clone(),
            ..self.for_next_guard()
        }
    }

    /// The same lock, without a caller: nobody measures, watches or limits it.
    fn copy(&self) -> Request {
        Request {
            spec: self.spec,
            key: self.key.clone(),
            ttl: self.ttl,
            fixed: self.fixed,
            hold_at_least: self.hold_at_least,
            spare_fences: self.spare_fences,
            handovers: self.handovers,
            hears: self.hears,
            keep: self.keep,
            shared_as: self.shared_as,
            max_hold: None,
            on_lost: None,
            label: self.label.clone(),
            asked_at: Time::NEVER,
            was_taken: atomic::AtomicBool::new(false),
            attached: None,
            owner: None,
            params: Arc::clone(&self.params),
        }
    }

    /// The same request, for guards that get the lock without a request to Redis.
    pub(crate) fn for_next_guard(&self) -> Request {
        Request {
            max_hold: self.max_hold,
            on_lost: self.on_lost.clone(),
            owner: None,
            ..self.copy()
        }
    }

    /// Whether this process may have its grant in turns.
    pub(crate) fn may_be_lent(&self) -> bool {
        self.shared_as != 0
    }

    /// Whether it has served no caller that measures how long it takes.
    pub(crate) fn is_for_next_guard(&self) -> bool {
        self.asked_at == Time::NEVER && !self.was_taken()
    }

    /// Whether a caller with these options asks for the same.
    pub(crate) fn fits(&self, options: &LockOptions) -> bool {
        let is_callback_same = match (&self.on_lost, options.callback()) {
            (Some(here), Some(there)) => Arc::ptr_eq(here, there),
            (None, None) => true,
            _ => false,
        };
        let is_label_same = match (&self.label, options.label_if_set()) {
            (Some(here), Some(there)) => Arc::ptr_eq(here, there) || here == there,
            (None, None) => true,
            _ => false,
        };
        is_callback_same
            && self.keep == options.keep_time()
            && self.ttl == options.lease_length()
            && self.fixed == options.is_fixed()
            && self.max_hold == options.hold_limit()
            && self.hold_at_least == options.least_hold()
            && self.handovers == options.most_local_handovers()
            && is_label_same
    }

    pub(crate) fn note_taken(&self) {
        self.was_taken.store(true, Ordering::Relaxed);
    }

    pub(crate) fn was_taken(&self) -> bool {
        self.was_taken.load(Ordering::Relaxed)
    }

    /// The same request, of a lease that has this owner.
    pub(crate) fn owned_by(self, owner: Arc<dyn LeaseOwner>) -> Request {
        Request {
            owner: Some(owner),
            ..self
        }
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

    /// The same request, of the bearer of a lock that was detached.
    pub(crate) fn attaching(self, secret: Secret, fence: u64) -> Request {
        Request {
            attached: Some(Box::new(Attached { secret, fence })),
            ..self
        }
    }

    /// The fence of the lock that is to be attached. `None` if this lock is acquired.
    pub(crate) fn attached_fence(&self) -> Option<u64> {
        self.attached.as_ref().map(|attached| attached.fence)
    }

    /// The call that makes the token the owner: an acquire, or a pass if a lock is attached.
    pub(crate) fn enter(&self, token: Token, wait: Wait) -> Call {
        let Some(attached) = &self.attached else {
            return self.acquire(token, wait);
        };
        self.call(Verb::Pass {
            to: token,
            from: PassedFrom::Bearer(attached.secret),
            fence: attached.fence,
            last: None,
            params: Arc::clone(&self.params),
        })
    }

    /// The call that detaches the lock: it passes the lock from the token of its guard to one that is
    /// nobody's for as long as it stays valid.
    ///
    /// `fences`: of the owner's grant, and the last that a guard had or may have.
    pub(crate) fn detach(
        &self,
        from: Token,
        fences: (u64, Option<u64>),
        to: Token,
        valid_for: Duration,
    ) -> Call {
        let (fence, last) = fences;
        let params = Params::read(&self.params, Family::Mutex).expect("a request can be read");
        let params = Params {
            ttl_ms: valid_for.as_millis() as u64,
            fixed: true,
            hold_ms: 0,
            local_handovers: 0,
            hears: false,
            keeps: false,
            ..params
        };
        self.call(Verb::Pass {
            to,
            from: PassedFrom::Guard(from),
            fence,
            last,
            params: params.write(Family::Mutex).into(),
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

static HOST: LazyLock<String> =
    LazyLock::new(|| params::host_word(&rustix::system::uname().nodename().to_string_lossy()));
