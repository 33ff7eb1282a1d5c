//! Several threads: each on a kept name of its own, and all on one.

use std::hint::spin_loop;
use std::time::Duration;

use fairlock::{LockManager, LockOptions};
use parking_lot::FairMutex;

use crate::floor::Floor;
use crate::handovers::{MAX, Seen, THREADS, lock_turns, mutex_turns};
use crate::support::figure::Bound;
use crate::support::{Rounds, is_bench, manager, median, micros, now, rounds};
use crate::throughput::throughput;
use crate::{figure, keeper, warm_up};

const CROWD: usize = 32;
/// Under each guard, in ns.
const WORK: u64 = 1_000;

pub(crate) fn measure(url: &str) {
    own_names(url);
    println!();
    one_name(url);
}

fn own_names(url: &str) {
    let run_for = Duration::from_millis(if is_bench() { 400 } else { 50 });
    let keeping = keeper(url);
    let plain = manager(url, None);
    let name = |i: usize| format!("bench:kept:crowd:{i}");
    let mut floors: Vec<Floor> = (0..CROWD)
        .map(|i| Floor::new(url, &format!("bench:kept:crowd:floor:{i}")))
        .collect();
    let [mut kept, mut to_plain, mut to_floor] = [(); 3].map(|()| Rounds::default());
    let [mut plains, mut bares] = [(); 2].map(|()| Rounds::default());
    for _ in 0..rounds(9) {
        let bare = throughput(
            run_for,
            floors
                .iter_mut()
                .map(|floor| move || floor.cycle())
                .collect(),
        ) as f64;
        let without = lock_own(&plain, run_for, |i| format!("bench:kept:crowd:plain:{i}"));
        (0..CROWD).for_each(|i| warm_up(&keeping, &name(i)));
        let with = lock_own(&keeping, run_for, name);
        kept.add(with);
        plains.add(without);
        bares.add(bare);
        to_plain.add(with / without);
        to_floor.add(with / bare);
    }
    println!("crowd: {CROWD} threads on as many names, 1 µs of work under each guard");
    println!("  kept: {kept:.0} cycles a second; without keep: {plains:.0}; floor: {bares:.0}");
    println!("  kept / without keep: {to_plain:.1}; kept / floor: {to_floor:.1}");
    let case = format!("{CROWD} threads on as many names, 1 µs of work");
    let beside = format!(
        "{:.0}/s without keep, {:.0}/s bare",
        plains.median(),
        bares.median()
    );
    figure("Kept names: lock + drop", &*case, "a second")
        .beside(beside)
        .bound(Bound::AtLeast(1_000_000.0))
        .note(&kept);
    figure("Kept names, by the same without keep", &*case, "×")
        .bound(Bound::AtLeast(20.0))
        .note(&to_plain);
    figure("Kept names, by the floor", &*case, "×").note(&to_floor);
}

/// Cycles a second.
fn lock_own(manager: &LockManager, run_for: Duration, name: impl Fn(usize) -> String) -> f64 {
    let cycle = |i: usize| {
        let lock = manager.mutex(name(i));
        move || {
            let _guard = lock.lock().expect("nobody else wants it");
            let until = now() + WORK;
            while now() < until {
                spin_loop();
            }
        }
    };
    throughput(run_for, (0..CROWD).map(cycle).collect()) as f64
}

fn one_name(url: &str) {
    let plain = manager(url, None);
    let local = plain.with(LockOptions::new().local_handovers(MAX));
    let keeping = keeper(url);
    let mutex = FairMutex::new(());
    let [mut to_local, mut to_mutex] = [(); 2].map(|()| Rounds::default());
    let mut seen: [Vec<Seen>; 3] = Default::default();
    for _ in 0..rounds(9) {
        let here = lock_turns(&local);
        warm_up(&keeping, "local");
        let kept = lock_turns(&keeping);
        // The name goes back to the other manager.
        drop(plain.lock("local").expect("a lock"));
        let floor = mutex_turns(&mutex);
        to_local.add(kept.turns as f64 / here.turns as f64);
        to_mutex.add(kept.handover as f64 / floor.handover.max(1) as f64);
        for (all, one) in seen.iter_mut().zip([kept, here, floor]) {
            all.push(one);
        }
    }
    let turns = seen
        .each_ref()
        .map(|all| median(all.iter().map(|one| one.turns)));
    let handovers = seen.map(|all| micros(median(all.iter().map(|one| one.handover))));
    println!("{THREADS} threads on one name, no work");
    println!(
        "  turns a second: {} kept, {} by local hand-overs, {} of a FairMutex",
        turns[0], turns[1], turns[2]
    );
    println!(
        "  hand-over p50: {} kept, {} by local hand-overs, {} of a FairMutex",
        handovers[0], handovers[1], handovers[2]
    );
    println!("  turns kept / local: {to_local}; hand-over kept / FairMutex: {to_mutex}");
    let case = format!("{THREADS} threads on one name");
    figure("Turns on a kept name, by local hand-overs", &*case, "×")
        .beside(format!("local hand-overs: {}/s", turns[1]))
        .bound(Bound::AtLeast(1.5))
        .note(&to_local);
    figure("Hand-over on a kept name, by a FairMutex", &*case, "×")
        .beside(format!("FairMutex: {}", handovers[2]))
        .bound(Bound::AtMost(3.0))
        .note(&to_mutex);
}

/// Runs the threads on one name for a profiler.
pub(crate) fn alone(url: &str) {
    let manager = keeper(url);
    warm_up(&manager, "local");
    for _ in 0..4 {
        let Seen { turns, handover } = lock_turns(&manager);
        println!(
            "one: {turns} turns a second, hand-over p50 {}",
            micros(handover)
        );
    }
}
