//! `fairlock doctor`.

use std::time::Duration;

use anstyle::{AnsiColor, Style};
use clap::Args;
use fairlock::{Diagnosis, Error, Finding, Level, LockOptions};

use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::output;

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
    /// The TTL of your locks: the checks compare with it. Default: 10s.
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
        let (diagnosis, exit) = match builder.clone().build() {
            Ok(manager) => {
                let diagnosis = manager.diagnose();
                let exit = self.exit(&diagnosis);
                (diagnosis, exit)
            }
            Err(error) if is_usage(&error) => return Err(error.into()),
            Err(error) => (builder.diagnose_failure(&error), Exit::NO_REDIS),
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
    matches!(error, Error::Config { what, .. } if !matches!(what.as_str(), "server" | "endpoint"))
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
