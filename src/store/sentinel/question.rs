//! One sentinel, asked for the master of a service.

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

/// Asks a sentinel, on this connection if it is still open. Returns the connection to use next
/// time. Blocks until `until` at most.
pub(super) fn ask(
    open: Option<QueryConnection>,
    sentinel: &ServerSettings,
    service: &str,
    (caller_id, clock): (&CallerId, &Clock),
    until: Time,
) -> (Option<QueryConnection>, Result<MasterAnswer, StoreFault>) {
    let time_left = || (until - clock.now()).max(Duration::from_millis(1));
    if let Some(mut connection) = open.filter(|open| !open.ends_soon(clock)) {
        match ask_on(&mut connection, sentinel, service, time_left()) {
            // The sentinel closed it, or was started again.
            Err(fault) if fault.is_closed() => {}
            Err(fault) => return (None, Err(fault)),
            answer => return (Some(connection), answer),
        }
    }
    let mut connection = match QueryConnection::open(sentinel, caller_id, clock, time_left()) {
        Ok(connection) => connection,
        Err(fault) => return (None, Err(fault)),
    };
    match ask_on(&mut connection, sentinel, service, time_left()) {
        Err(fault) => (None, Err(fault)),
        answer => (Some(connection), answer),
    }
}

/// The epoch comes from another command than the address. A sentinel that leads a failover answers
/// `SENTINEL MASTER` with the new epoch and still the old address. It does so until all replicas
/// follow the new master. It runs both commands at once.
fn ask_on(
    connection: &mut QueryConnection,
    sentinel: &ServerSettings,
    service: &str,
    timeout: Duration,
) -> Result<MasterAnswer, StoreFault> {
    let question = |what: &str| {
        let mut command = redis::cmd("SENTINEL");
        command.arg(what).arg(service);
        command
    };
    let commands = [question("GET-MASTER-ADDR-BY-NAME"), question("MASTER")];
    let replies = connection.ask(&commands, timeout)?;
    let mut replies = replies
        .into_iter()
        .zip(RIGHTS)
        .map(|(reply, right)| reply.map_err(|fault| why_refused(fault, sentinel, right)));
    let address = replies.next().unwrap_or(Ok(Value::Nil))?;
    if address == Value::Nil {
        return Ok(MasterAnswer::UnknownService);
    }
    let fields = replies.next().unwrap_or(Ok(Value::Nil))?;
    let named = address_of(address).zip(config_epoch_of(fields));
    let (address, config_epoch) = named.ok_or_else(|| {
        let fault = StoreFault::protocol("expected a sentinel's answer about a master");
        fault.at(&sentinel.address.to_string().into())
    })?;
    Ok(MasterAnswer::Named(Named {
        config_epoch,
        address,
    }))
}

/// Why a server refused a question that this right allows.
pub(super) fn why_refused(fault: StoreFault, server: &ServerSettings, right: &str) -> StoreFault {
    let address = &server.address;
    let tls = server.login.tls.as_ref().map_or("", |_| "s");
    match &fault {
        StoreFault::Server { message, .. } if is_unknown_command(message) => StoreFault::Unfit {
            what: "server".to_owned(),
            message: format!(
                "a sentinel; {address} is none: use redis{tls}://{address}, or \
                 redis{tls}-cluster://{address} for a cluster"
            ),
        },
        _ => fault.naming(server.login.shown_user().as_deref(), right),
    }
}

pub(super) fn address_of(reply: Value) -> Option<Address> {
    let (host, port): (String, Value) = redis::from_redis_value(reply).ok()?;
    let port = port_in(&port)?;
    (!host.is_empty()).then_some(Address::Tcp(host, port))
}

fn config_epoch_of(reply: Value) -> Option<u64> {
    let fields: Vec<String> = redis::from_redis_value(reply).ok()?;
    let mut pairs = fields.chunks_exact(2);
    let epoch = pairs.find(|pair| pair[0] == "config-epoch")?;
    epoch[1].parse().ok()
}
