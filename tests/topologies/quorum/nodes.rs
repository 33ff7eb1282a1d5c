//! The promises of the scripts on one node.

use std::{fs, path::Path};

use fairlock_tests::ROOT;
use redis::Value;

use super::set::{now, numbers, owner, record};
use crate::support::Server;

const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
const PARAMS: &str = "30000 0 0 host";

/// A script with its parts.
fn source(name: &str) -> String {
    let path = Path::new(ROOT).join("src/script").join(name);
    let text = fs::read_to_string(path).expect("a script");
    let mut whole = String::new();
    for line in text.lines() {
        match line.trim_start().strip_prefix("--include ") {
            Some(part) => whole.push_str(&source(part)),
            None => whole.push_str(line),
        }
        whole.push('\n');
    }
    whole
}

struct Node(Server);

impl Node {
    fn start() -> Node {
        Node(Server::start())
    }

    /// The status of the reply, and the numbers that follow the time.
    fn run(&self, script: &str, arguments: &[&str]) -> (String, Vec<i64>) {
        let source = source(&format!("quorum_{script}.lua"));
        let record = record("x");
        let mut command = vec!["EVAL", &source, "1", &record, "manager", "1", "1", "c:"];
        command.extend(arguments);
        let reply: Vec<Value> = self.0.query(&command);
        let status = redis::from_redis_value_ref(&reply[0]).expect("a status");
        let number = |value: &Value| match value {
            Value::Int(number) => Some(*number),
            _ => None,
        };
        (status, reply[3..].iter().filter_map(number).collect())
    }

    fn acquire(&self, token: &str, fence: u64) -> (String, Vec<i64>) {
        let not_after = in_a_minute();
        self.run("acquire", &[token, &not_after, &fence.to_string(), PARAMS])
    }

    fn renew(&self, token: &str, fence: u64) -> (String, Vec<i64>) {
        let not_after = in_a_minute();
        self.run("renew", &[token, &not_after, &fence.to_string(), PARAMS])
    }

    fn release(&self, token: &str, fence: u64, mode: &str) -> String {
        let not_after = in_a_minute();
        self.run("release", &[token, &fence.to_string(), mode, &not_after])
            .0
    }

    fn content(&self) -> Vec<u8> {
        let dump: Option<Vec<u8>> = self.0.query(&["DUMP", &record("x")]);
        dump.unwrap_or_default()
    }

    fn fence(&self) -> u64 {
        numbers(&self.0, "x").1
    }

    /// The lease lapses.
    fn lapse(&self) {
        let packed: Vec<u8> = self.0.query(&["HGET", &record("x"), "g"]);
        let mut connection = self.0.connection();
        let lapsed = [&1.0_f64.to_le_bytes()[..], &packed[8..]].concat();
        redis::cmd("HSET")
            .arg(record("x"))
            .arg("g")
            .arg(lapsed)
            .exec(&mut connection)
            .expect("it answers");
    }
}

/// In µs, for a dated request.
fn in_a_minute() -> String {
    (now() + 60_000_000).to_string()
}

#[test]
fn resent_acquire_gets_the_same_answer_and_writes_nothing() {
    let node = Node::start();
    assert_eq!(node.acquire(A, 10).0, "granted");
    let before = node.content();
    let (status, fields) = node.acquire(A, 10);
    assert_eq!((&*status, fields[0]), ("granted", 10));
    assert_eq!(node.content(), before);
}

#[test]
fn refusal_changes_nothing_on_a_node() {
    let node = Node::start();
    node.acquire(A, 10);
    let before = node.content();
    assert_eq!(node.acquire(B, 20).0, "busy");
    assert_eq!(node.renew(B, 9).0, "gone");
    assert_eq!(node.renew(B, 20).0, "busy");
    assert_eq!(node.release(B, 20, "used"), "lost");
    assert_eq!(node.release(B, 20, "forced"), "refused");
    let late = (now() - 1).to_string();
    assert_eq!(node.run("acquire", &[B, &late, "30", PARAMS]).0, "late");
    assert_eq!(node.run("renew", &[A, &late, "10", PARAMS]).0, "late");
    let forced = node.run("release", &[B, "10", "forced", &late]);
    assert_eq!(forced.0, "late");
    assert_eq!(node.content(), before);
    node.release(A, 10, "used");
    let before = node.content();
    let (status, fields) = node.acquire(B, 10);
    assert_eq!((&*status, &fields[..]), ("outbid", &[10][..]));
    assert_eq!(node.content(), before);
}

#[test]
fn node_grants_only_larger_fences() {
    let node = Node::start();
    node.acquire(A, 10);
    assert_eq!(node.release(A, 10, "unused"), "released");
    assert_eq!(node.fence(), 10);
    assert_eq!(node.acquire(B, 9).0, "outbid");
    assert_eq!(node.acquire(B, 11).0, "granted");
    node.lapse();
    assert_eq!(node.acquire(A, 11).0, "outbid");
    assert_eq!(node.acquire(A, 12).0, "granted");
    assert_eq!(node.fence(), 12);
}

#[test]
fn own_token_raises_its_fence_and_never_lowers_it() {
    let node = Node::start();
    node.acquire(A, 10);
    let (status, fields) = node.acquire(A, 15);
    assert_eq!((&*status, fields[0]), ("granted", 15));
    // A late copy of the first proposal.
    let (status, fields) = node.acquire(A, 10);
    assert_eq!((&*status, fields[0]), ("granted", 15));
    assert_eq!(node.fence(), 15);
}

#[test]
fn renewal_takes_again_only_what_a_node_has_forgotten() {
    let node = Node::start();
    assert_eq!(node.renew(A, 10).0, "renewed");
    assert_eq!(owner(&node.0, "x").as_deref(), Some(A));
    // It was released, so it is not forgotten.
    node.release(A, 10, "used");
    assert_eq!(node.renew(A, 10), ("gone".to_owned(), vec![10, 10, 0]));
    assert_eq!(owner(&node.0, "x"), None);
    // Another was granted it since.
    node.acquire(B, 20);
    node.release(B, 20, "used");
    assert_eq!(node.renew(A, 10).0, "gone");
    node.acquire(B, 30);
    node.lapse();
    assert_eq!(node.renew(A, 10).0, "gone");
    // A lease that nobody else has seen lapse is extended.
    assert_eq!(node.renew(B, 30).0, "renewed");
}

#[test]
fn release_ends_only_the_tokens_own_lease() {
    let node = Node::start();
    node.acquire(A, 10);
    assert_eq!(node.release(B, 5, "used"), "unknown");
    assert_eq!(owner(&node.0, "x").as_deref(), Some(A));
    assert_eq!(node.release(A, 10, "used"), "released");
    assert_eq!(node.release(A, 10, "used"), "already");
    node.acquire(B, 20);
    node.lapse();
    node.acquire(A, 30);
    assert_eq!(node.release(B, 20, "used"), "lapsed");
    assert_eq!(node.release(B, 30, "forced"), "released");
    assert_eq!(node.release(B, 30, "forced"), "already");
    assert_eq!(node.release(A, 30, "used"), "forced");
    assert_eq!(node.renew(A, 30), ("gone".to_owned(), vec![30, 30, 2]));
}

#[test]
fn node_remembers_how_the_last_guard_ended() {
    let node = Node::start();
    let ended = |fields: &[i64]| (fields[3], fields[4]);
    assert_eq!(ended(&node.acquire(A, 10).1), (0, -1));
    node.release(A, 10, "used");
    assert_eq!(ended(&node.acquire(B, 20).1), (10, 0));
    // Nobody used this one.
    node.release(B, 20, "unused");
    assert_eq!(ended(&node.acquire(A, 30).1), (10, 0));
    node.release(A, 30, "lost");
    assert_eq!(ended(&node.acquire(B, 40).1), (30, 1));
    node.lapse();
    assert_eq!(ended(&node.acquire(A, 50).1), (40, 1));
}

#[test]
fn fence_outlives_its_lease_by_an_hour() {
    let node = Node::start();
    let fence = now() + 600_000_000;
    node.acquire(A, fence);
    node.release(A, fence, "used");
    let left: i64 = node.0.query(&["PTTL", &record("x")]);
    let an_hour = 3_600_000;
    assert!(
        left > an_hour + 599_000 && left < an_hour + 670_000,
        "{left}"
    );
    assert!(node.0.keys_without_ttl().is_empty());
}

#[test]
fn least_time_of_a_guard_keeps_the_lock_taken() {
    let node = Node::start();
    let not_after = in_a_minute();
    let hold = "30000 0 60000 host";
    assert_eq!(
        node.run("acquire", &[A, &not_after, "10", hold]).0,
        "granted"
    );
    assert_eq!(node.release(A, 10, "used"), "released");
    assert_eq!(node.acquire(B, 20).0, "busy");
    assert_eq!(node.run("inspect", &["1"]).0, "seen");
    assert_eq!(node.release(B, 10, "forced"), "released");
    assert_eq!(node.acquire(B, 20).0, "granted");
}

#[test]
fn record_of_another_kind_is_refused_both_ways() {
    let node = Node::start();
    node.acquire(A, 10);
    let plain = fairlock::LockManager::connect(node.0.url()).expect("it can be reached");
    assert!(plain.try_lock("x").is_err());
    drop(plain.lock("y").expect("it is free"));
    let source = source("quorum_acquire.lua");
    let not_after = in_a_minute();
    let y = record("y");
    let reply: Vec<Value> = node.0.query(&[
        "EVAL", &source, "1", &y, "manager", "1", "1", "c:", A, &not_after, "99", PARAMS,
    ]);
    let status: String = redis::from_redis_value_ref(&reply[0]).expect("a status");
    assert_eq!(status, "kind");
}
