//! Who sends a request again, for each request and each fault, and what the caller is told. A golden
//! file has the table.
//!
//! The server is scripted, and has the in-memory store behind it. The manager is a real one, with real
//! connections. They are closed at every byte of a request and of its reply, and the table has what
//! follows at all of them. Each time there is at most one holder, the call ends in its time, and
//! nothing is left when all has ended.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::memory::Memory;
use fairlock::{DetachedLock, Error, LockManager, Result, Step};
use redis::Value;

use crate::backend::Backend;
use crate::fixtures::{Record, SOON, STEADY_T as T, build, warm_up, with_ttl};
use crate::support::scripted_server::is;
use crate::support::{Cut, SLACK, ScriptedReply, ScriptedServer, Way, is_golden, until};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/it/sent_again.golden");
/// The ttl of locks that the renewal thread renews in a test.
const SHORT_TTL: Duration = Duration::from_secs(4);
/// The slot of the name `a`.
const SLOT: i64 = 15_495;
/// Parts of the names of connections.
const LANE: &str = ":lane";
const LINK: &str = ":renewal";

/// A call, ready to be made. It returns its end in words, and what is dropped later.
type Call = Box<dyn FnOnce() -> (String, Box<dyn Any>)>;

/// A request about the name `a`.
struct Request {
    name: &'static str,
    /// The connection that it is sent over.
    on: &'static str,
    /// Whether `a` is taken when it has succeeded.
    takes: bool,
    prepare: fn(&World) -> Call,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// Its connection is closed, and no other can be opened for a while.
    NotWritten,
    /// The connection ends after so many bytes of the request.
    HalfWritten(usize),
    /// It is carried out. The connection ends after so many bytes of the reply.
    Unanswered(usize),
    /// The server refuses it once, for a reason that passes.
    Refused,
    /// A node of a cluster names another one.
    Redirected,
    /// It is carried out, and the reply comes after two command timeouts.
    Late,
}

const fn request(name: &'static str, takes: bool, prepare: fn(&World) -> Call) -> Request {
    Request {
        name,
        on: LANE,
        takes,
        prepare,
    }
}

/// A request that the renewal thread sends by itself.
const fn by_thread(name: &'static str, prepare: fn(&World) -> Call) -> Request {
    Request {
        name,
        on: LINK,
        takes: true,
        prepare,
    }
}

const REQUESTS: &[Request] = &[
    request("try_lock", true, |w| {
        let ours = w.ours.clone();
        call(move || ours.try_lock("a").map(|guard| guard.expect("free")))
    }),
    request("try_lock, vacates permits", true, |w| {
        let permits = w.ours.semaphore("a", 2);
        permits.acquire(1).unwrap().unlock().unwrap();
        let ours = w.ours.clone();
        call(move || ours.try_lock("a").map(|guard| guard.expect("free")))
    }),
    request("lock", true, |w| {
        let ours = w.ours.clone();
        call(move || ours.lock("a"))
    }),
    request("enqueue", true, |w| {
        let (held, ours) = (w.theirs.lock("a").unwrap(), w.ours.clone());
        Box::new(move || keep(ours.enqueue("a"), held))
    }),
    request("waiter dropped", true, |w| {
        let held = w.theirs.lock("a").unwrap();
        let waiter = w.ours.enqueue("a").unwrap();
        Box::new(move || keep(Ok(drop(waiter)), held))
    }),
    request("guard dropped", false, |w| {
        let held = w.ours.lock("a").unwrap();
        call(move || Ok(drop(held)))
    }),
    request("unlock", false, |w| {
        let held = w.ours.lock("a").unwrap();
        call(move || held.unlock())
    }),
    request("abandon", false, |w| {
        let held = w.ours.lock("a").unwrap();
        call(move || held.abandon())
    }),
    request("renew", true, |w| {
        let held = w.ours.lock("a").unwrap();
        Box::new(move || keep(held.renew(), held))
    }),
    request("inspect", true, |w| {
        let (held, ours) = (w.theirs.lock("a").unwrap(), w.ours.clone());
        Box::new(move || keep(ours.inspect("a"), held))
    }),
    request("detach", true, |w| {
        let (held, ours) = (w.ours.lock("a").unwrap(), w.ours.clone());
        call(move || Ok(Detached(held.detach(SOON)?, ours)))
    }),
    request("attach", true, |w| {
        let detached = w.ours.lock("a").unwrap().detach(SOON).unwrap();
        let ours = w.ours.clone();
        Box::new(move || keep(ours.attach(&detached), Detached(detached, ours)))
    }),
    request("force_release", false, |w| {
        let (held, ours) = (w.theirs.lock("a").unwrap(), w.ours.clone());
        Box::new(move || keep(ours.force_release("a", held.fence()), held))
    }),
    request("delete", false, |w| {
        w.ours.lock("a").unwrap().unlock().unwrap();
        let ours = w.ours.clone();
        call(move || ours.delete("a"))
    }),
    by_thread("renewal of one", |w| {
        let held = w.ours.lock("a").unwrap();
        let (server, ours) = (w.watch(), w.ours.clone());
        Box::new(move || {
            server.until_over();
            let before = ours.stats().renewals_confirmed;
            until(SOON, "it is renewed", || {
                ours.stats().renewals_confirmed > before
            });
            keep(held.check(), held)
        })
    }),
    by_thread("renewal of three together", |w| {
        let held = ["a", "b", "c"].map(|name| w.ours.lock(name).unwrap());
        let (server, ours) = (w.watch(), w.ours.clone());
        Box::new(move || {
            server.until_over();
            let before = ours.stats().renewals_confirmed;
            until(SOON, "all are renewed", || {
                ours.stats().renewals_confirmed >= before + 3
            });
            keep(held.iter().try_for_each(|held| held.check()), held)
        })
    }),
    by_thread("sync of a queue", |w| {
        let held = w.theirs.lock("a").unwrap();
        let waiter = w.ours.enqueue("a").unwrap();
        let server = w.watch();
        Box::new(move || {
            server.until_over();
            let before = server.scripts(LINK).len();
            until(SOON, "it is checked", || {
                server.scripts(LINK).len() > before
            });
            assert_eq!(waiter.position(), Some(1));
            keep(Ok(()), (waiter, held))
        })
    }),
];

/// The end of a call in words.
fn said<V: Any>(end: &Result<V>) -> String {
    match end {
        Ok(value) => match (value as &dyn Any).downcast_ref::<bool>() {
            Some(false) => "done before".to_owned(),
            _ => "done".to_owned(),
        },
        Err(Error::Unavailable { step, .. }) => {
            let is_in_doubt = matches!(step, Step::Send | Step::Reply);
            let doubt = if is_in_doubt { " (in doubt)" } else { "" };
            format!("unavailable, no {step:?}{doubt}")
        }
        Err(Error::Refused { code, .. }) => format!("refused, {code}"),
        Err(other) => other.to_string(),
    }
}

fn keep<V: Any>(end: Result<V>, others: impl Any) -> (String, Box<dyn Any>) {
    (said(&end), Box::new((end, others)))
}

fn call<V: Any>(work: impl FnOnce() -> Result<V> + 'static) -> Call {
    Box::new(move || keep(work(), ()))
}

/// A detached lock, which ends when this is dropped.
struct Detached(DetachedLock, LockManager);

impl Drop for Detached {
    fn drop(&mut self) {
        drop(self.1.attach(&self.0));
    }
}

/// What the servers do. They share a store.
struct Script {
    memory: Memory,
    /// The reply to the next script, which does not run.
    refusal: Mutex<Option<String>>,
    /// How much later than it the next reply to a script comes.
    delay: Mutex<Duration>,
    refuses_connections: AtomicBool,
    /// The nodes of a cluster. The first has all slots. Empty: there is one server.
    nodes: Mutex<Vec<SocketAddr>>,
}

impl Script {
    fn answer(&self, words: &[Vec<u8>]) -> ScriptedReply {
        let is_one_of = |names: &[&str]| names.iter().any(|name| is(words, name));
        if is_one_of(&["EVAL", "EVALSHA", "HMGET"]) {
            return self.run_script(words);
        }
        // With any of these, a connection begins.
        let is_first = is_one_of(&["HELLO", "CLIENT", "TIME", "INFO", "CLUSTER"]);
        if is_first && self.refuses_connections.load(Ordering::SeqCst) {
            return ScriptedReply::Close;
        }
        match String::from_utf8_lossy(&words[0]).as_ref() {
            "HELLO" => self.hello(),
            "CLUSTER" => self.slots(),
            "TIME" => self.run(words),
            _ => ScriptedReply::polite(words),
        }
    }

    fn run_script(&self, words: &[Vec<u8>]) -> ScriptedReply {
        if let Some(refusal) = self.refusal.lock().unwrap().take() {
            return ScriptedReply::error(&refusal);
        }
        let reply = self.run(words);
        let delay = std::mem::take(&mut *self.delay.lock().unwrap());
        // Time itself is under test: the reply is late.
        thread::sleep(delay);
        reply
    }

    fn run(&self, words: &[Vec<u8>]) -> ScriptedReply {
        let words = words.iter().map(|word| str::from_utf8(word));
        let words: Vec<&str> = words.map(|word| word.expect("it is text")).collect();
        let reply = self.memory.run_command(&words);
        reply.map_or_else(|error| ScriptedReply::error(&error), encoded)
    }

    fn hello(&self) -> ScriptedReply {
        let mode = match self.nodes.lock().unwrap().is_empty() {
            true => "standalone",
            false => "cluster",
        };
        let fields = ["version", "7.0.15", "mode", mode, "role", "master"];
        ScriptedReply::array(fields.map(ScriptedReply::bulk))
    }

    fn slots(&self) -> ScriptedReply {
        let owner = self.nodes.lock().unwrap()[0];
        let node = [
            ScriptedReply::bulk(owner.ip().to_string()),
            ScriptedReply::integer(i64::from(owner.port())),
            ScriptedReply::bulk(format!("{:040}", owner.port())),
        ];
        let [first, last] = [0, 16_383].map(ScriptedReply::integer);
        let range = [first, last, ScriptedReply::array(node)];
        ScriptedReply::array([ScriptedReply::array(range)])
    }
}

fn encoded(value: Value) -> ScriptedReply {
    match value {
        Value::Nil => ScriptedReply::nil(),
        Value::Int(number) => ScriptedReply::integer(number),
        Value::BulkString(bytes) => ScriptedReply::bulk(bytes),
        Value::SimpleString(text) => ScriptedReply::simple(&text),
        Value::Okay => ScriptedReply::ok(),
        Value::Array(values) => ScriptedReply::array(values.into_iter().map(encoded)),
        other => panic!("no command replies {other:?}"),
    }
}

/// A server, or two nodes of a cluster, and two managers. Only ours uses them.
struct World {
    store: Backend,
    watch: Arc<Watch>,
    ours: LockManager,
    theirs: LockManager,
}

/// The servers, and what they do and have seen.
struct Watch {
    script: Arc<Script>,
    servers: Vec<ScriptedServer>,
}

/// A request that meets no fault.
#[derive(Clone, Copy)]
struct Undisturbed {
    /// How many bytes go to the server, and come from it.
    bytes: [usize; 2],
    scripts: usize,
}

impl Watch {
    /// The scripts about `a` that came over connections of this name.
    fn scripts(&self, on: &str) -> Vec<Vec<String>> {
        let all = self
            .servers
            .iter()
            .flat_map(|server| server.commands_on(on));
        all.filter(|words| words.iter().any(|word| word.contains("{a}")))
            .collect()
    }

    /// The next connection of this name that carries more bytes than these ends.
    fn cut(&self, of: &'static str, way: Way, after: usize) {
        self.servers[0].cut(Some(Cut { of, way, after }));
    }

    /// Waits until the fault has happened, if there is one.
    fn until_over(&self) {
        until(SOON, "the fault has happened", || {
            let cut = self.servers[0].next_cut();
            cut.is_none_or(|cut| cut.after > usize::MAX / 2)
                && self.script.refusal.lock().unwrap().is_none()
                && self.script.delay.lock().unwrap().is_zero()
        });
    }
}

impl World {
    fn new(request: &Request, nodes: usize) -> World {
        let memory = Memory::new();
        let script = Arc::new(Script {
            memory: memory.clone(),
            refusal: Mutex::default(),
            delay: Mutex::default(),
            refuses_connections: AtomicBool::new(false),
            nodes: Mutex::default(),
        });
        let start = |_| {
            let script = Arc::clone(&script);
            ScriptedServer::start(move |words| script.answer(words))
        };
        let servers: Vec<ScriptedServer> = (0..nodes).map(start).collect();
        let mut url = servers[0].url();
        if nodes > 1 {
            *script.nodes.lock().unwrap() = servers.iter().map(ScriptedServer::addr).collect();
            url = url.replace("redis:", "redis-cluster:");
        }
        let builder = if request.on == LINK {
            with_ttl(url, SHORT_TTL)
        } else {
            // The renewal thread sends nothing by itself for longer than a test lasts.
            let period = Duration::from_secs(30);
            with_ttl(url, 2 * period)
                .command_timeout(T)
                .check_period(period)
                .horizon(period + 3 * T)
        };
        let ours = build(builder.lanes(1));
        warm_up(&ours);
        if request.on == LINK {
            let _held = ours.lock("warm").unwrap();
            until(SOON, "the renewal thread has its connection", || {
                ours.stats().renewals_confirmed > 1
            });
        }
        World {
            theirs: LockManager::connect(&memory).unwrap(),
            store: Backend::Memory(memory),
            watch: Arc::new(Watch { script, servers }),
            ours,
        }
    }

    fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    fn undisturbed(&self, request: &Request) -> Undisturbed {
        let server = &self.watch.servers[0];
        let mut scripts = 0;
        // The first time, the record of the name is new.
        let ways = [Way::Requests, Way::Requests, Way::Replies];
        let [_, written, answered] = ways.map(|way| {
            let call = (request.prepare)(self);
            server.forget_commands();
            self.watch.cut(request.on, way, usize::MAX);
            let (_, kept) = call();
            let mut passed = 0;
            // A dropped guard does not wait for its reply.
            until(SOON, "its bytes have passed", || {
                passed = usize::MAX - server.next_cut().expect("no cut").after;
                passed > 0
            });
            server.cut(None);
            scripts = self.watch.scripts(request.on).len();
            drop(kept);
            self.comes_to_rest();
            passed
        });
        Undisturbed {
            bytes: [written, answered],
            scripts,
        }
    }

    /// What follows when a request meets a fault: a cell of the table.
    #[track_caller]
    fn meets(&self, request: &Request, undisturbed: Undisturbed, fault: Fault) -> String {
        let Request { name, on, .. } = request;
        let Watch { script, servers } = &*self.watch;
        let timeout = if *on == LINK { SHORT_TTL / 10 } else { T };
        let call = (request.prepare)(self);
        let counted = self.ours.stats();
        let mut outage = Duration::ZERO;
        match fault {
            Fault::NotWritten => {
                outage = (3 * timeout).max(SHORT_TTL / 2);
                script.refuses_connections.store(true, Ordering::SeqCst);
                self.watch.cut(on, Way::Requests, 0);
                if *on == LANE {
                    self.ours.inspect("z").expect_err("no connection");
                }
            }
            Fault::HalfWritten(bytes) => self.watch.cut(on, Way::Requests, bytes),
            Fault::Unanswered(bytes) => self.watch.cut(on, Way::Replies, bytes),
            Fault::Refused => {
                let loading = "LOADING Redis is loading the dataset in memory";
                *script.refusal.lock().unwrap() = Some(loading.to_owned());
            }
            Fault::Redirected => {
                let mut nodes = script.nodes.lock().unwrap();
                nodes.rotate_left(1);
                *script.refusal.lock().unwrap() = Some(format!("MOVED {SLOT} {}", nodes[0]));
            }
            Fault::Late => *script.delay.lock().unwrap() = 2 * timeout,
        }
        servers.iter().for_each(ScriptedServer::forget_commands);
        let (said, kept, took) = thread::scope(|scope| {
            scope.spawn(|| {
                // Time itself is under test: the outage lasts so long.
                thread::sleep(outage);
                script.refuses_connections.store(false, Ordering::SeqCst);
            });
            let started = Instant::now();
            let (said, kept) = call();
            (said, kept, started.elapsed())
        });
        let in_time = if *on == LINK { SOON } else { 3 * timeout };
        assert!(
            took <= in_time + outage + SLACK,
            "{name}, {fault:?}: {took:?}"
        );
        self.watch.until_over();
        // The next call on the lane reads what a drop has left there.
        until(SOON, "the lane is open", || self.ours.inspect("z").is_ok());
        if request.takes && said == "done" {
            let other = self.theirs.try_lock("a").unwrap();
            assert!(other.is_none(), "{name}, {fault:?}: two holders");
        }
        let stats = self.ours.stats();
        let sent = self.watch.scripts(on);
        drop(kept);
        self.comes_to_rest();
        let retries = (stats.retries - counted.retries) as usize;
        let lost = usize::from(matches!(fault, Fault::HalfWritten(_)));
        let is_more = match fault {
            Fault::NotWritten => !sent.is_empty(),
            _ => sent.len() + lost > undisturbed.scripts + retries,
        };
        // The store follows the nodes of a cluster, and counts no retry. The renewal thread renews what is
        // held when the map has changed.
        let (on_lane, is_moved) = (*on == LANE, fault == Fault::Redirected);
        let by_thread = !is_moved && !self.watch.scripts(LINK).is_empty();
        let by = [
            ("store", retries > 0 || is_moved && is_more),
            ("engine", on_lane && !is_moved && is_more),
            ("renewal thread", !on_lane || by_thread),
            (
                "its back-off",
                stats.renewals_failed > counted.renewals_failed,
            ),
        ];
        let by = by.iter().filter(|(_, sends)| *sends);
        let by: Vec<&str> = by.map(|(sender, _)| *sender).collect();
        match by.is_empty() {
            true => format!("{said}; again by nobody"),
            false => format!("{said}; again by {}{}", by.join(", "), dates(&sent)),
        }
    }

    /// Nobody holds anything, and nobody waits.
    fn comes_to_rest(&self) {
        for name in ["a", "b", "c"] {
            Record::of(&self.store, name).comes_to_rest();
        }
        let stats = self.ours.stats();
        assert_eq!((stats.held, stats.waiting), (0, 0));
    }
}

/// Whether the last copy of the first request has the same arguments.
fn dates(sent: &[Vec<String>]) -> &'static str {
    let [first, others @ ..] = sent else {
        return "";
    };
    let is_copy = |other: &&Vec<String>| other.len() == first.len() && other[2..4] == first[2..4];
    match others.iter().rev().find(is_copy) {
        None => "",
        Some(copy) if copy[2..] == first[2..] => ", as it was",
        Some(_) => ", with another date",
    }
}

/// What follows where the connection ends at a byte, for all of them.
fn at_each_byte(
    request: &Request,
    undisturbed: Undisturbed,
    bytes: usize,
    fault: fn(usize) -> Fault,
) -> String {
    // A renewal takes its time, and a secret comes with the source of its script. So they meet the fault at
    // some bytes only.
    let (workers, places) = if request.on == LINK {
        (16, 64)
    } else {
        (1, 1000)
    };
    let step = 1 + bytes / places;
    let next = AtomicUsize::new(0);
    let work = || {
        let world = World::new(request, 1);
        let places = std::iter::repeat_with(|| next.fetch_add(step, Ordering::Relaxed));
        let places = places.take_while(|at| *at < bytes);
        let cells = places.map(|at| (world.meets(request, undisturbed, fault(at)), at));
        cells.collect::<Vec<_>>()
    };
    let cells: BTreeMap<String, usize> = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let cells = workers.into_iter().map(|worker| worker.join());
        cells.flat_map(|cells| cells.expect("no panic")).collect()
    });
    let cells: Vec<String> = cells.into_keys().collect();
    cells.join(" / ")
}

fn row_of(request: &Request) -> String {
    let world = World::new(request, 1);
    let undisturbed = world.undisturbed(request);
    let [written, answered] = undisturbed.bytes;
    let cluster = World::new(request, 2);
    let once = |world: &World, fault| world.meets(request, undisturbed, fault);
    let each = |bytes, fault| at_each_byte(request, undisturbed, bytes, fault);
    let cells = [
        ("not written", once(&world, Fault::NotWritten)),
        ("half written", each(written, Fault::HalfWritten)),
        ("unanswered", each(answered, Fault::Unanswered)),
        ("refused", once(&world, Fault::Refused)),
        ("redirected", once(&cluster, Fault::Redirected)),
        ("late", once(&world, Fault::Late)),
    ];
    let cells = cells.map(|(fault, cell)| format!("  {fault:<13} {cell}\n"));
    format!("{}\n{}", request.name, cells.concat())
}

#[test]
fn each_request_is_sent_again_as_the_table_says() {
    let rows: String = thread::scope(|scope| {
        let rows = REQUESTS.iter();
        let rows: Vec<_> = rows.map(|one| scope.spawn(|| row_of(one))).collect();
        let rows = rows.into_iter().map(|row| row.join());
        rows.map(|row| row.expect("no panic")).collect()
    });
    is_golden(FILE, &rows);
}
