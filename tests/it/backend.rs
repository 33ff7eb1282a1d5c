//! The two stores that a behaviour is tested on: a redis-server of its own, or an in-memory store
//! of its own.
//!
//! A behaviour is stated once, against a [`Backend`], and [`on_both_stores`] makes a test of it for
//! each store. A backend offers what both stores can do. A test that needs a process, a socket or a
//! setting of the server uses [`Server`] and says so.

use std::{convert::Infallible, panic::resume_unwind, sync::Arc, thread, time::Duration};

use crossbeam_channel::{RecvTimeoutError, bounded};
use fairlock::endpoint::Endpoint;
#[cfg(feature = "memory")]
use fairlock::memory::{Fault, Memory};
use fairlock_tests::ROOT;
use redis::{FromRedisValue, Value, from_redis_value};

#[cfg(feature = "memory")]
use crate::reply::{Commands, Reply};
use crate::support::{Proxy, Server, contains};

/// Makes two tests of each claim: `claim::on_redis` and `claim::in_memory`. A claim is a function
/// that takes a `&Backend`. A claim that is missing from the list is never called, which the lints
/// refuse.
///
/// List claims that call [`inject`](Backend::inject) behind `redis_with_faults:`.
macro_rules! on_both_stores {
    ($($claim:ident),+ $(,)?) => {
        on_both_stores! { redis: $($claim),+ }
    };
    ($redis:ident: $($claim:ident),+ $(,)?) => {$(
        mod $claim {
            use $crate::backend::Backend;

            #[test]
            fn on_redis() {
                Backend::$redis().run(super::$claim);
            }

            #[cfg(feature = "memory")]
            #[test]
            fn in_memory() {
                Backend::memory().run(super::$claim);
            }
        }
    )+};
}
pub(crate) use on_both_stores;

/// A store whose records a test reads and damages behind fairlock's back.
pub(crate) trait Keyspace {
    /// Sends one command; panics if the answer is an error.
    fn ask(&self, command: &[&str]) -> Value;

    /// The keys that would stay forever. The list is empty on a store that cannot be asked for a
    /// TTL.
    fn keys_without_ttl(&self) -> Vec<String>;

    /// When the key expires, in ms since 1970.
    fn expires_at(&self, key: &str) -> i64;
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

    fn expires_at(&self, key: &str) -> i64 {
        Server::expires_at(self, key)
    }
}

/// A fault for the next request of any manager, or for the next message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InjectedFault {
    /// The request does not arrive, and the client gets no answer.
    RequestLost,
    /// The request is carried out, and the client gets no answer.
    ReplyLost,
    /// The request is carried out, and the connection is closed before the reply.
    Disconnect,
    /// A published grant reaches no subscriber. On Redis this lasts: the right to publish is taken
    /// away.
    MessageLost,
}

/// One of the two stores. It is empty when the test begins and is removed when it ends.
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

    /// Like [`redis`](Self::redis), with a network that [`inject`](Self::inject) can break.
    pub(crate) fn redis_with_faults() -> Backend {
        let server = Box::new(Server::tcp());
        let proxy = Proxy::to(server.addr());
        Backend::Redis(server, Some(proxy))
    }

    #[cfg(feature = "memory")]
    pub(crate) fn memory() -> Backend {
        Backend::Memory(Memory::new())
    }

    /// Runs a claim against this backend. A claim that never ends would block the run without
    /// naming a test, so it fails after a while.
    pub(crate) fn run(self, claim: fn(&Backend)) {
        const LONGEST: Duration = Duration::from_secs(120);
        let backend = Arc::new(self);
        let (under_way, over) = bounded::<Infallible>(0);
        // The thread has the test's own name, under which its failure is printed.
        let named =
            thread::Builder::new().name(thread::current().name().unwrap_or("claim").to_owned());
        let running = named.spawn({
            let backend = Arc::clone(&backend);
            move || {
                let _under_way = under_way;
                claim(&backend);
            }
        });
        if over.recv_timeout(LONGEST) == Err(RecvTimeoutError::Timeout) {
            // The claim's thread keeps the backend alive, so nothing else would kill the server.
            if let Some(server) = backend.server() {
                server.kill();
            }
            panic!("this has not ended after {LONGEST:?}");
        }
        if let Err(panic) = running.expect("a thread can be started").join() {
            resume_unwind(panic);
        }
    }

    /// Sends one command and panics unless the answer is a `T`. The in-memory store only knows the
    /// commands that the scripts use.
    #[track_caller]
    pub(crate) fn query<T: FromRedisValue>(&self, command: &[&str]) -> T {
        let keys: &dyn Keyspace = self;
        keys.query(command)
    }

    /// Deletes the record of one name, as DEL or an eviction does.
    pub(crate) fn delete(&self, name: &str) {
        self.query(&["DEL", &format!("fairlock:{{{name}}}")])
    }

    /// Waits until no manager has background work left. On Redis this cannot be known, and it
    /// returns at once.
    pub(crate) fn wait_until_idle(&self) {
        match self {
            Backend::Redis(..) => {}
            #[cfg(feature = "memory")]
            Backend::Memory(memory) => memory.advance(Duration::ZERO),
        }
    }

    /// Deletes all data, as FLUSHALL does.
    pub(crate) fn flush_all(&self) {
        match self {
            Backend::Redis(server, _) => server.query(&["FLUSHALL"]),
            #[cfg(feature = "memory")]
            Backend::Memory(memory) => memory.flush_all(),
        }
    }

    /// From now on no request is answered: a server is silent, and in memory connections are
    /// refused.
    pub(crate) fn go_away(&self) {
        match self {
            Backend::Redis(server, _) => server.stop(),
            #[cfg(feature = "memory")]
            Backend::Memory(memory) => memory.go_down(),
        }
    }

    /// Requests are answered again, and the data is kept.
    pub(crate) fn come_back(&self) {
        match self {
            Backend::Redis(server, _) => server.cont(),
            #[cfg(feature = "memory")]
            Backend::Memory(memory) => memory.come_back(),
        }
    }

    /// Makes the lease of this name lapse and has it cleared; false if nobody holds it. The lapse
    /// is an expiry rewritten to the past. The shipped release script clears it, called with an
    /// unknown token.
    pub(crate) fn lapse(&self, name: &str) -> bool {
        match self {
            Backend::Redis(server, _) => {
                let key = format!("fairlock:{{{name}}}");
                let now = "1";
                // One script, so that no renewal falls between the two halves. It marks the grace
                // as given, which a lease gets that lapsed while the server was away.
                let lapsed = "do local owner, s = unpack(redis.call('HMGET', KEYS[1], 'o', 's'))\n\
                    if not owner then return false end\n\
                    redis.call('HSET', KEYS[1], 's', struct.pack('<d', ARGV[8]) .. string.sub(s, 9), 'u', \
                               string.format('%.0f', (struct.unpack('<d', string.sub(s, 17))))) end\n";
                let source = lapsed.to_owned()
                    + &with_parts(include_str!("../../src/script/mutex_release.lua"));
                let step = Duration::from_secs(1).as_micros().to_string();
                let keys = [&*key, &format!("{key}:q")];
                let caller = ["nobody", &step, &step, "fairlock:grants:"];
                let params = ["0123456789abcdef0123456789abcdef", "0", "unused", now];
                let command = [&["EVAL", &source, "2"][..], &keys, &caller, &params].concat();
                server.query::<Value>(&command) != Value::Nil
            }
            #[cfg(feature = "memory")]
            Backend::Memory(memory) => memory.lapse(name),
        }
    }

    /// The same fault for each copy of a call's request, until this is [disarmed](Self::disarm). In
    /// memory a request that gets no answer is sent once: there is no connection that may be dead.
    pub(crate) fn inject_lasting(&self, fault: InjectedFault) {
        self.inject(fault);
        if let Backend::Redis(_, Some(proxy)) = self {
            proxy.make_faults_last();
        }
    }

    /// Removes the faults that have not happened yet, and those that last.
    pub(crate) fn disarm(&self) {
        if let Backend::Redis(_, Some(proxy)) = self {
            proxy.disarm();
        }
    }

    pub(crate) fn inject(&self, fault: InjectedFault) {
        match self {
            Backend::Redis(server, Some(proxy)) => {
                // Only scripts match, because fairlock's calls send nothing else. The claims
                // themselves observe the effect, so the handles are dropped.
                let script = |bytes: &[u8]| {
                    contains("EVAL")(bytes)
                        && !contains(include_bytes!("../../src/script/user_rights.lua"))(bytes)
                };
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

    /// Lets time pass: on Redis by sleeping, in memory by advancing the clock.
    pub(crate) fn pass(&self, time: Duration) {
        match self {
            // Time itself is under test.
            Backend::Redis(..) => thread::sleep(time),
            #[cfg(feature = "memory")]
            Backend::Memory(memory) => memory.advance(time),
        }
    }

    /// All keys, this name's record first. In memory there is no KEYS, so only the keys of this
    /// name.
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
                // A key of another type exists as well, and answers with an error.
                let is_there =
                    |key: &String| memory.command(&["HKEYS", key]) != Reply::List(Vec::new());
                [record, queue, holders]
                    .into_iter()
                    .filter(is_there)
                    .collect()
            }
        }
    }

    /// The server, for tests that need more than both stores offer.
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
            Backend::Memory(memory) => memory
                .run_command(command)
                .unwrap_or_else(|words| panic!("{command:?} failed: {words}")),
        }
    }

    fn keys_without_ttl(&self) -> Vec<String> {
        match self {
            Backend::Redis(server, _) => server.keys_without_ttl(),
            // The scripts never ask for a TTL, so the store does not implement that.
            #[cfg(feature = "memory")]
            Backend::Memory(_) => Vec::new(),
        }
    }

    fn expires_at(&self, key: &str) -> i64 {
        match self {
            Backend::Redis(server, _) => server.expires_at(key),
            #[cfg(feature = "memory")]
            Backend::Memory(_) => panic!("the in-memory store tells no expiry"),
        }
    }
}

/// With this, a manager is built as `LockManager::builder(backend)`.
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

/// A script together with the parts that it includes.
pub(crate) fn with_parts(script: &str) -> String {
    let mut text = script.to_owned();
    while let Some((before, rest)) = text.split_once("--include ") {
        let (part, after) = rest
            .split_once('\n')
            .expect("an include is a line of its own");
        let path = format!("{ROOT}/src/script/{part}");
        text = format!(
            "{before}{}{after}",
            std::fs::read_to_string(&path).expect("the part exists")
        );
    }
    text
}
