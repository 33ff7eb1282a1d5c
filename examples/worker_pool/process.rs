//! A process of workers, as the main program sees it: how to start it, how to tell it when to stop,
//! and how to get its messages.
//!
//! No other process can reach an in-memory store. There each "process" is only a manager and its
//! threads in this process.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
#[cfg(feature = "memory")]
use std::sync::mpsc::{Receiver, channel};
use std::{env, thread};

use fairlock::LockManager;

use crate::ledger::Ledger;
use crate::support::private_redis::Redis;
use crate::support::store::endpoint;
use crate::support::{Outcome, Store};
use crate::turn::Turn;
use crate::worker::{Coordinator, work};

/// A process of workers. It ends with this program.
pub(crate) struct WorkerProcess {
    number: usize,
    runs_as: RunsAs,
}

enum RunsAs {
    Process(Child),
    #[cfg(feature = "memory")]
    Threads {
        stop_at: Sender<u64>,
        main_thread: Option<thread::JoinHandle<Outcome>>,
    },
}

/// A report of a process of workers.
pub(crate) enum Message {
    Ready,
    Turn(Turn),
    /// The process with this number has ended.
    Ended(usize),
}

impl WorkerProcess {
    pub(crate) fn start(
        number: usize,
        store: &Store,
        lock: &str,
        dir: &Path,
        messages: Sender<Message>,
    ) -> Outcome<WorkerProcess> {
        let runs_as = match store {
            Store::Redis(redis) => start_process(number, redis, lock, dir, messages)?,
            #[cfg(feature = "memory")]
            Store::Memory(_) => {
                start_threads(number, LockManager::connect(store)?, lock, dir, messages)?
            }
        };
        Ok(WorkerProcess { number, runs_as })
    }

    /// Lets the workers begin. They stop at this moment.
    pub(crate) fn work_until(&mut self, stop_at: u64) -> Outcome {
        match &mut self.runs_as {
            RunsAs::Process(process) => {
                let stdin = process.stdin.as_mut().expect("stdin is piped");
                writeln!(stdin, "{stop_at}")?;
            }
            #[cfg(feature = "memory")]
            RunsAs::Threads {
                stop_at: sender, ..
            } => sender.send(stop_at)?,
        }
        Ok(())
    }

    /// Waits for its end. Returns what went wrong, if anything did.
    pub(crate) fn end(mut self) -> Outcome<Option<String>> {
        Ok(match &mut self.runs_as {
            RunsAs::Process(process) => {
                let status = process.wait()?;
                (!status.success()).then(|| format!("process {} ended with {status}", self.number))
            }
            #[cfg(feature = "memory")]
            RunsAs::Threads { main_thread, .. } => {
                let thread = main_thread
                    .take()
                    .expect("`end` consumes it, so it runs once");
                let outcome = thread.join().unwrap_or_else(|_| Err("a panic".into()));
                outcome
                    .err()
                    .map(|error| format!("process {} (threads) ended with {error}", self.number))
            }
        })
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // Threads end with this program.
        #[cfg_attr(
            not(feature = "memory"),
            expect(irrefutable_let_patterns, reason = "there are only processes")
        )]
        if let RunsAs::Process(process) = &mut self.runs_as {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn start_process(
    number: usize,
    redis: &Redis,
    lock: &str,
    dir: &Path,
    messages: Sender<Message>,
) -> Outcome<RunsAs> {
    let mut process = Command::new(env::current_exe()?)
        .args(["worker", &number.to_string(), lock])
        .arg(dir)
        // In the environment, because every user of this host can read arguments. It may have a
        // password.
        .env("REDIS_URL", &redis.url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = process.stdout.take().expect("stdout is piped");
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let message = if line == "ready" {
                Some(Message::Ready)
            } else {
                line.parse().ok().map(Message::Turn)
            };
            // If the main program ends early, nobody receives this.
            let _ = message.map(|message| messages.send(message));
        }
        let _ = messages.send(Message::Ended(number));
    });
    Ok(RunsAs::Process(process))
}

/// The program's main function when it was started as a process of workers.
pub(crate) fn be_a_process(number: &str, lock: &str, dir: &Path) -> Outcome {
    let mgr = LockManager::connect(endpoint(&env::var("REDIS_URL")?))?;
    work(number, &mgr, lock, &Ledger::open(dir), &Pipes)
}

/// The coordinator is at the other end of standard input and output.
struct Pipes;

impl Coordinator for Pipes {
    fn ready(&self) -> Outcome<u64> {
        writeln!(io::stdout(), "ready")?;
        let mut line = String::new();
        io::stdin().read_line(&mut line)?;
        Ok(line.trim().parse()?)
    }

    fn done(&self, turn: Turn) -> Outcome {
        Ok(writeln!(io::stdout(), "{turn}")?)
    }
}

#[cfg(feature = "memory")]
fn start_threads(
    number: usize,
    mgr: LockManager,
    lock: &str,
    dir: &Path,
    messages: Sender<Message>,
) -> Outcome<RunsAs> {
    let (stop_at, receiver) = channel();
    let lock = lock.to_owned();
    let ledger = Ledger::open(dir);
    let main_thread = thread::Builder::new()
        .name(format!("process {number}"))
        .spawn(move || {
            work(
                &number.to_string(),
                &mgr,
                &lock,
                &ledger,
                &Channels {
                    number,
                    messages,
                    stop_at: receiver.into(),
                },
            )
        })?;
    Ok(RunsAs::Threads {
        stop_at,
        main_thread: Some(main_thread),
    })
}

/// The coordinator is in this process.
#[cfg(feature = "memory")]
struct Channels {
    number: usize,
    messages: Sender<Message>,
    stop_at: std::sync::Mutex<Receiver<u64>>,
}

#[cfg(feature = "memory")]
impl Coordinator for Channels {
    fn ready(&self) -> Outcome<u64> {
        self.messages.send(Message::Ready)?;
        let stop_at = self.stop_at.lock().expect("only one thread locks it, once");
        Ok(stop_at.recv()?)
    }

    fn done(&self, turn: Turn) -> Outcome {
        Ok(self.messages.send(Message::Turn(turn))?)
    }
}

/// Reports the end, also after a panic.
#[cfg(feature = "memory")]
impl Drop for Channels {
    fn drop(&mut self) {
        let _ = self.messages.send(Message::Ended(self.number));
    }
}
