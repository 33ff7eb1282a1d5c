//! The options and commands that may stand on the command line.

use std::env;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, CommandFactory as _, Parser};

use crate::command::Command;
use crate::connection::{self, Connection};
use crate::exit::{Exit, without_urls};
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
        match Cli::try_parse() {
            Err(error) if error.kind() == ErrorKind::DisplayHelp => Err(brief_help(error)),
            Err(error) => Err(with_tip(error)),
            read => read,
        }
    }
}

/// The same error. If it is about `run` without `--`, it says where the command belongs.
fn with_tip(mut error: clap::Error) -> clap::Error {
    let is_about_command = matches!(
        error.kind(),
        ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument
    );
    let mut words = env::args_os().skip(1);
    if is_about_command && words.any(|word| word == "run") && words.all(|word| word != "--") {
        let tip = "the command comes behind `--`: fairlock run NAME -- CMD...";
        let tip = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tip);
    }
    error
}

/// The same help, in which the options of the connection do not bury those of a command.
fn brief_help(help: clap::Error) -> clap::Error {
    let mut root = Cli::command();
    // Hands the global options to the commands.
    root.build();
    let mut root = root.mut_subcommands(connection::brief);
    root.try_get_matches_from_mut(env::args_os())
        .err()
        .unwrap_or(help)
}

/// Prints clap's message. Help and version are no errors; all else is wrong usage.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let text = error.render().ansi().to_string();
        return match output::line(text.trim_end()) {
            Ok(()) => Exit::OK.into(),
            Err(failure) => failure.report(),
        };
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
