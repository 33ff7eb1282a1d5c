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
//! it is done, with its host, where it keeps its own data. A host first claims that row with its
//! fence, and only then reads it. From then on a host that lost the lock and comes back later
//! changes nothing. From that row the next run sees:
//!
//! - that this run is done already: the host is so late that the name is free again,
//! - which runs were missed: they failed, hung, or no host was up,
//! - which host did the last one.
//!
//! Whether a missed run is made up for, skipped or reported is for the job to decide.
//!
//! `job.rs` has the job, which is the part to copy. `table.rs` in `examples/support` stands for the
//! database, and has each statement in SQL.
//!
//! Here three hosts make three runs, and the second run hangs. Each host is a thread with its own
//! manager.
//!
//! The program uses the Redis of `REDIS_URL`. Without that it uses an in-memory store, if it is
//! built with one, or else it starts a private redis-server. It exits with 0 if all checks hold,
//! with 1 if not, and with 2 if it has no store.

mod job;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/table.rs"]
mod table;

use std::process::ExitCode;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use fairlock::{LockManager, LossReason, inspect::LockState};
use job::{Job, JobResult, Report, run_job};
use support::{Outcome, Store, check, own_name, run};
use table::Table;

/// The period of the schedule.
const PERIOD: Duration = Duration::from_secs(3);

/// The lines of a whole report.
const PAGES: u32 = 10;

fn main() -> ExitCode {
    run(run_once)
}

fn run_once(store: &Store) -> Outcome {
    let jobs = Table::<Job>::default();
    let name = own_name("report");
    let hosts = [
        Host::new(store, "a", 0)?,
        Host::new(store, "b", 50)?,
        Host::new(store, "c", 100)?,
    ];
    let short = Duration::from_millis(20);
    let reports = || jobs.read(&name).published;
    let whole = |run| Report { run, pages: PAGES };
    let started = Instant::now();

    println!("First run. The job takes 20 ms, and the hosts' clocks are 50 ms apart.");
    let results = run_on_all(&hosts, &jobs, &name, 1, short)?;
    check(
        "one host did the job, the others skipped it",
        only_one(&results, JobResult::Done { missed: 0 }),
    )?;
    check("the report was published once", reports() == [whole(1)])?;
    let late = hosts[2].run(&jobs, &name, 1, short)?;
    check(
        "a host that starts after the end of the job skips it",
        late == JobResult::Skipped,
    )?;
    let info = hosts[2]
        .mgr
        .inspect(&name)?
        .ok_or("the name is no longer taken")?;
    check(
        format!("nobody holds the lock, but the name is {}", info.state),
        info.state == LockState::Cooling,
    )?;
    sleep(info.time_left + Duration::from_millis(100));
    let very_late = hosts[2].run(&jobs, &name, 1, short)?;
    check(
        "a host that comes when the name is free again finds the run recorded",
        very_late == JobResult::DoneBefore,
    )?;
    println!();

    sleep_until(started + PERIOD);
    println!("Second run. The job hangs.");
    let results = run_on_all(&hosts, &jobs, &name, 2, Duration::from_millis(700))?;
    let aborted = JobResult::Aborted(LossReason::MaxHold);
    check(
        "max_hold ended the job, and no other host started it",
        only_one(&results, aborted),
    )?;
    check(
        "nothing was published, and the report is half done",
        reports() == [whole(1)] && jobs.read(&name).pages == PAGES,
    )?;
    let info = hosts[2].mgr.inspect(&name)?;
    sleep(info.map_or(Duration::ZERO, |info| info.time_left) + Duration::from_millis(100));
    let very_late = hosts[2].run(&jobs, &name, 1, short)?;
    check(
        "a host that comes very late for the first run finds it recorded",
        very_late == JobResult::DoneBefore,
    )?;
    println!();

    sleep_until(started + 2 * PERIOD);
    println!("Third run.");
    let before = jobs.read(&name).last;
    let results = run_on_all(&hosts, &jobs, &name, 3, short)?;
    check(
        format!(
            "one host did the job and saw that run 2 was missed: the last was run {}, by host {}",
            before.number, before.host
        ),
        before.number == 1 && only_one(&results, JobResult::Done { missed: 1 }),
    )?;
    check(
        "what the second run had left was cleared up, and a whole report was published",
        reports() == [whole(1), whole(3)],
    )?;
    check(
        "a host with an old fence can no longer claim the job",
        !jobs.claim(&name, 1) && jobs.read(&name).last.number == 3,
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

    fn run(
        &self,
        jobs: &Table<Job>,
        name: &str,
        number: u64,
        takes: Duration,
    ) -> fairlock::Result<JobResult> {
        run_job(&self.mgr, jobs, name, self.name, number, || {
            sleep(takes);
            PAGES
        })
    }
}

/// All hosts start the same run, each when its clock says so.
fn run_on_all(
    hosts: &[Host],
    jobs: &Table<Job>,
    name: &str,
    number: u64,
    takes: Duration,
) -> Outcome<Vec<JobResult>> {
    let results = thread::scope(|scope| {
        let run = |host: &Host| {
            sleep(host.clock_is_behind);
            let result = host.run(jobs, name, number, takes);
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
