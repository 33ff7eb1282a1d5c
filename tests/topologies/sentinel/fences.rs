//! Two masters that live at once: what their fences are.

use fairlock::LockManager;

use super::common::{build, builder, manager};
use crate::sentinel_set::SentinelSet;
use crate::support::Server;

/// A kind of lock, and where its record has the fence.
struct Kind {
    take: fn(&LockManager, &str) -> u64,
    /// The key, behind the name's.
    key: &'static str,
    field: &'static str,
    /// The numbers at the beginning of the field. The last one is the fence.
    format: &'static str,
}

const KINDS: [Kind; 2] = [
    Kind {
        take: mutex,
        key: "",
        field: "s",
        format: "<ddd",
    },
    Kind {
        take: permits,
        key: ":h",
        field: "p",
        format: "<d",
    },
];

/// Sets the stored fence to this many µs ahead of the clock, and returns it.
fn put_ahead(server: &Server, name: &str, kind: &Kind, ahead: u64) -> u64 {
    let change = "local time = redis.call('TIME')
        local fence = time[1] * 1000000 + time[2] + ARGV[3]
        local packed = redis.call('HGET', KEYS[1], ARGV[1])
        local numbers = { struct.unpack(ARGV[2], packed) }
        local rest = string.sub(packed, numbers[#numbers])
        numbers[#numbers] = nil
        numbers[#numbers] = fence
        redis.call('HSET', KEYS[1], ARGV[1], struct.pack(ARGV[2], unpack(numbers)) .. rest)
        return string.format('%.0f', fence)";
    let key = format!("fairlock:{{{name}}}{}", kind.key);
    let ahead = ahead.to_string();
    server.query(&["EVAL", change, "1", &key, kind.field, kind.format, &ahead])
}

/// Copies a name's record, as replication does.
fn copy(from: &Server, to: &Server, name: &str) {
    let (mut source, mut target) = (from.connection(), to.connection());
    for key in ["", ":h"].map(|end| format!("fairlock:{{{name}}}{end}")) {
        let dump: Option<Vec<u8>> = redis::cmd("DUMP").arg(&key).query(&mut source).unwrap();
        if let Some(dump) = dump {
            let mut restore = redis::cmd("RESTORE");
            restore.arg(&key).arg(60_000).arg(dump);
            restore.query::<()>(&mut target).unwrap();
        }
    }
}

/// Takes a name on two masters that have the same stored fence, and returns that and both fences.
fn fences_of_two_masters(kind: &Kind, ahead: u64) -> Vec<(u64, u64, u64)> {
    let servers = [Server::start(), Server::start()];
    let [first, second] = [0, 1].map(|i: usize| build(builder(servers[i].url())));
    // Equal ones are improbable, and not impossible. So there are four names.
    let fences = ["a", "b", "c", "d"].map(|name| {
        (kind.take)(&first, name);
        let stored = put_ahead(&servers[0], name, kind, ahead);
        copy(&servers[0], &servers[1], name);
        (
            stored,
            (kind.take)(&first, name),
            (kind.take)(&second, name),
        )
    });
    fences.to_vec()
}

fn mutex(mgr: &LockManager, name: &str) -> u64 {
    let guard = mgr.lock(name).unwrap();
    let fence = guard.fence();
    guard.unlock().unwrap();
    fence
}

fn permits(mgr: &LockManager, name: &str) -> u64 {
    let guard = mgr.semaphore(name, 2).acquire(1).unwrap();
    let fence = guard.fence();
    guard.unlock().unwrap();
    fence
}

const SECOND: u64 = 1_000_000;

#[test]
fn two_masters_behind_the_stored_fence_give_different_ones() {
    for kind in &KINDS {
        let fences = fences_of_two_masters(kind, 10 * SECOND);
        for (stored, one, other) in &fences {
            assert!(one > stored && other > stored, "{fences:?}");
            assert!(one - stored <= 1024 && other - stored <= 1024, "{fences:?}");
        }
        let differ = fences.iter().any(|(_, one, other)| one != other);
        assert!(differ, "{fences:?}");
    }
}

/// Else many grants could carry the fence away from the clock.
#[test]
fn fence_far_ahead_of_the_clock_rises_by_one() {
    for kind in &KINDS {
        let fences = fences_of_two_masters(kind, 100 * SECOND);
        for (stored, one, other) in &fences {
            assert_eq!((*one, *other), (stored + 1, stored + 1), "{fences:?}");
        }
    }
}

#[test]
fn deleted_name_is_gone_from_master_and_replicas_and_its_fence_rises() {
    let set = SentinelSet::start();
    let mgr = manager(&set);
    let guard = mgr.lock("a").unwrap();
    let fence = guard.fence();
    assert!(!mgr.delete("a").unwrap());
    guard.unlock().unwrap();
    assert!(mgr.delete("a").unwrap());
    set.await_replication();
    for node in &set.nodes {
        assert_eq!(node.query::<Vec<String>>(&["KEYS", "fairlock*"]), [""; 0]);
    }
    assert!(mgr.lock("a").unwrap().fence() > fence);
}
