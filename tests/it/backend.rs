//! Where a behaviour takes place: a redis-server of its own, or an in-memory store of its own.
//!
//! A behaviour is stated once, against a [`Backend`], and [`on_both_stores`] makes a test of it for either store. What
//! a place offers is what both can do; a test that needs a process, a socket or a setting of the server is written
//! against [`Server`] and says so.

use std::{convert::Infallible, panic::resume_unwind, sync::Arc, thread, time::Duration};

use crossbeam_channel::{RecvTimeoutError, bounded};
use fairlock::Endpoint;
#[cfg(feature = "memory")]
use fairlock::memory::{Fault, Memory, Reply};
use redis::{FromRedisValue, Value, from_redis_value};

use crate::support::{Proxy, Server, contains};

/// Makes two tests of each claim, a function that is passed a `&Backend`: `claim::on_redis` and `claim::in_memory`.
/// A claim that is missing here is code that nobody calls, which the lints refuse.
/// Behind `redis_with_faults:` stand claims whose places [`inject`](Backend::inject).
macro_rules! on_both_stores {
    ($($claim:ident),+ $(,)?) => {
        on_both_stores! { redis: $($claim),+ }
    };
    ($redis:ident: $($claim:ident),+ $(,)?) => {$(
        mod $claim {
            use $crate::backend::Backend;

            #[test]
            fn on_redis() {
                Backend::$redis().hold(super::$claim);
            }

            #[cfg(feature = "memory")]
            #[test]
            fn in_memory() {
                Backend::memory().hold(super::$claim);
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

/// What befalls the next request of any manager, or the next message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InjectedFault {
    /// The request does not arrive, and nothing is heard of it.
    RequestLost,
    /// The request is carried out, and nothing is heard of it.
    ReplyLost,
    /// The request is carried out, and the connection is closed before the reply.
    Disconnect,
    /// A grant is published to nobody. On Redis it strikes for good: the right to publish is taken away.
    MessageLost,
}

/// One of the two stores, empty when the test begins and gone when it ends.
pub(crate) enum Backend {
    /// With a proxy in between, if the network is to fail.
    Redis(Box<Server>, Option<Proxy>),
    #[cfg(feature = "memory")]
    Memory(Memory),
}

impl Backend {
    pub(crate) fn redis() -> Backend {
        Backend::Redis(Box::new(Server::start()), None)
    }

    /// As [`redis`](Self::redis), with a network that [`inject`](Self::inject) can break.
    pub(crate) fn redis_with_faults() -> Backend {
        let server = Box::new(Server::tcp());
        let proxy = Proxy::to(server.addr());
        Backend::Redis(server, Some(proxy))
    }

    #[cfg(feature = "memory")]
    pub(crate) fn memory() -> Backend {
        Backend::Memory(Memory::new())
    }

    /// Holds a claim against this place. One that never ends would stall all tests and name none, so it fails.
    pub(crate) fn hold(self, claim: fn(&Backend)) {
        const LONGEST: Duration = Duration::from_secs(120);
        let backend = Arc::new(self);
        let (under_way, over) = bounded::<Infallible>(0);
        // Under the test's own name, by which its failure is told.
        let named =
            thread::Builder::new().name(thread::current().name().unwrap_or("claim").to_owned());
        let holding = named.spawn({
            let backend = Arc::clone(&backend);
            move || {
                let _under_way = under_way;
                claim(&backend);
            }
        });
        if over.recv_timeout(LONGEST) == Err(RecvTimeoutError::Timeout) {
            // Nobody else will, since the thread is left behind with it.
            if let Some(server) = backend.server() {
                server.kill();
            }
            panic!("this has not ended after {LONGEST:?}");
        }
        if let Err(panic) = holding.expect("a thread can be started").join() {
            resume_unwind(panic);
        }
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

    /// Waits until no manager has anything to do by itself, where that can be known.
    pub(crate) fn settle(&self) {
        match self {
            Backend::Redis(..) => {}
            #[cfg(feature = "memory")]
            Backend::Memory(memory) => memory.advance(Duration::ZERO),
        }
    }

    /// All data is gone, as by FLUSHALL.
    pub(crate) fn flush_all(&self) {
        match self {
            Backend::Redis(server, _) => server.query(&["FLUSHALL"]),
            #[cfg(feature = "memory")]
            Backend::Memory(memory) => memory.flush_all(),
        }
    }

    /// From now on nobody is answered: a server is silent, in memory connections are refused.
    pub(crate) fn go_away(&self) {
        match self {
            Backend::Redis(server, _) => server.stop(),
            #[cfg(feature = "memory")]
            Backend::Memory(memory) => memory.go_down(),
        }
    }

    /// Answers again, and has kept its data.
    pub(crate) fn come_back(&self) {
        match self {
            Backend::Redis(server, _) => server.cont(),
            #[cfg(feature = "memory")]
            Backend::Memory(memory) => memory.come_back(),
        }
    }

    /// The lease of this name lapses and is acted upon; false if nobody has it. The lapse is an expiry rewritten to the
    /// past, and who acts upon it is the shipped release script, asked about a token that nobody knows.
    pub(crate) fn lapse(&self, name: &str) -> bool {
        match self {
            Backend::Redis(server, _) => {
                let (key, now) = (format!("fairlock:{{{name}}}"), "1");
                // One script, so that no renewal comes between the two halves. It marks the grace as given, which
                // a lease gets that lapsed while the server was away.
                let lapsed = "do local owner, s = unpack(redis.call('HMGET', KEYS[1], 'o', 's'))\n\
                    if not owner then return false end\n\
                    redis.call('HSET', KEYS[1], 's', struct.pack('<d', ARGV[8]) .. string.sub(s, 9), 'u', \
                               string.format('%.0f', (struct.unpack('<d', string.sub(s, 17))))) end\n";
                let source =
                    lapsed.to_owned() + &whole(include_str!("../../src/script/mutex_release.lua"));
                let step = Duration::from_secs(1).as_micros().to_string();
                let (keys, caller) = (
                    [&*key, &format!("{key}:q")],
                    ["nobody", &step, &step, "fairlock:grants:"],
                );
                let asked = ["0123456789abcdef0123456789abcdef", "0", "unused", now];
                let command = [&["EVAL", &source, "2"][..], &keys, &caller, &asked].concat();
                server.query::<Value>(&command) != Value::Nil
            }
            #[cfg(feature = "memory")]
            Backend::Memory(memory) => memory.lapse(name),
        }
    }

    pub(crate) fn inject(&self, fault: InjectedFault) {
        match self {
            Backend::Redis(server, Some(proxy)) => {
                // Scripts alone, since no call is made of anything else. What comes of the traps is seen by the claims.
                let script = contains("EVAL");
                match fault {
                    InjectedFault::RequestLost => drop(proxy.hold_request_when(script)),
                    InjectedFault::ReplyLost => drop(proxy.swallow_silently_when(script)),
                    InjectedFault::Disconnect => drop(proxy.swallow_reply_when(script)),
                    InjectedFault::MessageLost => {
                        server.query(&["ACL", "SETUSER", "default", "-publish"])
                    }
                }
            }
            Backend::Redis(_, None) => {
                panic!("nothing can be injected here: say redis_with_faults")
            }
            #[cfg(feature = "memory")]
            Backend::Memory(memory) => memory.inject(match fault {
                InjectedFault::RequestLost => Fault::LoseRequest,
                InjectedFault::ReplyLost => Fault::LoseReply,
                InjectedFault::Disconnect => Fault::Disconnect,
                InjectedFault::MessageLost => Fault::LoseMessage,
            }),
        }
    }

    /// Time passes: on Redis it is waited for, in memory the clock is set forward.
    pub(crate) fn pass(&self, time: Duration) {
        match self {
            Backend::Redis(..) => thread::sleep(time),
            #[cfg(feature = "memory")]
            Backend::Memory(memory) => memory.advance(time),
        }
    }

    /// All keys, this name's record first. In memory, where nobody asks for all, only those of this name.
    pub(crate) fn keys(&self, name: &str) -> Vec<String> {
        let record = format!("fairlock:{{{name}}}");
        match self {
            Backend::Redis(server, _) => {
                let mut keys: Vec<String> = server.query(&["KEYS", "*"]);
                keys.sort_by_key(|key| *key != record);
                keys
            }
            #[cfg(feature = "memory")]
            Backend::Memory(memory) => {
                let (queue, holders) = (format!("{record}:q"), format!("{record}:h"));
                // A key of another type is there as well, and answers with an error.
                let is_there =
                    |key: &String| memory.command(&["HKEYS", key]) != Reply::List(Vec::new());
                [record, queue, holders]
                    .into_iter()
                    .filter(is_there)
                    .collect()
            }
        }
    }

    /// The server, for what nothing else can be asked.
    pub(crate) fn server(&self) -> Option<&Server> {
        match self {
            Backend::Redis(server, _) => Some(server),
            #[cfg(feature = "memory")]
            Backend::Memory(_) => None,
        }
    }
}

impl Keyspace for Backend {
    fn ask(&self, command: &[&str]) -> Value {
        match self {
            Backend::Redis(server, _) => server.query(command),
            #[cfg(feature = "memory")]
            Backend::Memory(memory) => as_value(command, memory.command(command)),
        }
    }

    fn keys_without_ttl(&self) -> Vec<String> {
        match self {
            Backend::Redis(server, _) => server.keys_without_ttl(),
            // The scripts never ask for a TTL, so the store cannot be asked for one.
            #[cfg(feature = "memory")]
            Backend::Memory(_) => Vec::new(),
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
        Reply::List(items) => Value::Array(
            items
                .into_iter()
                .map(|item| as_value(command, item))
                .collect(),
        ),
        Reply::Error(words) => panic!("{command:?} failed: {words}"),
        other => panic!("{command:?} was answered {other:?}"),
    }
}

/// So that a manager is built as `LockManager::builder(place)`.
impl From<&Backend> for Endpoint {
    fn from(backend: &Backend) -> Endpoint {
        match backend {
            Backend::Redis(_, Some(proxy)) => proxy.url().into(),
            Backend::Redis(server, None) => server.url().into(),
            #[cfg(feature = "memory")]
            Backend::Memory(memory) => memory.into(),
        }
    }
}

/// A script with what it includes.
pub(crate) fn whole(script: &str) -> String {
    let mut whole = script.to_owned();
    while let Some((before, rest)) = whole.split_once("--include ") {
        let (part, after) = rest
            .split_once('\n')
            .expect("it stands in a line of its own");
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/script/").to_owned() + part;
        whole = format!(
            "{before}{}{after}",
            std::fs::read_to_string(&path).expect("the part is there")
        );
    }
    whole
}
