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

use crate::defaults::{DEFAULT_CHECK_PERIOD, DEFAULT_COMMAND_TIMEOUT, DEFAULT_PREFIX, MIN_TTL};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use anstyle::AnsiColor;
use clap::Args;
use fairlock::servers::Deployment;
use fairlock::{Error, LockOptions, Misuse};

use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::printable::printable;
use facts::{Facts, Kind};
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
        let ttl = self.ttl.unwrap_or_else(|| connection.ttl());
        let options = LockOptions::new().ttl(ttl);
        let (one, other) = (connection.builder()?, connection.builder()?);
        let (one, other) = (one.options(options.clone()), other.options(options));
        let servers = one.servers()?;
        let (managers, error) = match one.build().and_then(|one| Ok([one, other.build()?])) {
            Ok(managers) => (Some(managers), None),
            Err(error) if is_usage(&error) => return Err(error.into()),
            Err(error) => (None, Some(error)),
        };
        let mut shared = Facts::new(servers.deployment());
        self.set_numbers(&mut shared, connection, ttl);
        shared.set("is_tried", managers.is_some());
        shared.set("service", servers.service().unwrap_or_default());
        let mut all = examine::run(&servers, managers.as_ref(), &shared);
        // A release that is on its way must arrive.
        for manager in managers.iter().flatten() {
            let _ = manager.shutdown(Duration::ZERO);
        }
        if let Some(error) = &error {
            // Where nobody answers, the error says why.
            if all[1..].iter().all(|facts| facts.has("failure")) {
                all.clear();
            }
            shared.kind = Kind::Master;
            let named = servers.named();
            shared.server = (named.len() == 1).then(|| named[0].to_string());
            shared.set_failure(remedy::of(error));
            all.insert(0, shared);
        }
        let findings: Vec<Finding> = all.iter().flat_map(findings).collect();
        let count = |level| findings.iter().filter(|one| one.level == level).count();
        let [ok, warnings, errors] = [Level::Ok, Level::Warning, Level::Error].map(count);
        let exit = match error {
            Some(_) => Exit::NO_REDIS,
            None if errors > 0 || self.strict && warnings > 0 => Exit::NO,
            None => Exit::OK,
        };
        output::set_exit_unread(exit);
        let is_shown = |finding: &&Finding| !self.quiet || finding.level > Level::Ok;
        let shown: Vec<&Finding> = findings.iter().filter(is_shown).collect();
        if self.json {
            shown.into_iter().try_for_each(output::json)?;
        } else {
            print_table(&shown)?;
            let s = |count| if count == 1 { "" } else { "s" };
            let (of_warnings, of_errors) = (s(warnings), s(errors));
            let summary =
                format!("{ok} ok, {warnings} warning{of_warnings}, {errors} error{of_errors}");
            output::line(&summary)?;
        }
        Ok(exit)
    }

    /// The numbers of locks, as the library derives them.
    fn set_numbers(&self, f: &mut Facts, connection: &Connection, ttl: Duration) {
        let base = ttl.max(MIN_TTL);
        let timeout = connection.command_timeout();
        let timeout = timeout.unwrap_or(DEFAULT_COMMAND_TIMEOUT.min(base / 10));
        f.set_time("ttl_ms", ttl);
        f.set_time("timeout_ms", timeout);
        f.set_time("check_period_ms", DEFAULT_CHECK_PERIOD.min(base / 8));
        // A renewal is due at a third of the ttl and is tried three times before the lease ends.
        f.set_time("reply_ms", timeout.min(ttl / 10));
        let allowed = match f.deployment {
            // A server of a quorum whose clock differs by a ttl has no vote.
            Deployment::Quorum => ttl / 2,
            // P1 (one holder) holds across a failover if the clocks of both differ by less.
            _ => ttl / 100 + Duration::from_millis(2),
        };
        f.set_time("allowed_ms", allowed);
        f.set("replica_acks", connection.replica_acks());
        f.set("prefix", connection.prefix().unwrap_or(DEFAULT_PREFIX));
        let id = RandomState::new().build_hasher().finish();
        f.set("lock_name", format_args!("fairlock-doctor-{id:016x}"));
        f.set_unknown("lock", "no answer in time");
        f.set_unknown("hand_over", "no lock was handed over in time");
    }
}

/// Whether the command line is wrong, and no server was asked. A server that cannot be used is
/// another matter: the finding says what it is.
fn is_usage(error: &Error) -> bool {
    matches!(error, Error::Misused { misuse, .. } if *misuse != Misuse::Server)
}

/// The remedy stands below its finding, under the message.
fn print_table(findings: &[&Finding]) -> Result<(), Failure> {
    let server =
        |finding: &Finding| printable(finding.server.as_deref().unwrap_or("-")).to_string();
    let widths = findings.iter().map(|one| server(one).chars().count());
    let width = widths.max().unwrap_or(0);
    for finding in findings {
        let style = match finding.level {
            Level::Ok => AnsiColor::Green.on_default(),
            Level::Warning => AnsiColor::Yellow.on_default(),
            Level::Error => AnsiColor::Red.on_default().bold(),
        };
        let (level, name) = (output::name_in_json(&finding.level), server(finding));
        let (check, message) = (finding.check.replace('_', " "), printable(&finding.message));
        output::line(format_args!(
            "{style}{level:<7}{style:#}  {name:<width$}  {check}: {message}"
        ))?;
        if let Some(remedy) = &finding.remedy {
            let indent = 7 + 2 + width + 2;
            output::line(format_args!("{:indent$}-> {}", "", printable(remedy)))?;
        }
    }
    Ok(())
}
