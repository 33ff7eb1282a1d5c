//! Worker processes that wait and hold while the master is killed.

use std::thread;
use std::time::{Duration, Instant};

use super::common::{P, SOON, TTL, builder, moment_of_change};
use crate::sentinel_set::{FAILOVER_WITHIN, SentinelSet};
use crate::support::child::{Role, receive, report};
use crate::support::{Child, SLACK};

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
                        thread::sleep(Duration::from_millis(5));
                        drop(guard);
                    }
                    Err(error) => report(format_args!("error {error}")),
                }
                let _ = &own;
            }
        });
    }
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
        let (sender, fences) = crossbeam_channel::unbounded();
        for worker in &workers {
            let sender = sender.clone();
            let ends = &ends;
            scope.spawn(move || {
                while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                    for line in worker.pending_lines() {
                        match line.strip_prefix("turn ") {
                            Some(fence) => {
                                let _ =
                                    sender.send((Instant::now(), fence.parse::<u64>().unwrap()));
                            }
                            None => panic!("{line}"),
                        }
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut last = 0;
            for _ in 0..50 {
                last = last.max(fences.recv_timeout(SOON).expect("a turn").1);
            }
            let killed = Instant::now();
            set.nodes[0].kill();
            let (named, _) = moment_of_change(&set, &set.sentinels, &set.nodes[0]);
            // Turns that were under way when the master was killed may come late.
            let (first, fence) = loop {
                let (at, fence) = fences.recv_timeout(FAILOVER_WITHIN).expect("a turn");
                if at > killed + Duration::from_millis(200) {
                    break (at, fence);
                }
                last = last.max(fence);
            };
            let ours = first.saturating_duration_since(named);
            println!("sentinels' share {:?}, ours {ours:?}", named - killed);
            assert!(fence > last, "{fence} after {last}");
            // The new master may name a holder that had released already, for a TTL.
            assert!(ours <= TTL + P + SLACK, "{ours:?}");
            for _ in 0..50 {
                fences.recv_timeout(SOON).expect("a turn");
            }
        }));
        ends.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
}
