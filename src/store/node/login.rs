//! The login of a node, and what its open connections know of it: each has credentials of its own if a
//! provider gives them, and newer ones before these end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, Value};

use crate::credentials::CredentialsRequest;
use crate::error::Step;
use crate::logging::Logger;
use crate::store::clock::{Clock, Time};
use crate::store::{Address, Login, StoreFault};

/// A login that a connection uses.
#[derive(Clone)]
pub(super) struct CurrentLogin {
    pub(super) login: Arc<Login>,
    /// Counts the answers of the provider, from 1. 0: there is no provider.
    pub(super) number: u64,
}

/// Has connections log in anew. Returns whether they are still there.
type OnRenewal = Arc<dyn Fn() -> bool + Send + Sync>;

/// The logins of one node.
pub(super) struct NodeLogin {
    /// As the program gave it: without credentials if there is a provider.
    login: Arc<Login>,
    server: Address,
    clock: Clock,
    /// The part of the credentials' time that must be left when they are renewed.
    margin: Duration,
    /// The pause before a renewal that failed is tried again.
    pause: Duration,
    answers: AtomicU64,
    /// When the open connections are to log in anew, in ns. [`Time::NEVER`]: no credentials end.
    due: AtomicU64,
    renewal: Mutex<Option<CurrentLogin>>,
    /// The number of the renewal, for those that only want to know whether there is a newer one.
    renewed: AtomicU64,
    /// A server has refused the last renewal.
    was_refused: AtomicBool,
    /// The last renewal failed. The log says so once.
    pub(super) is_failing: AtomicBool,
    on_renewal: Mutex<Vec<OnRenewal>>,
}

/// An open connection's knowledge of its login. Only with a provider.
pub(super) struct ConnectionLogin {
    node: Arc<NodeLogin>,
    number: u64,
    /// How many replies to AUTH are still to come, in front of others.
    awaited: u32,
}

impl NodeLogin {
    pub(super) fn new(
        login: &Login,
        server: &Address,
        clock: &Clock,
        connect_timeout: Duration,
        command_timeout: Duration,
    ) -> NodeLogin {
        NodeLogin {
            login: Arc::new(login.clone()),
            server: server.clone(),
            clock: clock.clone(),
            margin: (connect_timeout + command_timeout) * 2,
            pause: connect_timeout * 2,
            answers: AtomicU64::new(0),
            due: AtomicU64::new(Time::NEVER.as_nanos()),
            renewal: Mutex::default(),
            renewed: AtomicU64::new(0),
            was_refused: AtomicBool::new(false),
            is_failing: AtomicBool::new(false),
            on_renewal: Mutex::default(),
        }
    }

    /// Whether connections log in. Without credentials, no new connection does better.
    pub(super) fn has_credentials(&self) -> bool {
        self.login.password.is_some() || self.login.provider.is_some()
    }

    /// The login for a new connection. Blocks until `until` at most.
    pub(super) fn for_connection(
        &self,
        was_refused: bool,
        until: Time,
    ) -> Result<CurrentLogin, StoreFault> {
        if self.login.provider.is_none() {
            let login = Arc::clone(&self.login);
            return Ok(CurrentLogin { login, number: 0 });
        }
        let (current, renew_at) = self.ask(was_refused, until)?;
        self.due.fetch_min(renew_at.as_nanos(), Ordering::AcqRel);
        Ok(current)
    }

    /// Asks the provider. Returns its answer, and when to ask again.
    fn ask(&self, was_refused: bool, until: Time) -> Result<(CurrentLogin, Time), StoreFault> {
        let Some(provider) = &self.login.provider else {
            return Err(StoreFault::NotReady);
        };
        let request = CredentialsRequest {
            server: self.server.to_string().into(),
            was_refused,
        };
        let asked = self.clock.now();
        // A caller that waits until then as well is to learn that the provider is the reason.
        let until = until - (until - asked) / 8;
        let credentials = provider
            .ask(request, &self.clock, until)
            .map_err(|why| StoreFault::unavailable(Step::Credentials, why))?;
        let renew_at = match credentials.valid_for {
            None => Time::NEVER,
            Some(validity) => {
                let left = self.margin.min(validity / 2).max(validity / 5);
                // Credentials that have ended already are no reason to ask without a pause.
                (asked + (validity - left)).max(self.clock.now() + self.pause)
            }
        };
        let current = CurrentLogin {
            login: Arc::new(self.login.granted(&credentials)),
            number: self.answers.fetch_add(1, Ordering::AcqRel) + 1,
        };
        Ok((current, renew_at))
    }

    /// When [`Node::renew_login`] is to be called.
    pub(super) fn due(&self) -> Time {
        Time::from_nanos(self.due.load(Ordering::Acquire))
    }

    /// Whether this thread is to renew the login. Then no other one does before the next pause is
    /// over.
    pub(super) fn begin_renewal(&self) -> Option<Time> {
        let (due, now) = (self.due(), self.clock.now());
        let again_at = now + self.pause;
        let (old, new) = (due.as_nanos(), again_at.as_nanos());
        let is_first = || {
            let exchanged =
                self.due
                    .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
            exchanged.is_ok()
        };
        (due <= now && is_first()).then_some(again_at)
    }

    /// Asks for new credentials. `again_at`: when that is due again if it fails.
    pub(super) fn renew(&self, again_at: Time, until: Time) -> Result<(), StoreFault> {
        let (current, renew_at) = self.ask(self.was_refused.load(Ordering::Acquire), until)?;
        self.was_refused.store(false, Ordering::Release);
        let number = current.number;
        *self.renewal.lock() = Some(current);
        self.renewed.store(number, Ordering::Release);
        // A new connection may have got credentials meanwhile that end sooner.
        let _ = self.due.compare_exchange(
            again_at.as_nanos(),
            renew_at.as_nanos(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        let all = self.on_renewal.lock().clone();
        let gone: Vec<OnRenewal> = all.into_iter().filter(|log_in| !log_in()).collect();
        let is_gone = |one: &OnRenewal| gone.iter().any(|gone| Arc::ptr_eq(gone, one));
        self.on_renewal.lock().retain(|one| !is_gone(one));
        Ok(())
    }

    /// The open connections have this done after each renewal, on a thread that may block.
    pub(super) fn on_renewal(&self, log_in: impl Fn() -> bool + Send + Sync + 'static) {
        if self.login.provider.is_some() {
            self.on_renewal.lock().push(Arc::new(log_in));
        }
    }

    /// The server's reply to newer credentials.
    fn note_reply(&self, reply: Result<Value, StoreFault>) {
        let Err(refused) = reply else { return };
        let refused = match &*self.renewal.lock() {
            Some(current) => refused.of_login(&current.login),
            None => refused,
        };
        let server = &self.server;
        log::warn!(
            logger: Logger,
            "{server} refused new credentials, and those before them end soon: {refused}"
        );
        self.was_refused.store(true, Ordering::Release);
        let again_at = self.clock.now() + self.pause;
        self.due.fetch_min(again_at.as_nanos(), Ordering::AcqRel);
    }
}

impl ConnectionLogin {
    /// The login of a connection. `None` if it never changes.
    pub(super) fn of(node: &Arc<NodeLogin>, current: &CurrentLogin) -> Option<ConnectionLogin> {
        (current.number > 0).then(|| ConnectionLogin {
            node: Arc::clone(node),
            number: current.number,
            awaited: 0,
        })
    }

    /// Whether newer credentials are to be sent.
    pub(super) fn is_outdated(&self) -> bool {
        self.number < self.node.renewed.load(Ordering::Acquire)
    }

    /// The command that logs in anew, if that is due. Its reply must be given to
    /// [`ConnectionLogin::on_reply`].
    pub(super) fn take_anew(&mut self) -> Option<Cmd> {
        if !self.is_outdated() {
            return None;
        }
        let current = self.node.renewal.lock().clone()?;
        self.number = current.number;
        auth(&current.login)
    }

    /// Like [`ConnectionLogin::take_anew`], for a connection that asks
    /// [`ConnectionLogin::is_awaiting`] before each reply.
    pub(super) fn begin_anew(&mut self) -> Option<Cmd> {
        let auth = self.take_anew()?;
        self.awaited += 1;
        Some(auth)
    }

    /// Whether the next reply is to the command that logged in anew.
    pub(super) fn is_awaiting(&self) -> bool {
        self.awaited > 0
    }

    pub(super) fn take_reply(&mut self, reply: Result<Value, StoreFault>) {
        self.awaited -= 1;
        self.node.note_reply(reply);
    }

    /// Takes the reply to a command that another request carried.
    pub(super) fn on_reply(&self) -> impl Fn(Result<Value, StoreFault>) + Send + 'static {
        let node = Arc::clone(&self.node);
        move |reply| node.note_reply(reply)
    }
}

/// The command that logs in, if a login is needed.
pub(super) fn auth(login: &Login) -> Option<Cmd> {
    let password = login.password.as_deref()?;
    let mut auth = redis::cmd("AUTH");
    if let Some(user) = &login.user {
        auth.arg(user);
    }
    auth.arg(password);
    Some(auth)
}
