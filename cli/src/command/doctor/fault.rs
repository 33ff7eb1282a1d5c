//! Why a server gave no answer.

use std::fmt;
use std::io;
use std::time::Duration;

use fairlock::{Step, TlsFailure};
use redis::{ErrorKind, RedisError, ServerError, Value};

use super::answer::Unknown;

/// A closed connection. The system's text, "unexpected end of file", speaks of no server.
const CLOSED: &str = "the server, or a proxy before it, closed the connection";

/// Why a server gave no answer.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// No connection, or no reply in time.
    Unavailable {
        step: Step,
        kind: io::ErrorKind,
        text: String,
    },
    /// The server refused.
    Refused {
        code: String,
        message: String,
    },
    Tls {
        reason: TlsFailure,
        message: String,
    },
    /// The server is not what the URL says.
    Unfit(String),
}

/// The fault, and how long the server was given.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) fault: Fault,
    pub(super) waited: Duration,
}

/// A thing that a user has no right to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    Command,
    Key,
    Channel,
}

impl Fault {
    pub(super) fn timed_out(step: Step) -> Fault {
        Fault::of_io(step, &io::ErrorKind::TimedOut.into())
    }

    pub(super) fn of_io(step: Step, error: &io::Error) -> Fault {
        let (kind, text) = match error.kind() {
            // The system's text speaks of a resource that is temporarily unavailable.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                (io::ErrorKind::TimedOut, "timed out".to_owned())
            }
            kind @ io::ErrorKind::UnexpectedEof => (kind, CLOSED.to_owned()),
            kind => (kind, error.to_string()),
        };
        Fault::Unavailable { step, kind, text }
    }

    /// The fault that an error of the parser means: the socket failed, or the reply is none.
    pub(super) fn of_reply(step: Step, error: &RedisError) -> Fault {
        use std::error::Error as _;
        let io = error.source().and_then(|e| e.downcast_ref::<io::Error>());
        let kind = match io {
            Some(error) => return Fault::of_io(step, error),
            None if error.is_timeout() => io::ErrorKind::TimedOut,
            None if error.is_connection_dropped() => io::ErrorKind::UnexpectedEof,
            None if error.kind() == ErrorKind::Io => io::ErrorKind::Other,
            None => {
                // The parser's text has several lines.
                let text = "expected a Redis server; the reply is not in Redis's protocol";
                let error = io::Error::new(io::ErrorKind::InvalidData, text);
                return Fault::of_io(step, &error);
            }
        };
        Fault::of_io(step, &io::Error::new(kind, error.to_string()))
    }

    pub(super) fn refused(error: &ServerError) -> Fault {
        Fault::Refused {
            code: error.code().to_owned(),
            message: error.details().unwrap_or_default().to_owned(),
        }
    }

    /// A reply of another shape than the command has.
    pub(super) fn protocol(expected: &str) -> Fault {
        Fault::Refused {
            code: "PROTOCOL".to_owned(),
            message: format!("expected {expected}"),
        }
    }

    /// The same fault. If it is about TLS, its message names the server.
    #[cfg(feature = "tls")]
    pub(super) fn at(self, address: &impl fmt::Display) -> Fault {
        match self {
            Fault::Tls { reason, message } => Fault::Tls {
                reason,
                message: format!("{address}: {message}"),
            },
            other => other,
        }
    }

    /// The code of the server's error, if it is one.
    pub(super) fn code(&self) -> Option<&str> {
        match self {
            Fault::Refused { code, .. } => Some(code),
            _ => None,
        }
    }

    /// Whether the peer closed the connection.
    pub(super) fn is_closed(&self) -> bool {
        use io::ErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof,
        };
        matches!(
            self,
            Fault::Unavailable {
                kind: BrokenPipe
                    | ConnectionAborted
                    | ConnectionReset
                    | NotConnected
                    | UnexpectedEof,
                ..
            }
        )
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

fn is_unknown_command(message: &str) -> bool {
    message.contains("unknown command") || message.contains("command called from ")
}

/// A server's error as a fault, any other reply as it is.
pub(super) fn refusal(reply: Value) -> Result<Value, Fault> {
    match reply {
        Value::ServerError(error) => Err(Fault::refused(&error)),
        reply => Ok(reply),
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Unavailable { step, text, .. } => write!(f, "no {step}: {text}"),
            Fault::Refused { code, message } => write!(f, "{code} {message}"),
            Fault::Tls { message, .. } | Fault::Unfit(message) => f.write_str(message),
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
