//! The main job: workers in several processes take turns at one resource, first come, first served.
//!
//!     cargo run --features memory --example worker_pool
//!     cargo run --example worker_pool
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example worker_pool
//!
//! With `REDIS_URL` it uses that Redis. Without, it uses an in-memory store if it is built with one, and else
//! starts a private redis-server and ends it again. On a Redis, the program starts itself again as four
//! processes of four threads. An in-memory store belongs to one process, so there the four are managers with
//! four threads each: they know of each other no more than processes do.
//!
//! For four seconds each thread does nothing but ask for the lock, write into a ledger that breaks if two write
//! at once, and pass the lock on. Then the program shows who got how many turns and how long they waited, and
//! checks the order, the fences and, from outside the store, that no two turns overlapped. It ends with 0 if all
//! that holds, with 1 if anything is wrong, with 2 without a store.
//!
//! How the lock is used is in `worker.rs`.

mod crew;
mod ledger;
mod report;
#[path = "../support/mod.rs"]
mod support;
mod turn;
mod worker;

use std::env;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crew::{Crew, Said};
use fairlock::{LockInfo, LockManager};
use ledger::Ledger;
use support::{Outcome, Store, ended, own_name};
use turn::{Turn, now};

const PROCESSES: usize = 4;
const THREADS: usize = 4;
const RUN_FOR: Duration = Duration::from_secs(4);

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    ended(match args.as_slice() {
        [role, process, lock, dir] if role == "worker" => {
            crew::be_a_process(process, lock, Path::new(dir))
        }
        _ => direct(),
    })
}

/// Starts the workers, watches them, and judges what they did.
fn direct() -> Outcome {
    let store = Store::choose_or_exit();
    let mgr = LockManager::connect(&store)?;
    let dir = tempfile::tempdir()?;
    let ledger = Ledger::create(dir.path())?;
    let lock = own_name("worker_pool");
    println!(
        "{PROCESSES} processes of {THREADS} threads take turns at one ledger for {} s,",
        RUN_FOR.as_secs()
    );
    println!("{}", store.about());
    println!();

    let (sender, said) = channel();
    let mut crews = Vec::new();
    for number in 1..=PROCESSES {
        crews.push(Crew::start(
            number,
            &store,
            &lock,
            dir.path(),
            sender.clone(),
        )?);
    }
    drop(sender);
    await_all(&said)?;
    let until = now() + RUN_FOR.as_nanos() as u64;
    for crew in &mut crews {
        crew.work_until(until)?;
    }
    let turns = watch(&said, &mgr, &lock);
    let mut failed = Vec::new();
    for crew in crews {
        failed.extend(crew.end()?);
    }
    report::print(&turns, ledger.entries()?, &failed)
}

fn await_all(said: &Receiver<Said>) -> Outcome {
    for _ in 0..PROCESSES {
        match said.recv()? {
            Said::Ready | Said::Turn(_) => {}
            Said::Ended(number) => {
                return Err(format!("process {number} ended before it began").into());
            }
        }
    }
    Ok(())
}

/// Collects the turns until all workers are through, and shows how far they are: in one line that
/// changes, or in a line each second where lines cannot change.
fn watch(said: &Receiver<Said>, mgr: &LockManager, lock: &str) -> Vec<Turn> {
    let live = io::stdout().is_terminal();
    let every = if live {
        Duration::from_millis(100)
    } else {
        Duration::from_secs(1)
    };
    let started = Instant::now();
    let mut shown = started;
    let mut turns = Vec::new();
    let mut ended = 0;
    while ended < PROCESSES {
        match said.recv_timeout((shown + every).saturating_duration_since(Instant::now())) {
            Ok(Said::Turn(turn)) => turns.push(turn),
            Ok(Said::Ready) => {}
            Ok(Said::Ended(_)) => ended += 1,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                shown = Instant::now();
                let info = mgr.inspect(lock).ok().flatten();
                let line = progress(started.elapsed(), turns.len(), info.as_ref());
                if live {
                    print!("\r\x1b[K{line}");
                    let _ = io::stdout().flush();
                } else {
                    println!("{line}");
                }
            }
        }
    }
    if live {
        print!("\r\x1b[K");
    } else {
        println!();
    }
    turns
}

fn progress(elapsed: Duration, turns: usize, info: Option<&LockInfo>) -> String {
    const WIDTH: usize = 20;
    let done = (elapsed.as_secs_f64() / RUN_FOR.as_secs_f64()).min(1.0);
    let full = (done * WIDTH as f64) as usize;
    let bar = "━".repeat(full) + &"┄".repeat(WIDTH - full);
    let holder = match info {
        Some(LockInfo {
            holder: Some(holder),
            waiters,
            ..
        }) => format!("{} has it, {waiters} wait", holder.thread),
        _ => "nobody has it".to_owned(),
    };
    format!(
        "  {:3.1} s  {bar}  {turns:5} turns   {holder}",
        elapsed.as_secs_f64()
    )
}
