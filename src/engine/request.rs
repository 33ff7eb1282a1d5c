//! What somebody asks for: a name and the terms on which it is to be held.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::key::Key;
use crate::loss::Loss;
use crate::options::{DEFAULT_TTL, LockOptions, OnLost};
use crate::script::{Call, Family, LockSpec, Verb};

/// One request for a lock. Every attempt at it has a token of its own.
pub(crate) struct Request {
    pub(crate) spec: LockSpec,
    pub(crate) key: Key,
    pub(crate) ttl: Duration,
    pub(crate) fixed: bool,
    hold_at_least: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) on_lost: Option<OnLost>,
    /// What it is a part of.
    pub(crate) whole: Option<Arc<LockGroup>>,
    /// `ttl fixed hold label` for the scripts, for permits `ttl fixed hold permits label`.
    pub(crate) params: Arc<str>,
}

impl Request {
    pub(crate) fn new(spec: LockSpec, key: Key, options: &LockOptions) -> Request {
        let ttl = options.ttl.unwrap_or(DEFAULT_TTL);
        let mut params = String::with_capacity(96);
        let _ = write!(
            params,
            "{} {} {} ",
            ttl.as_millis(),
            u8::from(options.fixed),
            options.hold_at_least.as_millis()
        );
        if spec.family == Family::Permit {
            let _ = write!(params, "{} ", spec.weight);
        }
        let _ = write!(params, "{}\t{}\t", *HOST, std::process::id());
        let thread = thread::current();
        push_plain(thread.name().unwrap_or("-"), &mut params);
        params.push('\t');
        params.push_str(options.label.as_deref().unwrap_or(""));
        Request {
            spec,
            key,
            ttl,
            fixed: options.fixed,
            hold_at_least: options.hold_at_least,
            max_hold: options.max_hold,
            on_lost: options.on_lost.clone(),
            whole: None,
            params: params.into(),
        }
    }

    /// The same, as a part of a whole that hears of its loss.
    pub(crate) fn part_of(self, whole: &Arc<LockGroup>) -> Request {
        Request {
            whole: Some(Arc::clone(whole)),
            ..self
        }
    }

    /// Whether a lease on these terms is a guard's as soon as it is granted. Of several it is when all are.
    pub(crate) fn is_guarded(&self) -> bool {
        self.whole
            .as_ref()
            .is_none_or(|whole| whole.guarded.load(Ordering::Acquire))
    }

    pub(crate) fn call(&self, verb: Verb) -> Call {
        Call {
            spec: self.spec,
            key: self.key.clone(),
            verb,
        }
    }

    /// For how long a grant on these terms can last if nothing is heard of it any more.
    pub(crate) fn longest(&self) -> Duration {
        self.ttl.max(self.hold_at_least)
    }

    /// How often a lease is renewed: a third of its ttl, so that two renewals may fail.
    pub(crate) fn renewal_period(&self) -> Option<Duration> {
        (!self.fixed).then_some(self.ttl / 3)
    }

    /// No lease on these terms has anything due sooner after its grant.
    pub(crate) fn soonest_due(&self) -> Duration {
        (self.ttl / 3).min(self.max_hold.unwrap_or(Duration::MAX))
    }
}

/// Several locks under one guard.
pub(crate) struct LockGroup {
    guarded: AtomicBool,
    tell: Mutex<Option<Sender<Loss>>>,
    pub(crate) lost: Receiver<Loss>,
}

impl LockGroup {
    pub(crate) fn new() -> Arc<LockGroup> {
        let (tell, lost) = bounded(1);
        Arc::new(LockGroup {
            guarded: AtomicBool::new(false),
            tell: Mutex::new(Some(tell)),
            lost,
        })
    }

    /// All are granted, and somebody has the guard.
    pub(crate) fn guard(&self) {
        self.guarded.store(true, Ordering::Release);
    }

    /// Tells of the first loss; all others are of the same whole.
    pub(crate) fn tell(&self, loss: &Loss) {
        if let Some(sender) = self.tell.lock().take() {
            // The one message of this channel, which has room for it.
            let _ = sender.try_send(loss.clone());
        }
    }

    /// Nothing is told any more.
    pub(crate) fn close(&self) {
        drop(self.tell.lock().take());
    }
}

static HOST: LazyLock<String> = LazyLock::new(|| {
    let mut host = String::new();
    push_plain(
        &rustix::system::uname().nodename().to_string_lossy(),
        &mut host,
    );
    host
});

/// Labels are split at tabs, and shown to people.
fn push_plain(text: &str, out: &mut String) {
    out.extend(
        text.chars()
            .take(64)
            .map(|c| if c.is_control() { ' ' } else { c }),
    );
}
