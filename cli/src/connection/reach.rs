//! The settings of a command that asks the servers by itself.

#[cfg(feature = "tls")]
use std::path::Path;

use super::Connection;
use crate::exit::Failure;

/// Where the servers are, and how to log in.
#[derive(Default)]
pub(crate) struct Reach {
    /// One URL, or those of a quorum, each with its login.
    pub(crate) urls: Vec<String>,
    /// The user and the password of a file, for servers and not for sentinels.
    pub(crate) password: Option<(Option<String>, String)>,
}

impl Connection {
    /// Where the servers are, and how to log in.
    pub(crate) fn reach(&self) -> Result<Reach, Failure> {
        let known = self.known()?;
        Ok(Reach {
            urls: known.urls,
            password: known.password.map(|login| (login.user, login.password)),
        })
    }

    /// The files of the authorities that count, and of the client's certificate and its key.
    #[cfg(feature = "tls")]
    pub(crate) fn certificates(&self) -> (Option<&Path>, Option<(&Path, &Path)>) {
        let identity = self.tls_cert.as_deref().zip(self.tls_key.as_deref());
        (self.tls_ca.as_deref(), identity)
    }

    /// How many replicas must acknowledge a lock.
    pub(crate) fn replica_acks(&self) -> u32 {
        self.replica_acks.unwrap_or(0)
    }
}
