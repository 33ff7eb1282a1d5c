//! Names with the addresses that a test wants, and addresses that lead nowhere.

use std::env;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use redis::io::tcp::socket2::{Domain, SockAddr, Socket, Type};
use tempfile::TempDir;

use super::{Child, preload::library, until};

/// Names, for worker processes alone: their C library looks them up here.
pub(crate) struct Hosts {
    table: String,
    dir: TempDir,
}

impl Hosts {
    /// Each name with its addresses, in the order in which the system would return them. A name
    /// without any is never resolved: the question for it hangs.
    pub(crate) fn new(names: &[(&str, &[Ipv4Addr])]) -> Hosts {
        let line = |(name, addresses): &(&str, &[Ipv4Addr])| {
            let addresses: Vec<_> = addresses.iter().map(Ipv4Addr::to_string).collect();
            format!("{name}={}", addresses.join(","))
        };
        let lines: Vec<String> = names.iter().map(line).collect();
        Hosts {
            table: lines.join(";"),
            dir: tempfile::tempdir().expect("a directory"),
        }
    }

    /// A worker that knows these names.
    pub(crate) fn spawn(&self, role: &str, args: &[&str]) -> Child {
        let this = env::current_exe().expect("a running test has a binary");
        let mut command = Command::new(this);
        self.add_to(&mut command);
        Child::spawn_by(command, role, args)
    }

    /// Lets a process that this command starts know these names.
    pub(crate) fn add_to(&self, command: &mut Command) {
        let library = library(self.dir.path(), "hosts", include_str!("hosts.c"));
        command
            .env("LD_PRELOAD", library)
            .env("TEST_HOSTS", &self.table);
    }
}

/// The fate of connections to an address.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Nowhere {
    /// Packets to it are swallowed, as by a route that is dead.
    Swallows,
    /// It accepts connections and says nothing, as a balancer before a server that is gone.
    Accepts,
}

/// An address that leads nowhere, while this exists.
pub(crate) struct BlackHole {
    _listener: Socket,
    _queued: Vec<Socket>,
}

impl BlackHole {
    pub(crate) fn at(address: SocketAddr, how: Nowhere) -> BlackHole {
        let socket = || Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
        let address = SockAddr::from(address);
        let listener = socket();
        listener.bind(&address).expect("the port is free there");
        let backlog = if how == Nowhere::Accepts { 128 } else { 0 };
        listener.listen(backlog).expect("it listens");
        let mut queued = Vec::new();
        if how == Nowhere::Swallows {
            // A full queue has the system drop what comes.
            let mut unanswered = 0;
            until(Duration::from_secs(8), "the queue is full", || {
                let client = socket();
                let connected = client.connect_timeout(&address, Duration::from_millis(100));
                match connected {
                    Ok(()) => unanswered = 0,
                    Err(e) if e.kind() == io::ErrorKind::TimedOut => unanswered += 1,
                    Err(e) => panic!("{e}"),
                }
                queued.push(client);
                unanswered == 3
            });
        }
        BlackHole {
            _listener: listener,
            _queued: queued,
        }
    }
}
