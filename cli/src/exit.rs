//! Exit codes, and the failures behind them.

use std::cmp::Reverse;
use std::env;
use std::fmt;
use std::process::ExitCode;

use fairlock::{Error, Misuse};

use crate::note::note_line;
use crate::printable::printable;

/// The code that the process ends with. The names are those of sysexits.h where it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

impl Exit {
    pub(crate) const OK: Exit = Exit(0);
    /// The answer is no: no such lock, nothing released, a check failed.
    pub(crate) const NO: Exit = Exit(1);
    /// The answer to `why-waiting` is a deadlock.
    pub(crate) const DEADLOCK: Exit = Exit(2);
    /// The command line is wrong.
    pub(crate) const USAGE: Exit = Exit(64);
    /// Redis cannot be reached, or refuses.
    pub(crate) const NO_REDIS: Exit = Exit(69);
    /// Something failed here, not in Redis.
    pub(crate) const INTERNAL: Exit = Exit(70);
    /// The lock was lost while the command ran.
    pub(crate) const LOST: Exit = Exit(74);
    /// Somebody else has the lock.
    pub(crate) const BUSY: Exit = Exit(75);

    /// A signal ended it: as shells do, 128 and the number.
    pub(crate) fn of_signal(number: i32) -> Exit {
        Exit(128_u8.saturating_add(number as u8))
    }
}

/// Why a command ended early, with a message for people.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure {
            exit,
            message: message.into(),
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::USAGE, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Failure {
        Failure::new(Exit::INTERNAL, message)
    }

    /// Says it on standard error. Without a reader, the exit code still says it.
    pub(crate) fn report(&self) -> ExitCode {
        note_line!("fairlock: {}", printable(&self.message));
        self.exit.into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let exit = match &error {
            Error::Misused { .. } => Exit::USAGE,
            Error::Lost { .. } => Exit::LOST,
            Error::Closed => Exit::INTERNAL,
            _ => Exit::NO_REDIS,
        };
        let message = match misused(&error) {
            Some((setting, why)) => format!("{}: {why}", option_of(setting)),
            None => error.to_string(),
        };
        Failure::new(exit, message)
    }
}

/// The setting that the library refuses, and why.
fn misused(error: &Error) -> Option<(&'static str, &str)> {
    let Error::Misused {
        misuse, message, ..
    } = error
    else {
        return None;
    };
    let setting = match misuse {
        Misuse::Name => "name",
        Misuse::Setting { name, .. } => name,
        Misuse::Server => "server",
        _ => return None,
    };
    Some((setting, message))
}

/// How a user of the command line says what the library calls so.
fn option_of(setting: &str) -> String {
    match setting {
        "url" | "quorum" | "server" | "service" => given("--url"),
        "connect_timeout" => given("--command-timeout"),
        "credentials" => given("--password-file"),
        "replica_acks" => given("--replica-acks") + " and --replica-timeout",
        "tls_identity" => given("--tls-cert") + " and --tls-key",
        "prefix" | "command_timeout" | "tls_ca" | "ttl" | "hold_at_least" | "max_hold" => {
            given(&format!("--{}", setting.replace('_', "-")))
        }
        other => other.to_owned(),
    }
}

/// This option, or its variable if that has the value: FAIRLOCK_TLS_CA for `--tls-ca`.
pub(crate) fn given(option: &str) -> String {
    let words = option.trim_start_matches('-').replace('-', "_");
    let variable = format!("FAIRLOCK_{}", words.to_ascii_uppercase());
    let mut before_command = env::args_os().take_while(|word| word != "--");
    let is_option = before_command.any(|word| {
        let rest = word.to_str().and_then(|word| word.strip_prefix(option));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    });
    if !is_option && env::var_os(&variable).is_some() {
        variable
    } else {
        option.to_owned()
    }
}

impl From<&Failure> for Exit {
    fn from(failure: &Failure) -> Exit {
        failure.exit
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.0)
    }
}

/// The message without the URLs of the command line and of the variables. clap repeats what it does
/// not understand, and that may be a URL in the wrong place. Its password can be anywhere behind
/// the scheme, and can have any characters, so the message itself does not show where it ends.
pub(crate) fn without_urls(message: &str) -> String {
    let given = env::args_os().chain(env::vars_os().map(|(_, value)| value));
    let mut urls: Vec<String> = given
        .filter_map(|text| {
            let text = text.to_string_lossy();
            let scheme_end = text.find("://")?;
            Some(text[scheme_end..].to_owned())
        })
        .filter(|url| url != "://")
        .collect();
    // One URL may be the beginning of another.
    urls.sort_by_key(|url| Reverse(url.len()));
    urls.iter().fold(message.to_owned(), |message, url| {
        message.replace(url, "://...")
    })
}
