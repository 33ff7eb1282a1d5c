//! How connections log in, first and anew.
//!
//! The renewal thread sees that newer credentials are due, and has a thread ask for them
//! ([`Node::renew_login`]). That thread sends them over the lanes. Every other connection does so by
//! itself, in front of what it sends next.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use super::Node;
use super::age::Age;
use super::connection::Connection;
use super::login::{ConnectionLogin, CurrentLogin, NodeLogin};
use crate::logging::Logger;
use crate::store::StoreFault;
use crate::store::clock::Time;

impl NodeLogin {
    /// Opens a connection by `open`, and logs in over it by `shake_hands`. If the server refuses
    /// credentials that a provider gave, the provider is asked once more, and its next answer is tried
    /// over another connection. Blocks until `until` at most, as the two functions do.
    ///
    /// The provider is asked behind `open`: while the server is away, it is left in peace.
    pub(super) fn log_in(
        self: &Arc<Self>,
        until: Time,
        open: impl Fn() -> Result<Connection, StoreFault>,
        shake_hands: impl Fn(&mut Connection) -> Result<(), StoreFault>,
    ) -> Result<Connection, StoreFault> {
        let log_in_over =
            |mut connection: Connection, current: &CurrentLogin| -> Result<_, StoreFault> {
                connection.first_login = Arc::clone(&current.login);
                shake_hands(&mut connection)?;
                connection.login = ConnectionLogin::of(self, current);
                Ok(connection)
            };
        let connection = open()?;
        let first = self.for_connection(false, until)?;
        let refused = match log_in_over(connection, &first) {
            Err(fault) if first.number > 0 && fault.is_refused_login() => fault,
            outcome => return outcome,
        };
        match self.for_connection(true, until) {
            Ok(second) if !second.login.is_same_as(&first.login) => log_in_over(open()?, &second),
            _ => Err(refused),
        }
    }
}

impl Node {
    /// The same refusal, unless it ends the login of an open connection, as proxies end it with its
    /// token. Then only a new connection can log in: those of this age are retired, and the
    /// call counts as one whose connection was closed.
    pub(super) fn or_login_ended(&self, refused: StoreFault, age: Age) -> StoreFault {
        if !self.is_end_of_login(&refused) {
            return refused;
        }
        self.retire(age);
        StoreFault::connection_ended("NOAUTH: the server has ended the login of the connection")
    }

    /// Whether the server has ended a login that it had accepted.
    pub(super) fn is_end_of_login(&self, refused: &StoreFault) -> bool {
        refused.code() == Some("NOAUTH") && self.login.has_credentials()
    }

    /// When [`Node::renew_login`] is to be called.
    pub(in crate::store) fn login_due(&self) -> Time {
        self.login.due()
    }

    /// If it is due: has a thread ask for new credentials, and log in anew over the connections that
    /// are open. Never blocks.
    pub(in crate::store) fn renew_login(self: &Arc<Self>) {
        let Some(again_at) = self.login.begin_renewal() else {
            return;
        };
        let (login, name) = (Arc::clone(&self.login), Arc::clone(self.name()));
        let until = self.clock.now() + self.config.connect_timeout;
        let renew = move || {
            let is_failing = match login.renew(again_at, until) {
                Ok(()) => false,
                Err(fault) => {
                    if !login.is_failing.load(Ordering::Relaxed) {
                        log::warn!(
                            logger: Logger,
                            "no new credentials for {name}, and the old ones end: {fault}"
                        );
                    }
                    true
                }
            };
            login.is_failing.store(is_failing, Ordering::Relaxed);
        };
        let thread = thread::Builder::new().name("fairlock-login".to_owned());
        if let Err(error) = thread.spawn(renew) {
            log::warn!(
                logger: Logger,
                "no thread can be started to ask for new credentials: {error}"
            );
        }
    }
}
