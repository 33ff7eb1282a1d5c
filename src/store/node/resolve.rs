//! The addresses of a server.
//!
//! The system's resolver has no timeout that a program could set, and nothing can stop it. So a
//! thread asks it, and callers wait for that thread within their own time. If it hangs, every later
//! caller waits for the same answer: a name that cannot be resolved costs one thread, however often
//! a connection to it is tried.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::Step;
use crate::store::{Address, StoreFault};

/// An address to connect a socket to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Peer {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// All addresses of a server, in the order in which they are to be tried. Blocks for `timeout` at
/// most.
pub(super) fn peers_of(address: &Address, timeout: Duration) -> Result<Vec<Peer>, StoreFault> {
    static RESOLVER: SystemResolver = SystemResolver::new(|host| {
        let found = (host, 0).to_socket_addrs()?;
        Ok(found.collect())
    });
    let (host, port) = match address {
        Address::Unix(path) => return Ok(vec![Peer::Unix(path.clone())]),
        Address::Tcp(host, port) => (host, *port),
    };
    let found = match host.parse::<IpAddr>() {
        Ok(ip) => vec![SocketAddr::new(ip, port)],
        Err(_) => RESOLVER.resolve(host, timeout)?,
    };
    let of_server = |mut found: SocketAddr| {
        found.set_port(port);
        Peer::Tcp(found)
    };
    Ok(interleaved(found).into_iter().map(of_server).collect())
}

/// The same addresses, each once, with those of the two families in turn. So if one family leads
/// nowhere, the second address is of the other one (RFC 8305, section 4).
fn interleaved(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let mut each: Vec<SocketAddr> = Vec::with_capacity(addresses.len());
    for address in addresses {
        if !each.contains(&address) {
            each.push(address);
        }
    }
    let first_is_v4 = each.first().is_some_and(SocketAddr::is_ipv4);
    let (preferred, others): (Vec<_>, Vec<_>) = each
        .into_iter()
        .partition(|address| address.is_ipv4() == first_is_v4);
    let mut others = others.into_iter();
    let mut mixed = Vec::new();
    for address in preferred {
        mixed.push(address);
        mixed.extend(others.next());
    }
    mixed.extend(others);
    mixed
}

type LookUp = fn(&str) -> io::Result<Vec<SocketAddr>>;

/// Asks the system for names, with one thread for each name at most.
struct SystemResolver {
    look_up: LookUp,
    /// `None` before the first question.
    asked: Mutex<Option<Asked>>,
}

/// The questions under way. The process is a part of the key: in a forked child, the thread that
/// would answer a question of its parent does not exist.
type Asked = HashMap<(u32, String), Arc<Question>>;

/// A question to the system.
#[derive(Default)]
struct Question {
    answer: Mutex<Option<Found>>,
    answered: Condvar,
}

/// The answer, in a form that many callers can have.
type Found = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;

impl SystemResolver {
    const fn new(look_up: LookUp) -> SystemResolver {
        SystemResolver {
            look_up,
            asked: parking_lot::const_mutex(None),
        }
    }

    fn resolve(
        &'static self,
        host: &str,
        timeout: Duration,
    ) -> Result<Vec<SocketAddr>, StoreFault> {
        let ends_at = Instant::now() + timeout;
        let question = self.question(host).map_err(StoreFault::no_thread)?;
        let mut answer = question.answer.lock();
        while answer.is_none() {
            if question
                .answered
                .wait_until(&mut answer, ends_at)
                .timed_out()
            {
                break;
            }
        }
        let found = match &*answer {
            Some(Ok(addresses)) if addresses.is_empty() => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the host has no address",
            )),
            Some(Ok(addresses)) => Ok(addresses.clone()),
            Some(Err((kind, message))) => Err(io::Error::new(*kind, message.clone())),
            None => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the name {host} could not be resolved in time"),
            )),
        };
        found.map_err(|error| StoreFault::unavailable(Step::Connect, error))
    }

    /// The question for this name that is under way, or a new one.
    fn question(&'static self, host: &str) -> io::Result<Arc<Question>> {
        let key = (std::process::id(), host.to_owned());
        let mut asked = self.asked.lock();
        let asked = asked.get_or_insert_default();
        if let Some(question) = asked.get(&key) {
            return Ok(Arc::clone(question));
        }
        let question = Arc::new(Question::default());
        let own = Arc::clone(&question);
        let of_thread = key.clone();
        thread::Builder::new()
            .name("fairlock-resolve".to_owned())
            .spawn(move || self.ask(&of_thread, &own))?;
        asked.insert(key, Arc::clone(&question));
        Ok(question)
    }

    fn ask(&self, key: &(u32, String), question: &Question) {
        let found = (self.look_up)(&key.1).map_err(|e| (e.kind(), e.to_string()));
        // From here on, a caller asks anew: names get other addresses.
        if let Some(asked) = &mut *self.asked.lock() {
            asked.remove(key);
        }
        *question.answer.lock() = Some(found);
        question.answered.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const SLACK: Duration = Duration::from_millis(1500);
    const TIMEOUT: Duration = Duration::from_millis(100);

    fn v4(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 0))
    }

    fn v6(last: u16) -> SocketAddr {
        SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, last], 0))
    }

    #[test]
    fn families_of_addresses_take_turns() {
        let mixed = interleaved(vec![v6(1), v6(2), v6(1), v6(3), v4(1)]);
        assert_eq!(mixed, [v6(1), v4(1), v6(2), v6(3)]);
        assert_eq!(
            interleaved(vec![v4(1), v6(1), v6(2)]),
            [v4(1), v6(1), v6(2)]
        );
        assert_eq!(interleaved(Vec::new()), []);
    }

    #[test]
    fn literal_addresses_need_no_resolver() {
        let of = |host: &str| peers_of(&Address::Tcp(host.to_owned(), 7), Duration::ZERO);
        let v4 = SocketAddr::from(([127, 0, 0, 1], 7));
        assert_eq!(of("127.0.0.1").unwrap(), [Peer::Tcp(v4)]);
        let v6 = "[::1]:7".parse().unwrap();
        assert_eq!(of("::1").unwrap(), [Peer::Tcp(v6)]);
    }

    #[test]
    fn resolver_that_hangs_costs_one_thread_for_each_name() {
        static LOOK_UPS: AtomicU32 = AtomicU32::new(0);
        static HANGS: Mutex<()> = parking_lot::const_mutex(());
        static RESOLVER: SystemResolver = SystemResolver::new(|_| {
            LOOK_UPS.fetch_add(1, Ordering::SeqCst);
            drop(HANGS.lock());
            Ok(vec![v4(1)])
        });
        let hangs = HANGS.lock();
        for _ in 0..5 {
            for host in ["one.example", "two.example"] {
                let started = Instant::now();
                let error = RESOLVER.resolve(host, TIMEOUT).expect_err("it hangs");
                let took = started.elapsed();
                assert!(error.to_string().contains("in time"), "{error}");
                assert!(error.to_string().contains(host), "{error}");
                assert!(took >= TIMEOUT && took <= TIMEOUT + SLACK, "{took:?}");
            }
        }
        assert_eq!(LOOK_UPS.load(Ordering::SeqCst), 2);
        let waiting = thread::spawn(|| RESOLVER.resolve("one.example", SLACK));
        drop(hangs);
        let found = waiting.join().expect("no panic").expect("it is resolved");
        assert_eq!(found, [v4(1)]);
    }

    /// A name gets other addresses: pods move.
    #[test]
    fn answers_are_not_kept() {
        static LOOK_UPS: AtomicU32 = AtomicU32::new(0);
        static RESOLVER: SystemResolver =
            SystemResolver::new(|_| match LOOK_UPS.fetch_add(1, Ordering::SeqCst) {
                0 => Err(io::ErrorKind::NotFound.into()),
                1 => Ok(Vec::new()),
                number => Ok(vec![v4(number as u8)]),
            });
        assert!(RESOLVER.resolve("a.example", SLACK).is_err());
        let empty = RESOLVER
            .resolve("a.example", SLACK)
            .expect_err("no address");
        assert!(
            empty.reason().ends_with("the host has no address"),
            "{empty}"
        );
        for number in 2..4 {
            let found = RESOLVER.resolve("a.example", SLACK).expect("an address");
            assert_eq!(found, [v4(number)]);
        }
    }
}
