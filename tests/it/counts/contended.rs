//! The costs of a lock that processes, or threads of one process, hand over to each other. They run
//! on their own, so Redis and `strace` count at the same time.

use std::{collections::BTreeMap, sync::Barrier, thread};

use fairlock::{LockOptions, Waiter};

use super::{
    costs,
    operations::quiet,
    page::Costs,
    system_calls::{Threads, Traced, calls_between, excess},
};
use crate::fixtures::SOON;
use crate::support::{
    Server,
    child::{receive, report},
};

/// Who hands the lock over, and how.
struct Contenders {
    /// As docs/OPERATIONS.md calls it.
    operation: &'static str,
    processes: u64,
    /// In each process.
    threads: u64,
    local_handovers: u32,
    /// How many turns are one operation of the page.
    turns: u64,
}

const CONTENDERS: [Contenders; 3] = [
    Contenders {
        operation: "hand-over between two processes: enqueue + unlock + wait",
        processes: 2,
        threads: 1,
        local_handovers: 0,
        turns: 1,
    },
    Contenders {
        operation: "local hand-over between threads: enqueue + unlock + wait",
        processes: 1,
        threads: 8,
        local_handovers: 65_535,
        turns: 1,
    },
    Contenders {
        operation: "ten turns of 8 threads, with `local_handovers(9)`",
        processes: 1,
        threads: 8,
        local_handovers: 9,
        turns: 10,
    },
];

/// How many turns the threads have together.
const TURNS: u64 = 800;
/// The first turns open connections and make the scripts known to the server.
const FIRST_TURNS: u64 = 80;

#[test]
fn hand_overs_of_processes_and_threads_cost_what_their_rows_say() {
    let wrong: Vec<String> = CONTENDERS.iter().flat_map(complaints).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What they cost and their row does not say.
fn complaints(contenders: &Contenders) -> Vec<String> {
    let server = Server::start();
    let [threads, processes, local] = [
        contenders.threads,
        contenders.processes,
        contenders.local_handovers.into(),
    ]
    .map(|n: u64| n.to_string());
    let args = [&server.url(), &threads, &processes, &local];
    let mut children: Vec<Traced> = (0..contenders.processes)
        .map(|_| Traced::spawn("contends", &args.map(String::as_str)))
        .collect();
    let mut step = |done: &str| {
        children.iter_mut().for_each(Traced::go);
        for traced in &children {
            traced.child.expect(done, 4 * SOON);
        }
    };
    step("queued");
    step("ready");
    let times = TURNS / contenders.turns;
    let (seen, commands) = costs(&server, times, || step("end turns"));
    children.iter_mut().for_each(Traced::go);
    let traces: Vec<String> = children.into_iter().map(Traced::finish).collect();
    let mut calls = BTreeMap::new();
    for trace in &traces {
        for (name, n) in calls_between(trace, "turns", Threads::All) {
            *calls.entry(name).or_default() += n;
        }
    }
    let operation = contenders.operation;
    let seen = seen.without_names("-");
    println!("{operation}: {seen:.2?}");
    let row = Costs::of(operation);
    let mut wrong = Vec::from_iter(excess(operation, times as usize, &calls));
    if !seen.is(&row) {
        wrong.push(format!(
            "{operation}: {seen:.2?}, not {row:?}: {commands:?}"
        ));
    }
    wrong
}

/// Takes turns when the parent says so.
pub(crate) fn contends(args: &[String]) {
    let [threads, processes, local] = [1, 2, 3].map(|i| args[i].parse::<u32>().expect("a number"));
    let mgr = quiet(&args[0]).with(LockOptions::new().local_handovers(local));
    receive();
    let waiters: Vec<Waiter> = (0..threads).map(|_| mgr.enqueue("k").unwrap()).collect();
    report("queued");
    let barrier = Barrier::new(waiters.len() + 1);
    thread::scope(|scope| {
        for mut waiter in waiters {
            let (mgr, barrier) = (&mgr, &barrier);
            scope.spawn(move || {
                for turns in [FIRST_TURNS, TURNS] {
                    barrier.wait();
                    for _ in 0..turns / u64::from(threads * processes) {
                        let held = waiter.wait().unwrap();
                        // It queues again first. So the others are always queued.
                        waiter = mgr.enqueue("k").unwrap();
                        held.unlock().unwrap();
                    }
                    barrier.wait();
                }
                // The end of the waiters does not count.
                barrier.wait();
            });
        }
        let take_turns = || [(); 2].map(|()| barrier.wait());
        receive();
        take_turns();
        report("ready");
        receive();
        report("begin turns");
        take_turns();
        report("end turns");
        receive();
        barrier.wait();
    });
}
