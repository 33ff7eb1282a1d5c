//! The map from slots to the nodes that own them. It is immutable, and a node's reply becomes one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::members::ClusterNode;
use crate::key::Key;
use crate::script::value_text;
use crate::store::clock::Time;
use crate::store::{Address, StoreFault, port_in};

pub(super) const SLOTS: usize = 16_384;

/// The slot of a key. All keys of a name have the same hash tag, so they are in one slot.
pub(super) fn slot_of(key: &Key) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(key.hash_tag().as_bytes()) % SLOTS as u16
}

/// The owner of each slot at one moment. A change makes another map.
pub(super) struct SlotMap {
    /// For each slot, its owner among the masters.
    owners: Box<[u16]>,
    masters: Vec<Arc<ClusterNode>>,
    /// All nodes that were named, replicas too: each can be asked for the next map.
    pub(super) known: Vec<Address>,
    /// The slots that changed their owner lately, and when this was seen.
    changed: HashMap<u16, Time>,
}

/// No master owns the slot.
const NOBODY: u16 = u16::MAX;

/// A part of a node's reply: slots that follow each other, their master, and its replicas.
#[derive(Debug, PartialEq)]
pub(super) struct SlotRange {
    first: u16,
    last: u16,
    /// The master is the first.
    nodes: Vec<Address>,
}

impl SlotMap {
    /// The map before any node was asked.
    pub(super) fn unknown(seeds: &[Address]) -> SlotMap {
        SlotMap {
            owners: vec![NOBODY; SLOTS].into(),
            masters: Vec::new(),
            known: seeds.to_vec(),
            changed: HashMap::new(),
        }
    }

    /// The map that a node's reply describes. It replaces this one.
    pub(super) fn next(
        &self,
        ranges: &[SlotRange],
        member_at: impl Fn(&Address) -> Arc<ClusterNode>,
        (now, keep): (Time, Duration),
    ) -> SlotMap {
        let mut next = SlotMap {
            known: Vec::new(),
            changed: self.changed_lately(now, keep),
            ..SlotMap::unknown(&[])
        };
        for range in ranges {
            for node in &range.nodes {
                if !next.known.contains(node) {
                    next.known.push(node.clone());
                }
            }
            let Some(master) = range.nodes.first() else {
                continue;
            };
            let index = next.index_of(&member_at(master));
            for slot in range.first..=range.last {
                next.owners[usize::from(slot)] = index;
            }
        }
        for slot in 0..SLOTS as u16 {
            let was = self.owner(slot).map(|member| member.number);
            let is = next.owner(slot).map(|member| member.number);
            if was.is_some() && was != is {
                next.changed.insert(slot, now);
            }
        }
        next
    }

    /// The same map with another owner of one slot.
    pub(super) fn with_owner(
        &self,
        slot: u16,
        owner: &Arc<ClusterNode>,
        (now, keep): (Time, Duration),
    ) -> SlotMap {
        let mut next = SlotMap {
            owners: self.owners.clone(),
            masters: self.masters.clone(),
            known: self.known.clone(),
            changed: self.changed_lately(now, keep),
        };
        if !next.known.contains(&owner.address) {
            next.known.push(owner.address.clone());
        }
        next.owners[usize::from(slot)] = next.index_of(owner);
        next.changed.insert(slot, now);
        next
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<ClusterNode>> {
        self.masters
            .get(usize::from(self.owners[usize::from(slot)]))
    }

    pub(super) fn masters(&self) -> &[Arc<ClusterNode>] {
        &self.masters
    }

    /// When the slot was last seen with another owner than before, if that was lately.
    pub(super) fn changed_at(&self, slot: u16) -> Option<Time> {
        self.changed.get(&slot).copied()
    }

    /// Whether some slot was seen with another owner than before, at this time or later.
    pub(super) fn has_changed_since(&self, since: Time) -> bool {
        self.changed.values().any(|at| *at >= since)
    }

    fn changed_lately(&self, now: Time, keep: Duration) -> HashMap<u16, Time> {
        let changed = self.changed.iter();
        let lately = changed.filter(|(_, at)| **at + keep > now);
        lately.map(|(slot, at)| (*slot, *at)).collect()
    }

    fn index_of(&mut self, member: &Arc<ClusterNode>) -> u16 {
        let known = self.masters.iter().position(|m| m.number == member.number);
        let index = known.unwrap_or_else(|| {
            self.masters.push(Arc::clone(member));
            self.masters.len() - 1
        });
        // No more masters than slots.
        index as u16
    }
}

/// Reads the reply to CLUSTER SLOTS of the node at `asked`.
pub(super) fn parse_slots(reply: &Value, asked: &Address) -> Result<Vec<SlotRange>, StoreFault> {
    let malformed = || StoreFault::protocol("expected ranges as the reply to CLUSTER SLOTS");
    let no_range = |value: &Value| {
        StoreFault::protocol(format!(
            "expected slots, hosts and ports in the reply to CLUSTER SLOTS; got {}",
            value_text(value)
        ))
    };
    let Value::Array(ranges) = reply else {
        return Err(malformed());
    };
    let range = |range: &Value| -> Option<SlotRange> {
        let Value::Array(parts) = range else {
            return None;
        };
        let (first, last) = (slot_number(parts.first()?)?, slot_number(parts.get(1)?)?);
        let nodes: Option<Vec<Address>> = parts[2..]
            .iter()
            .map(|node| address_of(node, asked))
            .collect();
        (first <= last).then_some(SlotRange {
            first,
            last,
            nodes: nodes?,
        })
    };
    ranges
        .iter()
        .map(|value| range(value).ok_or_else(|| no_range(value)))
        .collect()
}

fn slot_number(value: &Value) -> Option<u16> {
    // Not a smaller type, which would cut the number off in silence.
    let number: i64 = redis::from_redis_value_ref(value).ok()?;
    let number = u16::try_from(number).ok()?;
    (usize::from(number) < SLOTS).then_some(number)
}

fn address_of(node: &Value, asked: &Address) -> Option<Address> {
    let Value::Array(parts) = node else {
        return None;
    };
    let host = match parts.first()? {
        Value::Nil => "",
        host => &redis::from_redis_value_ref::<String>(host).ok()?,
    };
    Some(Address::named_by(asked, host, port_in(parts.get(1)?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(name: &str) -> u16 {
        slot_of(&Key::new("fairlock", name).expect("a name"))
    }

    /// The servers' own numbers, by CLUSTER KEYSLOT.
    #[test]
    fn slots_are_those_that_the_servers_compute() {
        assert_eq!(slot("123456789"), 12739);
        assert_eq!(slot("foo"), 12182);
        assert_eq!(slot("user1000"), 3443);
    }

    fn node(host: Value, port: i64) -> Value {
        let id = Value::BulkString(b"07c37df".to_vec());
        Value::Array(vec![host, Value::Int(port), id])
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn node_without_a_host_has_the_host_that_was_asked() {
        let asked = Address::Tcp("10.0.0.1".to_owned(), 7000);
        for host in [Value::Nil, text(""), text("?")] {
            let range = Value::Array(vec![
                Value::Int(0),
                Value::Int(99),
                node(host, 7001),
                node(text("10.0.0.2"), 7002),
            ]);
            let ranges = parse_slots(&Value::Array(vec![range]), &asked).expect("it is valid");
            let nodes = &ranges[0].nodes;
            assert_eq!(nodes[0], Address::Tcp("10.0.0.1".to_owned(), 7001));
            assert_eq!(nodes[1], Address::Tcp("10.0.0.2".to_owned(), 7002));
        }
    }

    /// The slots from this one to 99.
    fn range_with(first: i64, port: i64) -> Value {
        let nodes = node(text("10.0.0.2"), port);
        Value::Array(vec![Value::Array(vec![
            Value::Int(first),
            Value::Int(99),
            nodes,
        ])])
    }

    #[test]
    fn malformed_map_is_refused() {
        let asked = Address::Tcp("h".to_owned(), 1);
        let beyond = Value::Array(vec![Value::Int(0), Value::Int(16_384)]);
        for reply in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![Value::Array(Vec::new())]),
            Value::Array(vec![beyond]),
            range_with(0, 70_000),
            range_with(0, -1),
            range_with(0, 65_536 + 7001),
            range_with(0, 0),
            range_with(65_536, 7001),
            range_with(-1, 7001),
            range_with(100, 7001),
        ] {
            assert!(parse_slots(&reply, &asked).is_err(), "{reply:?}");
        }
    }
}
