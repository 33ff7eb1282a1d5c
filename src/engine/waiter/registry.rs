//! All places in queues that this manager's waiters have: who is to be told of a grant, and which names are
//! to be looked after.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::engine::request::Request;
use crate::engine::waiter::WaiterState;
use crate::error::Error;
use crate::script::{Call, Token, Verb};
use crate::store::StoreFault;
use crate::store::clock::Time;
use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex};

/// A waiter: its place, and how it is woken.
pub(crate) struct WaiterEntry {
    pub(crate) request: Arc<Request>,
    pub(crate) state: Mutex<WaiterState>,
    pub(crate) changed: Condvar,
    /// The order in which this process's waiters came (R4).
    order: u64,
    /// When Redis last answered about this name.
    last_reply: AtomicU64,
    /// When it was last asked and did not answer.
    last_unanswered: AtomicU64,
    /// Somebody is to be woken by the next answer, or failure to.
    wake_on_reply: AtomicBool,
    /// What it refused with since then.
    last_refusal: Mutex<Option<Error>>,
}

impl WaiterEntry {
    pub(crate) fn last_reply_at(&self) -> Time {
        Time::from_nanos(self.last_reply.load(Ordering::Acquire))
    }

    pub(crate) fn on_reply(&self, at: Time) {
        self.last_reply.fetch_max(at.as_nanos(), Ordering::AcqRel);
        *self.last_refusal.lock() = None;
        self.wake_if_asked();
    }

    pub(crate) fn on_no_reply(&self, at: Time) {
        self.last_unanswered.store(at.as_nanos(), Ordering::Release);
        self.wake_if_asked();
    }

    pub(crate) fn last_unanswered_at(&self) -> Time {
        Time::from_nanos(self.last_unanswered.load(Ordering::Acquire))
    }

    /// Has the next answer wake whoever waits, once: waiters sleep through all others.
    pub(crate) fn wake_on_reply(&self) {
        self.wake_on_reply.store(true, Ordering::Release);
    }

    pub(crate) fn awaits_reply(&self) -> bool {
        self.wake_on_reply.load(Ordering::Acquire)
    }

    fn wake_if_asked(&self) {
        if self.wake_on_reply.swap(false, Ordering::AcqRel) {
            drop(self.state.lock());
            self.changed.notify_all();
        }
    }

    pub(crate) fn note_refusal(&self, error: Error) {
        *self.last_refusal.lock() = Some(error);
    }

    pub(crate) fn take_last_refusal(&self) -> Option<Error> {
        self.last_refusal.lock().take()
    }
}

/// The registry of waiters.
pub(crate) struct WaiterRegistry {
    registry: Mutex<Registry>,
    orders: AtomicU64,
}

#[derive(Default)]
struct Registry {
    /// R1: every token is here before it is sent.
    tokens: HashMap<Token, Arc<WaiterEntry>>,
    /// Tokens of leases that were waited for and have guards now: news of their grants may still come, and
    /// must not be taken for grants that nobody wants (R13).
    guarded: HashSet<Token>,
    names: HashMap<Arc<str>, WaitQueue>,
    /// When each awaited name is to be looked after next.
    due: BTreeSet<(Time, Arc<str>)>,
}

/// A name for which somebody stands in the queue.
struct WaitQueue {
    waiters: BTreeMap<u64, Arc<WaiterEntry>>,
    due: Time,
}

impl WaiterRegistry {
    pub(crate) fn new() -> WaiterRegistry {
        WaiterRegistry {
            registry: Mutex::new(Registry::default()),
            orders: AtomicU64::new(0),
        }
    }

    pub(crate) fn register(
        &self,
        request: Arc<Request>,
        state: WaiterState,
        now: Time,
    ) -> Arc<WaiterEntry> {
        let token = state.token;
        let waiter = Arc::new(WaiterEntry {
            request,
            state: Mutex::new(state),
            changed: Condvar::new(),
            order: self.orders.fetch_add(1, Ordering::Relaxed),
            last_reply: AtomicU64::new(now.as_nanos()),
            last_unanswered: AtomicU64::new(0),
            wake_on_reply: AtomicBool::new(false),
            last_refusal: Mutex::new(None),
        });
        self.registry
            .lock()
            .tokens
            .insert(token, Arc::clone(&waiter));
        waiter
    }

    pub(crate) fn owner_of(&self, token: Token) -> TokenOwner {
        let registry = self.registry.lock();
        match registry.tokens.get(&token) {
            Some(waiter) => TokenOwner::Waiter(Arc::clone(waiter)),
            None if registry.guarded.contains(&token) => TokenOwner::Guard,
            None => TokenOwner::Unknown,
        }
    }

    /// To be called while the token's waiter is still registered.
    pub(crate) fn mark_guarded(&self, token: Token) {
        self.registry.lock().guarded.insert(token);
    }

    pub(crate) fn forget_guarded(&self, token: Token) {
        self.registry.lock().guarded.remove(&token);
    }

    /// Adds a waiter to its name's line; the name is due by `due` at the latest. Answers when the name is
    /// due now.
    pub(crate) fn enqueue(&self, waiter: &Arc<WaiterEntry>, due: Time) -> Time {
        let name = &waiter.request.key.name;
        let mut registry = self.registry.lock();
        let registry = &mut *registry;
        // One that has ended is forgotten already, or about to ask for this mutex.
        if waiter.state.lock().is_ended() {
            return Time::NEVER;
        }
        let awaited = registry
            .names
            .entry(Arc::clone(name))
            .or_insert_with(|| WaitQueue {
                waiters: BTreeMap::new(),
                due: Time::NEVER,
            });
        awaited.waiters.insert(waiter.order, Arc::clone(waiter));
        if due < awaited.due {
            registry.due.remove(&(awaited.due, Arc::clone(name)));
            awaited.due = due;
            registry.due.insert((due, Arc::clone(name)));
        }
        awaited.due
    }

    /// Forgets a waiter under the token that it has now.
    pub(crate) fn forget(&self, waiter: &WaiterEntry) {
        let token = waiter.state.lock().token;
        let name = &waiter.request.key.name;
        let mut registry = self.registry.lock();
        let registry = &mut *registry;
        registry.tokens.remove(&token);
        if let Some(awaited) = registry.names.get_mut(name) {
            awaited.waiters.remove(&waiter.order);
            if awaited.waiters.is_empty() {
                registry.due.remove(&(awaited.due, Arc::clone(name)));
                registry.names.remove(name);
            }
        }
    }

    /// Gives a waiter a new token, unless it has ended. The new one is known before the old one is
    /// forgotten, so that a waiter that ends meanwhile leaves neither behind.
    pub(crate) fn replace_token(&self, waiter: &Arc<WaiterEntry>) -> Option<Token> {
        let token = Token::new();
        self.registry
            .lock()
            .tokens
            .insert(token, Arc::clone(waiter));
        let obsolete = {
            let mut state = waiter.state.lock();
            let old = state.token;
            if state.restart(token) { old } else { token }
        };
        self.registry.lock().tokens.remove(&obsolete);
        (obsolete != token).then_some(token)
    }

    pub(crate) fn next_due(&self) -> Time {
        self.registry
            .lock()
            .due
            .first()
            .map_or(Time::NEVER, |(at, _)| *at)
    }

    /// The sync calls that are due, `most` at the most; each name is put off until `put_off` meanwhile.
    pub(crate) fn take_due(&self, now: Time, reschedule: Time, most: usize) -> Vec<Call> {
        let mut calls = Vec::new();
        let mut registry = self.registry.lock();
        let registry = &mut *registry;
        while let Some((at, name)) = registry.due.first().cloned() {
            if at > now || calls.len() == most {
                break;
            }
            registry.due.remove(&(at, Arc::clone(&name)));
            let Some(awaited) = registry.names.get_mut(&name) else {
                continue;
            };
            awaited.due = reschedule;
            registry.due.insert((reschedule, name));
            if let Some((_, newest)) = awaited.waiters.last_key_value() {
                // The registry's mutex is never asked for while a place's is held.
                let token = newest.state.lock().token;
                calls.push(newest.request.call(Verb::Sync { newest: token }));
            }
        }
        calls
    }

    /// When a name is due next, if anybody waits for it.
    pub(crate) fn reschedule(&self, name: &Arc<str>, until: Time) {
        let mut registry = self.registry.lock();
        let registry = &mut *registry;
        if let Some(awaited) = registry.names.get_mut(name) {
            registry.due.remove(&(awaited.due, Arc::clone(name)));
            awaited.due = until;
            registry.due.insert((until, Arc::clone(name)));
        }
    }

    /// All awaited names are due: the news of a grant may have been last_unanswered.
    pub(crate) fn all_due(&self, now: Time) {
        let mut registry = self.registry.lock();
        let names: Vec<Arc<str>> = registry.names.keys().cloned().collect();
        registry.due.clear();
        for name in names {
            if let Some(awaited) = registry.names.get_mut(&name) {
                awaited.due = now;
            }
            registry.due.insert((now, name));
        }
    }

    /// All tokens that stand in queues, name by name, with a call about each name.
    pub(crate) fn all_tokens(&self) -> Vec<(Call, Vec<Token>)> {
        let registry = self.registry.lock();
        let lines = registry.names.values().filter_map(|awaited| {
            let tokens: Vec<Token> = awaited
                .waiters
                .values()
                .map(|waiter| waiter.state.lock().token)
                .collect();
            let about = awaited
                .waiters
                .values()
                .next()?
                .request
                .call(Verb::Renew { token: tokens[0] });
            Some((about, tokens))
        });
        lines.collect()
    }

    /// The waiters of a name, in the order in which they came.
    pub(crate) fn waiters_of(&self, name: &Arc<str>) -> Vec<Arc<WaiterEntry>> {
        let registry = self.registry.lock();
        registry.names.get(name).map_or_else(Vec::new, |awaited| {
            awaited.waiters.values().cloned().collect()
        })
    }

    pub(crate) fn all(&self) -> Vec<Arc<WaiterEntry>> {
        self.registry.lock().tokens.values().cloned().collect()
    }
}

/// Whose a token is.
pub(crate) enum TokenOwner {
    Waiter(Arc<WaiterEntry>),
    Guard,
    Unknown,
}

/// Sorts waiters as they came.
pub(crate) fn in_order(waiters: &mut [Arc<WaiterEntry>]) {
    waiters.sort_by_key(|waiter| waiter.order);
}

/// A fault of a sync, as an error for those who wait.
pub(crate) fn refusal(fault: &StoreFault, waiter: &WaiterEntry, now: Time) -> Error {
    fault
        .repeat()
        .into_error(Some(&waiter.request.key), now - waiter.last_reply_at())
}
