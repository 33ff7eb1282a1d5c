//! A scheduled job that many hosts start at the same moment, and that shall run once.
//!
//!     cargo run --features memory --example run_once
//!     cargo run --example run_once
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example run_once
//!
//! No two clocks agree, so the hosts wake a little apart, and a job that is short is over before the last of them
//! has tried: a lock that is only held while the job runs would let it run again. `hold_at_least` keeps the name
//! taken for so long after the grant, whatever becomes of the job. How to choose the numbers:
//!
//! - `hold_at_least`: longer than the hosts can be apart, by their clocks, the jitter of their schedulers and a slow
//!   start; and shorter than the period of the schedule by as much, or the next turn finds the name still taken.
//!   Half of the period is as far from either as can be.
//! - `max_hold`: less than the period. A job that hangs would otherwise be renewed for as long as its process lives,
//!   and no later turn would run. It is told, and loses the lock.
//! - `ttl`: what suits your Redis and your hosts; how long the job takes does not matter, since the lock is renewed.
//!   A host that crashes in the job blocks the name for its ttl, or for `hold_at_least` if that is longer.
//!
//! A job that failed half-way is not tried again in the same turn. Whoever has the next finds `Lapsed` in
//! `previous_holder`, or `Unknown` if the schedule's period is longer than the hour for which Redis remembers, and
//! puts in order what was left. A job that ends with an error of its own has released the lock like any other, and
//! has to write down itself what is to be done again.
//!
//! Here three hosts, which are threads with a manager each, have three turns, of which the second hangs. With
//! `REDIS_URL` it uses that Redis; without, an in-memory store if it is built with one, and else a private
//! redis-server. It ends with 0 if all was as it should be, with 1 if not, with 2 without a store.

mod support;

use std::process::ExitCode;
use std::sync::Mutex;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LockOptions, LockState, LossReason, PreviousHolder};
use support::{Outcome, Store, check, own_name, play};

/// The schedule's.
const PERIOD: Duration = Duration::from_secs(2);

const SCHEDULED: LockOptions = LockOptions::new()
    .hold_at_least(Duration::from_secs(1))
    .max_hold(Duration::from_millis(500));

/// What a host's turn came to.
#[derive(Debug, PartialEq)]
enum Turn {
    Ran,
    /// Another host is at it, or has just been.
    Elsewhere,
    /// The lock was lost before the job was done.
    BrokenOff(LossReason),
}

/// What each host does when its clock says that it is time. This is the part to copy.
fn take_turn(mgr: &LockManager, job: &str, report: &Report) -> fairlock::Result<Turn> {
    // An error is no answer: the job may be running elsewhere or not at all.
    let Some(guard) = mgr.with(SCHEDULED).try_lock(job)? else {
        return Ok(Turn::Elsewhere);
    };
    if guard.previous_holder() != PreviousHolder::Released {
        report.clear_up();
    }
    report.collect();
    // Between two steps, since nothing else ends a job that has lost its lock. What is written elsewhere wants the
    // fence besides: see the example `fencing`.
    match guard.check() {
        Ok(()) => report.send(),
        Err(Error::Lost { loss, .. }) => return Ok(Turn::BrokenOff(loss.reason)),
        Err(other) => return Err(other),
    }
    // The job is done; whether the lock was still ours afterwards changes nothing.
    drop(guard);
    Ok(Turn::Ran)
}

fn main() -> ExitCode {
    play(run_once)
}

fn run_once(store: &Store) -> Outcome {
    let job = own_name("report");
    let hosts = [
        Host::new(store, "a", 0)?,
        Host::new(store, "b", 50)?,
        Host::new(store, "c", 100)?,
    ];
    let started = Instant::now();

    println!("First turn. The job takes 20 ms, and the hosts' clocks are 50 ms apart.");
    let report = Report::default();
    report.collecting_takes(Duration::from_millis(20));
    let turns = all_wake(&hosts, &job, &report)?;
    check(
        "one host ran the job, the others left it alone",
        only_one(&turns, Turn::Ran),
    )?;
    check("the report was sent once", report.sent() == 1)?;
    let late = take_turn(&hosts[2].mgr, &job, &report)?;
    check(
        "a host that comes when all is over leaves it alone",
        late == Turn::Elsewhere,
    )?;
    let info = hosts[2]
        .mgr
        .inspect(&job)?
        .ok_or("the name is not taken any more")?;
    check(
        format!("nobody holds the lock, but the name is {:?}", info.state),
        info.state == LockState::Cooling,
    )?;
    println!();

    sleep_until(started + PERIOD);
    println!("Second turn. The job hangs.");
    report.collecting_takes(Duration::from_millis(700));
    let turns = all_wake(&hosts, &job, &report)?;
    let broken_off = Turn::BrokenOff(LossReason::MaxHold);
    check(
        "max_hold ended it, and no other host began",
        only_one(&turns, broken_off),
    )?;
    check("nothing was sent", report.sent() == 1)?;
    println!();

    sleep_until(started + 2 * PERIOD);
    println!("Third turn.");
    report.collecting_takes(Duration::from_millis(20));
    let turns = all_wake(&hosts, &job, &report)?;
    check("again one host ran the job", only_one(&turns, Turn::Ran))?;
    check(
        "what the second turn had left was cleared away, and a whole report sent",
        report.sent() == 2,
    )?;
    Ok(())
}

/// In life each is a machine, and a process with one manager.
struct Host {
    name: &'static str,
    mgr: LockManager,
    clock_is_behind: Duration,
}

impl Host {
    fn new(store: &Store, name: &'static str, behind_ms: u64) -> fairlock::Result<Host> {
        Ok(Host {
            name,
            mgr: LockManager::connect(store)?,
            clock_is_behind: Duration::from_millis(behind_ms),
        })
    }
}

/// All begin the same turn, each when its clock says so.
fn all_wake(hosts: &[Host], job: &str, report: &Report) -> Outcome<Vec<Turn>> {
    let turns = thread::scope(|scope| {
        let turn = |host: &Host| {
            sleep(host.clock_is_behind);
            let turn = take_turn(&host.mgr, job, report);
            if let Ok(turn) = &turn {
                println!("  host {}: {turn:?}", host.name);
            }
            turn
        };
        let threads: Vec<_> = hosts
            .iter()
            .map(|host| scope.spawn(move || turn(host)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a host does not panic"))
            .collect::<Result<_, _>>()
    });
    Ok(turns?)
}

fn only_one(turns: &[Turn], expected: Turn) -> bool {
    let others = turns
        .iter()
        .filter(|turn| **turn == Turn::Elsewhere)
        .count();
    turns.contains(&expected) && others == turns.len() - 1
}

fn sleep_until(moment: Instant) {
    sleep(moment.saturating_duration_since(Instant::now()));
}

/// What the job works on: in life a table or a directory that all hosts see.
#[derive(Default)]
struct Report(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    collected: u32,
    sent: u32,
    collecting_takes: Duration,
}

impl Report {
    /// The first half of the job, which takes long.
    fn collect(&self) {
        let takes = {
            let mut pages = self.0.lock().unwrap();
            pages.collected += 1;
            pages.collecting_takes
        };
        sleep(takes);
    }

    /// The second half. A report that was collected twice is wrong, and is not sent.
    fn send(&self) {
        let mut pages = self.0.lock().unwrap();
        if std::mem::take(&mut pages.collected) == 1 {
            pages.sent += 1;
        }
    }

    /// Throws away what was collected and not sent, if there is anything.
    fn clear_up(&self) {
        self.0.lock().unwrap().collected = 0;
    }

    fn sent(&self) -> u32 {
        self.0.lock().unwrap().sent
    }

    fn collecting_takes(&self, time: Duration) {
        self.0.lock().unwrap().collecting_takes = time;
    }
}
