//! The sort of server that a node must be, and whether it says that it is.

use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;

use super::Node;
use super::connection::Connection;
use super::hello::{Hello, OLDEST_SERVER, ReportedRole};
use crate::store::{Address, StoreFault, port_in};

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

impl Node {
    /// Whether the server is new enough, as far as it says.
    pub(super) fn check_version(&self, hello: &Hello) -> Result<(), StoreFault> {
        if !hello.is_too_old() {
            return Ok(());
        }
        let (major, minor) = OLDEST_SERVER;
        let (address, version) = (self.address(), &hello.version);
        Err(StoreFault::Unfit {
            what: "server",
            message: format!("redis {major}.{minor} or newer; {address} says that it is {version}"),
        })
    }

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
            ("cluster", Expected::Standalone) if self.hides_cluster(connection, left)? => Ok(()),
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

    /// Whether a whole cluster is behind this one address: a server of a cluster that has no CLUSTER
    /// SLOTS is a proxy. It finds the server of each key by itself, so it is used as one server. All
    /// keys of a lock are in one slot. A member of a quorum must be a single server all the same.
    fn hides_cluster(
        &self,
        connection: &mut Connection,
        left: Duration,
    ) -> Result<bool, StoreFault> {
        if self.uptime.is_some() {
            return Ok(false);
        }
        if self.hides_cluster.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let mut slots = redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        let is_hidden = match connection.request(&slots, left) {
            Ok(_) => false,
            // A user of a cluster may lack the right to it.
            Err(fault) if fault.is_lack_of_rights() => false,
            Err(fault) if fault.refuses_command() => true,
            // It answers no CLUSTER command. The next connection asks for no map.
            Err(fault) if fault.is_cut() => {
                self.hides_cluster.store(true, Ordering::Relaxed);
                return Err(fault);
            }
            Err(fault) => return Err(fault),
        };
        self.hides_cluster.store(is_hidden, Ordering::Relaxed);
        Ok(is_hidden)
    }

    /// Whether the server is a master, if it must be one. Asks a replica for its master, for at
    /// most `left`.
    pub(super) fn check_role(
        &self,
        hello: &Hello,
        connection: &mut Connection,
        left: Duration,
    ) -> Result<(), StoreFault> {
        match hello.role() {
            ReportedRole::OneOfSeveral(role) => return Err(self.unfit(&one_of_several(role))),
            ReportedRole::Replica if self.expected != Expected::ClusterNode => {}
            ReportedRole::Replica | ReportedRole::Master => {
                self.was_master.store(true, Ordering::Relaxed);
                return Ok(());
            }
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
        let master = match master_of(connection, &self.server.address, left) {
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
            what: "server",
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
            tcp => format!("redis{tls}{form}://{}{path}", tcp.in_url()),
        }
    }
}

/// The danger of a server with this role: `active-replica`, say.
fn one_of_several(role: &str) -> String {
    format!(
        "has the role {role}: it takes writes while another server takes them, too, so both could grant \
         one lock; use a server that is the only master"
    )
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

/// The master of the replica at `asked`, if the replica says so.
pub(super) fn master_of(
    connection: &mut Connection,
    asked: &Address,
    left: Duration,
) -> Option<Address> {
    let role = connection.request(&redis::cmd("ROLE"), left).ok()?;
    let Value::Array(fields) = role else {
        return None;
    };
    let host: String = redis::from_redis_value_ref(fields.get(1)?).ok()?;
    let port = port_in(fields.get(2)?)?;
    (!host.is_empty()).then(|| Address::named_by(asked, &host, port))
}
