//! The clients for Rust, as a child: reads the orders that `client.rs` sends and answers each with
//! a line.

use std::any::Any;
use std::env;
use std::io::{Write, stdin, stdout};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::subject::{Subject, subjects};
use crate::support::now;

pub(crate) fn serve() {
    let url = env::var("FAIRLOCK_BENCH_URL").expect("the parent names its Redis");
    let subjects = subjects(&url);
    let mut held = None;
    for line in stdin().lines().map_while(Result::ok) {
        let answer: Vec<String> = match line.as_str() {
            "names" => subjects
                .iter()
                .map(|subject| subject.name().to_owned())
                .collect(),
            "drop" => {
                held = None;
                Vec::new()
            }
            order => {
                let numbers = answer(order, &subjects, &mut held);
                numbers.iter().map(u64::to_string).collect()
            }
        };
        let mut stdout = stdout().lock();
        writeln!(stdout, "{}", answer.join("\t")).expect("the parent lives");
        stdout.flush().expect("the parent lives");
    }
}

fn answer(order: &str, subjects: &[Box<dyn Subject>], held: &mut Option<Box<dyn Any>>) -> Vec<u64> {
    let words: Vec<&str> = order.split(' ').collect();
    let number = |at: usize| words[at].parse::<usize>().expect("a number");
    let (subject, key, count) = (&*subjects[number(1)], words[2], number(3));
    let run_for = || Duration::from_millis(number(4) as u64);
    let hold = || Duration::from_micros(number(5) as u64);
    match words[0] {
        "one_thread" => one_thread(subject, key, count),
        "own_names" => own_names(subject, key, count, run_for()),
        "one_name" if subject.waits() => one_name(subject, key, count, run_for(), hold()),
        "one_name" => Vec::new(),
        "hold" => {
            *held = subject.hold((0..count).map(|i| format!("{key}:{i}")).collect());
            vec![if held.is_some() { count as u64 } else { 0 }]
        }
        _ => panic!("not an order: {order}"),
    }
}

fn one_thread(subject: &dyn Subject, key: &str, cycles: usize) -> Vec<u64> {
    let mut cycle = subject.cycle(key);
    let timed = |_| {
        let started = now();
        cycle(&mut || {});
        now() - started
    };
    (0..cycles).map(timed).collect()
}

/// The time that the threads ran comes first.
fn own_names(subject: &dyn Subject, key: &str, threads: usize, run_for: Duration) -> Vec<u64> {
    let keys = (0..threads).map(|thread| format!("{key}:{thread}"));
    let (elapsed, times) = together(keys.map(|key| subject.cycle(&key)), run_for, |_, cycle| {
        let started = now();
        cycle(&mut || {});
        vec![now() - started]
    });
    [vec![elapsed], times].concat()
}

/// For each turn: the thread, when it asked, when it was granted the lock, and when it released it.
fn one_name(
    subject: &dyn Subject,
    key: &str,
    threads: usize,
    run_for: Duration,
    hold: Duration,
) -> Vec<u64> {
    let cycles = (0..threads).map(|_| subject.cycle(key));
    let (_, turns) = together(cycles, run_for, |thread, cycle| {
        let asked = now();
        let mut turn = Vec::new();
        cycle(&mut || {
            let granted = now();
            if !hold.is_zero() {
                thread::sleep(hold);
            }
            turn = vec![thread, asked, granted, now()];
        });
        turn
    });
    turns
}

/// Lets each cycle run again and again on a thread of its own. Returns how long they were asked to
/// go on, and all results.
fn together<C: Send>(
    cycles: impl Iterator<Item = C>,
    run_for: Duration,
    run: impl Fn(u64, &mut C) -> Vec<u64> + Sync,
) -> (u64, Vec<u64>) {
    let over = AtomicBool::new(false);
    let all = Mutex::new(Vec::new());
    let cycles: Vec<C> = cycles.collect();
    let started = now();
    let mut elapsed = 0;
    thread::scope(|scope| {
        for (thread, mut cycle) in (0..).zip(cycles) {
            let (over, all, run) = (&over, &all, &run);
            scope.spawn(move || {
                let mut own = Vec::with_capacity(1 << 14);
                while !over.load(Ordering::Relaxed) {
                    own.extend(run(thread, &mut cycle));
                }
                all.lock().expect("no thread panicked").extend(own);
            });
        }
        thread::sleep(run_for);
        over.store(true, Ordering::Relaxed);
        elapsed = now() - started;
    });
    (elapsed, all.into_inner().expect("no thread panicked"))
}
