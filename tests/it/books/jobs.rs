//! `examples/run_once`: a row that a job reads first, changes twice and finishes.

#[path = "../../../examples/run_once/job.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod job;

use std::sync::Arc;

use fairlock::Result;
use job::{Job, JobResult, Report, run_job};

use super::orders::Turn;
use super::{Rule, Table, Turns, wrong_orders};

const PAGES: u32 = 10;

/// The older host does run 1, the newer one this run.
fn wrong_books(rule: Rule, run_of_newer: u64) -> usize {
    wrong_orders(rule, |locks| {
        let name = locks.name("report");
        let jobs = Arc::new(Table::new(rule, [(&*name, Job::default())]));
        let turn = |host: &'static str, run: u64| -> Turn<Result<JobResult>> {
            let (jobs, name) = (Arc::clone(&jobs), name.clone());
            Box::new(move |mgr| run_job(mgr, &jobs, &name, host, run, || PAGES))
        };
        let (older, newer) = (turn("a", 1), turn("b", run_of_newer));
        Turns {
            older,
            lost: vec![name.clone()],
            newer,
            books: Box::new(move |first, second| {
                let job = jobs.read(&name);
                let said = [(&first, 1), (&Some(second), run_of_newer)].map(|(result, run)| {
                    let done = matches!(result, Some(Ok(JobResult::Done { .. })));
                    // After a crash nobody knows whether its last statement was the last write.
                    (done, done || result.is_none(), run)
                });
                let of_run = |run: u64| job.published.iter().filter(move |seen| seen.run == run);
                let is_right = said.into_iter().all(|(done, maybe, run)| {
                    let others_did = said.iter().any(|other| other.1 && other.2 == run);
                    let count = of_run(run).count();
                    count <= 1 && (!done || count == 1) && (maybe || others_did || count == 0)
                }) && job.published.iter().all(|report| report.pages == PAGES)
                    && job.last.number == job.published.last().map_or(0, |report| report.run);
                let published: &[Report] = &job.published;
                match is_right {
                    true => Ok(()),
                    false => Err(format!("{said:?}: {published:?}")),
                }
            }),
        }
    })
}

#[test]
fn job_is_published_once_with_a_pause_anywhere() {
    wrong_books(Rule::ClaimFirst, 1);
    wrong_books(Rule::ClaimFirst, 2);
}

/// Its first write comes before its first read here, since the older host has not finished. So a
/// check in all writes would be enough, but none is not.
#[test]
fn jobs_that_check_no_fences_publish_twice() {
    assert!(wrong_books(Rule::None, 1) > 0);
}
