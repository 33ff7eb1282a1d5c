//! The program's source of credentials, as the store asks it.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::clock::{Clock, Time};
use super::foreign::{ForeignCalls, NoResult};
use crate::credentials::{Credentials, CredentialsError, CredentialsRequest, Provide};

/// A source of credentials: for sentinels, or for the servers that keep locks.
#[derive(Clone)]
pub(crate) struct Provider {
    source: Arc<Provide>,
    calls: ForeignCalls,
    /// The user of its last answer, for messages.
    last_user: Arc<Mutex<Option<String>>>,
}

impl Provider {
    pub(crate) fn new(
        source: impl Fn(&CredentialsRequest) -> Result<Credentials, CredentialsError>
        + Send
        + Sync
        + 'static,
    ) -> Provider {
        Provider {
            source: Arc::new(source),
            calls: ForeignCalls::default(),
            last_user: Arc::default(),
        }
    }

    /// Asks for the credentials for a server. Blocks until `until` at most.
    pub(super) fn ask(
        &self,
        request: CredentialsRequest,
        clock: &Clock,
        until: Time,
    ) -> Result<Credentials, NoResult> {
        let source = Arc::clone(&self.source);
        let ask = move || source(&request);
        let credentials = self
            .calls
            .run("the provider of credentials", clock, until, ask)??;
        self.last_user.lock().clone_from(&credentials.user);
        Ok(credentials)
    }

    /// The user of the last answer.
    pub(super) fn last_user(&self) -> Option<String> {
        self.last_user.lock().clone()
    }
}

/// Shows nothing of the program's own value.
impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").finish_non_exhaustive()
    }
}
