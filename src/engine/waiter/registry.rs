//! The registry of all waiters of one manager. It knows which waiter a grant belongs to, and which
//! names the renewal thread must sync next.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::request::Request;
use crate::engine::waiter::entry::{WaiterEntry, WaiterOwner};
use crate::engine::waiter::state::WaiterState;
use crate::script::{Call, Token, Verb};
use crate::store::clock::Time;
use crate::sync::{AtomicBool, AtomicU64, Mutex};

/// All waiters of one manager.
///
/// Order of mutexes: the registry's mutex first, then a waiter's state. A thread that holds a
/// waiter's state never asks for the registry's mutex.
pub(crate) struct WaiterRegistry {
    tables: Mutex<Tables>,
    /// How many waiters are registered. It changes under the mutex of the tables.
    count: AtomicU64,
    /// A waiter was queued since this was last read.
    was_queued: AtomicBool,
    next_order: AtomicU64,
}

#[derive(Default)]
struct Tables {
    /// R1 (registered before sent): every token is here before it is sent.
    tokens: HashMap<Token, Arc<WaiterEntry>>,
    /// Tokens of guards that waited in a queue, or may have. A notice of their grant may still arrive. It must
    /// not be taken for an unwanted grant (R13), which would release the guard's lock.
    guarded: HashSet<Token>,
    queues: HashMap<Arc<str>, WaitQueue>,
    /// The names that have waiters here, queued or not.
    registered: HashMap<Arc<str>, AwaitedName>,
    /// When each name with a queue is synced next.
    due: BTreeSet<(Time, Arc<str>)>,
}

/// A name that somebody here waits for.
struct AwaitedName {
    waiters: usize,
    /// The report of a long wait for it, while its waiter is here.
    report: Option<LongWaitReport>,
}

/// The log has said that a wait lasts.
struct LongWaitReport {
    /// The waiter's order.
    waiter: u64,
    /// From then on, another waiter of the name may be reported.
    overdue_at: Time,
}

/// This process's waiters in the queue of one name.
struct WaitQueue {
    waiters: BTreeMap<u64, Arc<WaiterEntry>>,
    due: Time,
}

impl Tables {
    /// Sets when a name is synced next, in its queue and in the order of all names.
    fn set_due(&mut self, name: &Arc<str>, at: Time) {
        if let Some(queue) = self.queues.get_mut(name) {
            self.due.remove(&(queue.due, Arc::clone(name)));
            queue.due = at;
            self.due.insert((at, Arc::clone(name)));
        }
    }
}

impl WaiterRegistry {
    pub(crate) fn new() -> WaiterRegistry {
        WaiterRegistry {
            tables: Mutex::new(Tables::default()),
            count: AtomicU64::new(0),
            was_queued: AtomicBool::new(false),
            next_order: AtomicU64::new(0),
        }
    }

    pub(crate) fn register(
        &self,
        request: Arc<Request>,
        state: WaiterState,
        owner: Option<Arc<dyn WaiterOwner>>,
        now: Time,
    ) -> Arc<WaiterEntry> {
        let token = state.token;
        let name = Arc::clone(&request.key.name);
        let order = self.next_order.fetch_add(1, Ordering::Relaxed);
        let waiter = Arc::new(WaiterEntry::new(request, state, owner, order, now));
        let mut tables = self.tables.lock();
        self.count.fetch_add(1, Ordering::Release);
        tables.tokens.insert(token, Arc::clone(&waiter));
        let awaited = tables.registered.entry(name).or_insert(AwaitedName {
            waiters: 0,
            report: None,
        });
        awaited.waiters += 1;
        waiter
    }

    /// Whether any waiter is registered for a name: from before its first acquire is sent until its
    /// caller has left, whatever token it has in between.
    pub(crate) fn has_waiter(&self, name: &str) -> bool {
        // A caller that released an uncontended lock need not take the mutex. If it must see a
        // registration, that happened before this look: see `Releasing::may_leave`.
        self.count.load(Ordering::Acquire) > 0 && self.tables.lock().registered.contains_key(name)
    }

    /// The long wait of this waiter is reported now, unless another of the name is reported: then, when
    /// that would be overdue. It comes each time that its wait has doubled. So a name on which thousands
    /// wait is in the log no more often than one on which one waits.
    pub(crate) fn begin_report(
        &self,
        waiter: &WaiterEntry,
        now: Time,
        waited: Duration,
    ) -> Result<(), Time> {
        let mut tables = self.tables.lock();
        let Some(awaited) = tables.registered.get_mut(&waiter.request.key.name) else {
            return Err(Time::NEVER);
        };
        let others = awaited.report.as_ref();
        let others =
            others.filter(|report| report.waiter != waiter.order() && now < report.overdue_at);
        if let Some(report) = others {
            return Err(report.overdue_at);
        }
        awaited.report = Some(LongWaitReport {
            waiter: waiter.order(),
            // Its next one is due when the wait has doubled. A busy machine may be late.
            overdue_at: now + waited * 2,
        });
        Ok(())
    }

    pub(crate) fn owner_of(&self, token: Token) -> TokenOwner {
        let tables = self.tables.lock();
        match tables.tokens.get(&token) {
            Some(waiter) => TokenOwner::Waiter(Arc::clone(waiter)),
            None if tables.guarded.contains(&token) => TokenOwner::Guard,
            None => TokenOwner::Unknown,
        }
    }

    /// Call this while the token's waiter is still registered. Otherwise a notice that arrives in
    /// between belongs to nobody, and the guard's lock is released.
    pub(crate) fn mark_guarded(&self, token: Token) {
        self.tables.lock().guarded.insert(token);
    }

    /// Undoes [`WaiterRegistry::mark_guarded`]. Only a lease that waited in a queue was marked, so
    /// callers spare the others this mutex.
    pub(crate) fn forget_guarded(&self, token: Token) {
        self.tables.lock().guarded.remove(&token);
    }

    /// Adds a waiter to its name's queue. The name is synced at `due` or earlier. Returns when it
    /// is.
    pub(crate) fn enqueue(&self, waiter: &Arc<WaiterEntry>, due: Time) -> Time {
        self.was_queued.store(true, Ordering::Relaxed);
        let name = &waiter.request.key.name;
        let mut tables = self.tables.lock();
        // An ended waiter is forgotten already, or its `forget` waits for this mutex. If it were
        // added now, nobody would take it out again.
        if waiter.state.lock().is_ended() {
            return Time::NEVER;
        }
        let queue = tables
            .queues
            .entry(Arc::clone(name))
            .or_insert_with(|| WaitQueue {
                waiters: BTreeMap::new(),
                due: Time::NEVER,
            });
        queue.waiters.insert(waiter.order(), Arc::clone(waiter));
        let due = due.min(queue.due);
        if due < queue.due {
            tables.set_due(name, due);
        }
        due
    }

    /// Forgets a waiter under the token that it has now. To be called once.
    pub(crate) fn forget(&self, waiter: &WaiterEntry) {
        let token = waiter.state.lock().token;
        let name = &waiter.request.key.name;
        let mut tables = self.tables.lock();
        let tables = &mut *tables;
        self.count.fetch_sub(1, Ordering::Release);
        tables.tokens.remove(&token);
        if let Some(awaited) = tables.registered.get_mut(name) {
            awaited.waiters -= 1;
            awaited
                .report
                .take_if(|report| report.waiter == waiter.order());
            if awaited.waiters == 0 {
                tables.registered.remove(name);
            }
        }
        if let Some(queue) = tables.queues.get_mut(name) {
            queue.waiters.remove(&waiter.order());
            if queue.waiters.is_empty() {
                tables.due.remove(&(queue.due, Arc::clone(name)));
                tables.queues.remove(name);
            }
        }
    }

    /// Gives a waiter a new token, unless it has ended. The new token is registered before the old
    /// one is forgotten, as R1 (registered before sent) demands. So a waiter that ends at the same
    /// moment forgets one of them, and this the other.
    pub(crate) fn replace_token(&self, waiter: &Arc<WaiterEntry>) -> Option<Token> {
        let token = Token::new();
        self.tables.lock().tokens.insert(token, Arc::clone(waiter));
        let unused = {
            let mut state = waiter.state.lock();
            let old = state.token;
            if state.restart(token) { old } else { token }
        };
        self.tables.lock().tokens.remove(&unused);
        (unused != token).then_some(token)
    }

    pub(crate) fn next_due(&self) -> Time {
        self.tables
            .lock()
            .due
            .first()
            .map_or(Time::NEVER, |(at, _)| *at)
    }

    /// Whether a waiter was queued since this was last asked.
    pub(crate) fn take_was_queued(&self) -> bool {
        self.was_queued.swap(false, Ordering::Relaxed)
    }

    /// Whether any waiter of this process is in a queue.
    pub(crate) fn are_any_queued(&self) -> bool {
        !self.tables.lock().queues.is_empty()
    }

    /// The sync calls that are due now, at most `most`. Each of their names is due again at `next`,
    /// in case no reply comes.
    pub(crate) fn take_due(&self, now: Time, next: Time, most: usize) -> Vec<Call> {
        let mut calls = Vec::new();
        let mut tables = self.tables.lock();
        while let Some((at, name)) = tables.due.first().cloned() {
            if at > now || calls.len() == most {
                break;
            }
            tables.due.remove(&(at, Arc::clone(&name)));
            tables.set_due(&name, next);
            let newest = tables
                .queues
                .get(&name)
                .and_then(|queue| queue.waiters.last_key_value());
            if let Some((_, newest)) = newest {
                let token = newest.state.lock().token;
                calls.push(newest.request.call(Verb::Sync { newest: token }));
            }
        }
        calls
    }

    /// Sets when a name is synced next, if anybody here waits for it.
    pub(crate) fn reschedule(&self, name: &Arc<str>, at: Time) {
        self.tables.lock().set_due(name, at);
    }

    /// Makes all names due: a notice of a grant may have been missed.
    pub(crate) fn all_due(&self, now: Time) {
        let mut tables = self.tables.lock();
        let names: Vec<Arc<str>> = tables.queues.keys().cloned().collect();
        for name in &names {
            tables.set_due(name, now);
        }
    }

    /// The tokens of all queued waiters, name by name, with a call that names the lock.
    pub(crate) fn all_tokens(&self) -> Vec<(Call, Vec<Token>)> {
        let tables = self.tables.lock();
        let by_name = tables.queues.values().filter_map(|queue| {
            let tokens: Vec<Token> = queue
                .waiters
                .values()
                .map(|waiter| waiter.state.lock().token)
                .collect();
            let first = queue.waiters.values().next()?;
            let about = first.request.renew(tokens[0], 0);
            Some((about, tokens))
        });
        by_name.collect()
    }

    /// The waiters of a name, in the order in which they came.
    pub(crate) fn waiters_of(&self, name: &Arc<str>) -> Vec<Arc<WaiterEntry>> {
        let tables = self.tables.lock();
        tables
            .queues
            .get(name)
            .map_or_else(Vec::new, |queue| queue.waiters.values().cloned().collect())
    }

    /// While the result lives, no other thread gets at the tables.
    #[cfg(all(test, feature = "memory"))]
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.tables.lock()
    }

    pub(crate) fn all(&self) -> Vec<Arc<WaiterEntry>> {
        self.tables.lock().tokens.values().cloned().collect()
    }
}

/// The owner of a token.
pub(crate) enum TokenOwner {
    Waiter(Arc<WaiterEntry>),
    Guard,
    Unknown,
}

#[cfg(all(test, feature = "memory"))]
mod tests;
