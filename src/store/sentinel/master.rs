//! One master, with all connections to it, and how another one takes its place.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::config::Config;
use crate::script::CallerId;
use crate::store::clock::{Clock, Time};
use crate::store::node::{Counts, Expected, Lanes, Node, QueryConnection};
use crate::store::{Address, Login, SentinelSettings, ServerSettings, StoreFault, Troubles};

/// A master. It is never changed, only replaced as a whole.
pub(super) struct Master {
    pub(super) node: Arc<Node>,
    pub(super) lanes: Lanes,
    /// When it took the place of another one. `None`: it is the first.
    pub(super) replaced_at: Option<Time>,
}

impl Master {
    /// The same master, which takes the place of another one now.
    pub(super) fn in_place_of_another(self, clock: &Clock) -> Master {
        Master {
            replaced_at: Some(clock.now()),
            ..self
        }
    }
}

/// Connects to masters.
pub(super) struct MasterOpener {
    login: Login,
    pub(super) caller_id: Arc<CallerId>,
    clock: Clock,
    pub(super) config: Config,
    /// All masters count here. A call may still wait on one that was replaced.
    counts: Arc<Counts>,
    troubles: Arc<Troubles>,
}

impl MasterOpener {
    pub(super) fn new(
        settings: &SentinelSettings,
        config: &Config,
        caller_id: Arc<CallerId>,
        clock: &Clock,
    ) -> MasterOpener {
        MasterOpener {
            login: settings.login.clone(),
            caller_id,
            clock: clock.clone(),
            config: config.clone(),
            counts: Arc::default(),
            troubles: Arc::new(Troubles::new(clock.clone())),
        }
    }

    /// Connects to the server that the sentinels name. Blocks until `until` at most.
    ///
    /// If the server says that it is a replica, connects to its master. A plain FAILOVER leaves
    /// the sentinels naming a replica for half a minute. That is done once: two servers that name
    /// each other would be asked forever.
    pub(super) fn open(&self, address: &Address, until: Time) -> Result<Master, StoreFault> {
        match self.open_master(address, until) {
            Err(fault) if fault.code() == Some("READONLY") => {
                let followed = self.master_of(address, until).ok_or(fault)?;
                self.open_master(&followed, until)
            }
            opened => opened,
        }
    }

    /// Connects to the server at this address, and to no other. An error if it is no master.
    pub(super) fn open_master(&self, address: &Address, until: Time) -> Result<Master, StoreFault> {
        let node = Arc::new(self.node(address));
        let lanes = Lanes::open(&node, until)?;
        Ok(Master {
            node,
            lanes,
            replaced_at: None,
        })
    }

    fn node(&self, address: &Address) -> Node {
        let server = self.server(address);
        Node::new(server, &self.caller_id, &self.clock, &self.config)
            .expecting(Expected::SentinelMaster)
            .counting_in(Arc::clone(&self.counts))
            .noting_troubles_in(&self.troubles)
    }

    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    fn master_of(&self, replica: &Address, until: Time) -> Option<Address> {
        let left = || until - self.clock.now();
        let mut connection =
            QueryConnection::open(&self.server(replica), &self.caller_id, &self.clock, left())
                .ok()?;
        connection.master(replica, left())
    }

    fn server(&self, address: &Address) -> ServerSettings {
        ServerSettings {
            address: address.clone(),
            login: self.login.clone(),
        }
    }
}

/// The current master, and those before it for as long as somebody is owed a reply.
pub(super) struct Masters {
    current: RwLock<Arc<Master>>,
    retired: Mutex<Vec<Arc<Master>>>,
    /// Called after each change.
    on_change: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

impl Masters {
    pub(super) fn new(first: Master) -> Masters {
        Masters {
            current: RwLock::new(Arc::new(first)),
            retired: Mutex::default(),
            on_change: Mutex::default(),
        }
    }

    pub(super) fn current(&self) -> Arc<Master> {
        Arc::clone(&self.current.read())
    }

    /// From now on this one is the master. All connections to the one before it are closed at once,
    /// also under the calls that use them: these find the new master.
    pub(super) fn replace(&self, next: Master) {
        let old = std::mem::replace(&mut *self.current.write(), Arc::new(next));
        self.retired.lock().push(Arc::clone(&old));
        old.lanes.end();
        self.forget_retired();
        let on_change = self.on_change.lock().clone();
        if let Some(on_change) = on_change {
            on_change();
        }
    }

    /// `wake` is called after each change of master, with no mutex held.
    pub(super) fn on_change(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        *self.on_change.lock() = Some(wake);
    }

    /// The current master, and those before it.
    pub(super) fn all(&self) -> Vec<Arc<Master>> {
        let mut all = vec![self.current()];
        all.extend(self.retired.lock().iter().cloned());
        all
    }

    /// Forgets those that owe nothing any more. A caller that still uses one keeps it.
    pub(super) fn forget_retired(&self) {
        let is_done = |old: &mut Arc<Master>| !old.lanes.has_unread();
        let done: Vec<_> = self.retired.lock().extract_if(.., is_done).collect();
        // Their pools end here, with no mutex held.
        drop(done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn next_master_is_trouble_also_for_those_who_know_the_first() {
        let (config, _) = Config::new(Settings::default()).expect("the defaults fit");
        let caller_id = CallerId::new("fairlock", config.check_period, config.horizon);
        let settings = SentinelSettings {
            sentinels: Vec::new(),
            service: "mymaster".to_owned(),
            login: Login::default(),
            sentinel_login: Login::default(),
        };
        let clock = Clock::default();
        let opener = MasterOpener::new(&settings, &config, Arc::new(caller_id), &clock);
        let master = |port| {
            let address = Address::Tcp("127.0.0.1".to_owned(), port);
            let node = Arc::new(opener.node(&address));
            let lanes = Lanes::closed(&node);
            Master {
                node,
                lanes,
                replaced_at: None,
            }
        };
        let masters = Masters::new(master(1));
        let troubles = Arc::clone(masters.current().node.troubles());
        masters.replace(master(2));
        let replaced = troubles.last();
        assert!(replaced > 0);
        // The next one notes its troubles there, too.
        masters.current().node.retire_now();
        assert!(troubles.last() > replaced);
    }
}
