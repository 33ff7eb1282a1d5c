//! The least stack of a thread that uses locks. On both stores, and on a quorum. A thread with too
//! small a stack ends its process, so a child process has it.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use fairlock::{LockManager, LockOptions, RwLock, endpoint::Endpoint};

use crate::fixtures::{build, with_ttl};
use crate::log_capture;
use crate::support::child::report;
use crate::support::{Child, Server, until};
use crate::worker::SOON;

/// What GUIDE.md says.
const STACK: usize = 256 * 1024;

#[test]
fn documented_stack_is_enough_for_every_verb() {
    let calls = include_str!("../../docs/GUIDE.md");
    let documented = format!("{} KiB", STACK / 1024);
    assert!(calls.contains(&documented), "{documented}");
    // Half of it: the other half is for what the caller does itself.
    let size = (STACK / 2).to_string();
    let servers = [(); 4].map(|()| Server::start());
    let [alone, quorum @ ..] = servers.each_ref().map(|server| server.url());
    let quorum = quorum.join(" ");
    let mut stores = vec![alone, quorum];
    if cfg!(feature = "memory") {
        stores.push("memory".to_owned());
    }
    for store in &stores {
        let mut child = Child::spawn("small_stack", &[&size, store]);
        child.expect("all verbs", SOON);
        child.join();
    }
}

/// A thread with this stack uses every verb, from the first connection on, and waits.
pub(crate) fn small_stack(args: &[String]) {
    let [size, store] = args else {
        panic!("a size and a store, not {args:?}");
    };
    log_capture::start();
    // Lines are formatted on this stack, too.
    log::set_max_level(log::LevelFilter::Trace);
    let is_quorum = store.contains(' ');
    let store: Endpoint = match is_quorum {
        true => Endpoint::quorum(store.split(' ')),
        false => log_capture::store(store),
    };
    let connect = move || {
        let ttl = Duration::from_secs(2);
        build(with_ttl(store.clone(), ttl).uptime_check(false))
    };
    let theirs = connect();
    let guard = theirs.lock("awaited").unwrap();
    let (connected, receiver) = mpsc::channel();
    let thread = thread::Builder::new()
        .stack_size(size.parse().unwrap())
        .spawn(move || {
            let mgr = connect();
            connected.send(mgr.clone()).unwrap();
            use_all(&mgr, is_quorum);
        })
        .unwrap();
    let ours = receiver.recv().unwrap();
    until(SOON, "it waits", || ours.stats().waiting == 1);
    guard.unlock().unwrap();
    thread.join().unwrap();
    report("all verbs");
}

fn use_all(mgr: &LockManager, is_quorum: bool) {
    mgr.lock("awaited").unwrap().unlock().unwrap();
    let options = LockOptions::new().label("small").on_lost(|_| {});
    let mgr = mgr.with(options);
    let minute = Duration::from_secs(60);
    drop(mgr.try_lock("a").unwrap().expect("it is free"));
    let guard = mgr.try_lock_for("a", minute).unwrap().expect("it is free");
    assert!(
        mgr.try_lock_for("a", Duration::from_millis(50))
            .unwrap()
            .is_none()
    );
    guard.renew().unwrap();
    guard.check().unwrap();
    guard.abandon().unwrap();
    drop(mgr.enqueue("b").unwrap());
    mgr.lock("bad\u{0}{name}").unwrap().unlock().unwrap();
    mgr.lock("").unwrap_err();
    drop(mgr.reentrant_mutex("c").lock().unwrap());
    let _ = mgr
        .inspect("a")
        .map(|info| info.map(|info| info.to_string()));
    let _ = mgr.list("*").count();
    let _ = format!("{:?} {}", mgr.stats(), mgr.stats());
    if !is_quorum {
        drop(mgr.lock_all(["e", "f", "g"]).unwrap());
        drop(mgr.semaphore("p", 3).acquire(2).unwrap());
        let lock = mgr.rw_lock("rw");
        drop(lock.read().unwrap());
        drop(RwLock::downgrade(lock.write().unwrap()).unwrap());
        mgr.delete("a").unwrap();
    }
    let _ = mgr.force_release("a", 1);
    mgr.shutdown(Duration::ZERO).unwrap();
}
