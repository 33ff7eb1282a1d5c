//! The store that is one Redis node.

use std::sync::Arc;

use super::clock::{Clock, Time};
use super::node::{Lanes, Node};
use super::{
    Anchor, CallResult, Channel, Deadlines, Leave, Link, OnEvent, ServerSettings, Store,
    StoreFault, Troubles,
};
use crate::config::Config;
use crate::error::Result as ApiResult;
use crate::key::Key;
use crate::script::{Call, CallerId};
use crate::stats::Traffic;

/// A single Redis node.
pub(crate) struct Single {
    node: Arc<Node>,
    lanes: Lanes,
}

impl Single {
    /// Opens one connection, so that a wrong address or password is reported at once and in the
    /// server's words.
    pub(crate) fn connect(
        server: ServerSettings,
        config: &Config,
        caller_id: Arc<CallerId>,
    ) -> ApiResult<Single> {
        let clock = Clock::default();
        let started = clock.now();
        let node = Arc::new(Node::new(server, &caller_id, &clock, config));
        let lanes = Lanes::open(&node, started + config.connect_timeout)
            .map_err(|fault| fault.into_error(None, clock.now() - started))?;
        Ok(Single { node, lanes })
    }
}

impl Store for Single {
    fn clock(&self) -> Clock {
        self.node.clock.clone()
    }

    fn troubles(&self) -> Arc<Troubles> {
        Arc::clone(self.node.troubles())
    }

    fn run(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult> {
        self.lanes.run(calls, deadlines)
    }

    fn send(&self, calls: &[Call], reply_by: Time, leave: &Leave<'_>) -> Vec<Option<CallResult>> {
        self.lanes.send(calls, reply_by, leave)
    }

    fn unread_due(&self) -> Time {
        self.lanes.unread_due()
    }

    fn read_unread(&self) {
        self.lanes.read_unread();
    }

    fn read_all_unread(&self, until: Time) {
        self.lanes.read_all_unread(until);
    }

    fn logins_due(&self) -> Time {
        self.node.login_due()
    }

    fn renew_logins(&self) {
        self.node.renew_login();
    }

    fn link(&self, on_ready: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Link> {
        self.node.link(on_ready)
    }

    fn listen(&self, channel: Channel<'_>, on_event: &mut OnEvent<'_>) -> Result<(), StoreFault> {
        self.node.listen(channel, on_event)
    }

    fn poke(&self, channel: &str, by: Time) {
        self.lanes.poke(channel, by);
    }

    fn post_poke(&self, channel: &str, key: &Key) {
        self.lanes.post_poke(channel, key);
    }

    fn scan(&self, cursor: u64, pattern: &str) -> Result<(u64, Vec<String>), StoreFault> {
        self.lanes.scan(cursor, pattern)
    }

    fn confirms_grants(&self) -> bool {
        self.node.has_replica_acks()
    }

    fn anchor(&self, _key: &Key) -> Option<Anchor> {
        self.node.anchor()
    }

    fn server_of(&self, _: &Key) -> Option<Arc<str>> {
        Some(Arc::clone(self.node.name()))
    }

    fn traffic(&self) -> Traffic {
        self.node.traffic()
    }
}
