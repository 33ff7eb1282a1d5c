//! The main job: workers in several processes take turns at one resource, first come, first served.
//!
//!     cargo run --features memory --example worker_pool
//!     cargo run --example worker_pool
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example worker_pool
//!
//! The program uses the Redis of `REDIS_URL`. Without that it uses an in-memory store, if it is
//! built with one, or else it starts a private redis-server. On a Redis, the program starts itself
//! again as four processes of four threads. An in-memory store belongs to one process. There the
//! four "processes" are managers with four threads each, which share nothing but the store.
//!
//! For four seconds each thread takes the lock, writes into a ledger, and releases the lock, again
//! and again. The ledger loses entries if two threads write at once. Then the program shows how
//! many turns each worker got, and how long it waited. It checks the order and the fences, and
//! checks without the store that no two turns overlapped. It exits with 0 if all checks hold, with
//! 1 if not, and with 2 if it has no store.
//!
//! `worker.rs` shows how the lock is used.

mod ledger;
mod process;
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

use fairlock::{LockManager, inspect::LockInfo};
use ledger::Ledger;
use process::{Message, WorkerProcess};
use support::{Outcome, Store, exit_code, own_name};
use turn::{Turn, now};

const PROCESSES: usize = 4;
const THREADS: usize = 4;
const RUN_FOR: Duration = Duration::from_secs(4);

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    exit_code(match args.as_slice() {
        [role, process, lock, dir] if role == "worker" => {
            process::be_a_process(process, lock, Path::new(dir))
        }
        _ => coordinate(),
    })
}

/// Starts the workers, shows their progress, and checks what they did.
fn coordinate() -> Outcome {
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

    let (sender, messages) = channel();
    let mut processes = Vec::new();
    for number in 1..=PROCESSES {
        processes.push(WorkerProcess::start(
            number,
            &store,
            &lock,
            dir.path(),
            sender.clone(),
        )?);
    }
    drop(sender);
    await_all(&messages)?;
    let stop_at = now() + RUN_FOR.as_nanos() as u64;
    for process in &mut processes {
        process.work_until(stop_at)?;
    }
    let turns = watch(&messages, &mgr, &lock);
    let mut failed = Vec::new();
    for process in processes {
        failed.extend(process.end()?);
    }
    report::print(&turns, ledger.entries()?, &failed)
}

/// Waits until all processes are ready.
fn await_all(messages: &Receiver<Message>) -> Outcome {
    for _ in 0..PROCESSES {
        match messages.recv()? {
            Message::Ready | Message::Turn(_) => {}
            Message::Ended(number) => {
                return Err(format!("process {number} ended before it began").into());
            }
        }
    }
    Ok(())
}

/// Collects the turns until all workers have ended, and shows the progress. On a terminal this is
/// one line that changes, otherwise one line each second.
fn watch(messages: &Receiver<Message>, mgr: &LockManager, lock: &str) -> Vec<Turn> {
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
        match messages.recv_timeout((shown + every).saturating_duration_since(Instant::now())) {
            Ok(Message::Turn(turn)) => turns.push(turn),
            Ok(Message::Ready) => {}
            Ok(Message::Ended(_)) => ended += 1,
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
