//! Records that were damaged by hand, where more than one server takes part. Their scripts fail, or
//! their replies are malformed. That harms their own locks alone, and ends no connection.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::{
    Builder, Error, LockGuard, LockManager, LockOptions, Result, SemaphoreGuard, endpoint::Endpoint,
};

use crate::cluster_set::ClusterSet;
use crate::replica_acks::ReplicaSet;
use crate::support::{Server, until};

const TTL: Duration = Duration::from_secs(13);
const T: Duration = Duration::from_secs(2);
const P: Duration = Duration::from_millis(250);
/// Long enough for a replica on a loaded machine.
const ACK: Duration = Duration::from_secs(1);
/// For what must happen, but whose time is not under test.
const SOON: Duration = Duration::from_secs(20);
/// Mutexes, and as many semaphores where there are any.
const LOCKS: usize = 100;

/// Each of these lines damages a record in a way of its own. KEYS: the record and the holders of
/// permits. `numbers` is the field of the packed numbers, and the third of them is the fence.
const DAMAGES: [&str; 16] = [
    "redis.call('HDEL', KEYS[1], numbers)",
    "redis.call('HSET', KEYS[1], numbers, '')",
    "redis.call('HSET', KEYS[1], numbers, 'too short')",
    "redis.call('HSET', KEYS[1], numbers, string.rep('too long', 9))",
    "number(1, 0 / 0)",
    "number(1, -1 / 0)",
    "number(3, -5)",
    "number(3, 0.5)",
    "number(3, 1e300)",
    "number(3, 1 / 0)",
    "number(3, 0 / 0)",
    "redis.call('HDEL', KEYS[1], 'o')",
    "redis.call('HDEL', KEYS[1], 'k', numbers)",
    "redis.call('HSET', KEYS[1], 'k', 'mutex/9') redis.call('HDEL', KEYS[1], numbers)",
    "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], 'of', 'another program')",
    "redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], 'of another type')",
];
const DAMAGE: &str = "
    local numbers = redis.call('HEXISTS', KEYS[1], 'g') == 1 and 'g' or 's'
    local function number(nth, value)
        local packed = redis.call('HGET', KEYS[1], numbers)
        redis.call('HSET', KEYS[1], numbers, string.sub(packed, 1, 8 * (nth - 1))
                   .. struct.pack('<d', value) .. string.sub(packed, 8 * nth + 1))
    end
    ";
/// The same for the holders of permits.
const DAMAGES_OF_PERMITS: [&str; 7] = [
    "redis.call('HDEL', KEYS[2], 'p')",
    "redis.call('HSET', KEYS[2], 'p', 'too short')",
    "holder('')",
    "holder('too short')",
    "holder(string.rep(' ', 22))",
    "holder(string.rep('x', 60))",
    "redis.call('DEL', KEYS[2]) redis.call('RPUSH', KEYS[2], 'of another type')",
];
const DAMAGE_OF_PERMITS: &str = "
    local function holder(text)
        for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
            if field ~= 'p' then redis.call('HSET', KEYS[2], field, text) end
        end
    end
    ";

fn builder(to: impl Into<Endpoint>) -> Builder {
    LockManager::builder(to)
        .options(LockOptions::new().ttl(TTL))
        .command_timeout(T)
        .check_period(P)
        .horizon(P + 13 * T / 4)
        .connect_timeout(SOON)
        .lanes(1)
}

/// Damages a name on this server. In a cluster, only the owner of its slot takes the script.
fn damage(server: &Server, name: &str, how: &str) -> bool {
    let (record, holders) = (
        format!("fairlock:{{{name}}}"),
        format!("fairlock:{{{name}}}:h"),
    );
    let script = format!("{how}\n return 1");
    let done = server.try_query::<i64>(&["EVAL", &script, "2", &record, &holders]);
    done.is_ok()
}

/// A guard of one kind or another.
enum Guard {
    Mutex(LockGuard),
    Permit(SemaphoreGuard),
}

impl Guard {
    fn is_held(&self) -> bool {
        match self {
            Guard::Mutex(guard) => guard.is_held(),
            Guard::Permit(guard) => guard.is_held(),
        }
    }

    fn renew(&self) -> Result<()> {
        match self {
            Guard::Mutex(guard) => guard.renew(),
            Guard::Permit(guard) => guard.renew(),
        }
    }

    fn unlock(self) -> Result<()> {
        match self {
            Guard::Mutex(guard) => guard.unlock(),
            Guard::Permit(guard) => guard.unlock(),
        }
    }
}

/// Locks of one manager, some of which are damaged.
struct Locks {
    guards: Vec<Guard>,
    prefix: &'static str,
    damages: Vec<String>,
}

impl Locks {
    /// All over the requests that renew several of them.
    fn damaged(&self) -> impl Iterator<Item = (usize, &str)> {
        let place = |at: usize| 37 * at % LOCKS;
        let all = self.damages.iter().enumerate();
        all.map(move |(at, how)| (place(at), how.as_str()))
    }

    fn is_damaged(&self, number: usize) -> bool {
        self.damaged().any(|(at, _)| at == number)
    }

    fn name(&self, number: usize) -> String {
        format!("{}{number}", self.prefix)
    }
}

/// Whoever asks for a damaged name may be refused, but is not told that no server answers.
#[track_caller]
fn assert_answered<X>(what: &str, name: &str, end: Result<X>) {
    if let Err(error @ Error::Unavailable { .. }) = end {
        panic!("{what} {name}: {error}");
    }
}

fn lock(manager: &LockManager, prefix: &str, number: usize) -> Result<Guard> {
    let name = format!("{prefix}{number}");
    Ok(match prefix {
        "a" => Guard::Mutex(manager.lock(name)?),
        _ => Guard::Permit(manager.semaphore(name, 2).acquire(1)?),
    })
}

/// Damages some locks of this manager. `keeps_all`: also those go on. So many connections are opened
/// when they are `first_used`: with replica acks, one to each master for the end of lost locks.
fn assert_harms_no_other(
    manager: &LockManager,
    has_permits: bool,
    keeps_all: bool,
    first_used: u64,
    damage: impl Fn(&str, &str),
) {
    let take = |prefix: &'static str, damages: Vec<String>| Locks {
        guards: (0..LOCKS)
            .map(|number| lock(manager, prefix, number).expect("nobody else wants it"))
            .collect(),
        prefix,
        damages,
    };
    let behind = |with: &str, how: &[&str]| how.iter().map(|how| format!("{with}{how}")).collect();
    let mut kinds = vec![take("a", behind(DAMAGE, &DAMAGES))];
    if has_permits {
        kinds.push(take("s", behind(DAMAGE_OF_PERMITS, &DAMAGES_OF_PERMITS)));
    }
    // All connections are open.
    let last = LOCKS - 1;
    for guard in kinds.iter().flat_map(|locks| &locks.guards) {
        guard.renew().expect("it is held");
    }
    let taken = manager.try_lock_for(kinds[0].name(last), P);
    assert!(taken.expect("they answer").is_none());
    let all = (kinds.len() * LOCKS) as u64;
    let by_callers = manager.stats().renewals_confirmed;
    until(TTL / 3 + SOON, "the renewal thread has renewed all", || {
        manager.stats().renewals_confirmed >= by_callers + all
    });
    for locks in &kinds {
        for (number, how) in locks.damaged() {
            damage(&locks.name(number), how);
        }
    }
    let (before, started) = (manager.stats(), Instant::now());
    // Time itself is under test: a lease that is not renewed ends in it.
    thread::sleep(TTL * 5 / 4);
    let periods = started.elapsed().as_nanos() / (TTL / 3).as_nanos();
    let renewed = u128::from(manager.stats().renewals_confirmed - before.renewals_confirmed);
    let most = u128::from(all) * (periods + 2);
    assert!(renewed <= most, "{renewed} renewals in {periods} periods");
    for locks in &kinds {
        for (number, guard) in locks.guards.iter().enumerate() {
            let may_be_lost = locks.is_damaged(number) && !keeps_all;
            assert!(may_be_lost || guard.is_held(), "{}", locks.name(number));
        }
    }
    for locks in kinds {
        let damaged: Vec<usize> = locks.damaged().map(|(number, _)| number).collect();
        let names: Vec<String> = (0..LOCKS).map(|number| locks.name(number)).collect();
        for ((number, guard), name) in locks.guards.into_iter().enumerate().zip(names) {
            if !damaged.contains(&number) {
                guard.renew().expect("it is held");
                guard.unlock().expect("it is held");
                continue;
            }
            assert_answered("renew", &name, guard.renew());
            assert_answered("inspect", &name, manager.inspect(&name));
            assert_answered("try_lock", &name, manager.try_lock(&name));
            assert_answered("unlock", &name, guard.unlock());
            assert_answered("delete", &name, manager.delete(&name));
        }
    }
    let opened = manager.stats().connects - before.connects;
    assert!(opened <= first_used, "{opened} connections");
}

#[test]
fn damaged_records_harm_no_other_lock_of_a_cluster() {
    let set = ClusterSet::start();
    let nodes = &set.nodes()[..set.masters()];
    let harm = |name: &str, how: &str| {
        assert!(nodes.iter().any(|node| damage(node, name, how)), "{name}");
    };
    let manager = builder(set.url()).build().expect("it is in order");
    assert_harms_no_other(&manager, true, false, 0, harm);
}

#[test]
fn damaged_records_harm_no_other_acknowledged_lock() {
    let set = ReplicaSet::start(1);
    let harm = |name: &str, how: &str| assert!(damage(&set.master, name, how), "{name}");
    let manager = builder(set.url()).replica_acks(1, ACK).build();
    assert_harms_no_other(&manager.expect("it is there"), true, false, 1, harm);
}

#[test]
fn damaged_records_harm_no_other_acknowledged_lock_of_a_cluster() {
    let set = ClusterSet::start();
    let nodes = &set.nodes()[..set.masters()];
    let harm = |name: &str, how: &str| {
        assert!(nodes.iter().any(|node| damage(node, name, how)), "{name}");
    };
    let manager = builder(set.url()).replica_acks(1, ACK).build();
    assert_harms_no_other(&manager.expect("it is in order"), true, false, 3, harm);
}

#[test]
fn damaged_records_harm_no_other_lock_of_a_quorum() {
    let set = crate::quorum::set::Set::start(3);
    let harm = |name: &str, how: &str| {
        for server in &set.servers {
            assert!(damage(server, name, how), "{name}");
        }
    };
    let manager = builder(set.quorum()).uptime_check(false).build();
    assert_harms_no_other(&manager.expect("it is there"), false, false, 0, harm);
}

/// The other two are a majority.
#[test]
fn records_damaged_on_one_node_of_a_quorum_harm_no_lock() {
    let set = crate::quorum::set::Set::start(3);
    let harm = |name: &str, how: &str| assert!(damage(&set.servers[1], name, how), "{name}");
    let manager = builder(set.quorum()).uptime_check(false).build();
    assert_harms_no_other(&manager.expect("it is there"), false, true, 0, harm);
}
