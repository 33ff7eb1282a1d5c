//! An error as a finding: what went wrong, and what to do.

use std::io;

use fairlock::{Error, Step};

use super::fault::Fault;
use super::finding::{Check, Finding, Level};
use crate::exit::option_of;

/// The error with which no manager could be built. It is about its server, or about all of them.
pub(super) fn of_build(error: &Error) -> Finding {
    let server = server_of(error).map(str::to_owned);
    finding(Check::Connection, server, message_and_remedy(error))
}

/// A server that did not answer.
pub(super) fn of_server(fault: &Fault, check: Check, server: &str) -> Finding {
    let message_and_remedy = match fault {
        Fault::Library(error) => message_and_remedy(error),
        Fault::Unasked { step, .. } => (
            format!("redis at {server} is unavailable ({fault})"),
            unavailable(*step, None).to_owned(),
        ),
        Fault::Refused { code, message } => (
            format!(
                "redis at {server} refused: {code} {}",
                message.trim_end_matches(['.', ' '])
            ),
            refused(code, message).to_owned(),
        ),
        Fault::Unfit(message) => (format!("server: {message}"), correct("server")),
    };
    finding(check, Some(server.to_owned()), message_and_remedy)
}

fn finding(check: Check, server: Option<String>, (message, remedy): (String, String)) -> Finding {
    Finding {
        check,
        level: Level::Error,
        server,
        message,
        remedy: Some(remedy),
    }
}

/// The message says what the setting should be.
fn correct(setting: &str) -> String {
    format!("correct {} as the message says", option_of(setting))
}

/// The server that the error is about, if it names one.
fn server_of(error: &Error) -> Option<&str> {
    match error {
        Error::Unavailable { server, .. } | Error::Refused { server, .. } => server.as_deref(),
        _ => None,
    }
}

/// Some messages of the library end with a remedy, which is not said twice.
fn message_and_remedy(error: &Error) -> (String, String) {
    let message = error.to_string();
    let end = match error {
        Error::Unavailable { .. } => message
            .find("; no Redis runs there: ")
            .or_else(|| message.find("; no sentinel runs there: ")),
        Error::Refused { code, .. } if code == "TLS" => message.find("; "),
        _ => None,
    };
    match end {
        Some(end) => (message[..end].to_owned(), message[end + 2..].to_owned()),
        None => (message, remedy(error)),
    }
}

/// The remedy for an error whose message has none.
fn remedy(error: &Error) -> String {
    let text = match error {
        Error::Unavailable {
            step: Step::Replicas,
            ..
        } => "INFO replication: is a replica away or slow?",
        Error::Unavailable { step, cause, .. } => {
            let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
            unavailable(*step, kind)
        }
        Error::Refused { code, message, .. } => refused(code, message),
        // The message says how old the server is, and names no other one.
        Error::Misused { message, .. } if message.starts_with("server: redis ") => {
            "upgrade the server, or use another one"
        }
        Error::Misused { .. } if let Some((setting, _)) = crate::exit::misused(error) => {
            return correct(setting);
        }
        _ => "docs/OPERATIONS.md",
    };
    text.to_owned()
}

fn unavailable(step: Step, kind: Option<io::ErrorKind>) -> &'static str {
    match (step, kind) {
        (Step::Connect, Some(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)) => {
            "nothing listens there: start the server, or correct the host and the port, or the \
             path of the socket"
        }
        (Step::Connect, Some(io::ErrorKind::TimedOut)) => {
            "the server hangs, or a firewall drops packets: try redis-cli PING from this host; if \
             it is only far away, raise connect_timeout (--command-timeout)"
        }
        (Step::Connect, Some(io::ErrorKind::InvalidData)) => {
            "another program listens there: correct the host and port"
        }
        (Step::Connect, Some(io::ErrorKind::PermissionDenied)) => {
            "this user may not open the socket: unixsocketperm of the server, and the rights of \
             the directories above"
        }
        (Step::Connect, Some(io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)) => {
            "the log of the server, or of a proxy before it, says why; or another program listens \
             there"
        }
        (Step::Connect, _) => {
            "try redis-cli PING from this host: are the host, the port and the network right?"
        }
        (Step::Credentials, _) => {
            "look at the source of the credentials: the file of the password, or the program's own"
        }
        (Step::Certificates, _) => {
            "look at the file that the message names: its file system hangs, or it is a pipe into \
             which nobody writes"
        }
        (Step::Thread, _) => {
            "free some threads or memory of this host, or raise its limits: ulimit -u, and the \
             pids.max and memory.max of its control group"
        }
        (Step::Majority, _) => "start the servers that the message names",
        _ => {
            "the server hangs or the network is cut: try redis-cli PING from this host, and \
             redis-cli SLOWLOG GET on the server"
        }
    }
}

fn refused(code: &str, message: &str) -> &'static str {
    match code {
        "NOAUTH" | "WRONGPASS" if message.contains("(said sentinel") => {
            "correct the login at the sentinels: sentinelUsername and sentinelPassword in the URL"
        }
        "NOPERM" if message.contains("(said sentinel") => {
            "docs/SERVERS.md, \"Rights for an ACL user\", has what a user needs at the sentinels"
        }
        "NOAUTH" => {
            "give the password: in the URL (redis://:password@host), or to the command line by \
             FAIRLOCK_PASSWORD or --password-file"
        }
        "DENIED" => {
            "on the server's own host: CONFIG SET requirepass and CONFIG REWRITE, or ACL SETUSER; \
             then log in with that password"
        }
        "PROTOCOL" => {
            "another program, or a proxy that changes replies, listens there: correct the host and \
             the port"
        }
        "WRONGPASS" => "correct the user and the password",
        "NOPERM" => {
            "docs/SERVERS.md, \"Rights for an ACL user\", has all rights that locks need: \
             grant them together by ACL SETUSER"
        }
        "READONLY" => "use the URL of the master, or a redis-sentinel:// URL",
        "LOADING" => {
            "wait until the server has loaded its data; INFO persistence: loading_eta_seconds"
        }
        "BUSY" => "SCRIPT KILL ends the script that keeps the server busy",
        "MISCONF" => {
            "make room on the server's disk, then BGSAVE; INFO persistence says which write failed"
        }
        "NOREPLICAS" => "start the missing replicas, or CONFIG SET min-replicas-to-write 0",
        "MASTERDOWN" => "INFO replication: the replica has lost its master",
        "CLUSTERDOWN" => "redis-cli --cluster check shows the slots that have no master",
        "OOM" => "raise maxmemory",
        _ if message.starts_with("max number of clients") => {
            "CONFIG SET maxclients to a larger number"
        }
        _ if message.contains("AUTH") && message.contains("without any password") => {
            "the server has no password: leave it out of the URL"
        }
        _ => "docs/OPERATIONS.md has the codes of errors",
    }
}
