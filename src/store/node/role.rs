//! The use of a connection, as the last part of its name in the server's list of clients.

use redis::Cmd;

use crate::script::CallerId;

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
