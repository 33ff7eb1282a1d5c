//! Why a server gave no answer.

use std::fmt;
use std::io;

use fairlock::servers::redis::Value;
use fairlock::{Error, Step};

use super::answer::Unknown;

/// Why a server gave no answer.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// No connection, or no reply.
    Library(Error),
    /// It was not asked, or not in time.
    Unasked { step: Step, why: String },
    /// The server refused.
    Refused { code: String, message: String },
    /// The server is not what the URL says.
    Unfit(String),
}

/// A thing that a user has no right to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    Command,
    Key,
    Channel,
}

impl Fault {
    pub(super) fn timed_out() -> Fault {
        Fault::Unasked {
            step: Step::Reply,
            why: "timed out".to_owned(),
        }
    }

    /// A reply of another shape than the command has.
    pub(super) fn protocol(expected: &str) -> Fault {
        Fault::Refused {
            code: "PROTOCOL".to_owned(),
            message: format!("expected {expected}"),
        }
    }

    /// The code of the server's error, if it is one.
    pub(super) fn code(&self) -> Option<&str> {
        match self {
            Fault::Refused { code, .. } | Fault::Library(Error::Refused { code, .. }) => Some(code),
            _ => None,
        }
    }

    /// Whether the peer closed the connection.
    pub(super) fn is_closed(&self) -> bool {
        use io::ErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof,
        };
        let Fault::Library(Error::Unavailable { cause, .. }) = self else {
            return false;
        };
        cause.downcast_ref().is_some_and(|error: &io::Error| {
            matches!(
                error.kind(),
                BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof
            )
        })
    }

    /// Whether the server does not have the command.
    pub(super) fn is_unknown_command(&self) -> bool {
        matches!(self, Fault::Refused { message, .. } if is_unknown_command(message))
    }

    /// Whether the server refuses this command, in whatever words: neither the login, nor this
    /// client, nor all commands for a while.
    pub(super) fn refuses_command(&self) -> bool {
        const OTHERS: [&str; 10] = [
            "NOAUTH",
            "WRONGPASS",
            "DENIED",
            "PROTOCOL",
            "LOADING",
            "BUSY",
            "MASTERDOWN",
            "CLUSTERDOWN",
            "MOVED",
            "READONLY",
        ];
        matches!(self, Fault::Refused { code, message }
            if !OTHERS.contains(&&**code) && !message.starts_with("max number of clients"))
    }

    /// The thing that the user has no right to use, if that is the refusal.
    pub(super) fn lack(&self) -> Option<Lack> {
        match self {
            Fault::Refused { code, message } if code == "NOPERM" => Some(lack_of(message)),
            _ => None,
        }
    }

    /// Why there is no answer to this command.
    pub(super) fn unknown(&self, command: &'static str) -> Unknown {
        match self {
            fault if fault.lack() == Some(Lack::Command) => Unknown::NoRight(command),
            fault if fault.is_unknown_command() => Unknown::NoCommand(command),
            fault if fault.code().is_none() => Unknown::Unanswered(fault.to_string()),
            fault => Unknown::Failed(fault.to_string()),
        }
    }
}

/// The lack by which a script was refused a command, as the script caught it. No server gives a
/// code to a right that a script lacks.
pub(super) fn lack_in_script(error: &str) -> Option<Lack> {
    // Redis 6.2 and 7.0; Valkey, and Redis from 7.2 on.
    let is_lack = [
        "The user executing the script can't ",
        "ACL failure in script: ",
    ]
    .iter()
    .any(|words| error.contains(words));
    (is_lack || error.starts_with("NOPERM ")).then(|| lack_of(error))
}

fn lack_of(message: &str) -> Lack {
    if message.contains(" run th") {
        Lack::Command
    } else if message.contains(" channel") {
        Lack::Channel
    } else {
        Lack::Key
    }
}

pub(super) fn is_unknown_command(message: &str) -> bool {
    message.contains("unknown command") || message.contains("command called from ")
}

/// A server's error as a fault, any other reply as it is.
pub(super) fn refusal(reply: Value) -> Result<Value, Fault> {
    match reply {
        Value::ServerError(error) => Err(Fault::Refused {
            code: error.code().to_owned(),
            message: error.details().unwrap_or_default().to_owned(),
        }),
        reply => Ok(reply),
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Library(error)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Library(Error::Unavailable { step, cause, .. }) => {
                write!(f, "no {step}: {cause}")
            }
            Fault::Library(error) => error.fmt(f),
            Fault::Unasked { step, why } => write!(f, "no {step}: {why}"),
            Fault::Refused { code, message } => write!(f, "{code} {message}"),
            Fault::Unfit(message) => f.write_str(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts that 6.2.14, 7.0.15 and Valkey 9.1.2 sent.
    #[test]
    fn caught_error_says_what_the_user_may_not_use() {
        let lacks = [
            ("can't run this command or subcommand", Lack::Command),
            (
                "can't access at least one of the keys mentioned in the command arguments",
                Lack::Key,
            ),
            (
                "can't publish to the channel mentioned in the command",
                Lack::Channel,
            ),
        ];
        for (text, lack) in lacks {
            for place in ["@user_script: 10: ", "ERR "] {
                let error = format!("{place}The user executing the script {text}");
                assert_eq!(lack_in_script(&error), Some(lack), "{error}");
            }
        }
        for (text, lack) in [
            (
                "User key has no permissions to run the 'hdel' command",
                Lack::Command,
            ),
            ("No permissions to access a key", Lack::Key),
            ("No permissions to access a channel", Lack::Channel),
        ] {
            let error = format!("ERR ACL failure in script: {text}");
            assert_eq!(lack_in_script(&error), Some(lack), "{error}");
        }
        for other in [
            "@user_script: 1: -READONLY You can't write against a read only replica.",
            "ERR wrong number of arguments for 'hset' command",
        ] {
            assert_eq!(lack_in_script(other), None, "{other}");
        }
    }
}
