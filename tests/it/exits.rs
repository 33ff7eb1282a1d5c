//! A process drops its guards and exits: it has released its locks, although it read no reply. On
//! Redis alone, over TCP: a socket that is closed with unread bytes sends a reset, and the peer may
//! lose what it has not read yet.

use std::process;
use std::thread;
use std::time::Duration;

use fairlock::{LockManager, PreviousHolder};

use crate::fixtures::{build, with_ttl};
use crate::fork::in_child;
use crate::managers::{owner, patient};
use crate::support::child::{receive, report};
use crate::support::{Child, SLACK, Server, until};
use crate::worker::SOON;

#[test]
fn each_of_a_thousand_exits_after_a_drop_releases() {
    check("one", 1000);
}

#[test]
fn exits_after_drops_of_many_guards_release_all() {
    check("ten", 150);
}

#[test]
fn exits_after_a_drop_of_several_names_release_all() {
    check("several", 150);
}

#[test]
fn exits_after_many_cycles_of_lock_and_drop_release_all() {
    check("cycles", 150);
}

#[test]
fn exits_while_other_threads_use_the_lane_release() {
    check("busy", 300);
}

#[test]
fn exits_after_a_panic_release() {
    check("panic", 100);
}

/// The reply to the first release has arrived, and nobody has read it, when the second is written. The
/// server reads that only after the process has gone.
#[test]
fn an_exit_behind_an_arrived_reply_releases() {
    let server = Server::tcp();
    let mut child = Child::spawn("exits", &[&server.url(), "late"]);
    child.expect("dropped", SOON);
    until(SOON, "the first is released", || {
        owner(&server, "first").is_none()
    });
    server.stop();
    child.send("exit");
    child.join();
    server.cont();
    until(SLACK, "the second is released", || {
        owner(&server, "second").is_none()
    });
}

/// So many processes take names of their own, drop them in this way and exit.
#[track_caller]
fn check(way: &str, exits: usize) {
    let server = Server::tcp();
    // The scripts are known.
    let other = patient(server.url());
    other.lock("a").unwrap().unlock().unwrap();
    let mut child = Child::spawn("exits", &[&server.url(), way, &exits.to_string()]);
    // So many processes start and exit in this time.
    let all = Duration::from_secs(600);
    assert_eq!(child.expect("exited", all), exits.to_string());
    child.join();
    for i in 0..exits {
        for part in 0..parts(way) {
            let name = format!("k{i}-{part}");
            until(
                SLACK,
                &format!("exit {i} of {exits} has released {name}"),
                || owner(&server, &name).is_none(),
            );
            let guard = other.try_lock(&name).unwrap().expect("it is free");
            let before = match way {
                "panic" => PreviousHolder::Lapsed,
                _ => PreviousHolder::Released,
            };
            assert_eq!(guard.previous_holder(), before, "{name}");
            std::mem::forget(guard);
        }
    }
}

fn parts(way: &str) -> usize {
    match way {
        "ten" => 10,
        "several" => 3,
        _ => 1,
    }
}

/// A child role that forks children of its own, which exit one after the other. It has no manager
/// itself.
pub(crate) fn exits(args: &[String]) {
    if args[1] == "late" {
        let mgr = build(with_ttl(&*args[0], 6 * SOON).lanes(1));
        // The scripts are known.
        mgr.lock("first").unwrap().unlock().unwrap();
        let (first, second) = (mgr.lock("first").unwrap(), mgr.lock("second").unwrap());
        drop(first);
        report("dropped");
        receive();
        drop(second);
        process::exit(0);
    }
    let exits: usize = args[2].parse().unwrap();
    for i in 0..exits {
        assert_eq!(in_child(|| exit_with_drops(&args[0], &args[1], i)), 0);
    }
    report(format_args!("exited {exits}"));
}

fn exit_with_drops(url: &str, way: &str, turn: usize) -> i32 {
    let names: Vec<String> = (0..parts(way)).map(|i| format!("k{turn}-{i}")).collect();
    let builder = with_ttl(url, 6 * SOON);
    // On one lane, one release follows the other.
    let builder = match way {
        "ten" | "busy" => builder.lanes(1),
        _ => builder,
    };
    let mgr = build(builder);
    // A connection's first release waits for its reply, so that it is known that the server has the
    // script. So the lane of each name has released before.
    for name in &names {
        mgr.lock(name).unwrap().unlock().unwrap();
    }
    match way {
        "several" => drop(mgr.lock_all(&names).unwrap()),
        "ten" => {
            let guards: Vec<_> = names.iter().map(|name| mgr.lock(name).unwrap()).collect();
            guards.into_iter().for_each(drop);
        }
        "panic" => {
            let end = thread::scope(|scope| {
                let panicking = scope.spawn(|| {
                    let _guard = mgr.lock(&names[0]).unwrap();
                    std::panic::resume_unwind(Box::new(()));
                });
                panicking.join()
            });
            assert!(end.is_err());
        }
        _ => {
            let cycles = if way == "cycles" { 50 } else { 1 };
            if way == "busy" {
                for other in 0..4 {
                    keep_busy(&mgr, format!("busy{other}"));
                }
            }
            for _ in 0..cycles {
                drop(mgr.lock(&names[0]).unwrap());
            }
        }
    }
    // The last handle is not dropped, so nothing waits for the replies.
    process::exit(0)
}

fn keep_busy(mgr: &LockManager, name: String) {
    let mgr = mgr.clone();
    thread::spawn(move || {
        loop {
            // At the end of the process another's guard is not released.
            if let Ok(Some(guard)) = mgr.try_lock(&name) {
                drop(guard);
            }
        }
    });
}
