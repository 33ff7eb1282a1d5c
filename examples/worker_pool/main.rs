//! The main job: workers in several processes take turns at one resource, first come, first served.
//!
//!     cargo run --example worker_pool
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example worker_pool
//!
//! Without `REDIS_URL` it starts a private redis-server and ends it again. The program starts itself again
//! as four processes of four threads. For four seconds each thread does nothing but ask for the lock, write
//! into a ledger that breaks if two write at once, and pass the lock on. Then it shows who got how many
//! turns and how long they waited, and checks the order, the fences and, from outside Redis, that no two
//! turns overlapped. It ends with 0 if all that holds, with 1 if anything is wrong, with 2 without a Redis.
//!
//! How the lock is used is in `worker.rs`.

mod ledger;
#[path = "../support/private_redis.rs"]
mod private_redis;
mod report;
mod turn;
mod worker;

use std::error::Error;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use std::{env, process, thread};

use fairlock::{LockInfo, LockManager};
use ledger::Ledger;
use private_redis::{Over, redis_or_exit};
use turn::{Turn, now};

const PROCESSES: usize = 4;
const THREADS: usize = 4;
const RUN_FOR: Duration = Duration::from_secs(4);

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let outcome = match args.as_slice() {
        [role, process, lock, dir] if role == "worker" => worker::work(process, lock, Path::new(dir)).map(|()| true),
        _ => direct(),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("worker_pool: {error}");
            if let Some(cause) = error.source() {
                eprintln!("  because: {cause}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Starts the workers, watches them, and judges what they did.
fn direct() -> Outcome<bool> {
    let redis = redis_or_exit("REDIS_URL", Over::UnixSocket);
    let mgr = LockManager::connect(redis.url.as_str())?;
    let dir = tempfile::tempdir()?;
    let ledger = Ledger::create(dir.path())?;
    // A name of this run's own: the Redis may be shared with others who try this.
    let lock = format!("worker_pool:{}:{}", process::id(), now());
    println!("{PROCESSES} processes of {THREADS} threads take turns at one ledger for {} s,", RUN_FOR.as_secs());
    println!("using {}", redis.about);
    println!();

    let (sender, said) = channel();
    let mut workers = Vec::new();
    for process in 1..=PROCESSES {
        workers.push(Worker::start(process, &redis.url, &lock, dir.path(), sender.clone())?);
    }
    drop(sender);
    await_all(&said)?;
    let until = now() + RUN_FOR.as_nanos() as u64;
    for worker in &mut workers {
        worker.tell(&format!("{until}"))?;
    }
    let turns = watch(&said, &mgr, &lock);
    let mut failed = Vec::new();
    for mut worker in workers {
        let status = worker.process.wait()?;
        if !status.success() {
            failed.push(format!("process {} ended with {status}", worker.number));
        }
    }
    Ok(report::print(&turns, ledger.entries()?, &failed))
}

/// A process of workers; ended with this one.
struct Worker {
    number: usize,
    process: Child,
}

enum Said {
    Ready,
    Turn(Turn),
    Ended(usize),
}

impl Worker {
    fn start(number: usize, url: &str, lock: &str, dir: &Path, sender: Sender<Said>) -> Outcome<Worker> {
        let mut process = Command::new(env::current_exe()?)
            .args(["worker", &number.to_string(), lock])
            .arg(dir)
            // Not an argument: those can be read by every user of this host, and it may have a password.
            .env("REDIS_URL", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = process.stdout.take().expect("stdout is piped");
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let said = if line == "ready" { Some(Said::Ready) } else { line.parse().ok().map(Said::Turn) };
                // Nobody listens any more when this program ends early.
                let _ = said.map(|said| sender.send(said));
            }
            let _ = sender.send(Said::Ended(number));
        });
        Ok(Worker { number, process })
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        let stdin = self.process.stdin.as_mut().expect("stdin is piped");
        writeln!(stdin, "{line}")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn await_all(said: &Receiver<Said>) -> Outcome<()> {
    for _ in 0..PROCESSES {
        match said.recv()? {
            Said::Ready | Said::Turn(_) => {}
            Said::Ended(number) => return Err(format!("process {number} ended before it began").into()),
        }
    }
    Ok(())
}

/// Collects the turns until all workers are through, and shows how far they are: in one line that
/// changes, or in a line each second where lines cannot change.
fn watch(said: &Receiver<Said>, mgr: &LockManager, lock: &str) -> Vec<Turn> {
    let live = io::stdout().is_terminal();
    let every = if live { Duration::from_millis(100) } else { Duration::from_secs(1) };
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
        Some(LockInfo { holder: Some(holder), waiters, .. }) => format!("{} has it, {waiters} wait", holder.thread),
        _ => "nobody has it".to_owned(),
    };
    format!("  {:3.1} s  {bar}  {turns:5} turns   {holder}", elapsed.as_secs_f64())
}
