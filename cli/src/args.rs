//! The options and commands that may stand on the command line.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{ArgAction, Parser};

use crate::command::Command;
use crate::connection::Connection;
use crate::exit::{Exit, given, without_urls};
use crate::note::note;
use crate::output;

/// Locks in Redis for the shell: run commands under a lock, and see who holds and who waits
#[derive(Parser)]
#[command(name = "fairlock", version, max_term_width = 100, after_help = AFTER_HELP)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Print the warnings of the lock library to standard error, and with -vv all that it logs
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 900)]
    pub(crate) verbose: u8,
    #[command(flatten)]
    pub(crate) connection: Connection,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Reads this process's command line.
    pub(crate) fn read() -> Result<Cli, clap::Error> {
        Cli::try_parse().map_err(with_variable)
    }
}

/// The same error with the variable that may have the wrong value.
fn with_variable(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) {
        let option = argument.split(' ').next().unwrap_or_default();
        let named = given(option);
        if named != option {
            error.insert(ContextKind::InvalidArg, ContextValue::String(named));
        }
    }
    // A text in place of its path may be a secret.
    if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue)
        && value.contains('\n')
    {
        let hidden = ContextValue::String("...".to_owned());
        error.insert(ContextKind::InvalidValue, hidden);
    }
    error
}

/// Prints clap's message. Help and version are no errors; all else is wrong usage.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let text = error.render().ansi().to_string();
        let printed = output::line(text.trim_end());
        return printed.map_or_else(|failure| failure.report(), |()| Exit::OK.into());
    }
    let message = error.render().to_string();
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    note!("fairlock: {}", without_urls(message));
    Exit::USAGE.into()
}

const AFTER_HELP: &str = "\
Examples:
  fairlock run backup -- tar -cf /backup/home.tar /home
  fairlock ls
  fairlock show backup
  fairlock --url redis://redis.internal:6379/ top

Exit codes:
   0  it worked
   1  the answer is no: there is no such lock, nothing was released, a check failed
   2  why-waiting: the chain of waits runs into a deadlock
  64  the command line is wrong, or a variable, or a file that one of them names
  69  Redis cannot be reached, or it refuses
  70  something failed in fairlock itself
  74  the lock was lost while the command ran
  75  the lock is taken
`fairlock run` ends with the exit code of its command, or with 128 + n if signal n ended it.";
