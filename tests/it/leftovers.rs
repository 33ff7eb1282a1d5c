//! The data in Redis when all callers are done, after crashes too. On Redis alone, for the
//! crashes and for its TTLs.

use std::{thread, time::Duration};

use crate::{
    behaviour::leftovers::contend,
    managers::{RETENTION, assert_nothing_left, fields, manager, owner},
    support::{Child, SLACK, Server, until},
    worker::{self, SOON, expect_got},
};

const TTL: Duration = Duration::from_secs(2);
const NAMES: [&str; 3] = ["a", "b", "c"];

#[test]
fn nothing_is_left_after_contention_timeouts_and_crashes() {
    let server = Server::start();
    let managers = [manager(server.url(), TTL), manager(server.url(), TTL)];
    let mut children: Vec<Child> = NAMES
        .iter()
        .map(|_| worker::launch(&server.url(), TTL))
        .collect();
    for (child, name) in children.iter_mut().zip(NAMES) {
        child.expect("ready", SOON);
        child.send(&format!("lock {name}"));
        expect_got(child, name, SOON);
        child.send(&format!("queue {name}"));
        child.expect("queued", SOON);
    }
    thread::scope(|scope| {
        for i in 0..12 {
            let mgr = &managers[i % 2];
            scope.spawn(move || contend(mgr, &NAMES, i));
        }
        for child in &mut children {
            child.kill();
        }
        assert_eq!(server.keys_without_ttl(), [""; 0], "while they are held");
    });
    for name in NAMES {
        drop(managers[0].lock(name).unwrap());
        until(TTL + SLACK, "the background work ends", || {
            fields(&server, name, "w:") == 0
        });
        until(TTL + SLACK, "the last lease ends", || {
            owner(&server, name).is_none()
        });
        assert_nothing_left(&server, name);
    }
    for key in server.query::<Vec<String>>(&["KEYS", "*"]) {
        let left: u64 = server.query(&["PTTL", &key]);
        let retention = RETENTION.1 + TTL;
        assert!(
            Duration::from_millis(left) <= retention,
            "{key} stays for {left} ms"
        );
    }
    assert!(
        managers
            .iter()
            .all(|mgr| mgr.stats().waiting == 0 && mgr.stats().held == 0)
    );
}
