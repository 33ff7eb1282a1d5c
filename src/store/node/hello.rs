//! HELLO: the client's name, which says what the connection is for, and the server's description of
//! itself.

use std::collections::HashMap;

use crate::script::CallerId;
use redis::{Cmd, Value};

/// The oldest server whose commands the scripts use (LPOP with a count).
pub(super) const OLDEST_SERVER: (u32, u32) = (6, 2);

/// A server's description of itself. A field that it does not send is empty: nobody guesses it.
#[derive(Debug, Default)]
pub(super) struct Hello {
    pub(super) version: String,
    /// `standalone`, `cluster` or `sentinel`.
    pub(super) mode: String,
    /// `master` or `replica`. A sentinel has none.
    role: String,
}

/// The fields of `INFO`: lines of `name:value`. Lines of another shape are left out.
pub(super) struct Info(HashMap<String, String>);

impl Info {
    pub(super) fn parse(text: &str) -> Info {
        let field = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_owned(), value.to_owned()))
        };
        Info(text.lines().filter_map(field).collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// The way in which a server treats writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportedRole<'a> {
    /// It is the one that takes them, or does not say otherwise.
    Master,
    /// It refuses them.
    Replica,
    /// It takes them, and so may another one. KeyDB has `active-replica`.
    OneOfSeveral(&'a str),
}

impl Hello {
    /// From a list of names and values, as HELLO has it.
    pub(super) fn from_fields(fields: &[Value]) -> Hello {
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

    /// From the sections `server` and `replication` of INFO.
    pub(super) fn from_info(info: &Info) -> Hello {
        let field = |name| info.get(name).unwrap_or_default().trim().to_owned();
        let mode = field("redis_mode");
        Hello {
            version: field("redis_version"),
            mode: if mode.is_empty() {
                field("server_mode")
            } else {
                mode
            },
            role: field("role"),
        }
    }

    /// Whether the server says that it is older than the oldest one that is supported.
    pub(super) fn is_too_old(&self) -> bool {
        self.is_before(OLDEST_SERVER)
    }

    /// Whether the server says that it is older than this version.
    pub(super) fn is_before(&self, version: (u32, u32)) -> bool {
        self.numbers().is_some_and(|numbers| numbers < version)
    }

    /// Major and minor, if the version begins with numbers.
    fn numbers(&self) -> Option<(u32, u32)> {
        let mut numbers = self.version.split('.').map(|n| n.parse().ok());
        Some((numbers.next()??, numbers.next().flatten().unwrap_or(0)))
    }

    pub(super) fn role(&self) -> ReportedRole<'_> {
        match self.role.as_str() {
            "" | "master" => ReportedRole::Master,
            "replica" | "slave" => ReportedRole::Replica,
            other => ReportedRole::OneOfSeveral(other),
        }
    }
}

/// The use of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Role {
    /// Short calls.
    Lane,
    /// The renewal thread's renewals, checks and releases.
    Renewal,
    /// Messages about grants.
    Subscription,
    /// Renewals that replicas must acknowledge.
    Acks,
    /// The question for the map of a cluster's slots.
    SlotMap,
    /// The question which server is the master.
    Resolver,
}

impl Role {
    fn label(self) -> &'static str {
        match self {
            Role::Lane => "lane",
            Role::Renewal => "renewal",
            Role::Subscription => "subscription",
            Role::Acks => "acks",
            Role::SlotMap => "slot-map",
            Role::Resolver => "resolver",
        }
    }

    /// HELLO, with the name of the connection. No user needs a right to it, as for AUTH.
    pub(super) fn hello(self, caller_id: &CallerId) -> Cmd {
        let mut hello = hello();
        hello.arg("SETNAME").arg(self.name(caller_id));
        hello
    }

    /// The command that gives the connection its name where HELLO is unknown.
    pub(super) fn set_name(self, caller_id: &CallerId) -> Cmd {
        let mut client = redis::cmd("CLIENT");
        client.arg("SETNAME").arg(self.name(caller_id));
        client
    }

    fn name(self, caller_id: &CallerId) -> String {
        format!("{}:{}", caller_id.connections, self.label())
    }
}

/// HELLO without a name.
pub(super) fn hello() -> Cmd {
    let mut hello = redis::cmd("HELLO");
    hello.arg(2);
    hello
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_is_no_number_is_not_taken_for_an_old_one() {
        let too_old = |version: &str| {
            let hello = Hello {
                version: version.to_owned(),
                ..Hello::default()
            };
            hello.is_too_old()
        };
        for old in ["2.8.19", "5.0.0", "6", "6.0.16", "6.1.241"] {
            assert!(too_old(old), "{old}");
        }
        for other in [
            "",
            "6.2",
            "6.2.14",
            "7.0.15",
            "10.1",
            "255.255.255",
            "unstable",
            "v24",
        ] {
            assert!(!too_old(other), "{other}");
        }
    }
}
