//! Why a call has no reply, and what the caller may conclude from that. `words` says it to users, and
//! `login` without a password.

mod login;
mod words;

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use crate::error::{Step, passes_by_itself};
use crate::script::Malformed;
use crate::store::refusal::Refusal;

/// Why a call has no reply. `Clone`, because one fault ends all calls of a pipeline.
#[derive(Debug, Clone)]
pub(crate) enum StoreFault {
    /// No connection was ready, so nothing was sent.
    NotReady,
    /// No connection, or no reply in time. If the call was sent, the server may have carried it
    /// out.
    Unavailable {
        step: Step,
        source: Arc<Box<dyn StdError + Send + Sync>>,
        /// The server's address, once the fault has left the node that it is about.
        server: Option<Arc<str>>,
    },
    /// The server may have carried out the call, or a part of it, before this fault: an attempt
    /// before this one had no reply (P7), or a script raised the error after its first write.
    InDoubt(Box<StoreFault>),
    /// R18 (replica acks): the server carried out the call, and too few replicas acknowledged it in
    /// time.
    NotReplicated {
        wanted: u32,
        acknowledged: u32,
        server: Option<Arc<str>>,
    },
    /// The server refused.
    Server {
        code: String,
        message: String,
        server: Option<Arc<str>>,
    },
    /// There is no TLS connection, and nothing was sent.
    Tls {
        message: String,
        server: Option<Arc<str>>,
    },
    /// The server cannot be used at all.
    Unfit { what: &'static str, message: String },
}

/// The error code of a reply that cannot be understood. The server may have carried out the request
/// that it replies to.
const PROTOCOL: &str = "PROTOCOL";
/// The error code for what the user may not do.
const NOPERM: &str = "NOPERM";

impl StoreFault {
    pub(crate) fn unavailable(
        step: Step,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> StoreFault {
        StoreFault::Unavailable {
            step,
            source: Arc::new(source.into()),
            server: None,
        }
    }

    /// Several servers cannot be used, for these reasons. If nothing listens at any of them, the source
    /// is an error of that kind.
    pub(super) fn none_available<'a>(
        step: Step,
        text: String,
        reasons: impl IntoIterator<Item = &'a StoreFault>,
    ) -> StoreFault {
        let refused = Some((Step::Connect, io::ErrorKind::ConnectionRefused));
        let mut reasons = reasons.into_iter().peekable();
        // Without a reason, nobody knows what the servers do.
        if reasons.peek().is_some() && reasons.all(|fault| fault.io_error() == refused) {
            let source = io::Error::new(io::ErrorKind::ConnectionRefused, text);
            return StoreFault::unavailable(step, source);
        }
        StoreFault::unavailable(step, text)
    }

    /// A server's refusal.
    pub(crate) fn server(code: impl Into<String>, message: impl Into<String>) -> StoreFault {
        StoreFault::Server {
            code: code.into(),
            message: message.into(),
            server: None,
        }
    }

    /// The same fault, of the server at this address, unless it is known already whose it is.
    pub(crate) fn at(mut self, address: &Arc<str>) -> StoreFault {
        match &mut self {
            StoreFault::InDoubt(fault) => {
                **fault = std::mem::replace(&mut **fault, StoreFault::NotReady).at(address);
            }
            StoreFault::Unavailable { server, .. }
            | StoreFault::NotReplicated { server, .. }
            | StoreFault::Server { server, .. }
            | StoreFault::Tls { server, .. } => {
                server.get_or_insert_with(|| Arc::clone(address));
            }
            StoreFault::NotReady | StoreFault::Unfit { .. } => {}
        }
        self
    }

    /// The address of the server, if it is known.
    pub(crate) fn server_address(&self) -> Option<&Arc<str>> {
        match self {
            StoreFault::InDoubt(fault) => fault.server_address(),
            StoreFault::Unavailable { server, .. }
            | StoreFault::NotReplicated { server, .. }
            | StoreFault::Server { server, .. }
            | StoreFault::Tls { server, .. } => server.as_ref(),
            StoreFault::NotReady | StoreFault::Unfit { .. } => None,
        }
    }

    /// A server's error that begins with this word and goes on with these details.
    pub(super) fn refused(code: &str, details: &str) -> StoreFault {
        let Refusal {
            code,
            message,
            may_have_written,
        } = Refusal::read(code, details);
        let fault = StoreFault::server(code, message);
        if may_have_written {
            StoreFault::InDoubt(Box::new(fault))
        } else {
            fault
        }
    }

    pub(super) fn tls(message: impl Into<String>) -> StoreFault {
        StoreFault::Tls {
            message: message.into(),
            server: None,
        }
    }

    /// The system started no thread.
    pub(crate) fn no_thread(error: io::Error) -> StoreFault {
        StoreFault::unavailable(Step::Thread, error)
    }

    /// Whether a provider gave no credentials.
    pub(super) fn lacks_credentials(&self) -> bool {
        matches!(self, StoreFault::Unavailable { step, .. } if *step == Step::Credentials)
    }

    pub(super) fn timed_out(step: Step) -> StoreFault {
        StoreFault::unavailable(step, io::Error::from(io::ErrorKind::TimedOut))
    }

    /// The server sent a reply that does not have the expected shape.
    pub(super) fn protocol(message: impl Into<String>) -> StoreFault {
        StoreFault::server(PROTOCOL, message)
    }

    /// The user lacks these rights.
    pub(super) fn lacks(user: Option<&str>, rights: &str) -> StoreFault {
        StoreFault::server(NOPERM, lack_of(user, rights))
    }

    /// The same fault. If the user may not run the command of this right: that the user lacks it.
    /// Redis 6.2 does not name the subcommand.
    pub(super) fn naming(self, user: Option<&str>, right: &str) -> StoreFault {
        let command = right.trim_start_matches('+').split('|').next();
        let named = format!("'{}", command.unwrap_or_default());
        let lacks = |code: &str, message: String| match code == NOPERM && message.contains(&named) {
            true => lack_of(user, right),
            false => message,
        };
        self.with_message(lacks)
    }

    /// Whether a handshake failed because of the user, the password or the user's rights.
    pub(super) fn is_refused_login(&self) -> bool {
        match self {
            StoreFault::Server { code, .. } => code != PROTOCOL && !self.is_transient(),
            _ => false,
        }
    }

    /// The code of the server's error, if it is one.
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            StoreFault::Server { code, .. } => Some(code),
            StoreFault::InDoubt(fault) => fault.code(),
            _ => None,
        }
    }

    /// Whether a cluster's node refused because another node serves the slot.
    pub(crate) fn is_redirect(&self) -> bool {
        matches!(self.code(), Some("MOVED" | "ASK"))
    }

    /// Whether a cluster's node answered that the slot is about to get another owner, or just got it.
    pub(crate) fn is_about_migration(&self) -> bool {
        self.is_redirect() || self.is_undecided()
    }

    /// Whether a cluster's node refused because it has only some of the keys.
    pub(crate) fn is_undecided(&self) -> bool {
        self.code() == Some("TRYAGAIN")
    }

    /// Whether it may pass by itself. Then another attempt is worthwhile within the call's bound.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            // An administrator may renew a certificate while callers wait.
            StoreFault::NotReady | StoreFault::Unavailable { .. } | StoreFault::Tls { .. } => true,
            StoreFault::InDoubt(fault) => fault.is_transient(),
            StoreFault::NotReplicated { .. } | StoreFault::Unfit { .. } => false,
            StoreFault::Server { code, message, .. } => passes_by_itself(code, message),
        }
    }

    /// Whether the server refuses this command, in whatever words. It refuses neither the login, nor
    /// this client, nor all commands for a while.
    pub(crate) fn refuses_command(&self) -> bool {
        matches!(self, StoreFault::Server { code, message, .. }
            if !matches!(code.as_str(), "NOAUTH" | "WRONGPASS" | "DENIED" | PROTOCOL)
                && !passes_by_itself(code, message))
    }

    /// Whether the user lacks a right.
    pub(super) fn is_lack_of_rights(&self) -> bool {
        self.code() == Some(NOPERM)
    }

    /// The same fault. If the server refuses a command, this names the command and why it is needed.
    pub(super) fn of_command(self, name: &str, is_needed: &str) -> StoreFault {
        if !self.refuses_command() || self.is_lack_of_rights() {
            return self;
        }
        self.with_advice(&format!("this is its reply to {name}, {is_needed}"))
    }

    /// The same fault. If it is a server's error, its message goes on with this.
    pub(super) fn with_advice(self, advice: &str) -> StoreFault {
        self.with_message(|_, message| format!("{message}; {advice}"))
    }

    /// The same fault. If it is a server's error, this makes another message of its code and its
    /// message.
    pub(super) fn with_message(
        mut self,
        change: impl FnOnce(&str, String) -> String,
    ) -> StoreFault {
        if let StoreFault::Server { code, message, .. } = &mut self {
            *message = change(code, std::mem::take(message));
        }
        self
    }

    /// Whether the server refuses the command of this name, and says so in words of its own.
    pub(super) fn names_command(&self, name: &str) -> bool {
        matches!(self, StoreFault::Server { message, .. }
            if self.is_in_own_words() && message.to_ascii_uppercase().contains(name))
    }

    /// The same fault. If it is about EVAL or EVALSHA and names neither, this does.
    pub(super) fn of_script(self) -> StoreFault {
        if self.is_in_own_words() && !self.names_command("EVAL") {
            self.of_command("EVALSHA or EVAL", "which every lock needs")
        } else {
            self
        }
    }

    /// Whether a server or a proxy refuses something without a code of Redis.
    fn is_in_own_words(&self) -> bool {
        let is_code = |code: &str| code != "ERR" && code.bytes().all(|b| b.is_ascii_uppercase());
        self.refuses_command() && self.code().is_some_and(|code| !is_code(code))
    }

    /// The step that an error of the system ended, and the kind of that error.
    fn io_error(&self) -> Option<(Step, io::ErrorKind)> {
        let StoreFault::Unavailable { step, source, .. } = self else {
            return None;
        };
        let error = source.downcast_ref::<io::Error>()?;
        Some((*step, error.kind()))
    }

    /// Whether the server closed the connection, at whichever step.
    pub(super) fn is_cut(&self) -> bool {
        self.io_error()
            .is_some_and(|(_, kind)| is_closed_kind(kind))
    }

    /// Whether the peer had closed an open connection: another connection may do better at once.
    pub(crate) fn is_closed(&self) -> bool {
        let is_open = |step| matches!(step, Step::Send | Step::Reply);
        self.io_error()
            .is_some_and(|(step, kind)| is_open(step) && is_closed_kind(kind))
    }

    /// Whether a reply did not come in time. If the connection died in silence, another one does
    /// better at once.
    pub(super) fn is_late_reply(&self) -> bool {
        self.io_error() == Some((Step::Reply, io::ErrorKind::TimedOut))
    }

    /// The fault of a request whose connection was ended on this side.
    pub(super) fn connection_ended(why: &'static str) -> StoreFault {
        let ended = io::Error::new(io::ErrorKind::ConnectionAborted, why);
        StoreFault::unavailable(Step::Reply, ended)
    }

    /// Whether it is no sign of an outage: the next connection will show whether the server
    /// answers. A server closes connections that are idle, and all when it restarts. If the next
    /// attempt fails as well, its fault is another one, or [`StoreFault::InDoubt`]. A node that has
    /// only some of the keys has answered. A redirect is a sign: it was followed, and led nowhere.
    pub(crate) fn is_no_outage(&self) -> bool {
        matches!(self, StoreFault::NotReady) || self.is_closed() || self.is_undecided()
    }

    /// Whether a signal handler ran while a connection was being opened.
    pub(super) fn is_interrupted(&self) -> bool {
        self.io_error()
            .is_some_and(|(_, kind)| kind == io::ErrorKind::Interrupted)
    }

    /// Whether the server may have carried out the request although no reply came.
    pub(crate) fn is_ambiguous(&self) -> bool {
        match self {
            StoreFault::Unavailable { step, .. } => matches!(step, Step::Send | Step::Reply),
            StoreFault::InDoubt(_) | StoreFault::NotReplicated { .. } => true,
            StoreFault::Server { code, .. } => code == PROTOCOL,
            StoreFault::NotReady | StoreFault::Tls { .. } | StoreFault::Unfit { .. } => false,
        }
    }
}

/// A closed connection. The system's text, "unexpected end of file", speaks of no server.
pub(super) const CLOSED: &str = "the server, or a proxy before it, closed the connection";

/// Whether an error of this kind says that the peer has closed the connection.
pub(super) fn is_closed_kind(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::NotConnected
    )
}

impl From<Malformed> for StoreFault {
    fn from(malformed: Malformed) -> StoreFault {
        StoreFault::protocol(malformed.to_string())
    }
}

/// The message of a lack of these rights.
fn lack_of(user: Option<&str>, rights: &str) -> String {
    let user = user.unwrap_or("default");
    format!("this user lacks {rights}; add it with ACL SETUSER {user} {rights}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_refuse_only_if_each_is_known_to() {
        let refuses = StoreFault::unavailable(
            Step::Connect,
            io::Error::from(io::ErrorKind::ConnectionRefused),
        );
        let hangs = StoreFault::timed_out(Step::Connect);
        let refused = Some((Step::Majority, io::ErrorKind::ConnectionRefused));
        for (reasons, expected) in [
            (vec![&refuses, &refuses], refused),
            (vec![&refuses, &hangs], None),
            (vec![], None),
        ] {
            let fault = StoreFault::none_available(Step::Majority, "none".to_owned(), reasons);
            assert_eq!(fault.io_error(), expected);
        }
    }
}
