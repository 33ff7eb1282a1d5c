//! The base of each part of the engine: the settings, the store with its clock, the counters.
//! It keeps nothing about any lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::engine::lease::EngineId;
use crate::engine::life::Life;
use crate::error::{Error, Misuse, Result};
use crate::key::Key;
use crate::kind::Kind;
use crate::script::{Call, Family, Outcome};
use crate::stats::{Count, Meter, Stats, Traffic};
use crate::store::clock::{Clock, Time};
use crate::store::{CallResult, ConnectionWait, Deadlines, Service, Store, StoreFault};

/// The client of one store.
pub(crate) struct Client {
    config: Config,
    store: Box<dyn Store>,
    meter: Meter,
    clock: Clock,
    /// The services that the store offers.
    service: Service,
    life: Arc<Life>,
}

impl Client {
    pub(super) fn new(config: Config, store: Box<dyn Store>, life: &Arc<Life>) -> Client {
        Client {
            clock: store.clock(),
            service: store.service(),
            config,
            store,
            meter: Meter::new(),
            life: Arc::clone(life),
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn store(&self) -> &dyn Store {
        &*self.store
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Whether waiters wait in a queue of the store. Otherwise they ask again (R21).
    pub(crate) fn has_queue(&self) -> bool {
        self.service.has_queue
    }

    /// Whether the store keeps locks of this family.
    pub(super) fn keeps(&self, family: Family) -> bool {
        self.service.families.contains(&family)
    }

    /// The client lives in one place, so its address tells its engine from others.
    pub(super) fn id(&self) -> EngineId {
        EngineId(std::ptr::from_ref(self).addr())
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Spins until this time, which is about a microsecond away. In memory the clock may stand still: so
    /// it spins for no longer than `most`.
    pub(crate) fn spin_until(&self, due: Time, most: Duration) {
        let began = Instant::now();
        while self.now() < due && began.elapsed() < most {
            std::hint::spin_loop();
        }
    }

    /// [`Error::Misused`] if the store does not keep locks of this kind.
    pub(crate) fn check_family(&self, family: Family) -> Result<()> {
        if self.keeps(family) {
            return Ok(());
        }
        let message = "a quorum keeps mutexes and re-entrant mutexes; semaphores and reader/writer \
                       locks need one node, Sentinel or Cluster";
        Err(Error::setting("kind", message))
    }

    pub(crate) fn stats(&self) -> Stats {
        self.publish_traffic();
        self.meter.read(self.traffic().unwrap_or_default())
    }

    /// The store's counts. `None` in a forked child: another thread of the parent may have held a
    /// mutex of the store or of the recorder at the fork.
    fn traffic(&self) -> Option<Traffic> {
        (!self.life.is_forked()).then(|| self.store.traffic())
    }

    /// Emits what the store has counted. No thread may call this with a mutex held.
    pub(super) fn publish_traffic(&self) {
        self.meter.publish(|| self.traffic());
    }

    /// A caller's request for a lock ends without it.
    pub(crate) fn on_not_granted(&self, end: Count) {
        // As in `traffic`.
        if self.life.is_forked() {
            return;
        }
        self.meter.count(end);
        // No lease wakes the renewal thread, which publishes otherwise.
        self.publish_traffic();
    }

    /// A caller's request for a lock ends with this error.
    pub(crate) fn on_acquire_error(&self, error: &Error) {
        match error {
            // Nothing was asked for.
            Error::Misused {
                misuse: Misuse::Name | Misuse::Setting { .. } | Misuse::Server,
                ..
            } => {}
            Error::Closed => self.on_not_granted(Count::Cancelled),
            _ => self.on_not_granted(Count::Failed),
        }
    }

    /// One page of the records that match: the next cursor (0: this was the last page) and the
    /// keys.
    pub(crate) fn scan(&self, cursor: u64, pattern: &str) -> Result<(u64, Vec<String>)> {
        self.life.check_fork()?;
        let started = self.now();
        self.store
            .scan(cursor, pattern)
            .map_err(|fault| fault.into_error(None, self.now() - started))
    }

    /// The cursor of the pages behind those that failed with the page at this cursor; 0: none.
    pub(crate) fn scan_on(&self, failed: u64) -> u64 {
        // Another thread of the parent may have had a mutex of the store at the fork.
        if self.life.is_forked() {
            return 0;
        }
        self.store.scan_on(failed)
    }

    /// The public error for a call about `key` that took `waited`. It names the server.
    pub(super) fn error(&self, fault: StoreFault, key: Option<&Key>, waited: Duration) -> Error {
        let error = fault.into_error(key, waited);
        // A fault that a node did not see, such as a lack of time, is about the key's server.
        error.at(|| self.store.server_of(key?))
    }

    /// The error of a call that was begun at `started`.
    pub(super) fn error_since(&self, started: Time, fault: StoreFault, key: &Key) -> Error {
        self.error(fault, Some(key), self.now() - started)
    }

    /// An error for a reply of another verb, or of a record of another kind.
    pub(super) fn unexpected_reply(&self, call: &Call, outcome: &Outcome) -> Error {
        if let Outcome::Kind(kind) = outcome {
            return self.wrong_kind(call, kind);
        }
        Error::Refused {
            lock: Some(call.key.name.clone()),
            server: self.store.server_of(&call.key),
            code: "PROTOCOL".to_owned(),
            message: format!("unexpected reply: {}", outcome.word()),
        }
    }

    /// The error for a name whose record is of this other kind.
    pub(super) fn wrong_kind(&self, call: &Call, kind: &str) -> Error {
        wrong_kind(call, kind).at(|| self.store.server_of(&call.key))
    }

    /// P8 (every call ends): one command timeout for a connection and one for the reply. Past
    /// `until` half a timeout for the connection, and one in all.
    pub(super) fn deadlines(&self, now: Time, until: Time) -> Deadlines {
        let timeout = self.config.command_timeout;
        Deadlines {
            connection: ConnectionWait::Until((now + timeout).min(until + timeout / 2)),
            reply_by: (now + timeout * 2).min(until + timeout),
        }
    }

    /// P9 (nothing starves): only a connection that is open now, so the caller does not wait until
    /// one is opened.
    pub(super) fn at_once(&self, now: Time) -> Deadlines {
        Deadlines::at_once(now + self.config.command_timeout)
    }
}

/// The result of the one call that was run.
pub(super) fn single_result(mut results: Vec<CallResult>) -> CallResult {
    results
        .pop()
        .unwrap_or_else(|| CallResult::not_sent(StoreFault::NotReady))
}

fn wrong_kind(call: &Call, kind: &str) -> Error {
    let lock = call.key.name.clone();
    let is = Kind::from_record(kind);
    let asked = Kind::from_record(&call.spec.kind());
    if is == asked {
        let message = format!("the record is {kind}, which is not this version's protocol");
        return Error::Refused {
            lock: Some(lock),
            server: None,
            code: "WRONGVERSION".to_owned(),
            message,
        };
    }
    let message =
        format!("the lock {lock:?} is a {is} and cannot be used as a {asked} while it is in use");
    Error::Misused {
        lock: Some(lock),
        misuse: Misuse::Kind { is, asked },
        message,
    }
}
