//! `fairlock doctor`: whether the servers are fit for locks. It asks them by itself.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | the command: its options, its table and its exit codes |
//! | `examine` | all servers, asked at once |
//! | `sentinel`, `cluster_map` | the questions by which further servers are found |
//! | `interview`, `rights` | the questions to one server |
//! | `link` | one connection |
//! | `fault` | why a server gave no answer |
//! | `answer`, `facts` | what the servers said, as data |
//! | `checks` | what the facts mean for locks |
//! | `finding`, `failure` | findings in words, and errors as findings |

mod answer;
mod checks;
mod cluster_map;
mod examine;
mod facts;
mod failure;
mod fault;
mod finding;
mod interview;
mod link;
mod rights;
mod sentinel;

use crate::defaults::{DEFAULT_CHECK_PERIOD, DEFAULT_COMMAND_TIMEOUT, DEFAULT_PREFIX};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use clap::Args;
use fairlock::{Error, LockOptions, MIN_TTL, Misuse};

use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::output;
use checks::{Limits, diagnose};
use examine::Examination;
use finding::{Diagnosis, Finding, Level};

/// Checks whether this Redis is fit for locks
///
/// Examines every server: a line for each check, with what to do about it. Takes no lock, and
/// changes nothing. Ends within a few seconds, also if servers hang.
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
        let mut builder = connection.builder()?;
        if let Some(ttl) = self.ttl {
            builder = builder.options(LockOptions::new().ttl(ttl));
        }
        let limits = self.limits(connection);
        let examination = Examination {
            servers: builder.servers()?,
            prefix: connection.prefix().unwrap_or(DEFAULT_PREFIX).to_owned(),
            has_acks: limits.replica_acks > 0,
            connect: limits.connect_timeout,
            reply: limits.command_timeout,
        };
        let (diagnosis, exit) = match builder.build() {
            Ok(_manager) => {
                let facts = examination.of_usable();
                let diagnosis = diagnose(&facts, &limits);
                let exit = self.exit(&diagnosis);
                (diagnosis, exit)
            }
            Err(error) if is_usage(&error) => return Err(error.into()),
            Err(error) => {
                let facts = examination.of_unusable();
                let mut findings = vec![failure::of_build(&error)];
                // The error says why none answers.
                if facts.has_answers() {
                    findings.extend(diagnose(&facts, &limits).findings);
                }
                (Diagnosis { findings }, Exit::NO_REDIS)
            }
        };
        output::set_exit_unread(exit);
        let is_shown = |finding: &&Finding| !self.quiet || finding.level > Level::Ok;
        let findings: Vec<&Finding> = diagnosis.findings.iter().filter(is_shown).collect();
        if self.json {
            findings.into_iter().try_for_each(output::json)?;
        } else {
            print_table(&findings)?;
            output::line(summary(&diagnosis))?;
        }
        Ok(exit)
    }

    /// The numbers of a manager with these options, as the library derives them.
    fn limits(&self, connection: &Connection) -> Limits {
        let ttl = self.ttl.unwrap_or_else(|| connection.ttl());
        let base = ttl.max(MIN_TTL);
        let derived = || DEFAULT_COMMAND_TIMEOUT.min(base / 10);
        let timeout = connection.command_timeout().unwrap_or_else(derived);
        Limits {
            ttl,
            connect_timeout: timeout,
            command_timeout: timeout,
            check_period: DEFAULT_CHECK_PERIOD.min(base / 8),
            replica_acks: connection.replica_acks(),
        }
    }

    fn exit(&self, diagnosis: &Diagnosis) -> Exit {
        match diagnosis.level() {
            Level::Error => Exit::NO,
            Level::Warning if self.strict => Exit::NO,
            Level::Warning | Level::Ok => Exit::OK,
        }
    }
}

/// Whether the command line is wrong, and no server was asked. A server that cannot be used is
/// another matter: the finding says what it is.
fn is_usage(error: &Error) -> bool {
    matches!(error, Error::Misused { misuse, .. } if *misuse != Misuse::Server)
}

/// The remedy stands below its finding, under the message.
fn print_table(findings: &[&Finding]) -> Result<(), Failure> {
    let server = |finding: &Finding| finding.server.clone().unwrap_or("-".to_owned());
    let widths = findings
        .iter()
        .map(|finding| server(finding).chars().count());
    let width = widths.max().unwrap_or(0);
    for finding in findings {
        let (style, level) = (style_of(finding.level), finding.level);
        let (name, check, message) = (server(finding), finding.check, &finding.message);
        output::line(format_args!(
            "{style}{level:<7}{style:#}  {name:<width$}  {check}: {message}"
        ))?;
        if let Some(remedy) = &finding.remedy {
            let indent = 7 + 2 + width + 2;
            output::line(format_args!("{:indent$}-> {remedy}", ""))?;
        }
    }
    Ok(())
}

fn style_of(level: Level) -> Style {
    match level {
        Level::Ok => AnsiColor::Green.on_default(),
        Level::Warning => AnsiColor::Yellow.on_default(),
        Level::Error => AnsiColor::Red.on_default().bold(),
    }
}

fn summary(diagnosis: &Diagnosis) -> String {
    let count = |level| {
        let findings = diagnosis.findings.iter();
        findings.filter(|finding| finding.level == level).count()
    };
    let plural = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    };
    let (errors, warnings) = (count(Level::Error), count(Level::Warning));
    format!(
        "{} ok, {}, {}",
        count(Level::Ok),
        plural(warnings, "warning"),
        plural(errors, "error")
    )
}
