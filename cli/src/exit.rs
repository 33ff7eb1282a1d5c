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
        let message = match &error {
            Error::Misused {
                misuse, message, ..
            } => match misuse {
                Misuse::Name => format!("name: {message}"),
                Misuse::Setting { name, .. } => format!("{}: {message}", option_of(name)),
                Misuse::Server => format!("{}: {message}", given("--url")),
                _ => error.to_string(),
            },
            _ => error.to_string(),
        };
        Failure::new(exit, message)
    }
}

/// How a user of the command line says what the library calls so.
fn option_of(setting: &str) -> String {
    match setting {
        "url" | "quorum" | "service" => given("--url"),
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

/// This option, and its variable if that is set, too: FAIRLOCK_TLS_CA for `--tls-ca`.
pub(crate) fn given(option: &str) -> String {
    let words = option.trim_start_matches('-').replace('-', "_");
    let variable = format!("FAIRLOCK_{}", words.to_ascii_uppercase());
    match env::var_os(&variable) {
        Some(_) => format!("{option} or {variable}"),
        None => option.to_owned(),
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
