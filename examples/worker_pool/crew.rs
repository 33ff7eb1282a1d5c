//! The workers of one process: how they are started, told when to stop, and heard of. On an in-memory store,
//! which no other process can reach, the process is one by name only: a manager and its threads in this one.

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
use crate::support::{Outcome, Store};
use crate::turn::Turn;
use crate::worker::{Director, work};

/// Ended with this program.
pub(crate) struct Crew {
    number: usize,
    at: Place,
}

enum Place {
    Process(Child),
    #[cfg(feature = "memory")]
    Threads {
        until: Sender<u64>,
        worked: Option<thread::JoinHandle<Outcome>>,
    },
}

pub(crate) enum Said {
    Ready,
    Turn(Turn),
    /// By which crew.
    Ended(usize),
}

impl Crew {
    pub(crate) fn start(
        number: usize,
        store: &Store,
        lock: &str,
        dir: &Path,
        said: Sender<Said>,
    ) -> Outcome<Crew> {
        let at = match store {
            Store::Redis(redis) => start_process(number, redis, lock, dir, said)?,
            #[cfg(feature = "memory")]
            Store::Memory(_) => {
                start_threads(number, LockManager::connect(store)?, lock, dir, said)?
            }
        };
        Ok(Crew { number, at })
    }

    /// Lets it begin.
    pub(crate) fn work_until(&mut self, until: u64) -> Outcome {
        match &mut self.at {
            Place::Process(process) => {
                let stdin = process.stdin.as_mut().expect("stdin is piped");
                writeln!(stdin, "{until}")?;
            }
            #[cfg(feature = "memory")]
            Place::Threads { until: teller, .. } => teller.send(until)?,
        }
        Ok(())
    }

    /// Waits for its end; answers what went wrong.
    pub(crate) fn end(mut self) -> Outcome<Option<String>> {
        Ok(match &mut self.at {
            Place::Process(process) => {
                let status = process.wait()?;
                (!status.success()).then(|| format!("process {} ended with {status}", self.number))
            }
            #[cfg(feature = "memory")]
            Place::Threads { worked, .. } => {
                let worked = worked.take().expect("it ends once").join();
                let worked = worked.unwrap_or_else(|_| Err("a panic".into()));
                worked
                    .err()
                    .map(|error| format!("would-be process {} ended with {error}", self.number))
            }
        })
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        // Threads end with this program.
        #[cfg_attr(
            not(feature = "memory"),
            expect(irrefutable_let_patterns, reason = "there are only processes")
        )]
        if let Place::Process(process) = &mut self.at {
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
    said: Sender<Said>,
) -> Outcome<Place> {
    let mut process = Command::new(env::current_exe()?)
        .args(["worker", &number.to_string(), lock])
        .arg(dir)
        // Not an argument: those can be read by every user of this host, and it may have a password.
        .env("REDIS_URL", &redis.url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = process.stdout.take().expect("stdout is piped");
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let heard = if line == "ready" {
                Some(Said::Ready)
            } else {
                line.parse().ok().map(Said::Turn)
            };
            // Nobody listens any more when this program ends early.
            let _ = heard.map(|heard| said.send(heard));
        }
        let _ = said.send(Said::Ended(number));
    });
    Ok(Place::Process(process))
}

/// What the program does when it is started as a process of workers.
pub(crate) fn be_a_process(number: &str, lock: &str, dir: &Path) -> Outcome {
    let mgr = LockManager::connect(env::var("REDIS_URL")?)?;
    work(number, &mgr, lock, &Ledger::open(dir), &Pipes)
}

/// The director is on the other end of standard input and output.
struct Pipes;

impl Director for Pipes {
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
    said: Sender<Said>,
) -> Outcome<Place> {
    let (until, told) = channel();
    let (lock, ledger) = (lock.to_owned(), Ledger::open(dir));
    let worked = thread::Builder::new()
        .name(format!("process {number}"))
        .spawn(move || {
            work(
                &number.to_string(),
                &mgr,
                &lock,
                &ledger,
                &Channels {
                    number,
                    said,
                    told: told.into(),
                },
            )
        })?;
    Ok(Place::Threads {
        until,
        worked: Some(worked),
    })
}

/// The director is in this process.
#[cfg(feature = "memory")]
struct Channels {
    number: usize,
    said: Sender<Said>,
    told: std::sync::Mutex<Receiver<u64>>,
}

#[cfg(feature = "memory")]
impl Director for Channels {
    fn ready(&self) -> Outcome<u64> {
        self.said.send(Said::Ready)?;
        Ok(self.told.lock().expect("it is asked once").recv()?)
    }

    fn done(&self, turn: Turn) -> Outcome {
        Ok(self.said.send(Said::Turn(turn))?)
    }
}

/// Also after a panic.
#[cfg(feature = "memory")]
impl Drop for Channels {
    fn drop(&mut self) {
        let _ = self.said.send(Said::Ended(self.number));
    }
}
