//! The node that carries the subscription, and the pages of all nodes.
//!
//! A message that a script publishes reaches subscribers on every node. So one subscription is
//! enough, and any master can carry it.

use std::sync::Arc;

use super::members::ClusterNode;
use super::slots::{SlotMap, slot_of};
use super::state::ClusterState;
use crate::error::Step;
use crate::key::Key;
use crate::store::clock::Time;
use crate::store::{Channel, OnEvent, StoreFault};

/// How many bits of a cursor are the node's own. The others are the number of the member.
const CURSOR_BITS: u32 = 48;

impl ClusterState {
    /// See [`Store::listen`](crate::store::Store::listen). The subscription fails when its master
    /// dies, or owns no slot any more. The next call of this takes the next master.
    pub(super) fn listen(
        &self,
        channel: Channel<'_>,
        on_event: &mut OnEvent<'_>,
    ) -> Result<(), StoreFault> {
        let carrier = self.next_carrier()?;
        let ended = carrier.node.listen(channel, on_event);
        if ended.is_err() {
            // It may be dead. Callers find out only when they use it.
            self.want_refresh();
        }
        ended
    }

    /// The master behind the one that carried the subscription last.
    fn next_carrier(&self) -> Result<Arc<ClusterNode>, StoreFault> {
        let map = self.map();
        let masters = map.masters();
        let mut carrier = self.carrier.lock();
        let last = carrier.as_ref().map(|member| member.number);
        let after = masters.iter().filter(|m| Some(m.number) > last);
        let next = after
            .min_by_key(|m| m.number)
            .or_else(|| masters.iter().min_by_key(|m| m.number))
            .ok_or_else(|| StoreFault::unavailable(Step::Connect, "no master is known"))?;
        *carrier = Some(Arc::clone(next));
        Ok(Arc::clone(next))
    }

    /// See [`Store::poke`](crate::store::Store::poke).
    pub(super) fn poke(&self, channel: &str, by: Time) {
        let carrier = self.carrier.lock().clone();
        if let Some(carrier) = carrier {
            carrier.lanes.poke(channel, by);
        }
    }

    /// See [`Store::post_poke`](crate::store::Store::post_poke). A message reaches all nodes.
    pub(super) fn post_poke(&self, channel: &str, key: &Key) {
        if let Some(owner) = self.map().owner(slot_of(key)) {
            owner.lanes.post_poke(channel, key);
        }
    }

    /// See [`Store::scan`](crate::store::Store::scan). The pages of one master follow those of the
    /// one before, in the order of their numbers. A master that is gone has no more pages, and one
    /// that is met meanwhile comes last.
    pub(super) fn scan(
        &self,
        cursor: u64,
        pattern: &str,
    ) -> Result<(u64, Vec<String>), StoreFault> {
        let (number, within) = (cursor >> CURSOR_BITS, cursor & ((1 << CURSOR_BITS) - 1));
        let map = self.map();
        let from = |number: u64| first_from(&map, number);
        let Some(member) = from(number) else {
            return Ok((0, Vec::new()));
        };
        let within = if member.number == number { within } else { 0 };
        let scanned = member.lanes.scan(within, pattern);
        let (next, keys) = scanned.inspect_err(|_| self.want_refresh())?;
        if next >> CURSOR_BITS != 0 {
            let fault = StoreFault::protocol("a cursor that is too large");
            return Err(fault.at(member.node.name()));
        }
        let cursor = match (next, from(member.number + 1)) {
            (0, None) => 0,
            (0, Some(following)) => following.number << CURSOR_BITS,
            (next, _) => member.number << CURSOR_BITS | next,
        };
        Ok((cursor, keys))
    }

    /// See [`Store::scan_on`](crate::store::Store::scan_on): the first page of the next master.
    pub(super) fn scan_on(&self, failed: u64) -> u64 {
        let map = self.map();
        let asked = first_from(&map, failed >> CURSOR_BITS);
        let next = asked.and_then(|member| first_from(&map, member.number + 1));
        next.map_or(0, |member| member.number << CURSOR_BITS)
    }
}

/// The master with the smallest number that is not below this one.
fn first_from(map: &SlotMap, number: u64) -> Option<&Arc<ClusterNode>> {
    let masters = map.masters().iter().filter(|m| m.number >= number);
    masters.min_by_key(|m| m.number)
}
