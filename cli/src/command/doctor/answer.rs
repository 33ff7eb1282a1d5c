//! An answer of a server, or why there is none; and the fields of `INFO`, and of other replies of
//! that shape.

use std::collections::HashMap;
use std::fmt;

/// An answer, or why there is none.
pub(super) type Answer<T> = Result<T, Unknown>;

/// Why something is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unknown {
    /// The user may not run this command.
    NoRight(&'static str),
    /// The server does not have this command, or not under this name.
    NoCommand(&'static str),
    /// The server has no such setting or field.
    Absent(String),
    /// The server refused it, and why.
    Failed(String),
    /// The server stopped answering before, and why.
    Unanswered(String),
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not known: ")?;
        match self {
            Unknown::NoRight(command) => write!(f, "no right to {command}"),
            Unknown::NoCommand(command) => write!(f, "the server has no {command}"),
            Unknown::Absent(what) => write!(f, "the server does not say {what}"),
            Unknown::Failed(why) | Unknown::Unanswered(why) => f.write_str(why),
        }
    }
}

/// Lines of `name:value`. Lines of another shape are left out.
#[derive(Debug, Clone, Default)]
pub(super) struct Info(HashMap<String, String>);

/// One line of the replicas of a master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReplicaLine {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) is_online: bool,
    /// For how many seconds it has acknowledged nothing.
    pub(super) lag: u64,
}

impl Info {
    pub(super) fn parse(text: &str) -> Info {
        let field = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_owned(), value.to_owned()))
        };
        Info(text.lines().filter_map(field).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn text(&self, name: &str) -> Answer<&str> {
        self.get(name)
            .ok_or_else(|| Unknown::Absent(name.to_owned()))
    }

    pub(super) fn number(&self, name: &str) -> Answer<u64> {
        let value = self.text(name)?;
        let number = value.parse();
        number.map_err(|_| Unknown::Failed(format!("{name} is {value:?}")))
    }

    /// The replicas that are connected to this master.
    pub(super) fn replicas(&self) -> Vec<ReplicaLine> {
        let count = self.number("connected_slaves").unwrap_or(0);
        // Each has a line of its own. A server may claim any number.
        (0..count.min(self.0.len() as u64))
            .filter_map(|n| read_replica(self.get(&format!("slave{n}"))?))
            .collect()
    }
}

/// `ip=10.0.0.1,port=6379,state=online,offset=14,lag=0`
fn read_replica(line: &str) -> Option<ReplicaLine> {
    let field = |name: &str| {
        let mut pairs = line.split(',').filter_map(|pair| pair.split_once('='));
        pairs.find(|pair| pair.0 == name).map(|pair| pair.1)
    };
    Some(ReplicaLine {
        host: field("ip")?.to_owned(),
        port: field("port")?.parse().ok()?,
        is_online: field("state")? == "online",
        lag: field("lag")?.parse().unwrap_or(u64::MAX),
    })
}

/// Whether this version of Redis is older than that one. One without a number is not.
pub(super) fn is_older(version: &str, than: (u32, u32)) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    let major: Option<u32> = numbers.next().flatten();
    major.is_some_and(|major| (major, numbers.next().flatten().unwrap_or(0)) < than)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_from_lines() {
        let info =
            Info::parse("# Server\r\nredis_version:7.0.15\r\n\r\nmaxmemory:0\r\nsave:a:b\r\n");
        assert_eq!(info.get("redis_version"), Some("7.0.15"));
        assert_eq!(info.number("maxmemory"), Ok(0));
        assert_eq!(info.get("save"), Some("a:b"));
        assert_eq!(info.get("# Server"), None);
        assert!(info.number("redis_version").is_err());
        assert!(info.number("absent").is_err());
    }

    #[test]
    fn versions_are_compared_by_their_first_two_numbers() {
        for (version, is_old) in [
            ("6.0.16", true),
            ("6.2.0", false),
            ("7", false),
            ("10.1", false),
            ("6", true),
            ("", false),
            ("unstable", false),
        ] {
            assert_eq!(is_older(version, (6, 2)), is_old, "{version}");
        }
    }

    /// The lines that 6.2.14, 7.0.15 and Valkey 9.1.2 sent.
    #[test]
    fn replicas_are_read_from_every_server() {
        for line in [
            "slave0:ip=127.0.0.1,port=7001,state=online,offset=14,lag=1",
            "slave0:ip=127.0.0.1,port=7001,state=online,offset=14,lag=1,type=replica",
        ] {
            let info = Info::parse(&format!("role:master\r\nconnected_slaves:1\r\n{line}\r\n"));
            let replica = ReplicaLine {
                host: "127.0.0.1".to_owned(),
                port: 7001,
                is_online: true,
                lag: 1,
            };
            assert_eq!(info.replicas(), [replica], "{line}");
        }
    }

    /// Something that is no Redis. A number that is taken at its word would keep a thread busy for
    /// years.
    #[test]
    fn any_number_of_replicas_may_be_claimed() {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let claim = u64::MAX;
            let line = "slave0:ip=10.0.0.1,port=7001,state=online,offset=14,lag=1";
            let info = Info::parse(&format!("connected_slaves:{claim}\r\n{line}\r\n"));
            sender.send(info.replicas().len())
        });
        let found = receiver.recv_timeout(std::time::Duration::from_secs(10));
        assert_eq!(found, Ok(1));
    }
}
