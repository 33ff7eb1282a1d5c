//! The reply to HELLO: which server this is, and whether it is one that the manager can use.

use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;

use super::Node;
use super::connection::{Connection, refusal};
use crate::store::refusal::is_unknown_command;
use crate::store::{Address, StoreFault, port_in};

/// The oldest server whose commands the scripts use (LPOP with a count).
const OLDEST_SERVER: (u32, u32) = (6, 2);

/// The sort of server that a node must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// A master that belongs to no cluster, at an address that the user gave.
    Standalone,
    /// The master that sentinels named. If it is a replica, they may name another one soon.
    SentinelMaster,
    /// A master or a replica of a cluster. The slot map says which one it is.
    ClusterNode,
}

/// A server's description of itself. A field that it does not send is empty.
#[derive(Debug, Default)]
pub(super) struct Hello {
    version: String,
    /// `standalone`, `cluster` or `sentinel`.
    mode: String,
    /// `master` or `replica`. A sentinel has none.
    role: String,
}

impl Hello {
    /// Reads the reply. Redis lets every user run the command. If a proxy does not, nothing is known,
    /// and the server is taken to be the right one. A server older than Redis 6 does not know it.
    pub(super) fn read(reply: Value, server: &Address) -> Result<Hello, StoreFault> {
        match refusal(reply) {
            Ok(Value::Array(fields)) => Ok(Hello::from_fields(&fields)),
            Ok(_) => Ok(Hello::default()),
            Err(StoreFault::Server { code, .. }) if code == "NOPERM" => Ok(Hello::default()),
            Err(StoreFault::Server { message, .. }) if is_unknown_command(&message) => {
                Err(too_old(server, "older than 6"))
            }
            Err(other) => Err(other),
        }
    }

    /// From a list of names and values.
    fn from_fields(fields: &[Value]) -> Hello {
        let fields: Vec<String> = fields
            .iter()
            .map(|field| redis::from_redis_value_ref(field).unwrap_or_default())
            .collect();
        let mut hello = Hello::default();
        for pair in fields.chunks_exact(2) {
            match pair[0].as_str() {
                "version" => hello.version.clone_from(&pair[1]),
                "mode" => hello.mode.clone_from(&pair[1]),
                "role" => hello.role.clone_from(&pair[1]),
                _ => {}
            }
        }
        hello
    }

    pub(super) fn check_version(&self, server: &Address) -> Result<(), StoreFault> {
        if self.version.is_empty() || version_numbers(&self.version) >= OLDEST_SERVER {
            return Ok(());
        }
        Err(too_old(server, &self.version))
    }

    fn is_replica(&self) -> bool {
        matches!(self.role.as_str(), "replica" | "slave")
    }
}

impl Node {
    /// Whether the server belongs to the topology that the node belongs to. Asks the server for
    /// what the user needs to reach the right one, for at most `left`.
    pub(super) fn check_mode(
        &self,
        hello: &Hello,
        connection: &mut Connection,
        left: Duration,
    ) -> Result<(), StoreFault> {
        match (hello.mode.as_str(), self.expected) {
            ("sentinel", _) => {
                let service = only_service(connection, left);
                let service = service.as_deref().unwrap_or("<service>");
                let url = self.url("-sentinel", &format!("/{service}"));
                Err(self.unfit(&format!("is a sentinel: use {url}")))
            }
            ("cluster", Expected::Standalone | Expected::SentinelMaster) => {
                let url = self.url("-cluster", "");
                Err(self.unfit(&format!("belongs to a cluster: use {url}")))
            }
            ("standalone", Expected::ClusterNode) => {
                let url = self.url("", "");
                Err(self.unfit(&format!("belongs to no cluster: use {url}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether the server is a master, if it must be one. Asks a replica for its master, for at
    /// most `left`.
    pub(super) fn check_role(
        &self,
        hello: &Hello,
        connection: &mut Connection,
        left: Duration,
    ) -> Result<(), StoreFault> {
        if self.expected == Expected::ClusterNode || !hello.is_replica() {
            self.was_master.store(true, Ordering::Relaxed);
            return Ok(());
        }
        // Sentinels may name a replica for a while. It is refused as a write would be.
        if self.expected == Expected::SentinelMaster {
            return Err(StoreFault::server(
                "READONLY",
                "this server is a replica now",
            ));
        }
        // A master may be demoted and come back, which ends no manager that is running. Until then
        // the server itself refuses the writes.
        if self.was_master.load(Ordering::Relaxed) {
            return Ok(());
        }
        let master = match master_of(connection, left) {
            Some(master) => self.url_of(&master, "", ""),
            None => "its master's URL".to_owned(),
        };
        let sentinel = "redis-sentinel://<sentinel>/<service> if sentinels choose the master";
        Err(self.unfit(&format!("is a replica: use {master}, or {sentinel}")))
    }

    fn unfit(&self, is: &str) -> StoreFault {
        let wanted = match self.expected {
            Expected::Standalone => "a master outside of a cluster",
            Expected::SentinelMaster => "a master that sentinels watch",
            Expected::ClusterNode => "a node of a cluster",
        };
        StoreFault::Unfit {
            what: "server".to_owned(),
            message: format!("{wanted}; {} {is}", self.server.address),
        }
    }

    /// The URL of this server in another form, without the login.
    fn url(&self, form: &str, path: &str) -> String {
        self.url_of(&self.server.address, form, path)
    }

    fn url_of(&self, address: &Address, form: &str, path: &str) -> String {
        let tls = if self.server.login.tls.is_some() {
            "s"
        } else {
            ""
        };
        match address {
            Address::Unix(_) => format!("redis{tls}{form}://<host>{path}"),
            tcp => format!("redis{tls}{form}://{tcp}{path}"),
        }
    }
}

/// The service that a sentinel watches, if it watches one and says so.
fn only_service(connection: &mut Connection, left: Duration) -> Option<String> {
    let masters = connection
        .request(redis::cmd("SENTINEL").arg("MASTERS"), left)
        .ok()?;
    let masters: Vec<Vec<String>> = redis::from_redis_value(masters).ok()?;
    let [fields] = masters.as_slice() else {
        return None;
    };
    let name = fields.chunks_exact(2).find(|pair| pair[0] == "name")?;
    Some(name[1].clone()).filter(|name| !name.contains(char::is_control))
}

/// The master of a replica, if the replica says so.
pub(super) fn master_of(connection: &mut Connection, left: Duration) -> Option<Address> {
    let role = connection.request(&redis::cmd("ROLE"), left).ok()?;
    let Value::Array(fields) = role else {
        return None;
    };
    let host: String = redis::from_redis_value_ref(fields.get(1)?).ok()?;
    let port = port_in(fields.get(2)?)?;
    (!host.is_empty()).then_some(Address::Tcp(host, port))
}

/// Major and minor.
fn version_numbers(version: &str) -> (u32, u32) {
    let mut numbers = version.split('.').map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn too_old(server: &Address, version: &str) -> StoreFault {
    StoreFault::Unfit {
        what: "server".to_owned(),
        message: format!(
            "redis {}.{} or newer; {server} is {version}",
            OLDEST_SERVER.0, OLDEST_SERVER.1
        ),
    }
}
