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
//!   their schedulers and a slow start. It must be shorter than half of the period of the schedule,
//!   or a late host keeps the name taken when the next run begins. A third is a safe choice.
//! - `max_hold`: less than the period. Otherwise a job that hangs would be renewed for as long as
//!   its process lives, and no later run would start. With `max_hold` it loses the lock, and learns
//!   of that.
//! - `ttl`: what suits your Redis and your hosts. The length of the job does not matter, since the
//!   lock is renewed. If a host crashes during the job, the name stays taken for the ttl, or for
//!   `hold_at_least` if that is longer.
//!
//! A job that failed half-way is not tried again in the same run. The next run finds `Lapsed` in
//! `previous_holder`, or `Unknown` if the period is longer than the hour for which Redis keeps the
//! record. It then clears up what was left.
//!
//! The lock does not remember what was done. So each run has a number, and the job records it when
//! it is done, with its host and its fence, where it keeps its own data. The lock makes sure that
//! one host at a time reads and writes that row. The fence refuses a host that lost the lock and
//! comes back later. From that row the next run sees:
//!
//! - that this run is done already: the host is so late that the name is free again,
//! - which runs were missed: they failed, hung, or no host was up,
//! - which host did the last one.
//!
//! Whether a missed run is made up for, skipped or reported is for the job to decide.
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
const PERIOD: Duration = Duration::from_secs(3);

const SCHEDULED: LockOptions = LockOptions::new()
    .hold_at_least(Duration::from_secs(1))
    .max_hold(Duration::from_millis(500));

/// The result of one host's run of the schedule.
#[derive(Debug, PartialEq)]
enum JobResult {
    /// So many runs before this one were never done.
    Done { missed: u64 },
    /// Another host does the job, or has just done it.
    Skipped,
    /// Another host has done this run, and recorded it.
    DoneBefore,
    /// The lock was lost before the job was done.
    Aborted(LossReason),
}

/// Each host calls this when its clock says that it is time. Copy this function.
fn run_job(host: &Host, job: &Job, run: u64) -> fairlock::Result<JobResult> {
    let Job {
        name,
        report,
        history,
    } = job;
    // After an error nobody knows whether the job runs on another host or not at all.
    let Some(guard) = host.mgr.with(SCHEDULED).try_lock(name)? else {
        return Ok(JobResult::Skipped);
    };
    // First of all, because our own proper release will say `Released` to the next host, even if
    // there is nothing to do for us.
    if guard.previous_holder() != PreviousHolder::Released {
        report.clear_up();
    }
    let last = history.last();
    if last.number >= run {
        return Ok(JobResult::DoneBefore);
    }
    report.collect();
    // Check between two steps, because nothing else stops a job that has lost its lock. A write to
    // another system also needs the fence: see the example `fencing`.
    match guard.check() {
        Ok(()) => report.send(),
        Err(Error::Lost { loss, .. }) => return Ok(JobResult::Aborted(loss.reason)),
        Err(other) => return Err(other),
    }
    // The job is done. Without this record the run would count as missed, so it is a part of the
    // job. Where you can, write both in one transaction.
    history.record(Run {
        number: run,
        host: host.name,
        fence: guard.fence(),
    });
    // It does not matter whether we still hold the lock. Unlike drop, unlock waits until Redis has
    // released it.
    let _ = guard.unlock();
    Ok(JobResult::Done {
        missed: run - last.number - 1,
    })
}

fn main() -> ExitCode {
    run(run_once)
}

fn run_once(store: &Store) -> Outcome {
    let job = Job {
        name: own_name("report"),
        report: Report::default(),
        history: History::default(),
    };
    let report = &job.report;
    let hosts = [
        Host::new(store, "a", 0)?,
        Host::new(store, "b", 50)?,
        Host::new(store, "c", 100)?,
    ];
    let started = Instant::now();

    println!("First run. The job takes 20 ms, and the hosts' clocks are 50 ms apart.");
    report.collecting_takes(Duration::from_millis(20));
    let results = run_on_all(&hosts, &job, 1)?;
    check(
        "one host did the job, the others skipped it",
        only_one(&results, JobResult::Done { missed: 0 }),
    )?;
    check("the report was sent once", report.sent() == 1)?;
    let late = run_job(&hosts[2], &job, 1)?;
    check(
        "a host that starts after the end of the job skips it",
        late == JobResult::Skipped,
    )?;
    let info = hosts[2]
        .mgr
        .inspect(&job.name)?
        .ok_or("the name is no longer taken")?;
    check(
        format!("nobody holds the lock, but the name is {}", info.state),
        info.state == LockState::Cooling,
    )?;
    sleep(info.time_left + Duration::from_millis(100));
    let very_late = run_job(&hosts[2], &job, 1)?;
    check(
        "a host that comes when the name is free again finds the run recorded",
        very_late == JobResult::DoneBefore,
    )?;
    println!();

    sleep_until(started + PERIOD);
    println!("Second run. The job hangs.");
    report.collecting_takes(Duration::from_millis(700));
    let results = run_on_all(&hosts, &job, 2)?;
    let aborted = JobResult::Aborted(LossReason::MaxHold);
    check(
        "max_hold ended the job, and no other host started it",
        only_one(&results, aborted),
    )?;
    check("nothing was sent", report.sent() == 1)?;
    let info = hosts[2].mgr.inspect(&job.name)?;
    sleep(info.map_or(Duration::ZERO, |info| info.time_left) + Duration::from_millis(100));
    let very_late = run_job(&hosts[2], &job, 1)?;
    check(
        "a host that comes very late for the first run finds it recorded",
        very_late == JobResult::DoneBefore,
    )?;
    println!();

    sleep_until(started + 2 * PERIOD);
    println!("Third run.");
    report.collecting_takes(Duration::from_millis(20));
    let before = job.history.last();
    let results = run_on_all(&hosts, &job, 3)?;
    check(
        format!(
            "one host did the job and saw that run 2 was missed: the last was run {}, by host {}",
            before.number, before.host
        ),
        before.number == 1 && only_one(&results, JobResult::Done { missed: 1 }),
    )?;
    check(
        "it cleared up what the second run had left, and sent a whole report",
        report.sent() == 2,
    )?;
    check(
        "the host that hung cannot record its run late: its fence is smaller",
        !job.history.record(Run {
            fence: before.fence + 1,
            number: 2,
            host: "?",
        }) && job.history.last().number == 3,
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
fn run_on_all(hosts: &[Host], job: &Job, number: u64) -> Outcome<Vec<JobResult>> {
    let results = thread::scope(|scope| {
        let run = |host: &Host| {
            sleep(host.clock_is_behind);
            let result = run_job(host, job, number);
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

struct Job {
    /// The name of the lock.
    name: String,
    report: Report,
    history: History,
}

/// The last run that was done. In a real program this is a row beside the job's data:
///
/// ```sql
/// UPDATE runs SET number = :number, host = :host, fence = :fence
///     WHERE job = :job AND fence <= :fence
/// ```
#[derive(Default)]
struct History(Mutex<Run>);

#[derive(Clone, Default)]
struct Run {
    number: u64,
    host: &'static str,
    /// The fence under which the host held the lock.
    fence: u64,
}

impl History {
    fn last(&self) -> Run {
        self.0.lock().unwrap().clone()
    }

    /// `false` if a host with a larger fence has recorded a run.
    fn record(&self, run: Run) -> bool {
        let mut last = self.0.lock().unwrap();
        let admitted = last.fence <= run.fence;
        if admitted {
            *last = run;
        }
        admitted
    }
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
