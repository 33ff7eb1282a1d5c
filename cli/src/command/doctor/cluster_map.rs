//! The masters of a cluster, by the slots that they serve.

use std::time::Instant;

use fairlock::servers::Server;
use fairlock::servers::redis::{self, Value};

use super::fault::Fault;
use super::interview::Time;
use super::link::{Link, command};
use super::rights::Names;

/// The host and the port of a node.
pub(super) type Address = (String, u16);

const SLOTS: u16 = 16_384;

/// How many names are tried until one is in a slot of a certain master. Each is in its slots with a
/// chance of one to the number of all slots at least.
const NAMES: u32 = 20 * SLOTS as u32;

/// Slots that follow each other, and their master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Range {
    first: u16,
    last: u16,
    master: Address,
}

/// Asks a node for the map of the slots.
pub(super) fn slot_map(server: &Server, time: Time) -> Result<Vec<Range>, Fault> {
    let mut link = Link::open(server, time.until.min(Instant::now() + time.connect))?;
    let mut replies = link.ask(&[command(&["CLUSTER", "SLOTS"])], time.reply)?;
    let reply = replies.pop().unwrap_or(Ok(Value::Nil))?;
    let ranges: Vec<Vec<Value>> =
        redis::from_redis_value(reply).map_err(|_| Fault::protocol("a map of slots"))?;
    let read = |range: &Vec<Value>| read_range(range, server);
    Ok(ranges.iter().filter_map(read).collect())
}

/// `first last [host port id …] …`. A node that does not know its own host leaves it out.
fn read_range(range: &[Value], asked: &Server) -> Option<Range> {
    let [first, last, master, ..] = range else {
        return None;
    };
    let slot = |value| redis::from_redis_value_ref(value).ok();
    let node: Vec<Value> = redis::from_redis_value_ref(master).ok()?;
    let [host, port, ..] = &node[..] else {
        return None;
    };
    let named: Option<String> = redis::from_redis_value_ref(host).ok()?;
    let named = named.filter(|host| !host.is_empty());
    let host = named.or_else(|| asked.host().map(str::to_owned))?;
    Some(Range {
        first: slot(first)?,
        last: slot(last)?,
        master: (host, slot(port)?),
    })
}

/// The masters, each with a name that it keeps.
pub(super) fn masters(map: &[Range], prefix: &str) -> Vec<(Address, Names)> {
    let mut masters: Vec<(Address, Names)> = Vec::new();
    for range in map {
        if masters.iter().all(|(known, _)| *known != range.master) {
            let mut names = (0..NAMES).map(|number| Names::new(prefix, number));
            let kept = names.find(|names| owner(map, slot_of(&names.tag())) == Some(&range.master));
            masters.extend(kept.map(|names| (range.master.clone(), names)));
        }
    }
    masters
}

fn owner(map: &[Range], slot: u16) -> Option<&Address> {
    let range = map
        .iter()
        .find(|range| (range.first..=range.last).contains(&slot));
    range.map(|range| &range.master)
}

/// The slot of a hash tag.
fn slot_of(tag: &str) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes()) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of the cluster specification, and answers of CLUSTER KEYSLOT.
    #[test]
    fn slots_are_those_that_redis_computes() {
        assert_eq!(slot_of("123456789"), 0x31c3 % SLOTS);
        assert_eq!(slot_of("foo"), 12_182);
        assert_eq!(slot_of(""), 0);
    }

    #[test]
    fn each_master_has_a_name_in_one_of_its_slots() {
        let range = |first, last, port| Range {
            first,
            last,
            master: ("h".to_owned(), port),
        };
        let map = [
            range(0, 5000, 1),
            range(5001, 5001, 2),
            range(5002, 16_383, 1),
        ];
        let masters = masters(&map, "p");
        assert_eq!(masters.len(), 2);
        for (address, names) in &masters {
            assert_eq!(owner(&map, slot_of(&names.tag())), Some(address));
        }
    }
}
