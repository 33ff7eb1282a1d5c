//! The store that is a cluster: each name lives on the master that owns its slot.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | [`ClusterStore`]: the store |
//! | `slots` | the slot of a name, and the map from slots to masters |
//! | `members` | the nodes that calls go to, from the first call to the last reply |
//! | `state` | what all parts share: the map, the members, the request for a new map |
//! | `refresh` | the thread that asks for a new map |
//! | `redirect` | MOVED, ASK, TRYAGAIN, CLUSTERDOWN: where a refused call goes next |
//! | `calls` | short calls |
//! | `link` | the renewal thread's connections |
//! | `listener` | the node that carries the subscription |

mod calls;
mod link;
mod listener;
mod members;
mod redirect;
mod refresh;
mod slots;
mod state;

use std::sync::Arc;

use crossbeam_channel::bounded;

use super::clock::{Clock, Time};
use super::{
    Anchor, CallResult, Channel, ClusterSettings, Deadlines, Leave, Link, OnEvent, Store,
    StoreFault, Troubles,
};
use crate::config::Config;
use crate::error::Result as ApiResult;
use crate::key::Key;
use crate::script::{Call, CallerId};
use crate::stats::Traffic;
use link::ClusterLink;
use state::ClusterState;

/// The masters of a cluster.
pub(crate) struct ClusterStore {
    state: Arc<ClusterState>,
}

impl ClusterStore {
    /// Asks the seeds for the map of slots. So a wrong address or password is reported at once and
    /// in the server's words. Blocks for at most the connect timeout.
    pub(crate) fn connect(
        settings: ClusterSettings,
        config: &Config,
        caller_id: Arc<CallerId>,
    ) -> ApiResult<ClusterStore> {
        let (wanted, requests) = bounded(1);
        let state = Arc::new(ClusterState::new(settings, config, caller_id, wanted));
        let started = state.clock.now();
        state
            .refresh(0, started + config.connect_timeout)
            .and_then(|()| refresh::start(&state, requests))
            .map_err(|fault| fault.into_error(None, state.clock.now() - started))?;
        Ok(ClusterStore { state })
    }
}

impl Store for ClusterStore {
    fn clock(&self) -> Clock {
        self.state.clock.clone()
    }

    fn troubles(&self) -> Arc<Troubles> {
        Arc::clone(&self.state.troubles)
    }

    fn run(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult> {
        self.state.run(calls, deadlines)
    }

    fn send(&self, calls: &[Call], reply_by: Time, leave: &Leave<'_>) -> Vec<Option<CallResult>> {
        self.state.send(calls, reply_by, leave)
    }

    fn unread_due(&self) -> Time {
        let members = self.state.members.all();
        let due = members.iter().map(|member| member.lanes.unread_due());
        due.min().unwrap_or(Time::NEVER)
    }

    fn read_unread(&self) {
        for member in self.state.members.all() {
            member.lanes.read_unread();
        }
        self.state.members.drop_finished();
    }

    fn read_all_unread(&self, until: Time) {
        let members = self.state.members.all();
        for (at, member) in members.iter().enumerate() {
            // One that is silent leaves the others their share of the time.
            let now = self.state.clock.now();
            let share = (until - now) / (members.len() - at) as u32;
            member.lanes.read_all_unread(now + share);
        }
    }

    fn logins_due(&self) -> Time {
        let members = self.state.members.all();
        let due = members.iter().map(|member| member.node.login_due());
        due.min().unwrap_or(Time::NEVER)
    }

    fn renew_logins(&self) {
        for member in self.state.members.all() {
            member.node.renew_login();
        }
    }

    fn link(&self, on_ready: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Link> {
        self.state.set_wake(Arc::clone(&on_ready));
        Box::new(ClusterLink::new(&self.state, on_ready))
    }

    fn listen(&self, channel: Channel<'_>, on_event: &mut OnEvent<'_>) -> Result<(), StoreFault> {
        self.state.listen(channel, on_event)
    }

    fn poke(&self, channel: &str, by: Time) {
        self.state.poke(channel, by);
    }

    fn post_poke(&self, channel: &str, key: &Key) {
        self.state.post_poke(channel, key);
    }

    fn scan(&self, cursor: u64, pattern: &str) -> Result<(u64, Vec<String>), StoreFault> {
        self.state.scan(cursor, pattern)
    }

    fn scan_on(&self, failed: u64) -> u64 {
        self.state.scan_on(failed)
    }

    fn confirms_grants(&self) -> bool {
        self.state.config.replica_acks.is_some()
    }

    fn anchor(&self, key: &Key) -> Option<Anchor> {
        self.state.steady_owner(key)?.node.anchor()
    }

    fn server_of(&self, key: &Key) -> Option<Arc<str>> {
        self.state.owner_of(key)
    }

    fn traffic(&self) -> Traffic {
        self.state.members.traffic()
    }
}
