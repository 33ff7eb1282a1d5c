//! A scheduled job that many hosts start at the same moment, and that must run once.
//!
//!     cargo run --features memory --example run_once
//!     cargo run --example run_once
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example run_once
//!
//! No two clocks agree, so the hosts start a little apart. A short job may be over before the last
//! host tries. If the lock were held only while the job runs, that host would run it again.
//! `hold_at_least` keeps the name taken for some time after the grant, even if the job ends before.
//! How to choose the numbers:
//!
//! - `hold_at_least`: longer than the hosts can be apart, because of their clocks, the jitter of
//!   their schedulers and a slow start. It must be shorter than the period of the schedule by as
//!   much, or the next run finds the name still taken. Half of the period is a safe choice.
//! - `max_hold`: less than the period. Otherwise a job that hangs would be renewed for as long as
//!   its process lives, and no later run would start. With `max_hold` it loses the lock, and learns
//!   of that.
//! - `ttl`: what suits your Redis and your hosts. The length of the job does not matter, since the
//!   lock is renewed. If a host crashes during the job, the name stays taken for the ttl, or for
//!   `hold_at_least` if that is longer.
//!
//! A job that failed half-way is not tried again in the same run. The next run finds `Lapsed` in
//! `previous_holder`, or `Unknown` if the period is longer than the hour for which Redis keeps the
//! record. It then clears up what was left. If a job ends with an error of its own, it has released
//! the lock like any other job. So it must record itself what has to be done again.
//!
//! Here three hosts make three runs, and the second run hangs. Each host is a thread with its own
//! manager.
//!
//! The program uses the Redis of `REDIS_URL`. Without that it uses an in-memory store, if it is
//! built with one, or else it starts a private redis-server. It exits with 0 if all checks hold,
//! with 1 if not, and with 2 if it has no store.

mod support;

use std::process::ExitCode;
use std::sync::Mutex;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use fairlock::{Error, LockManager, LockOptions, LockState, LossReason, PreviousHolder};
use support::{Outcome, Store, check, own_name, run};

/// The period of the schedule.
const PERIOD: Duration = Duration::from_secs(2);

const SCHEDULED: LockOptions = LockOptions::new()
    .hold_at_least(Duration::from_secs(1))
    .max_hold(Duration::from_millis(500));

/// The result of one host's run of the schedule.
#[derive(Debug, PartialEq)]
enum JobResult {
    Done,
    /// Another host does the job, or has just done it.
    Skipped,
    /// The lock was lost before the job was done.
    Aborted(LossReason),
}

/// Each host calls this when its clock says that it is time. Copy this function.
fn run_job(mgr: &LockManager, job: &str, report: &Report) -> fairlock::Result<JobResult> {
    // After an error nobody knows whether the job runs on another host or not at all.
    let Some(guard) = mgr.with(SCHEDULED).try_lock(job)? else {
        return Ok(JobResult::Skipped);
    };
    if guard.previous_holder() != PreviousHolder::Released {
        report.clear_up();
    }
    report.collect();
    // Check between two steps, because nothing else stops a job that has lost its lock. A write to
    // another system also needs the fence: see the example `fencing`.
    match guard.check() {
        Ok(()) => report.send(),
        Err(Error::Lost { loss, .. }) => return Ok(JobResult::Aborted(loss.reason)),
        Err(other) => return Err(other),
    }
    // The job is done. It does not matter whether we still hold the lock.
    drop(guard);
    Ok(JobResult::Done)
}

fn main() -> ExitCode {
    run(run_once)
}

fn run_once(store: &Store) -> Outcome {
    let job = own_name("report");
    let hosts = [
        Host::new(store, "a", 0)?,
        Host::new(store, "b", 50)?,
        Host::new(store, "c", 100)?,
    ];
    let started = Instant::now();

    println!("First run. The job takes 20 ms, and the hosts' clocks are 50 ms apart.");
    let report = Report::default();
    report.collecting_takes(Duration::from_millis(20));
    let results = run_on_all(&hosts, &job, &report)?;
    check(
        "one host did the job, the others skipped it",
        only_one(&results, JobResult::Done),
    )?;
    check("the report was sent once", report.sent() == 1)?;
    let late = run_job(&hosts[2].mgr, &job, &report)?;
    check(
        "a host that starts after the end of the job skips it",
        late == JobResult::Skipped,
    )?;
    let info = hosts[2]
        .mgr
        .inspect(&job)?
        .ok_or("the name is no longer taken")?;
    check(
        format!("nobody holds the lock, but the name is {}", info.state),
        info.state == LockState::Cooling,
    )?;
    println!();

    sleep_until(started + PERIOD);
    println!("Second run. The job hangs.");
    report.collecting_takes(Duration::from_millis(700));
    let results = run_on_all(&hosts, &job, &report)?;
    let aborted = JobResult::Aborted(LossReason::MaxHold);
    check(
        "max_hold ended the job, and no other host started it",
        only_one(&results, aborted),
    )?;
    check("nothing was sent", report.sent() == 1)?;
    println!();

    sleep_until(started + 2 * PERIOD);
    println!("Third run.");
    report.collecting_takes(Duration::from_millis(20));
    let results = run_on_all(&hosts, &job, &report)?;
    check(
        "one host did the job again",
        only_one(&results, JobResult::Done),
    )?;
    check(
        "it cleared up what the second run had left, and sent a whole report",
        report.sent() == 2,
    )?;
    Ok(())
}

/// In a real program each host runs a process with one manager.
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

/// All hosts start the same run, each when its clock says so.
fn run_on_all(hosts: &[Host], job: &str, report: &Report) -> Outcome<Vec<JobResult>> {
    let results = thread::scope(|scope| {
        let run = |host: &Host| {
            sleep(host.clock_is_behind);
            let result = run_job(&host.mgr, job, report);
            if let Ok(result) = &result {
                println!("  host {}: {result:?}", host.name);
            }
            result
        };
        let threads: Vec<_> = hosts
            .iter()
            .map(|host| scope.spawn(move || run(host)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a host does not panic"))
            .collect::<Result<_, _>>()
    });
    Ok(results?)
}

/// Whether one host had this result and all others skipped the job.
fn only_one(results: &[JobResult], expected: JobResult) -> bool {
    let skipped = results
        .iter()
        .filter(|result| **result == JobResult::Skipped)
        .count();
    results.contains(&expected) && skipped == results.len() - 1
}

fn sleep_until(moment: Instant) {
    sleep(moment.saturating_duration_since(Instant::now()));
}

/// The data of the job. In a real program this is a table, or a directory that all hosts see.
#[derive(Default)]
struct Report(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    collected: u32,
    sent: u32,
    collecting_takes: Duration,
}

impl Report {
    /// The first half of the job, which takes some time.
    fn collect(&self) {
        let takes = {
            let mut pages = self.0.lock().unwrap();
            pages.collected += 1;
            pages.collecting_takes
        };
        sleep(takes);
    }

    /// The second half of the job. Does not send a report that was collected twice, because it is
    /// wrong.
    fn send(&self) {
        let mut pages = self.0.lock().unwrap();
        if std::mem::take(&mut pages.collected) == 1 {
            pages.sent += 1;
        }
    }

    /// Deletes pages that were collected but not sent.
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
