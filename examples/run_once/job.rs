//! The job, and where it keeps its data. Copy this file.

use std::time::Duration;

use fairlock::{Error, LockManager, LockOptions, LossReason, PreviousHolder};

use super::Table;

pub(crate) const SCHEDULED: LockOptions = LockOptions::new()
    .hold_at_least(Duration::from_secs(1))
    .max_hold(Duration::from_millis(500));

/// The row of a job. Its id is the name of the job's lock.
#[derive(Clone, Default)]
pub(crate) struct Job {
    /// The last run that was done.
    pub(crate) last: Run,
    /// The pages of the report that is being made.
    pub(crate) pages: u32,
    /// All reports that were published.
    pub(crate) published: Vec<Report>,
}

#[derive(Clone, Default)]
pub(crate) struct Run {
    pub(crate) number: u64,
    /// The host that did it.
    pub(crate) host: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Report {
    pub(crate) run: u64,
    pub(crate) pages: u32,
}

/// The result of one host's run of the schedule.
#[derive(Debug, PartialEq)]
pub(crate) enum JobResult {
    /// So many runs before this one were never done.
    Done { missed: u64 },
    /// Another host does the job, or has just done it.
    Skipped,
    /// A host has done this run, and recorded it.
    DoneBefore,
    /// The lock was lost before the job was done.
    Aborted(LossReason),
    /// The same, and another host has begun its turn already.
    Overtaken,
}

/// Each host calls this when its clock says that it is time. `make_pages` may take long.
pub(crate) fn run_job(
    mgr: &LockManager,
    jobs: &Table<Job>,
    name: &str,
    host: &'static str,
    number: u64,
    make_pages: impl Fn() -> u32,
) -> fairlock::Result<JobResult> {
    // After an error nobody knows whether the job runs on another host or not at all.
    let Some(guard) = mgr.with(SCHEDULED).try_lock(name)? else {
        return Ok(JobResult::Skipped);
    };
    // First claim the row, then read it. From here on a host that was here before, and lost the
    // lock, changes nothing.
    let claim = (name, guard.fence());
    if !jobs.claim(name, guard.fence()) {
        return Ok(JobResult::Overtaken);
    }
    // Before anything else, because our own proper release will say `Released` to the next host,
    // even if there is nothing to do for us.
    if guard.previous_holder() != PreviousHolder::Released
        && !jobs.write([claim], |[job]| job.pages = 0)
    {
        return Ok(JobResult::Overtaken);
    }
    let last = jobs.read(name).last;
    if last.number >= number {
        return Ok(JobResult::DoneBefore);
    }
    let pages = make_pages();
    if !jobs.write([claim], |[job]| job.pages += pages) {
        return Ok(JobResult::Overtaken);
    }
    // Check between two steps. It only saves useless work, since the lock may be lost right after.
    match guard.check() {
        Ok(()) => {}
        Err(Error::Lost { loss, .. }) => return Ok(JobResult::Aborted(loss.reason)),
        Err(other) => return Err(other),
    }
    // One transaction publishes the report and records the run. If your last step is a call to
    // another system, such as an e-mail, see the example `payment`.
    let done = jobs.write([claim], |[job]| {
        let report = Report {
            run: number,
            pages: job.pages,
        };
        job.published.push(report);
        job.pages = 0;
        job.last = Run { number, host };
    });
    if !done {
        return Ok(JobResult::Overtaken);
    }
    // It does not matter whether we still hold the lock. Unlike drop, unlock waits until Redis has
    // released it.
    let _ = guard.unlock();
    Ok(JobResult::Done {
        missed: number - last.number - 1,
    })
}
