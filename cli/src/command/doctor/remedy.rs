//! What to do about an error.

use std::io;

use fairlock::{Error, Step};

/// The message of an error, and what to do. Some messages of the library end with a remedy, which
/// is not said twice.
pub(super) fn of(error: &Error) -> (String, String) {
    let message = error.to_string();
    let (own, words) = match error {
        Error::Unavailable { step, cause, .. } => {
            let cause = cause.downcast_ref::<io::Error>();
            let cause = cause.filter(|_| *step == Step::Connect);
            let words = cause.map_or(format!("{step:?}"), |cause| format!("{:?}", cause.kind()));
            let own = message.find("; no Redis runs");
            (own.or_else(|| message.find("; no sentinel runs")), words)
        }
        Error::Refused { code, .. } if code == "TLS" => (message.find("; "), String::new()),
        Error::Refused { code, message, .. } => (None, format!("{code} {message}")),
        Error::Misused { .. } => (None, "Misused".to_owned()),
        _ => (None, String::new()),
    };
    match own {
        Some(end) => (message[..end].to_owned(), message[end + 2..].to_owned()),
        None => (message, of_error(&words).to_owned()),
    }
}

/// By the first word: the code of a server's error, the kind of an error of the system, or the step
/// that failed.
pub(super) fn of_error(error: &str) -> &'static str {
    match error.split(' ').next().unwrap_or_default() {
        _ if error.contains("(said sentinel") => {
            "correct sentinelUsername and sentinelPassword in the URL, or the user's rights"
        }
        "NOAUTH" => "give the password: redis://:password@host, FAIRLOCK_PASSWORD, --password-file",
        "DENIED" => "on the server's own host: CONFIG SET requirepass; then log in with that",
        "PROTOCOL" | "InvalidData" => "another program, or a proxy that changes replies, is there",
        "WRONGPASS" => "correct the user and the password",
        "NOPERM" => "ACL SETUSER with the rights of docs/SERVERS.md, \"Rights for an ACL user\"",
        "READONLY" => "use the URL of the master, or a redis-sentinel:// URL",
        "LOADING" => "wait until it has loaded its data; INFO persistence: loading_eta_seconds",
        "BUSY" => "SCRIPT KILL ends the script that keeps the server busy",
        "MISCONF" => "make room on its disk, then BGSAVE; INFO persistence says what failed",
        "NOREPLICAS" => "start the missing replicas, or CONFIG SET min-replicas-to-write 0",
        "MASTERDOWN" => "INFO replication: the replica has lost its master",
        "CLUSTERDOWN" => "redis-cli --cluster check shows the slots that have no master",
        "OOM" => "CONFIG SET maxmemory to more, or delete data",
        _ if error.contains("max number of clients") => "CONFIG SET maxclients to a larger number",
        _ if error.contains("unknown command") => {
            "remove rename-command for it; is it the right kind of server?"
        }
        "ConnectionRefused" | "NotFound" => "nothing listens there: start it, or correct the URL",
        "TimedOut" => "the server hangs, or a firewall drops packets: redis-cli PING; or it is far",
        "PermissionDenied" => "unixsocketperm of the server, and the rights of its directory",
        "UnexpectedEof" | "ConnectionReset" => "the log of the server, or of a proxy, says why",
        "Replicas" => "INFO replication: is a replica away or slow?",
        "Misused" => "use a server, or a URL, as the message says",
        "Thread" => "raise this host's limits: ulimit -u, pids.max and memory.max",
        "Majority" => "start the servers that the message names",
        "Reply" | "Send" => "the server hangs or the network is cut: try redis-cli PING from here",
        _ => "try redis-cli PING from this host; docs/OPERATIONS.md has the codes of errors",
    }
}
