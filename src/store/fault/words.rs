//! A fault in words: as an error for the user, and as text.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::StoreFault;
use crate::error::{Error, Misuse, Step, TLS, with_causes};
use crate::key::Key;

impl StoreFault {
    /// The fault of a request that had no reply. If it then could not be sent again, that is why.
    fn not_sent_again(mut self) -> StoreFault {
        if let StoreFault::Unavailable { step, source, .. } = &mut self {
            let step = std::mem::replace(step, Step::Reply);
            if !matches!(step, Step::Send | Step::Reply) {
                let why = Arc::clone(source);
                *source = Arc::new(Box::new(NotSentAgain { step, why }));
            }
        }
        self
    }

    /// The public error for a call about `key` that took `waited`.
    pub(crate) fn into_error(self, key: Option<&Key>, waited: Duration) -> Error {
        let lock = key.map(|key| key.name.clone());
        match self {
            StoreFault::NotReady => StoreFault::unavailable(Step::Connect, "no connection is open")
                .into_error(key, waited),
            StoreFault::Unavailable {
                step,
                source,
                server,
            } => Error::Unavailable {
                lock,
                server,
                step,
                waited,
                cause: source,
            },
            StoreFault::InDoubt(fault) => fault.not_sent_again().into_error(key, waited),
            StoreFault::NotReplicated {
                wanted,
                acknowledged,
                server,
            } => Error::Unavailable {
                lock,
                server,
                step: Step::Replicas,
                waited,
                cause: Arc::new(
                    format!("only {acknowledged} of {wanted} replicas acknowledged it").into(),
                ),
            },
            StoreFault::Server {
                code,
                message,
                server,
            } => Error::Refused {
                lock,
                server,
                code,
                message,
            },
            StoreFault::Tls { message, server } => Error::Refused {
                lock,
                server,
                code: TLS.to_owned(),
                message,
            },
            StoreFault::Unfit { what, message } => {
                let misuse = match what {
                    "server" => Misuse::Server,
                    name => Misuse::Setting { name },
                };
                Error::Misused {
                    lock,
                    misuse,
                    message,
                }
            }
        }
    }

    /// The fault without the server's address.
    pub(crate) fn reason(&self) -> String {
        match self {
            StoreFault::NotReady => "no connection is open".to_owned(),
            StoreFault::InDoubt(fault) => fault.clone().not_sent_again().reason(),
            StoreFault::Unavailable { step, source, .. } => {
                format!("no {}: {}", step.word(), with_causes(&***source))
            }
            StoreFault::NotReplicated {
                wanted,
                acknowledged,
                ..
            } => format!("only {acknowledged} of {wanted} replicas acknowledged it"),
            StoreFault::Server { code, message, .. } => format!("{code} {message}"),
            StoreFault::Tls { message, .. } => format!("no TLS connection: {message}"),
            StoreFault::Unfit { what, message } => format!("{what}: {message}"),
        }
    }
}

impl From<StoreFault> for Error {
    fn from(fault: StoreFault) -> Error {
        fault.into_error(None, Duration::ZERO)
    }
}

/// Begins with the server's address. The message of a fault of TLS has it.
impl fmt::Display for StoreFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(server) = self.server_address()
            && !matches!(self, StoreFault::Tls { .. })
        {
            write!(f, "{server}: ")?;
        }
        f.write_str(&self.reason())
    }
}

impl StdError for StoreFault {}

/// Why a request that had no reply could not be sent again.
#[derive(Debug)]
struct NotSentAgain {
    step: Step,
    why: Arc<Box<dyn StdError + Send + Sync>>,
}

impl fmt::Display for NotSentAgain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotSentAgain { step, why } = self;
        write!(
            f,
            "the connection ended before the reply, and the request could not be sent again (no \
             {}: {})",
            step.word(),
            with_causes(&***why)
        )
    }
}

impl StdError for NotSentAgain {}
