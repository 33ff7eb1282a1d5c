//! Where a behaviour takes place: a redis-server of its own, or an in-memory store of its own.
//!
//! A behaviour is stated once, against a [`Place`], and [`on_both_stores`] makes a test of it for either store. What
//! a place offers is what both can do; a test that needs a process, a socket or a setting of the server is written
//! against [`Server`] and says so.

use std::time::Duration;

use fairlock::Endpoint;
#[cfg(feature = "memory")]
use fairlock::memory::{Memory, Reply};
use redis::{FromRedisValue, Value, from_redis_value};

use crate::support::Server;

/// Makes two tests of each claim, a function that is passed a `&Place`: `claim::on_redis` and `claim::in_memory`.
/// A claim that is missing here is code that nobody calls, which the lints refuse.
macro_rules! on_both_stores {
    ($($claim:ident),+ $(,)?) => {$(
        mod $claim {
            use $crate::place::Place;

            #[test]
            fn on_redis() {
                super::$claim(&Place::redis());
            }

            #[cfg(feature = "memory")]
            #[test]
            fn in_memory() {
                super::$claim(&Place::memory());
            }
        }
    )+};
}
pub(crate) use on_both_stores;

/// What keeps records, to be looked at and damaged behind fairlock's back.
pub(crate) trait Keyspace {
    /// Sends one command; panics if the answer is an error.
    fn ask(&self, command: &[&str]) -> Value;

    /// The keys that would stay for ever. None are named where this cannot be asked.
    fn keys_without_ttl(&self) -> Vec<String>;
}

impl dyn Keyspace + '_ {
    /// Sends one command and panics unless the answer is a `T`.
    #[track_caller]
    pub(crate) fn query<T: FromRedisValue>(&self, command: &[&str]) -> T {
        from_redis_value(self.ask(command)).unwrap_or_else(|e| panic!("{command:?}: {e}"))
    }
}

impl Keyspace for Server {
    fn ask(&self, command: &[&str]) -> Value {
        self.query(command)
    }

    fn keys_without_ttl(&self) -> Vec<String> {
        Server::keys_without_ttl(self)
    }
}

/// One of the two stores, empty when the test begins and gone when it ends.
pub(crate) enum Place {
    Redis(Server),
    #[cfg(feature = "memory")]
    Memory(Memory),
}

impl Place {
    pub(crate) fn redis() -> Place {
        Place::Redis(Server::start())
    }

    #[cfg(feature = "memory")]
    pub(crate) fn memory() -> Place {
        Place::Memory(Memory::new())
    }

    /// Sends one command and panics unless the answer is a `T`. In memory only the commands that the scripts use are
    /// known.
    #[track_caller]
    pub(crate) fn query<T: FromRedisValue>(&self, command: &[&str]) -> T {
        let keys: &dyn Keyspace = self;
        keys.query(command)
    }

    /// The record of one name is gone, as by DEL or an eviction.
    pub(crate) fn delete(&self, name: &str) {
        self.query(&["DEL", &format!("fairlock:{{{name}}}")])
    }

    /// All data is gone, as by FLUSHALL.
    pub(crate) fn flush_all(&self) {
        match self {
            Place::Redis(server) => server.query(&["FLUSHALL"]),
            #[cfg(feature = "memory")]
            Place::Memory(memory) => memory.flush_all(),
        }
    }

    /// From now on nobody is answered: a server is silent, in memory connections are refused.
    pub(crate) fn go_away(&self) {
        match self {
            Place::Redis(server) => server.stop(),
            #[cfg(feature = "memory")]
            Place::Memory(memory) => memory.go_down(),
        }
    }

    /// Answers again, and has kept its data.
    pub(crate) fn come_back(&self) {
        match self {
            Place::Redis(server) => server.cont(),
            #[cfg(feature = "memory")]
            Place::Memory(memory) => memory.come_back(),
        }
    }

    /// The lease of this name lapses and is acted upon; false if nobody has it. The lapse is an expiry rewritten to the
    /// past, and who acts upon it is the shipped release script, asked about a token that nobody knows.
    pub(crate) fn lapse(&self, name: &str) -> bool {
        match self {
            Place::Redis(server) => {
                let (key, now) = (format!("fairlock:{{{name}}}"), "1");
                // One script, so that no renewal comes between the two halves. It marks the grace as given, which
                // a lease gets that lapsed while the server was away.
                let lapsed = "do local owner, fence = unpack(redis.call('HMGET', KEYS[1], 'o', 'f'))\n\
                    if not owner then return false end\n\
                    redis.call('HSET', KEYS[1], 'e', ARGV[8], 'u', fence) end\n";
                let release = include_str!("../../src/script/mutex_release.lua");
                let promote = include_str!("../../src/script/mutex_promote.lua");
                let source = lapsed.to_owned() + &release.replace("--include mutex_promote.lua\n", promote);
                let step = Duration::from_secs(1).as_micros().to_string();
                let (keys, caller) = ([&*key, &format!("{key}:q")], ["nobody", &step, &step, "fairlock:grants:"]);
                let asked = ["0123456789abcdef0123456789abcdef", "0", "unused", now];
                let command = [&["EVAL", &source, "2"][..], &keys, &caller, &asked].concat();
                server.query::<Value>(&command) != Value::Nil
            }
            #[cfg(feature = "memory")]
            Place::Memory(memory) => memory.lapse(name),
        }
    }

    /// Time passes: on Redis it is waited for, in memory the clock is set forward.
    pub(crate) fn pass(&self, time: Duration) {
        match self {
            Place::Redis(_) => std::thread::sleep(time),
            #[cfg(feature = "memory")]
            Place::Memory(memory) => memory.advance(time),
        }
    }

    /// All keys, sorted. In memory, where nobody asks for all, those of this name.
    pub(crate) fn keys(&self, _name: &str) -> Vec<String> {
        match self {
            Place::Redis(server) => {
                let mut keys: Vec<String> = server.query(&["KEYS", "*"]);
                keys.sort();
                keys
            }
            #[cfg(feature = "memory")]
            Place::Memory(memory) => {
                let keys = [format!("fairlock:{{{name}}}"), format!("fairlock:{{{name}}}:q")];
                // A key of another type is there as well, and answers with an error.
                keys.into_iter().filter(|key| memory.command(&["HKEYS", key]) != Reply::List(Vec::new())).collect()
            }
        }
    }

    /// The server, for what nothing else can be asked.
    pub(crate) fn server(&self) -> Option<&Server> {
        match self {
            Place::Redis(server) => Some(server),
            #[cfg(feature = "memory")]
            Place::Memory(_) => None,
        }
    }
}

impl Keyspace for Place {
    fn ask(&self, command: &[&str]) -> Value {
        match self {
            Place::Redis(server) => server.query(command),
            #[cfg(feature = "memory")]
            Place::Memory(memory) => as_value(command, memory.command(command)),
        }
    }

    fn keys_without_ttl(&self) -> Vec<String> {
        match self {
            Place::Redis(server) => server.keys_without_ttl(),
            // The scripts never ask for a TTL, so the store cannot be asked for one.
            #[cfg(feature = "memory")]
            Place::Memory(_) => Vec::new(),
        }
    }
}

#[cfg(feature = "memory")]
#[track_caller]
fn as_value(command: &[&str], reply: Reply) -> Value {
    match reply {
        Reply::Nil => Value::Nil,
        Reply::Int(n) => Value::Int(n),
        Reply::Text(text) => Value::BulkString(text.into_bytes()),
        Reply::List(items) => Value::Array(items.into_iter().map(|item| as_value(command, item)).collect()),
        Reply::Error(words) => panic!("{command:?} failed: {words}"),
        other => panic!("{command:?} was answered {other:?}"),
    }
}

/// So that a manager is built as `LockManager::builder(place)`.
impl From<&Place> for Endpoint {
    fn from(place: &Place) -> Endpoint {
        match place {
            Place::Redis(server) => server.url().into(),
            #[cfg(feature = "memory")]
            Place::Memory(memory) => memory.into(),
        }
    }
}
