//! The state that all parts of a cluster's store share: the slot map, the nodes, and the request
//! for a new map.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use parking_lot::{Mutex, RwLock};

use super::members::{ClusterNode, Members};
use super::slots::{SlotMap, SlotRange, slot_of};
use crate::config::Config;
use crate::key::Key;
use crate::logging::Logger;
use crate::script::CallerId;
use crate::store::clock::{Clock, Time};
use crate::store::node::{Expected, Lanes, Node};
use crate::store::{Address, ClusterSettings, Login, ServerSettings, Troubles};

/// The state that all parts of the store share.
pub(super) struct ClusterState {
    pub(super) clock: Clock,
    login: Login,
    seeds: Vec<Address>,
    caller_id: Arc<CallerId>,
    pub(super) config: Config,
    /// Those of all nodes, and the changes of the map.
    pub(super) troubles: Arc<Troubles>,
    pub(super) members: Members,
    map: RwLock<Arc<SlotMap>>,
    /// To the thread that refreshes the map.
    wanted: Sender<()>,
    /// Wakes the renewal thread.
    wake: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    /// The node that carries the subscription.
    pub(super) carrier: Mutex<Option<Arc<ClusterNode>>>,
}

impl ClusterState {
    pub(super) fn new(
        settings: ClusterSettings,
        config: &Config,
        caller_id: Arc<CallerId>,
        wanted: Sender<()>,
    ) -> ClusterState {
        let ClusterSettings { seeds, login } = settings;
        let clock = Clock::default();
        ClusterState {
            troubles: Arc::new(Troubles::new(clock.clone())),
            clock,
            login,
            caller_id,
            config: config.clone(),
            members: Members::new(),
            map: RwLock::new(Arc::new(SlotMap::unknown(&seeds))),
            seeds,
            wanted,
            wake: Mutex::new(None),
            carrier: Mutex::new(None),
        }
    }

    pub(super) fn map(&self) -> Arc<SlotMap> {
        Arc::clone(&self.map.read())
    }

    /// The user at every node, if one is named.
    pub(super) fn user(&self) -> Option<String> {
        self.login.shown_user()
    }

    /// The node at an address, with a count of its own.
    pub(super) fn node_at(&self, address: &Address) -> Arc<Node> {
        let server = ServerSettings {
            address: address.clone(),
            login: self.login.clone(),
        };
        let node = Node::new(server, &self.caller_id, &self.clock, &self.config);
        let node = node.noting_troubles_in(&self.troubles);
        Arc::new(node.expecting(Expected::ClusterNode))
    }

    pub(super) fn member_at(&self, address: &Address) -> Arc<ClusterNode> {
        self.members.at(address, || {
            let node = self.node_at(address);
            let lanes = Lanes::closed(&node);
            (node, lanes)
        })
    }

    /// The nodes to ask for a map: those that were named last, and then the seeds.
    pub(super) fn nodes_to_ask(&self) -> Vec<Address> {
        let mut nodes = self.map().known.clone();
        for seed in &self.seeds {
            if !nodes.contains(seed) {
                nodes.push(seed.clone());
            }
        }
        nodes
    }

    /// Has the map refreshed. Never waits: one thread does it, and others go on with what they know.
    pub(super) fn want_refresh(&self) {
        // The channel has room for one message. If it is full, a refresh is about to begin.
        let _ = self.wanted.try_send(());
    }

    /// A node's reply is the map from now on.
    pub(super) fn install(&self, ranges: &[SlotRange]) {
        let mut map = self.map.write();
        let (now, keep) = self.moment();
        let next = map.next(ranges, |address| self.member_at(address), (now, keep));
        if next.has_changed_since(now) {
            self.troubles.note();
        }
        let masters = next.masters().to_vec();
        *map = Arc::new(next);
        // Under the map's lock: a MOVED must not name a member that is retired just then.
        let retired = self.members.keep(&masters);
        drop(map);
        for member in &retired {
            log::debug!(logger: Logger, "{} owns no slot any more", member.address);
        }
        drop(retired);
        self.members.drop_finished();
        self.wake_renewal_thread();
    }

    /// A node that was asked at `asked` answered MOVED.
    pub(super) fn on_moved(&self, slot: u16, (host, port): (&str, u16), asked: &Address) {
        let mut map = self.map.write();
        // Under the map's lock, so that no new map retires it before it is named here.
        let owner = self.member_at(&Address::named_by(asked, host, port));
        // A new map that knows nothing of it must not close its connections at once.
        owner.note_redirect_target();
        let is_known = map.owner(slot).is_some_and(|m| m.number == owner.number);
        if !is_known {
            *map = Arc::new(map.with_owner(slot, &owner, self.moment()));
            self.troubles.note();
        }
        drop(map);
        self.want_refresh();
    }

    /// Now, and for how long a change of a slot's owner is to be remembered: P + T.
    fn moment(&self) -> (Time, Duration) {
        (self.clock.now(), self.change_is_recent_for())
    }

    fn change_is_recent_for(&self) -> Duration {
        self.config.check_period + self.config.command_timeout
    }

    /// The node that owns the slot of a key. `None` if nobody does, or if that has changed lately:
    /// the clocks of two nodes may differ.
    pub(super) fn steady_owner(&self, key: &Key) -> Option<Arc<ClusterNode>> {
        let slot = slot_of(key);
        let map = self.map();
        let changed = map.changed_at(slot);
        let is_recent = |at| at + self.change_is_recent_for() > self.clock.now();
        if changed.is_some_and(is_recent) {
            return None;
        }
        map.owner(slot).cloned()
    }

    /// The address of the node that owns the slot of a key.
    pub(super) fn owner_of(&self, key: &Key) -> Option<Arc<str>> {
        let map = self.map();
        let owner = map.owner(slot_of(key))?;
        Some(Arc::clone(owner.node.name()))
    }

    pub(super) fn set_wake(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        *self.wake.lock() = Some(wake);
    }

    pub(super) fn wake_renewal_thread(&self) {
        let wake = self.wake.lock().clone();
        if let Some(wake) = wake {
            wake();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::thread;

    use crossbeam_channel::bounded;
    use redis::Value;

    use super::super::slots::parse_slots;
    use super::*;
    use crate::config::Settings;

    const RECENT: Duration = Duration::from_millis(60);

    /// Nothing listens at these addresses.
    pub(in crate::store::cluster) fn state() -> (ClusterState, Address) {
        let (mut config, _) = Config::new(Settings::default()).expect("the defaults fit");
        config.check_period = RECENT / 2;
        config.command_timeout = RECENT / 2;
        let caller_id = CallerId::new("fairlock", config.check_period, config.horizon);
        let asked = Address::Tcp("10.0.0.1".to_owned(), 7000);
        let settings = ClusterSettings {
            seeds: vec![asked.clone()],
            login: Login::default(),
        };
        let (wanted, _) = bounded(1);
        let state = ClusterState::new(settings, &config, Arc::new(caller_id), wanted);
        (state, asked)
    }

    #[test]
    fn moved_slot_has_its_new_owner_at_once() {
        let (state, asked) = state();
        let key = Key::new("fairlock", "a").expect("a name");
        let slot = slot_of(&key);
        let before = state.map();
        state.on_moved(slot, ("", 7001), &asked);
        let owner = state.map().owner(slot).map(|owner| owner.address.clone());
        assert_eq!(owner, Some(Address::Tcp("10.0.0.1".to_owned(), 7001)));
        // The map that others use is as it was.
        assert!(before.owner(slot).is_none());
        assert!(state.nodes_to_ask().len() == 2);
    }

    #[test]
    fn slot_that_changes_its_owner_is_trouble() {
        let (state, asked) = state();
        let key = Key::new("fairlock", "a").expect("a name");
        let slot = slot_of(&key);
        let map_of = |port: i64| {
            let host = Value::BulkString(b"10.0.0.1".to_vec());
            let node = Value::Array(vec![host, Value::Int(port)]);
            let range = Value::Array(vec![Value::Int(0), Value::Int(16_383), node]);
            parse_slots(&Value::Array(vec![range]), &asked).expect("it is valid")
        };
        state.install(&map_of(7001));
        assert_eq!(state.troubles.last(), 0, "the first map");
        state.install(&map_of(7001));
        state.on_moved(slot, ("", 7001), &asked);
        assert_eq!(state.troubles.last(), 0, "nothing has moved");
        state.on_moved(slot, ("", 7002), &asked);
        let moved = state.troubles.last();
        assert!(moved > 0);
        state.install(&map_of(7002));
        let installed = state.troubles.last();
        assert!(installed > moved);
        // The nodes note theirs in the same place.
        state.member_at(&asked).node.retire_now();
        assert!(state.troubles.last() > installed);
    }

    /// The clocks of two masters may differ.
    #[test]
    fn slot_with_a_new_owner_has_no_clock_at_first() {
        let (state, asked) = state();
        let key = Key::new("fairlock", "a").expect("a name");
        state.on_moved(slot_of(&key), ("", 7001), &asked);
        assert!(state.steady_owner(&key).is_none());
        // Time itself is under test: the change is no longer recent.
        thread::sleep(RECENT * 2);
        assert!(state.steady_owner(&key).is_some());
        state.on_moved(slot_of(&key), ("", 7002), &asked);
        assert!(state.steady_owner(&key).is_none());
    }

    /// It owns no slot any more, but what was left there is not read yet.
    #[test]
    fn retired_member_stays_while_somebody_holds_it() {
        let (state, asked) = state();
        let member = state.member_at(&asked);
        state.members.keep(&[]);
        assert_eq!(state.members.all().len(), 1);
        assert_ne!(state.member_at(&asked).number, member.number);
        state.members.keep(&[]);
        drop(member);
        state.members.drop_finished();
        assert_eq!(state.members.all().len(), 0);
    }
}
