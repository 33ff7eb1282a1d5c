//! Threads take turns with one lock, in this process or in several.

use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;
use std::{env, process, thread};

use fairlock::{LockGuard, LockManager};

use crate::bare::BareClient;
use crate::support::now;

pub(crate) const HOLD: Duration = Duration::from_millis(1);
/// A round lasts for this time, or for this many turns of each thread if that takes longer.
const RUN_FOR: Duration = Duration::from_millis(1000);
const TURNS: u32 = 12;
/// A turn with its hand-over, roughly.
const TURN: Duration = Duration::from_micros(1300);

/// How the threads are spread.
pub(crate) struct Layout {
    pub(crate) title: &'static str,
    pub(crate) processes: usize,
    /// In each process.
    pub(crate) managers: usize,
}

/// The lock that the threads take turns with.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Subject {
    Fairlock,
    Bare,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Subject::Fairlock => "fairlock",
            Subject::Bare => "bare",
        }
    }
}

/// One holding of the lock; the moments are of a clock that all processes share.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    /// Which manager, and which of its threads.
    pub(crate) manager: usize,
    pub(crate) thread: usize,
    pub(crate) asked: u64,
    pub(crate) granted: u64,
    pub(crate) released: u64,
    /// When the call of the release returned.
    pub(crate) given: u64,
}

/// One thread that takes and releases the lock.
pub(crate) trait Caller {
    fn lock(&mut self);
    fn unlock(&mut self);
}

struct FairlockCaller {
    lock: fairlock::Mutex,
    guard: Option<LockGuard>,
}

impl Caller for FairlockCaller {
    fn lock(&mut self) {
        self.guard = Some(self.lock.lock().expect("a lock in its turn"));
    }

    fn unlock(&mut self) {
        self.guard = None;
    }
}

/// A share of the threads has one.
enum Client {
    Fairlock(LockManager),
    Bare(BareClient),
}

impl Client {
    fn new(subject: Subject, url: &str, name: &str, number: usize, threads: usize) -> Client {
        match subject {
            Subject::Fairlock => {
                Client::Fairlock(LockManager::connect(url).expect("a Redis that answers"))
            }
            Subject::Bare => Client::Bare(BareClient::new(url, name, number, threads)),
        }
    }

    fn caller(&self, name: &str, thread: usize) -> Box<dyn Caller + Send> {
        match self {
            Client::Fairlock(manager) => Box::new(FairlockCaller {
                lock: manager.mutex(name),
                guard: None,
            }),
            Client::Bare(client) => Box::new(client.caller(thread)),
        }
    }
}

/// Lets this many threads, spread over the layout, take turns. Returns all turns.
pub(crate) fn round(url: &str, subject: Subject, layout: &Layout, threads: usize) -> Vec<Turn> {
    // Managers and processes take a moment to come up; all threads start at this one.
    let start = now() + 300_000_000;
    let until = start + RUN_FOR.max(TURN * threads as u32 * TURNS).as_nanos() as u64;
    let name = format!("bench:handoff:{}:{start}", process::id());
    if layout.processes == 1 {
        let shares: Vec<usize> = (0..layout.managers)
            .map(|i| share(threads, layout.managers, i))
            .collect();
        return take_turns(url, subject, &name, 0, &shares, (start, until));
    }
    let mut children = Vec::new();
    for i in 0..layout.processes {
        let this = env::current_exe().expect("a running bench has a binary");
        let child = Command::new(this)
            .args([
                "threads",
                subject.name(),
                &name,
                &i.to_string(),
                &share(threads, layout.processes, i).to_string(),
            ])
            .args([start.to_string(), until.to_string()])
            .env("FAIRLOCK_BENCH_URL", url)
            .stdout(Stdio::piped())
            .spawn();
        children.push(child.expect("the bench can be started again"));
    }
    let mut turns = Vec::new();
    for child in children {
        let out = child.wait_with_output().expect("a child ends");
        assert!(out.status.success(), "a child ended with {}", out.status);
        turns.extend(String::from_utf8_lossy(&out.stdout).lines().map(parse));
    }
    turns
}

fn share(threads: usize, among: usize, i: usize) -> usize {
    (threads + i) / among
}

/// A process of its own: one manager with its threads; prints the turns.
pub(crate) fn play(args: &[String]) {
    let [subject, name, manager, threads, start, until] = args else {
        panic!("not the arguments of a child")
    };
    let subject = [Subject::Fairlock, Subject::Bare]
        .into_iter()
        .find(|known| known.name() == subject)
        .expect("a known subject");
    let number = |arg: &String| arg.parse::<u64>().expect("a number");
    let url = env::var("FAIRLOCK_BENCH_URL").expect("the parent names its Redis");
    let shares = [number(threads) as usize];
    let window = (number(start), number(until));
    let manager = number(manager) as usize;
    for t in take_turns(&url, subject, name, manager, &shares, window) {
        println!(
            "{} {} {} {} {} {}",
            t.manager, t.thread, t.asked, t.granted, t.released, t.given
        );
    }
}

fn parse(line: &str) -> Turn {
    let numbers: Vec<u64> = line
        .split(' ')
        .map(|n| n.parse().expect("a number"))
        .collect();
    let [manager, thread, asked, granted, released, given] = numbers[..] else {
        panic!("not a turn: {line}")
    };
    Turn {
        manager: manager as usize,
        thread: thread as usize,
        asked,
        granted,
        released,
        given,
    }
}

/// A manager for each share of the threads; the first has this number.
fn take_turns(
    url: &str,
    subject: Subject,
    name: &str,
    first: usize,
    shares: &[usize],
    (start, until): (u64, u64),
) -> Vec<Turn> {
    let all = Mutex::new(Vec::new());
    let clients: Vec<Client> = shares
        .iter()
        .enumerate()
        .map(|(i, threads)| Client::new(subject, url, name, first + i, *threads))
        .collect();
    thread::scope(|scope| {
        for (i, (client, threads)) in clients.iter().zip(shares).enumerate() {
            for thread in 0..*threads {
                let mut caller = client.caller(name, thread);
                let all = &all;
                scope.spawn(move || {
                    thread::sleep(Duration::from_nanos(start.saturating_sub(now())));
                    let mut turns = Vec::new();
                    loop {
                        let asked = now();
                        if asked >= until {
                            break;
                        }
                        caller.lock();
                        let granted = now();
                        thread::sleep(HOLD);
                        let released = now();
                        caller.unlock();
                        let given = now();
                        turns.push(Turn {
                            manager: first + i,
                            thread,
                            asked,
                            granted,
                            released,
                            given,
                        });
                    }
                    all.lock().expect("no thread panicked").extend(turns);
                });
            }
        }
    });
    all.into_inner().expect("no thread panicked")
}
