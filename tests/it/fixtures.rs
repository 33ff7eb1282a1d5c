//! The shared parts of the tests of faults: managers with short periods, waiters on threads of
//! their own, and access to the record in Redis.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use fairlock::{Builder, Error, LockGuard, LockManager, LockOptions, Result, endpoint::Endpoint};

use crate::backend::Keyspace;
use crate::support::scripted_server::{is, next_command};
use crate::support::{Server, packed, until, until_some};

/// The settings of most tests: short, yet with a timeout that a busy machine seldom misses.
// The defaults of a manager.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(10);
pub(crate) const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_millis(500);
pub(crate) const DEFAULT_CHECK_PERIOD: Duration = Duration::from_secs(1);
pub(crate) const DEFAULT_HORIZON: Duration = Duration::from_secs(5);
pub(crate) const DEFAULT_OUTAGE_LIMIT: Duration = Duration::from_secs(10);
pub(crate) const DEFAULT_LANES: u32 = 2;

pub(crate) const TTL: Duration = Duration::from_secs(3);
pub(crate) const T: Duration = Duration::from_millis(400);
pub(crate) const P: Duration = Duration::from_millis(250);
pub(crate) const H: Duration = Duration::from_millis(1500);

/// The settings of [`steady`].
pub(crate) const STEADY_TTL: Duration = Duration::from_millis(6500);
pub(crate) const STEADY_T: Duration = Duration::from_secs(1);

/// For what must happen, but whose time is not under test. A busy machine takes seconds.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) fn builder(to: impl Into<Endpoint>) -> Builder {
    with_ttl(to, TTL)
        .command_timeout(T)
        .check_period(P)
        .horizon(H)
}

pub(crate) fn with_ttl(to: impl Into<Endpoint>, ttl: Duration) -> Builder {
    LockManager::builder(to).options(LockOptions::new().ttl(ttl))
}

pub(crate) fn manager(to: impl Into<Endpoint>) -> LockManager {
    build(builder(to))
}

/// A manager with timeouts that a loaded machine keeps, for tests that break only one thing.
pub(crate) fn steady(to: impl Into<Endpoint>) -> Builder {
    let horizon = P + 13 * STEADY_T / 4;
    with_ttl(to, STEADY_TTL)
        .command_timeout(STEADY_T)
        .check_period(P)
        .horizon(horizon)
}

/// Builds the manager, and tries again if the machine was too slow for the connect timeout.
#[track_caller]
pub(crate) fn build(builder: Builder) -> LockManager {
    until_some(SOON, "the server is there", || {
        match builder.clone().build() {
            Ok(manager) => Some(manager),
            Err(Error::Unavailable { .. }) => None,
            Err(other) => panic!("{other}"),
        }
    })
}

/// Loads the scripts into the server, so that later requests use EVALSHA. Opens the subscription, so
/// that later waits do not begin with it, and all lanes.
pub(crate) fn warm_up(manager: &LockManager) {
    let guard = manager.lock("warm").expect("it is free");
    guard.renew().expect("it is held");
    drop(manager.enqueue("warm").expect("a place in the queue"));
    guard.unlock().expect("it is held");
    // So many names are on both lanes.
    for i in 0..8 {
        manager.inspect(format!("warm{i}")).expect("an answer");
    }
}

/// Another manager gets the lock within this time, after a clean release.
#[track_caller]
pub(crate) fn is_free_within(within: Duration, other: &LockManager, name: &str) {
    let guard = until_some(within, &format!("{name} is free"), || {
        other.try_lock(name).unwrap()
    });
    assert_eq!(guard.previous_holder(), fairlock::PreviousHolder::Released);
    guard.unlock().unwrap();
}

/// Waiters for one name, each on a thread of its own, and the results of their waits in order of
/// arrival.
pub(crate) struct Waiters {
    name: String,
    sender: Sender<(usize, Result<LockGuard>)>,
    results: Receiver<(usize, Result<LockGuard>)>,
    added: usize,
}

impl Waiters {
    pub(crate) fn of(name: &str) -> Waiters {
        let (sender, results) = unbounded();
        Waiters {
            name: name.to_owned(),
            sender,
            results,
            added: 0,
        }
    }

    /// Adds a waiter, which is queued when this returns. Waiters are numbered from 0.
    #[track_caller]
    pub(crate) fn add(&mut self, manager: &LockManager) {
        let waiter = manager.enqueue(&self.name).expect("a place in the queue");
        assert!(waiter.position().is_some(), "it has to wait");
        let sender = self.sender.clone();
        let number = self.added;
        thread::spawn(move || sender.send((number, waiter.wait())));
        self.added += 1;
    }

    /// The next wait that ends: the waiter's number and its result.
    #[track_caller]
    pub(crate) fn next_end(&self, within: Duration) -> (usize, Result<LockGuard>) {
        match self.results.recv_timeout(within) {
            Ok(end) => end,
            Err(_) => panic!("no wait ended within {within:?}"),
        }
    }

    /// Requires that the next wait to end is this waiter's, and that it is granted.
    #[track_caller]
    pub(crate) fn expect_grant(&self, number: usize, within: Duration) -> LockGuard {
        let (served, end) = self.next_end(within);
        let guard = end.unwrap_or_else(|e| panic!("waiter {served} got {e} instead of the lock"));
        assert_eq!(served, number, "the order of the queue");
        guard
    }

    /// True if no wait has ended without being received here.
    pub(crate) fn none_ended(&self) -> bool {
        self.results.is_empty()
    }
}

/// A lock's two keys, read and rewritten behind fairlock's back.
pub(crate) struct Record<'a> {
    keys: &'a dyn Keyspace,
    pub(crate) key: String,
    pub(crate) queue: String,
}

impl<'a> Record<'a> {
    pub(crate) fn of(keys: &'a dyn Keyspace, name: &str) -> Record<'a> {
        let key = format!("fairlock:{{{name}}}");
        let queue = format!("{key}:q");
        Record { keys, key, queue }
    }

    /// One of the fields, or one of the numbers that are packed in `s` and `q`.
    pub(crate) fn field(&self, field: &str) -> Option<String> {
        self.fields().remove(field)
    }

    #[track_caller]
    pub(crate) fn number(&self, field: &str) -> u64 {
        let text = self
            .field(field)
            .unwrap_or_else(|| panic!("no field {field}: {:?}", self.fields()));
        text.parse()
            .unwrap_or_else(|e| panic!("{field} is {text:?}: {e}"))
    }

    /// Writes several fields in one step, so that no script sees only some of them.
    pub(crate) fn set(&self, fields: &[(&str, &str)]) {
        let mut command = vec![
            "EVAL".to_owned(),
            packed::SET.to_owned(),
            "1".to_owned(),
            self.key.clone(),
        ];
        for (field, value) in fields {
            command.extend(packed::words(field, value));
        }
        let _: i64 = self
            .keys
            .query(&command.iter().map(String::as_str).collect::<Vec<_>>());
    }

    pub(crate) fn owner(&self) -> Option<String> {
        self.field("o")
    }

    pub(crate) fn fields(&self) -> BTreeMap<String, String> {
        self.keys.query(&["EVAL", packed::LOOK, "1", &self.key])
    }

    /// The names of the fields that begin with this.
    pub(crate) fn starting(&self, prefix: &str) -> Vec<String> {
        self.fields()
            .into_keys()
            .filter(|field| field.starts_with(prefix))
            .collect()
    }

    /// The tokens in the queue, dead ones included.
    pub(crate) fn tokens(&self) -> Vec<String> {
        self.keys.query(&["LRANGE", &self.queue, "0", "-1"])
    }

    /// The contents of both keys and their expiries. DUMP would not do: the order of a hash's
    /// fields is not part of its value.
    pub(crate) fn dump(&self) -> [Option<String>; 2] {
        [&self.key, &self.queue].map(|key| {
            let kind: String = self.keys.query(&["TYPE", key]);
            let value = match kind.as_str() {
                "none" => return None,
                "hash" => {
                    format!(
                        "{:?}",
                        self.keys.query::<BTreeMap<String, String>>(&[
                            "EVAL",
                            packed::LOOK,
                            "1",
                            key
                        ])
                    )
                }
                "list" => format!(
                    "{:?}",
                    self.keys.query::<Vec<String>>(&["LRANGE", key, "0", "-1"])
                ),
                _ => self.keys.query(&["GET", key]),
            };
            let expires = self.keys.expires_at(key);
            Some(format!("{kind} {value} {expires}"))
        })
    }

    /// Waits until nobody holds the lock or waits for it and no trace of earlier users is left.
    #[track_caller]
    pub(crate) fn comes_to_rest(&self) {
        until(SOON, "the lock is free and its queue empty", || {
            let fields = self.fields();
            let zero = |field| fields.get(field).is_none_or(|n| n == "0");
            !fields.contains_key("o")
                && zero("n")
                && zero("r")
                && !fields.keys().any(|field| field.starts_with("w:"))
                && self.tokens().is_empty()
        });
        assert!(self.keys.keys_without_ttl().is_empty());
    }
}

/// The manager that a record's request or waiter belongs to.
pub(crate) fn manager_of(request: &str) -> String {
    request
        .split(' ')
        .nth(2)
        .expect("a request names its manager")
        .to_owned()
}

/// The server's time in µs.
pub(crate) fn server_time(keys: &dyn Keyspace) -> u64 {
    let (seconds, micros): (u64, u64) = keys.query(&["TIME"]);
    seconds * 1_000_000 + micros
}

pub(crate) fn micros(d: Duration) -> u64 {
    d.as_micros() as u64
}

/// The verbs of the scripts, distinguished by the number of a request's words.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Verb {
    Acquire,
    Release,
    Renew,
    Pass,
    Sync,
    Vacate,
}

impl Verb {
    /// For each verb, the number of keys and of words: of a mutex first, then of permits.
    fn shapes(self) -> [(&'static str, usize); 2] {
        match self {
            Verb::Acquire => [("2", 13), ("3", 15)],
            Verb::Release => [("2", 12), ("3", 13)],
            Verb::Renew => [("1", 10), ("2", 11)],
            // Only a mutex is passed on.
            Verb::Pass => [("1", 14); 2],
            Verb::Sync => [("2", 11), ("3", 12)],
            Verb::Vacate => [("2", 9), ("3", 10)],
        }
    }

    pub(crate) fn is_in(self, words: &[Vec<u8>], name: &str) -> bool {
        let key = format!("fairlock:{{{name}}}");
        (is(words, "EVALSHA") || is(words, "EVAL"))
            && self.shapes().iter().any(|(keys, length)| words.len() == *length && words[2] == keys.as_bytes())
            // A lookup of tokens may have any length.
            && !(words[2] == b"3" && words.len() > 10 && words[10..].iter().all(|word| word.len() == 32))
            // An inspection of permits has as many words as a sync.
            && (words.len() != 12 || words[2] != b"3" || words[11].len() == 32)
            // A renewal of permits names the holders' key first, and has as many words as a sync.
            && match (self, words[2] == b"2") {
                (Verb::Renew, true) => words[3] == format!("{key}:h").as_bytes(),
                _ => words[3] == key.as_bytes(),
            }
    }
}

/// Matches bytes at the proxy that contain this request.
pub(crate) fn request(verb: Verb, name: &str) -> impl Fn(&[u8]) -> bool + Send + 'static {
    release_or_other(verb, name, None)
}

/// Matches a release in this mode.
pub(crate) fn release(mode: &'static str, name: &str) -> impl Fn(&[u8]) -> bool + Send + 'static {
    release_or_other(Verb::Release, name, Some(mode))
}

fn release_or_other(
    verb: Verb,
    name: &str,
    mode: Option<&'static str>,
) -> impl Fn(&[u8]) -> bool + Send + 'static {
    let name = name.to_owned();
    move |bytes| {
        let mut at = 0;
        while let Some((words, length)) = next_command(&bytes[at..]) {
            at += length;
            if verb.is_in(&words, &name)
                && mode.is_none_or(|mode| words.last().is_some_and(|last| last == mode.as_bytes()))
            {
                return true;
            }
        }
        false
    }
}

/// The requests of one verb that the server ran, oldest first, from its slow log. The server must
/// have been started with [`LOG_ALL`].
pub(crate) fn log_of(server: &Server, verb: Verb, name: &str) -> Vec<Vec<String>> {
    let mut requests = log_of_all(server);
    requests.retain(|words| {
        let words: Vec<Vec<u8>> = words.iter().map(|w| w.clone().into_bytes()).collect();
        verb.is_in(&words, name)
    });
    requests
}

/// All requests that the server ran; see [`log_of`].
pub(crate) fn log_of_all(server: &Server) -> Vec<Vec<String>> {
    let log: Vec<redis::Value> = server.query(&["SLOWLOG", "GET", "-1"]);
    let mut requests: Vec<Vec<String>> = log
        .into_iter()
        .filter_map(|entry| {
            let redis::Value::Array(parts) = entry else {
                return None;
            };
            redis::from_redis_value(parts.into_iter().nth(3)?).ok()
        })
        .collect();
    requests.reverse();
    requests
}

pub(crate) const LOG_ALL: [&str; 4] = [
    "--slowlog-log-slower-than",
    "0",
    "--slowlog-max-len",
    "100000",
];
