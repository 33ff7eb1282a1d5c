//! Sentinels whose epochs say nothing: they were set up anew, or one of them is far ahead.

use std::thread;
use std::time::{Duration, Instant};

use fairlock::LockManager;

use super::common::{P, SOON, T, build, builder, manager};
use crate::sentinel_set::{FAILOVER_WITHIN, SERVICE, SentinelSet, SentinelSetup, is_master};
use crate::support::child::{Role, receive, report};
use crate::support::{Child, SLACK, Server, until, until_some};

pub(crate) const SET_UP_ANEW: (&str, Role) = ("sentinels_set_up_anew", locks_twice);

/// How long a majority must name the master of an older configuration.
const AGREED_FOR: Duration = Duration::from_secs(5);

/// Starts a sentinel in place of another one, at the same address: it knows only this master, and
/// counts from this epoch. Others may use what these rights leave.
fn replace(sentinel: &mut Server, master: &Server, epoch: u64, rights: &str) {
    sentinel.kill();
    let at = master.addr();
    let config = format!(
        "sentinel monitor {SERVICE} {} {} 2\n\
         sentinel down-after-milliseconds {SERVICE} 60000\n\
         sentinel config-epoch {SERVICE} {epoch}\n\
         user default on nopass ~* &* +@all {rights}\n",
        at.ip(),
        at.port()
    );
    *sentinel = Server::sentinel_at(sentinel.addr(), &config).expect("it starts");
}

/// A sentinel that demotes or promotes a server closes its connections.
fn make_master(node: &Server) {
    until(SOON, "it is a master", || {
        let _ = node.try_query::<()>(&["REPLICAOF", "NO", "ONE"]);
        is_master(node)
    });
}

fn has(node: &Server, name: &str) -> bool {
    let key = format!("fairlock:{{{name}}}");
    until_some(SOON, "it answers", || {
        node.try_query::<bool>(&["EXISTS", &key]).ok()
    })
}

/// Has the service fail over once, so that its epoch is not 0 any more. Returns the new master's
/// place among the nodes.
fn fail_over_once(set: &SentinelSet) -> usize {
    set.nodes[0].kill();
    let new = set.await_other_master(&set.all(), &set.nodes[0]).addr();
    set.await_named(&set.all(), set.node(new));
    set.nodes
        .iter()
        .position(|node| node.addr() == new)
        .expect("one of them")
}

struct ReportWarnings;

impl log::Log for ReportWarnings {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("fairlock")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            report(record.args());
        }
    }

    fn flush(&self) {}
}

/// Locks, and locks again when it is told to.
fn locks_twice(args: &[String]) {
    log::set_logger(&ReportWarnings).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let mgr = build(builder(args[0].as_str()));
    mgr.lock("a").unwrap().unlock().unwrap();
    report("first");
    receive();
    mgr.lock("a").unwrap().unlock().unwrap();
    report("second");
}

/// New hosts, or a lost volume: the master and the sentinels are others, and count from 0.
#[test]
fn sentinels_that_were_set_up_anew_are_followed() {
    let mut set = SentinelSet::start();
    let old = fail_over_once(&set);
    let last = 3 - old;
    let mut child = Child::spawn(SET_UP_ANEW.0, &[&set.url()]);
    child.expect("first", SOON);
    let mgr = manager(&set);
    mgr.lock("b").unwrap().unlock().unwrap();
    set.nodes[old].kill();
    make_master(&set.nodes[last]);
    let new = &set.nodes[last];
    for sentinel in &mut set.sentinels {
        replace(sentinel, new, 0, "");
    }
    let started = Instant::now();
    child.send("go");
    mgr.lock("b").unwrap().unlock().unwrap();
    let took = started.elapsed();
    assert!(took <= AGREED_FOR + 3 * T + SLACK, "it took {took:?}");
    let line = child.expect("3 of 3 sentinels name ", SOON);
    let is_right =
        line.contains(&new.addr().to_string()) && line.contains("whose configuration is newer");
    assert!(is_right, "{line}");
    child.expect("second", SOON);
    child.join();
}

/// It names a server that the others do not watch. While that one lives, its word counts.
#[test]
fn one_sentinel_far_ahead_does_not_win_over_two() {
    let mut set = SentinelSet::start();
    // A loaded machine must not cause a failover.
    set.calm();
    let strange = Server::tcp();
    // The others publish to it what they know. It would answer in kind, and convince them.
    replace(&mut set.sentinels[2], &strange, 1000, "-publish");
    let right = SentinelSet::named_by(&set.sentinels[0]).expect("it answers");
    let used = |mgr: &LockManager, name: &str| {
        mgr.lock(name).unwrap().unlock().unwrap();
        let is_strange = strange.is_running() && has(&strange, name);
        (has(set.node(right), name), is_strange)
    };
    let mgr = manager(&set);
    assert_eq!(used(&mgr, "first"), (false, true));
    strange.kill();
    // A new manager has nothing to go back from.
    let later = build(builder(set.url()).connect_timeout(SOON));
    later.lock("b").unwrap().unlock().unwrap();
    assert_eq!(used(&mgr, "a"), (true, false));
    // It does not come back: that would be a change to and fro.
    strange.restart();
    let held = mgr.lock("held").unwrap();
    let started = Instant::now();
    while started.elapsed() < 3 * P {
        assert_eq!(used(&mgr, "a"), (true, false));
        // A pause between two polls.
        thread::sleep(P / 10);
    }
    assert!(held.is_held());
    // The next failover of the two is followed, although their epochs are far lower.
    let old = set.node(right);
    old.kill();
    let others = [&set.sentinels[0], &set.sentinels[1]];
    let new = set.await_other_master(&others, old);
    set.await_named(&others, new);
    let started = Instant::now();
    mgr.lock("c").unwrap().unlock().unwrap();
    assert!(
        started.elapsed() <= P + 2 * T + SLACK,
        "{:?}",
        started.elapsed()
    );
    assert!(has(new, "c"));
}

/// All of them lost their files, and name the master that is used.
#[test]
fn lower_epochs_for_the_same_master_change_nothing() {
    let mut set = SentinelSet::start();
    let current = fail_over_once(&set);
    let mgr = manager(&set);
    let held = mgr.lock("held").unwrap();
    for sentinel in &mut set.sentinels {
        replace(sentinel, &set.nodes[current], 0, "");
    }
    let renewed = mgr.stats().renewals_confirmed;
    until(SOON, "it is renewed", || {
        mgr.stats().renewals_confirmed > renewed
    });
    // Else the next change would be to an older configuration.
    until(SOON, "each of them was asked", || {
        let was_asked = |sentinel: &Server| {
            let clients: String = sentinel.query(&["CLIENT", "LIST"]);
            clients.contains("cmd=sentinel")
        };
        set.sentinels.iter().all(was_asked)
    });
    held.unlock().unwrap();
    // The next master is followed as soon as a majority names it.
    let last = 3 - current;
    set.nodes[current].kill();
    make_master(&set.nodes[last]);
    for sentinel in &mut set.sentinels[..2] {
        replace(sentinel, &set.nodes[last], 0, "");
    }
    let started = Instant::now();
    mgr.lock("b").unwrap().unlock().unwrap();
    assert!(
        started.elapsed() <= P + 2 * T + SLACK,
        "{:?}",
        started.elapsed()
    );
}

/// Two of three sentinels name the old master for longer than is needed. The known one answers.
#[test]
fn older_majority_does_not_count_while_the_master_answers() {
    let mut set = SentinelSet::start();
    let old = set.nodes[0].addr();
    let current = fail_over_once(&set);
    let mgr = manager(&set);
    set.nodes[0].restart();
    make_master(set.node(old));
    for at in 0..2 {
        replace(&mut set.sentinels[at], &set.nodes[0], 0, "");
    }
    // Until then it may be a replica, and have a copy of what was locked.
    set.sentinels[2].stop();
    make_master(&set.nodes[0]);
    let started = Instant::now();
    while started.elapsed() < AGREED_FOR + 3 * P {
        mgr.lock("b").unwrap().unlock().unwrap();
        // Connections end, so that the sentinels are asked for sure.
        let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
        let _ = set.nodes[current].try_query::<i64>(&kill);
        // A pause between two polls.
        thread::sleep(P / 4);
    }
    assert!(!has(&set.nodes[0], "b"));
}

/// Two of the three addresses lead to one sentinel, which was set up anew. Alone it is no majority.
#[test]
fn sentinel_at_two_addresses_has_one_vote() {
    let mut set = SentinelSet::start();
    let old = fail_over_once(&set);
    let last = 3 - old;
    let [one, other] = [0, 1].map(|at| set.sentinels[at].addr());
    let port = one.port();
    let url = format!("redis-sentinel://{one},localhost:{port},{other}/{SERVICE}");
    let mut child = Child::spawn(SET_UP_ANEW.0, &[&url]);
    child.expect(
        &format!("{one} and localhost:{port} are the same sentinel"),
        SOON,
    );
    child.expect("first", SOON);
    set.sentinels[1].kill();
    set.sentinels[2].kill();
    set.nodes[old].kill();
    make_master(&set.nodes[last]);
    // It may have copies from its master.
    set.nodes[last].query::<()>(&["FLUSHALL"]);
    replace(&mut set.sentinels[0], &set.nodes[last], 0, "");
    child.send("go");
    // Time itself is under test: two votes would be enough after this time.
    thread::sleep(AGREED_FOR + 3 * T);
    assert!(!has(&set.nodes[last], "a"), "one sentinel was followed");
    // Both of the two sentinels are a majority.
    replace(&mut set.sentinels[1], &set.nodes[last], 0, "");
    child.expect("2 of 2 sentinels name ", SOON);
    child.expect("second", SOON);
    child.join();
}

/// Between the death of the master and the promotion, nobody can be connected to.
#[test]
fn build_waits_for_a_promotion() {
    let set = SentinelSet::start();
    set.nodes[0].kill();
    let mgr = builder(set.url()).connect_timeout(FAILOVER_WITHIN).build();
    let mgr = mgr.expect("a replica is promoted");
    mgr.lock("a").unwrap().unlock().unwrap();
}

/// The hosts start together, and the sentinels are the last.
#[test]
fn build_waits_for_sentinels_that_start() {
    let set = SentinelSet::start_with(&SentinelSetup::default());
    for sentinel in &set.sentinels {
        sentinel.kill();
    }
    thread::scope(|scope| {
        let built = scope.spawn(|| builder(set.url()).connect_timeout(SOON).build());
        for sentinel in &set.sentinels {
            sentinel.restart();
        }
        let mgr = built.join().unwrap().expect("the sentinels answer");
        mgr.lock("a").unwrap().unlock().unwrap();
    });
}
