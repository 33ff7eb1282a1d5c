//! Two masters that live at once: what their fences are.

use fairlock::LockManager;

use super::common::{build, builder};
use crate::support::Server;

/// Sets the stored fence of a name, in a field that begins with these numbers, and returns the
/// record. The fence is so many µs ahead of the clock.
fn record_ahead(
    server: &Server,
    key: &str,
    field: &str,
    format: &str,
    ahead: u64,
) -> (u64, Vec<u8>) {
    let change = "local time = redis.call('TIME')
        local fence = time[1] * 1000000 + time[2] + ARGV[3]
        local packed = redis.call('HGET', KEYS[1], ARGV[1])
        local numbers = { struct.unpack(ARGV[2], packed) }
        local rest = string.sub(packed, numbers[#numbers])
        numbers[#numbers] = nil
        numbers[#numbers] = fence
        redis.call('HSET', KEYS[1], ARGV[1], struct.pack(ARGV[2], unpack(numbers)) .. rest)
        return string.format('%.0f', fence)";
    let ahead = ahead.to_string();
    let fence: u64 = server.query(&["EVAL", change, "1", key, field, format, &ahead]);
    let mut connection = server.connection();
    let dump = redis::cmd("DUMP").arg(key).query(&mut connection).unwrap();
    (fence, dump)
}

fn restore(server: &Server, key: &str, record: &[u8]) {
    let mut connection = server.connection();
    redis::cmd("RESTORE")
        .arg(key)
        .arg(60_000)
        .arg(record)
        .query::<()>(&mut connection)
        .unwrap();
}

/// Takes a name on two masters that have the same stored fence, and returns that and both fences.
fn fences_of_two_masters(
    field: &str,
    format: &str,
    ahead: u64,
    take: impl Fn(&LockManager, &str) -> u64,
) -> Vec<(u64, u64, u64)> {
    let servers = [Server::start(), Server::start()];
    let managers = [0, 1].map(|i: usize| build(builder(servers[i].url())));
    // Equal ones are improbable, and not impossible.
    let fences = (0..4).map(|i| {
        let name = format!("a{i}");
        let key = format!("fairlock:{{{name}}}");
        take(&managers[0], &name);
        let (stored, record) = record_ahead(&servers[0], &key, field, format, ahead);
        restore(&servers[1], &key, &record);
        (stored, take(&managers[0], &name), take(&managers[1], &name))
    });
    fences.collect()
}

fn mutex(mgr: &LockManager, name: &str) -> u64 {
    let guard = mgr.lock(name).unwrap();
    let fence = guard.fence();
    guard.unlock().unwrap();
    fence
}

fn permits(mgr: &LockManager, name: &str) -> u64 {
    let guard = mgr.semaphore(name, 2).acquire().unwrap();
    let fence = guard.fence();
    guard.unlock().unwrap();
    fence
}

const SECOND: u64 = 1_000_000;

#[track_caller]
fn check(fences: &[(u64, u64, u64)]) {
    for (stored, one, other) in fences {
        assert!(one > stored && other > stored, "{fences:?}");
        assert!(one - stored <= 1024 && other - stored <= 1024, "{fences:?}");
    }
    assert!(
        fences.iter().any(|(_, one, other)| one != other),
        "{fences:?}"
    );
}

#[test]
fn two_masters_behind_the_stored_fence_give_different_ones() {
    check(&fences_of_two_masters("s", "<ddd", 10 * SECOND, mutex));
    check(&fences_of_two_masters("p", "<d", 10 * SECOND, permits));
}

/// Else many grants could carry the fence away from the clock.
#[test]
fn fence_far_ahead_of_the_clock_rises_by_one() {
    for fences in [
        fences_of_two_masters("s", "<ddd", 100 * SECOND, mutex),
        fences_of_two_masters("p", "<d", 100 * SECOND, permits),
    ] {
        for (stored, one, other) in &fences {
            assert_eq!((*one, *other), (stored + 1, stored + 1), "{fences:?}");
        }
    }
}
