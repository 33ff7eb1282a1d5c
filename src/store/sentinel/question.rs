//! One sentinel, asked for the master of a service.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::script::CallerId;
use crate::store::clock::{Clock, Time};
use crate::store::node::QueryConnection;
use crate::store::refusal::is_unknown_command;
use crate::store::{Address, ServerSettings, StoreFault, port_in};

/// The rights that the two questions need.
pub(super) const RIGHTS: [&str; 2] = ["+sentinel|get-master-addr-by-name", "+sentinel|master"];

/// The answer of a sentinel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MasterAnswer {
    Named(Named),
    /// It does not watch the service.
    UnknownService,
}

/// The master that a sentinel names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    /// Rises with each failover.
    pub(super) config_epoch: u64,
    pub(super) address: Address,
}

/// A connection to a sentinel.
pub(super) struct SentinelConnection {
    connection: QueryConnection,
    identity: SentinelId,
}

/// Which sentinel it is, whatever its address.
enum SentinelId {
    /// To be asked with the first question.
    Unasked,
    /// `None`: nobody knows. It is older than 6.2, or the user may not ask.
    Told(Option<Arc<str>>),
}

impl SentinelConnection {
    /// The id of the sentinel, if it has told it.
    pub(super) fn id(&self) -> Option<&Arc<str>> {
        match &self.identity {
            SentinelId::Told(id) => id.as_ref(),
            SentinelId::Unasked => None,
        }
    }
}

/// Asks a sentinel, on this connection if it is still open. Returns the connection to use next
/// time. Blocks until `until` at most.
pub(super) fn ask(
    open: Option<SentinelConnection>,
    sentinel: &ServerSettings,
    service: &str,
    (caller_id, clock): (&CallerId, &Clock),
    until: Time,
) -> (Option<SentinelConnection>, Result<MasterAnswer, StoreFault>) {
    let time_left = || (until - clock.now()).max(Duration::from_millis(1));
    if let Some(mut open) = open.filter(|open| !open.connection.ends_soon(clock)) {
        match ask_on(&mut open, sentinel, service, time_left()) {
            // The sentinel closed it, or was started again.
            Err(fault) if fault.is_closed() => {}
            Err(fault) => return (None, Err(fault)),
            answer => return (Some(open), answer),
        }
    }
    let mut opened = match QueryConnection::open(sentinel, caller_id, clock, time_left()) {
        Ok(connection) => SentinelConnection {
            connection,
            identity: SentinelId::Unasked,
        },
        Err(fault) => return (None, Err(fault)),
    };
    match ask_on(&mut opened, sentinel, service, time_left()) {
        Err(fault) => (None, Err(fault)),
        answer => (Some(opened), answer),
    }
}

/// The epoch comes from another command than the address. A sentinel that leads a failover answers
/// `SENTINEL MASTER` with the new epoch and still the old address. It does so until all replicas
/// follow the new master. It runs both commands at once.
///
/// The first question on a connection asks for the id, too: an address may lead to another sentinel
/// from the next connection on.
fn ask_on(
    open: &mut SentinelConnection,
    sentinel: &ServerSettings,
    service: &str,
    timeout: Duration,
) -> Result<MasterAnswer, StoreFault> {
    let question = |what: &str| {
        let mut command = redis::cmd("SENTINEL");
        command.arg(what).arg(service);
        command
    };
    let mut commands = vec![question("GET-MASTER-ADDR-BY-NAME"), question("MASTER")];
    if let SentinelId::Unasked = open.identity {
        commands.push(myid());
    }
    let mut replies = open.connection.ask(&commands, timeout)?;
    if let Some(reply) = replies.drain(RIGHTS.len()..).next() {
        open.identity = SentinelId::Told(id_in(reply));
    }
    let mut replies = replies
        .into_iter()
        .zip(RIGHTS)
        .map(|(reply, right)| reply.map_err(|fault| why_refused(fault, sentinel, right)));
    let address = replies.next().unwrap_or(Ok(Value::Nil))?;
    if address == Value::Nil {
        return Ok(MasterAnswer::UnknownService);
    }
    let fields = replies.next().unwrap_or(Ok(Value::Nil))?;
    let named = address_of(address, &sentinel.address).zip(config_epoch_of(fields));
    let (address, config_epoch) = named.ok_or_else(|| {
        let fault = StoreFault::protocol("expected a sentinel's answer about a master");
        fault.at(&sentinel.address.to_string().into())
    })?;
    Ok(MasterAnswer::Named(Named {
        config_epoch,
        address,
    }))
}

/// Asks a sentinel of 6.2 or later for its id.
fn myid() -> redis::Cmd {
    let mut command = redis::cmd("SENTINEL");
    command.arg("MYID");
    command
}

/// The id in the reply to [`myid`]. `None` if the sentinel does not tell it: that is no fault.
fn id_in(reply: Result<Value, StoreFault>) -> Option<Arc<str>> {
    let id: String = redis::from_redis_value(reply.ok()?).ok()?;
    (!id.is_empty()).then(|| id.into())
}

/// Why a server refused a question that this right allows.
pub(super) fn why_refused(fault: StoreFault, server: &ServerSettings, right: &str) -> StoreFault {
    let address = &server.address;
    let tls = server.login.tls.as_ref().map_or("", |_| "s");
    match &fault {
        StoreFault::Server { message, .. } if is_unknown_command(message) => StoreFault::Unfit {
            what: "server",
            message: format!(
                "a sentinel; {address} is none: use redis{tls}://{address}, or \
                 redis{tls}-cluster://{address} for a cluster"
            ),
        },
        _ => fault.naming(server.login.shown_user().as_deref(), right),
    }
}

/// The address in the reply of the sentinel at `asked`.
fn address_of(reply: Value, asked: &Address) -> Option<Address> {
    let (host, port): (String, Value) = redis::from_redis_value(reply).ok()?;
    let port = port_in(&port)?;
    (!host.is_empty()).then(|| Address::named_by(asked, &host, port))
}

fn config_epoch_of(reply: Value) -> Option<u64> {
    let fields: Vec<String> = redis::from_redis_value(reply).ok()?;
    let mut pairs = fields.chunks_exact(2);
    let epoch = pairs.find(|pair| pair[0] == "config-epoch")?;
    epoch[1].parse().ok()
}
