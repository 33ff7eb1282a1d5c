//! `fairlock doctor`: whether the servers are fit for locks.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | the command: its options, its table and its exit codes |
//! | `examine` | all servers, asked at once |
//! | `ask` | the questions to one server |
//! | `trial` | a lock on a master, handed over and released |
//! | `facts`, `derived` | what is known, as text by name, and what follows from it |
//! | `rules` | what the facts mean for locks, and what to do: one table |
//! | `remedy` | what to do about an error |

mod ask;
mod derived;
mod examine;
mod facts;
mod remedy;
mod rules;
#[cfg(test)]
mod tests;
mod trial;

use crate::defaults::{DEFAULT_CHECK_PERIOD, DEFAULT_COMMAND_TIMEOUT, DEFAULT_PREFIX};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use clap::Args;
use fairlock::servers::Deployment;
use fairlock::{Error, LockOptions, Misuse};

use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::stop::Stop;
use crate::table::Table;
use examine::Examination;
use facts::Facts;
use rules::{Finding, Level, findings};

/// Checks whether this Redis is fit for locks
///
/// Examines every server: a line for each check, with what to do about it. On each master it takes
/// a lock of a name of its own, hands it over to itself, and deletes it; it changes nothing else.
/// Ends within a few seconds, also if servers hang.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// Print one JSON object per finding, each on a line.
    #[arg(long)]
    json: bool,
    /// Exit with 1 for a warning, too.
    #[arg(long)]
    strict: bool,
    /// Leave out what is ok.
    #[arg(long, short)]
    quiet: bool,
    /// The TTL of your locks: the checks compare with it. Default: 10s, or 8 times the
    /// command timeout if that is longer.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    ttl: Option<Duration>,
}

const EXAMPLES: &str = "\
Exit codes: 0 no error, 1 an error (with --strict, or a warning), 64 wrong usage, 69 no connection.

Examples:
  fairlock doctor --url redis://db.internal
  fairlock doctor --url redis-sentinel://s1,s2,s3/mymaster --ttl 5s
  fairlock doctor --json | jq 'select(.level != \"ok\")'";

impl Doctor {
    pub(crate) fn run(&self, connection: &Connection) -> Result<Exit, Failure> {
        // An interrupted doctor deletes its name before it ends.
        let stop = Stop::listen()?;
        let ttl = self.ttl.unwrap_or_else(|| connection.ttl());
        let options = LockOptions::new().ttl(ttl);
        let one = connection.builder()?.options(options.clone());
        let other = connection.builder()?.options(options);
        let servers = one.servers()?;
        let (managers, error) = match one.build().and_then(|one| Ok([one, other.build()?])) {
            Ok(managers) => (Some(managers), None),
            Err(error) if is_usage(&error) => return Err(error.into()),
            Err(error) => (None, Some(error)),
        };
        let mut shared = numbers(servers.deployment(), connection, ttl);
        shared.set("is_tried", managers.is_some());
        shared.set("service", servers.service().unwrap_or_default());
        let examination = Examination {
            servers: &servers,
            managers: managers.as_ref(),
            shared: &shared,
        };
        let mut all = examination.run();
        // A release that is on its way must arrive.
        for manager in managers.iter().flatten() {
            let _ = manager.shutdown(Duration::ZERO);
        }
        if let Some(error) = &error {
            // Where nobody answers, the error says why.
            if all[1..].iter().all(|facts| facts.has("failure")) {
                all.clear();
            }
            shared.set_error("failure", remedy::of(error));
            all.insert(0, shared);
        }
        let findings: Vec<Finding> = all.iter().flat_map(findings).collect();
        let exit = match findings.iter().map(|finding| finding.level).max() {
            _ if error.is_some() => Exit::NO_REDIS,
            Some(Level::Error) => Exit::NO,
            Some(Level::Warning) if self.strict => Exit::NO,
            _ => Exit::OK,
        };
        self.print(findings)?;
        Ok(stop.exit().unwrap_or(exit))
    }

    /// In the table, a remedy stands below its finding.
    fn print(&self, mut findings: Vec<Finding>) -> Result<(), Failure> {
        let count = |level| findings.iter().filter(|one| one.level == level).count();
        let [ok, warnings, errors] = [Level::Ok, Level::Warning, Level::Error].map(count);
        findings.retain(|finding| !self.quiet || finding.level > Level::Ok);
        if self.json {
            return findings.iter().try_for_each(output::json);
        }
        let mut table = Table::new(&["LEVEL", "SERVER", "CHECK", "FOUND"]);
        for finding in &findings {
            let level = output::name_in_json(&finding.level);
            let server = finding.server.as_deref().unwrap_or("-");
            let row = [&*level, server, finding.check, &*finding.message];
            table.add(row.map(str::to_owned).to_vec());
            if let Some(remedy) = &finding.remedy {
                let row = ["", "", "", &format!("-> {remedy}")];
                table.add(row.map(str::to_owned).to_vec());
            }
        }
        output::table(&table, None)?;
        output::line(format!("ok {ok}, warnings {warnings}, errors {errors}"))
    }
}

/// The numbers of locks, as the library derives them.
fn numbers(deployment: Deployment, connection: &Connection, ttl: Duration) -> Facts {
    let timeout = connection.command_timeout;
    let timeout = timeout.unwrap_or(DEFAULT_COMMAND_TIMEOUT.min(ttl / 10));
    let mut f = Facts::new(deployment);
    f.set_time("ttl_ms", ttl);
    f.set_time("timeout_ms", timeout);
    f.set_time("check_period_ms", DEFAULT_CHECK_PERIOD.min(ttl / 8));
    // A renewal is due at a third of the ttl and is tried three times before the lease ends.
    f.set_time("reply_ms", timeout.min(ttl / 10));
    let allowed = match deployment {
        // A server of a quorum whose clock differs by a ttl has no vote.
        Deployment::Quorum => ttl / 2,
        // P1 (one holder) holds across a failover if the clocks of both differ by less.
        _ => ttl / 100 + Duration::from_millis(2),
    };
    f.set_time("allowed_ms", allowed);
    f.set("replica_acks", connection.replica_acks.unwrap_or(0));
    f.set(
        "prefix",
        connection.prefix.as_deref().unwrap_or(DEFAULT_PREFIX),
    );
    let id = RandomState::new().build_hasher().finish();
    f.set("lock_name", format_args!("fairlock-doctor-{id:016x}"));
    f.set_unknown("lock_ms", "no lock was taken in time");
    f.set_unknown("hand_over_ms", "no lock was handed over in time");
    f
}

/// Whether the command line is wrong, and no server was asked. A server that cannot be used is
/// another matter: the finding says what it is.
fn is_usage(error: &Error) -> bool {
    matches!(error, Error::Misused { misuse, .. } if !matches!(misuse, Misuse::Server))
}
