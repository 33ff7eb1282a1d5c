//! Worker processes that wait and hold while the master is killed.

use std::thread;
use std::time::{Duration, Instant};

use super::common::{P, SOON, TTL, builder, moment_of_change};
use crate::sentinel_set::{FAILOVER_WITHIN, SentinelSet};
use crate::support::child::{Role, receive, report};
use crate::support::{Child, EndLoops, SLACK};

pub(crate) const TURNS: (&str, Role) = ("sentinel_turns", turns);

const PROCESSES: usize = 4;
const THREADS: usize = 2;

/// Takes turns until its standard input ends, and reports each one.
fn turns(args: &[String]) {
    let mgr = super::common::build(builder(args[0].as_str()));
    report("ready");
    for thread in 0..THREADS {
        let mgr = mgr.clone();
        thread::spawn(move || {
            // One thread of each process holds a name of its own all the time.
            let own = (thread == 0).then(|| mgr.lock(format!("own{}", std::process::id())));
            loop {
                match mgr.lock("till") {
                    Ok(guard) => {
                        report(format_args!("turn {}", guard.fence()));
                        // Time itself is under test: it holds the lock for a moment.
                        thread::sleep(Duration::from_millis(5));
                        drop(guard);
                    }
                    Err(error) => report(format_args!("error {error}")),
                }
                let _ = &own;
            }
        });
    }
    thread::spawn(move || {
        // A name that nobody has used lost nothing in the failover.
        for number in 0.. {
            match mgr.lock(format!("new{}:{number}", std::process::id())) {
                Ok(guard) => {
                    report("new name");
                    // Time itself is under test: it holds the lock for a moment.
                    thread::sleep(Duration::from_millis(5));
                    drop(guard);
                }
                Err(error) => report(format_args!("error {error}")),
            }
        }
    });
    while receive().is_some() {}
}

#[test]
fn workers_of_four_processes_go_on_after_the_masters_death() {
    let set = SentinelSet::start();
    let workers: Vec<Child> = (0..PROCESSES)
        .map(|_| Child::spawn("sentinel_turns", &[&set.url()]))
        .collect();
    let ends = std::sync::atomic::AtomicBool::new(false);
    for worker in &workers {
        worker.expect("ready", SOON);
    }
    thread::scope(|scope| {
        let _end = EndLoops(&ends);
        let (sender, fences) = crossbeam_channel::unbounded();
        let (sender_of_new, new_names) = crossbeam_channel::unbounded();
        for worker in &workers {
            let sender = sender.clone();
            let sender_of_new = sender_of_new.clone();
            let ends = &ends;
            scope.spawn(move || {
                while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                    for line in worker.pending_lines() {
                        match line.strip_prefix("turn ") {
                            Some(fence) => {
                                let _ =
                                    sender.send((Instant::now(), fence.parse::<u64>().unwrap()));
                            }
                            None if line == "new name" => {
                                let _ = sender_of_new.send(Instant::now());
                            }
                            None => panic!("{line}"),
                        }
                    }
                    // A pause between two polls.
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let mut last = 0;
        for _ in 0..50 {
            last = last.max(fences.recv_timeout(SOON).expect("a turn").1);
        }
        let killed = Instant::now();
        set.nodes[0].kill();
        let (named, _) = moment_of_change(&set, &set.sentinels, &set.nodes[0]);
        // Grants that were under way when the master was killed may come late.
        let after = killed + Duration::from_millis(200);
        let first_new = loop {
            let at = new_names.recv_timeout(FAILOVER_WITHIN).expect("a grant");
            if at > after {
                break at;
            }
        };
        let ours = first_new.saturating_duration_since(named);
        println!("sentinels' share {:?}, ours {ours:?}", named - killed);
        assert!(ours <= P + SLACK, "{ours:?}");
        let (first, fence) = loop {
            let (at, fence) = fences.recv_timeout(FAILOVER_WITHIN).expect("a turn");
            if at > after {
                break (at, fence);
            }
            last = last.max(fence);
        };
        assert!(fence > last, "{fence} after {last}");
        // The release of this name may be lost. Then the new master names a holder that had
        // released already, for a TTL.
        let taken_for = first.saturating_duration_since(named);
        println!("the name in use: {taken_for:?}");
        assert!(taken_for <= TTL + P + SLACK, "{taken_for:?}");
        for _ in 0..50 {
            fences.recv_timeout(SOON).expect("a turn");
        }
    });
}
