//! Every fault as a caller meets it: the variant with its fields, and the line to print. All are in a
//! golden file, so that each change of a text shows. Its texts of servers are those of Redis 7.
//!
//! Not here: a host without threads or descriptors, which takes a process of its own
//! (`tests/it/process.rs`).

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fairlock::credentials::{Credentials, PasswordFile};
use fairlock::memory::{Fault as Injected, Memory};
use fairlock::{
    Builder, DetachedLock, Error, LockManager, LockOptions, Result, RwLock, endpoint::Endpoint,
};

use crate::cluster::loops::send_round;
use crate::cluster_set::ClusterSet;
use crate::credentials::FAILING;
use crate::quorum::set::Set;
use crate::replica_acks::ReplicaSet;
use crate::right_server::{replica_of, sentinel};
use crate::sentinel_set::{SERVICE, SentinelSet, SentinelSetup};
use crate::server_addresses::{SOON, T, builder};
use crate::support::scripted_server::is;
use crate::support::server::free_address;
use crate::support::{
    ScriptedReply, ScriptedServer, Server, is_golden, is_redis_7, notes, until, until_some,
};
use crate::tls::certificates::{Authority, EXPIRED, HERE, NOT_YET_VALID, VALID};
use crate::tls::renewed::make_endless;
use crate::tls::{TlsServer, builder as tls_builder};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/topologies/errors.golden");
const ZERO: Duration = Duration::ZERO;
const DAYS: Duration = Duration::from_secs(48 * 3600);
const SECOND: Duration = Duration::from_secs(1);
/// The time of replicas.
const ACK: Duration = Duration::from_millis(100);

#[test]
fn every_fault_reads_as_in_the_golden_file() {
    if !is_redis_7() {
        return notes::left_out("the texts are those of Redis 7");
    }
    let topologies: [(&str, fn(&mut Faults)); 11] = [
        ("any: settings", of_settings),
        ("any: calls", of_calls),
        ("memory: losses", of_losses),
        ("one server: build", of_build),
        ("one server: calls", of_one_server),
        ("one server: replies to scripts", of_replies),
        ("TLS", of_tls),
        ("replicas", of_replicas),
        ("Sentinel", of_sentinels),
        ("Cluster", of_a_cluster),
        ("quorum", of_a_quorum),
    ];
    let text: String = thread::scope(|scope| {
        let running = topologies.map(|(topology, cause)| {
            scope.spawn(move || {
                let mut faults = Faults(format!("# {topology}\n\n"));
                cause(&mut faults);
                faults.0
            })
        });
        let texts = running.into_iter().map(|faults| faults.join());
        texts.map(|text| text.expect("each is a fault")).collect()
    });
    is_golden(FILE, &text);
}

/// The faults of a topology, as the file has them.
struct Faults(String);

impl Faults {
    #[track_caller]
    fn add<V>(&mut self, what: &str, outcome: Result<V>) {
        let error = outcome.map(drop).expect_err(what);
        let fields = match &error {
            Error::Lost { loss, .. } => format!("Lost {:?}, {:?}", loss.lock, loss.reason),
            Error::Unavailable {
                lock, server, step, ..
            } => format!("Unavailable {lock:?}, {server:?}, {step:?}"),
            Error::Refused {
                lock, server, code, ..
            } => format!("Refused {lock:?}, {server:?}, {code}"),
            Error::Misused { lock, misuse, .. } => format!("Misused {lock:?}, {misuse:?}"),
            other => format!("{other:?}"),
        };
        let is_temporary = error.is_temporary();
        let shown = format!("    {fields}, temporary: {is_temporary}\n    {error}\n");
        let _ = write!(self.0, "{what}\n{}\n", masked(&shown));
    }
}

/// The text without what varies. Servers are numbered in the order in which it names them.
fn masked(text: &str) -> String {
    let text = without(text, " (gave up after ", ':');
    let text = without(&text, "; gave up after ", ')');
    let text = without(&text, "lookup address information: ", '\n');
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '.' | ':' | '/' | '-' | '_');
    let mut servers: Vec<&str> = Vec::new();
    let mut masked = String::new();
    for piece in text.split_inclusive(|c| !is_part(c)) {
        let starts = ["127.0.0.1:", "localhost:", "/tmp/"];
        let start = starts.iter().find_map(|start| piece.find(start));
        let (before, rest) = piece.split_at(start.unwrap_or(piece.len()));
        let address = rest.trim_end_matches(|c| !is_part(c) || matches!(c, ':' | '/'));
        masked += before;
        if address.starts_with('/') {
            masked += "FILE";
        } else if !address.is_empty() {
            if !servers.contains(&address) {
                servers.push(address);
            }
            let number = servers.iter().position(|server| *server == address);
            let _ = write!(masked, "SERVER{}", number.map_or(0, |at| at + 1));
        }
        masked += &rest[address.len()..];
    }
    // Ports, fences and times.
    let digits = masked.split_inclusive(|c: char| !c.is_ascii_digit());
    let shortened = digits.map(|piece| {
        let rest = piece.trim_start_matches(|c: char| c.is_ascii_digit());
        let is_short = piece.len() < rest.len() + 5;
        if is_short {
            piece.to_owned()
        } else {
            format!("N{rest}")
        }
    });
    shortened.collect()
}

/// The text without these words, and without what is between them and the next such letter.
fn without(text: &str, words: &str, until: char) -> String {
    let mut parts = text.split(words);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.find(until).map_or("", |at| &part[at..])
    })
}

#[track_caller]
fn manager(to: impl Into<Endpoint>) -> LockManager {
    builder(to).build().expect("they are there")
}

/// The same, with its connections open.
#[track_caller]
fn warm(to: impl Into<Endpoint>, name: &str) -> LockManager {
    let mgr = manager(to);
    mgr.lock(name).unwrap().unlock().unwrap();
    mgr
}

/// The name of a setting is in the error.
fn of_settings(faults: &mut Faults) {
    let (memory, options) = (Memory::new(), LockOptions::new);
    let mgr = manager(&memory);
    for options in [
        options().ttl(DAYS),
        options().ttl(SECOND),
        options().fixed_lease(DAYS),
        options().fixed_lease(ACK),
        options().hold_at_least(DAYS),
        options().max_hold(ZERO),
        options().label("a\nb"),
        options().local_handovers(u32::MAX),
        options().keep_idle(DAYS),
        options().keep_idle(ACK).fixed_lease(SOON),
        options().keep_idle(ACK).hold_at_least(SOON),
    ] {
        faults.add("options", mgr.with(options).lock("a"));
    }
    let provider = |_: &_| Ok(Credentials::password("p"));
    for wrong in [
        builder(&memory).command_timeout(ZERO),
        builder(&memory).command_timeout(2 * SECOND),
        builder(&memory).connect_timeout(ZERO),
        builder(&memory).check_period(ZERO),
        builder(&memory).check_period(DAYS),
        builder(&memory).horizon(ACK),
        builder(&memory).outage_limit(ACK),
        builder(&memory).long_wait(ZERO),
        builder(&memory).lanes(0),
        builder(&memory).max_kept(0),
        builder(&memory).prefix("a{b"),
        builder(&memory).replica_acks(1, ACK),
        builder("redis://a").replica_acks(1, SECOND),
        builder("redis://a").tls_ca(""),
        builder("rediss://a").tls_ca("text"),
        builder("rediss://a").tls_ca_file("/nowhere"),
        builder("rediss://a").tls_identity("text", "text"),
        builder("redis://:p@a").credentials(provider),
        builder("redis://a").sentinel_credentials(provider),
        builder("localhost"),
        builder("memory://"),
        builder("redis://u@a"),
        builder("redis-sentinel://a"),
        builder("redis-cluster://a/1"),
        builder("redis://a redis://b"),
        builder(Endpoint::server("", 1)),
        builder(Endpoint::sentinel("m", [("a", 1); 0])),
        builder(Endpoint::cluster([("a", 1); 0])),
    ] {
        faults.add("builder", wrong.build());
    }
}

fn of_calls(faults: &mut Faults) {
    let memory = Memory::new();
    let mgr = manager(&memory);
    faults.add("no name", mgr.lock(""));
    faults.add("name too long", mgr.lock("n".repeat(513)));
    let held = mgr.lock("a").unwrap();
    faults.add("another kind", mgr.semaphore("a", 2).acquire(1));
    let mut permits = mgr.semaphore("s", 2).acquire(2).unwrap();
    faults.add("another semaphore", mgr.semaphore("s", 3).acquire(1));
    faults.add("no permits at all", mgr.semaphore("s", 0).acquire(1));
    faults.add("too many permits", mgr.semaphore("s", 2).acquire(3));
    faults.add("all permits returned", permits.release_permits(2));
    faults.add("no names", mgr.lock_all([""; 0]));
    let names = (0..257).map(|number| number.to_string());
    faults.add("too many names", mgr.lock_all(names));
    let mut waiter = mgr.enqueue("w").unwrap();
    drop(waiter.wait_for(SOON).unwrap());
    faults.add("waiter used twice", waiter.wait_for(SOON));
    faults.add("mutex downgraded", RwLock::downgrade(held));
    faults.add("no detached lock", "text".parse::<DetachedLock>());
    let held = mgr.lock("a").unwrap();
    let for_no_time = held.detach(ZERO).map_err(Error::from);
    faults.add("detached for no time", for_no_time);
    let detached = mgr.lock("a").unwrap().detach(SOON).unwrap();
    let other = builder(&memory).prefix("other").build().unwrap();
    faults.add("attached elsewhere", other.attach(&detached));
    mgr.shutdown(ZERO).unwrap();
    faults.add("closed", mgr.lock("a"));
}

fn of_losses(faults: &mut Faults) {
    let memory = Memory::new();
    let mgr = manager(&memory);
    let held = mgr.lock("a").unwrap();
    memory.lapse("a");
    faults.add("its lease lapsed", held.renew());
    let held = mgr.lock("a").unwrap();
    memory.flush_all();
    faults.add("redis forgot it", held.unlock());
    let brief = mgr.with(LockOptions::new().max_hold(SECOND));
    let held = brief.lock("a").unwrap();
    memory.advance(SECOND);
    faults.add("held for too long", held.check());
    let held = mgr.lock("f").unwrap();
    assert!(mgr.force_release("f", held.fence()).unwrap());
    faults.add("released by force", held.renew());
    let detached = mgr.lock("d").unwrap().detach(SOON).unwrap();
    let held = mgr.attach(&detached).unwrap();
    faults.add("attached twice", mgr.attach(&detached));
    mgr.shutdown(ZERO).unwrap();
    faults.add("shut down", held.check());
    let mgr = manager(&memory);
    memory.inject(Injected::LoseReply);
    faults.add("no reply", mgr.try_lock("a"));
    memory.go_down();
    faults.add("server down", mgr.try_lock("a"));
}

fn of_build(faults: &mut Faults) {
    let nowhere = free_address();
    let server = Server::tcp();
    let addr = server.addr();
    for (what, url) in [
        ("no server", format!("redis://{nowhere}")),
        ("no server, with a login", format!("redis://:p@{nowhere}")),
        ("no socket", "redis+unix:///nowhere/redis.sock".to_owned()),
        ("no such host", "redis://nowhere.invalid".to_owned()),
        ("login at a server without", format!("redis://:p@{addr}")),
        ("no such database", format!("redis://{addr}/99")),
    ] {
        faults.add(what, builder(url).build());
    }
    faults.add("replica", builder(replica_of(&server).url()).build());
    let node = Server::tcp_with(&["--cluster-enabled", "yes"]);
    faults.add("node of a cluster", builder(node.url()).build());
    faults.add("sentinel", builder(sentinel(&[SERVICE], "").url()).build());
    let old = ScriptedServer::start(|words| {
        let says = ["server", "redis", "version", "5.0.0"].map(ScriptedReply::bulk);
        match is(words, "HELLO") {
            true => ScriptedReply::array(says),
            false => ScriptedReply::polite(words),
        }
    });
    faults.add("server too old", builder(old.url()).build());
    for says in [
        "HTTP/1.1 400 Bad Request",
        "-DENIED Redis is running in protected mode because no password is set. In this mode",
        "-LOADING Redis is loading the dataset in memory",
        "-ERR max number of clients reached",
    ] {
        let reply = ScriptedReply::Raw(format!("{says}\r\n").into());
        let server = ScriptedServer::start(move |_| reply.clone());
        let built = builder(server.url()).connect_timeout(T).build();
        faults.add(says, built);
    }
    let silent = ScriptedServer::start(|_| ScriptedReply::Silent);
    let built = builder(silent.url()).connect_timeout(T).build();
    faults.add("silent server", built);
    let rude = ScriptedServer::start(|_| ScriptedReply::Close);
    faults.add("closed connections", builder(rude.url()).build());

    let _: () = server.query(&["CONFIG", "SET", "requirepass", "right"]);
    for login in ["", ":wrong@", "nobody:right@", ":right%0A@"] {
        let url = format!("redis://{login}{addr}");
        faults.add(&format!("login {login:?}"), builder(url).build());
    }
    for (provider, words) in FAILING {
        // A busy machine takes its time over a panic.
        let is_slow = words == "took too long";
        let time = if is_slow { SECOND } else { SOON };
        let built = builder(server.url()).credentials(provider);
        faults.add("provider fails", built.connect_timeout(time).build());
    }
    let file = PasswordFile::new("/nowhere/password");
    let built = builder(server.url()).credentials(move |_| file.credentials());
    faults.add("no file of a password", built.build());
}

/// States of a server, by the commands that bring them about, and calls while it has fallen silent or
/// is gone.
fn of_one_server(faults: &mut Faults) {
    let server = Server::tcp();
    let run = |command: &str| {
        let words: Vec<&str> = command.split(' ').collect();
        let _: redis::Value = server.query(&words);
    };
    for command in [
        "ACL SETUSER u resetkeys ~other:*",
        "ACL SETUSER u -eval -evalsha",
        "ACL SETUSER u -hdel",
        "ACL SETUSER u resetchannels",
        "SET fairlock:{a} theirs",
        "HSET fairlock:{a} of theirs",
        "HSET fairlock:{a} k mutex/9",
        "CONFIG SET maxmemory 1",
        "CONFIG SET min-replicas-to-write 1",
        "REPLICAOF 127.0.0.1 1",
    ] {
        run("ACL SETUSER u reset on >p ~* &* +@all");
        let other = manager(server.url());
        let _held = other.lock("held").unwrap();
        let mgr = manager(format!("redis://u:p@{}", server.addr()));
        run(command);
        // A user without the right to the channel can take what is free.
        let name = match command.contains("resetchannels") {
            true => "held",
            false => "a",
        };
        faults.add(command, mgr.lock(name));
        run("REPLICAOF NO ONE");
        run("CONFIG SET maxmemory 0");
        run("CONFIG SET min-replicas-to-write 0");
        run("FLUSHALL");
    }

    let is_gone = AtomicBool::new(false);
    let rude = ScriptedServer::start(move |words| {
        let ends = is(words, "EVAL") || is(words, "EVALSHA");
        match is_gone.fetch_or(ends, Ordering::SeqCst) || ends {
            true => ScriptedReply::Close,
            false => ScriptedReply::polite(words),
        }
    });
    let mgr = manager(rude.url());
    faults.add("closed before the reply, and gone", mgr.try_lock("a"));

    let mgr = warm(server.url(), "a");
    let held = mgr.lock("a").unwrap();
    server.stop();
    faults.add("silent: try_lock", mgr.try_lock("b"));
    faults.add("silent: lock", mgr.lock("b"));
    faults.add("silent: inspect", mgr.inspect("b"));
    let listed = mgr.list("*").next().expect("an error");
    faults.add("silent: list", listed);
    faults.add("silent: renew", held.renew());
    faults.add("silent: unlock", held.unlock());
    server.cont();
    let mgr = warm(server.url(), "a");
    let held = mgr.lock("a").unwrap();
    server.kill();
    faults.add("gone: try_lock", mgr.try_lock("b"));
    faults.add("gone: lock", mgr.lock("b"));
    faults.add("gone: unlock", held.unlock());
}

fn of_replies(faults: &mut Faults) {
    for says in [
        "-LOADING Redis is loading the dataset in memory",
        "-BUSY Redis is busy running a script.",
        "-MISCONF Redis is configured to save RDB snapshots, but it's unable to persist to disk.",
        "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "-TRYAGAIN Multiple keys request during rehashing of slot",
        "-UNBLOCKED force unblock from blocking operation",
        "-CLUSTERDOWN The cluster is down",
        "-MOVED 1 127.0.0.1:7000",
        "-ERR max number of clients reached",
        "-NOAUTH Authentication required.",
        "-NOSCRIPT No matching script. Please use EVAL.",
        "-ERR unknown command 'EVALSHA', with args beginning with: ",
        "-forbidden by the proxy",
        "+OK",
    ] {
        let reply = ScriptedReply::Raw(format!("{says}\r\n").into());
        let server =
            ScriptedServer::start(
                move |words| match is(words, "EVAL") || is(words, "EVALSHA") {
                    true => reply.clone(),
                    false => ScriptedReply::polite(words),
                },
            );
        faults.add(says, manager(server.url()).try_lock("a"));
    }
}

fn of_tls(faults: &mut Faults) {
    // On a loaded machine, a handshake takes its time.
    let build = |builder: Builder| builder.connect_timeout(SOON).build();
    for (what, names, dates) in [
        ("expired", HERE, EXPIRED),
        ("not yet valid", HERE, NOT_YET_VALID),
        ("another host", "DNS:elsewhere.example,IP:127.0.0.2", VALID),
    ] {
        let authority = Authority::new();
        let certificate = authority.issue("server", names, dates);
        let no_clients = ["--tls-auth-clients", "no"];
        let server = TlsServer::with_certificate(authority, &certificate, &no_clients);
        faults.add(what, build(server.builder()));
    }
    let with_clients = ["--tls-auth-clients", "yes", "--tls-protocols", "TLSv1.2"];
    let server = TlsServer::start_with(&with_clients);
    faults.add("no certificate of the client", build(server.builder()));
    let server = TlsServer::start();
    let pem = server.authority.pem();
    let unknown = tls_builder(&server.url()).tls_ca(Authority::named("other").pem());
    faults.add("unknown authority", build(unknown));
    let to_plain = tls_builder(&format!("rediss://{}", server.server.addr()));
    faults.add("TLS to a plain port", build(to_plain.tls_ca(pem)));
    let plain = tls_builder(&server.url().replace("rediss", "redis"));
    faults.add("plain text to a port of TLS", build(plain));
    let (own, other) = (server.authority.client(), server.authority.server());
    let mixed = server.builder().tls_identity(own.pem(), other.key_pem());
    faults.add("key of another certificate", build(mixed));
    let endless = server.authority.file().with_file_name("endless");
    make_endless(&endless);
    let unread = tls_builder(&server.url()).tls_ca_file(endless);
    faults.add("file that is not read in time", build(unread));
}

fn of_replicas(faults: &mut Faults) {
    let set = ReplicaSet::start(1);
    let acked = || builder(set.url()).replica_acks(1, ACK).build();
    let mgr = acked().unwrap();
    let held = until_some(SOON, "an acknowledgement", || mgr.lock("a").ok());
    set.replicas[0].cable.hold();
    faults.add("replica hangs: renew", held.renew());
    faults.add("replica hangs: lock", mgr.lock("b"));
    let rules = "ACL SETUSER default -wait".split(' ');
    let _: () = set.master.query(&rules.collect::<Vec<_>>());
    faults.add("no right to WAIT", acked());
}

fn of_sentinels(faults: &mut Faults) {
    let set = SentinelSet::start_with(&SentinelSetup {
        node_args: &["--requirepass", "right", "--masterauth", "right"],
        sentinel_lines: &[&format!("sentinel auth-pass {SERVICE} right")],
    });
    let url = |login: &str, hosts: &str| format!("redis-sentinel://{login}{hosts}/{SERVICE}");
    let right = url(":right@", &set.hosts());
    let nowhere = [free_address(), free_address()].map(|addr| addr.to_string());
    faults.add("no sentinel", builder(url("", &nowhere.join(","))).build());
    let alone = set.nodes[0].addr().to_string();
    faults.add("one server", builder(url(":right@", &alone)).build());
    let unknown = right.replace(SERVICE, "yourmaster");
    faults.add("unknown service", builder(unknown).build());
    let locked = sentinel(&[SERVICE], "requirepass right\n");
    let to_locked = url("", &locked.addr().to_string());
    faults.add("no login at the sentinel", builder(&to_locked).build());
    let wrong = builder(format!("{to_locked}?sentinelPassword=wrong"));
    faults.add("wrong login at the sentinel", wrong.build());
    let wrong = builder(url(":wrong@", &set.hosts()));
    faults.add("wrong login at the master", wrong.build());

    let mgr = warm(&right, "a");
    // No other one can become the master.
    set.nodes.iter().rev().for_each(Server::kill);
    faults.add("master gone", mgr.try_lock("a"));
    faults.add("master gone: build", builder(&right).build());
    set.sentinels.iter().for_each(Server::stop);
    faults.add("sentinels silent: build", builder(&right).build());
    set.sentinels.iter().for_each(Server::kill);
    faults.add("sentinels gone: build", builder(&right).build());
}

fn of_a_cluster(faults: &mut Faults) {
    let set = ClusterSet::start_with(3, 0, &[]);
    let [server, node] = ["no", "yes"].map(|is| Server::tcp_with(&["--cluster-enabled", is]));
    for (what, addr) in [
        ("no node", free_address()),
        ("one server", server.addr()),
        ("node without slots", node.addr()),
    ] {
        faults.add(what, builder(format!("redis-cluster://{addr}")).build());
    }
    let [round, theirs, last] = [0, 1, 2].map(|node| set.name_on(node, 0));
    let mgr = warm(set.url(), &last);
    let _: () = set
        .node(1)
        .query(&["SET", &format!("fairlock:{{{theirs}}}"), "theirs"]);
    faults.add("key of another type", mgr.lock(theirs));
    send_round(&set, set.slot_of(&round), &[0, 1]);
    faults.add("nodes that name each other", mgr.try_lock(round));
    set.node(2).stop();
    faults.add("node silent", mgr.try_lock(&last));
    set.node(2).kill();
    faults.add("node gone", mgr.try_lock(&last));
    until(SOON, "the others refuse", || {
        let info: String = set.node(1).query(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:fail")
    });
    faults.add("cluster down", mgr.try_lock(set.name_on(1, 1)));
    set.nodes()[..2].iter().for_each(Server::kill);
    faults.add("all gone: build", builder(set.url()).build());
}

fn of_a_quorum(faults: &mut Faults) {
    let set = Set::of((0..3).map(|_| thread::spawn(Server::tcp)));
    let quorum = || Endpoint::quorum(set.servers.iter().map(Server::url));
    let [one, other] = [0, 1].map(|at| set.servers[at].addr());
    let twin = format!(
        "redis://{one} redis://{other} redis://localhost:{}",
        one.port()
    );
    faults.add("server twice", builder(twin).build());
    let mgr = warm(quorum(), "a");
    faults.add("semaphore", mgr.semaphore("a", 2).acquire(1));
    faults.add("delete", mgr.delete("a"));
    let detached = mgr.lock("a").unwrap().detach(SOON);
    faults.add("detach", detached.map_err(Error::from));
    let elsewhere = manager(&Memory::new()).lock("a").unwrap();
    let detached = elsewhere.detach(SOON).unwrap();
    faults.add("attach", mgr.attach(&detached));
    let kept = mgr.with(LockOptions::new().keep_idle(ACK));
    faults.add("keep_idle", kept.lock("a"));
    let long = mgr.with(LockOptions::new().ttl(60 * SECOND));
    faults.add("ttl", long.lock("a"));
    let acked = builder(quorum()).replica_acks(1, ACK);
    faults.add("replica_acks", acked.build());
    let long = LockOptions::new().ttl(DAYS / 4);
    let young = builder(quorum()).uptime_check(true).options(long);
    let young = young.build().unwrap();
    faults.add("servers that have just started", young.try_lock("a"));

    let on_all = |command: &[&str]| {
        let servers = set.servers.iter();
        servers.for_each(|server| server.query::<()>(command));
    };
    on_all(&["SET", "fairlock:{theirs}", "theirs"]);
    faults.add("key of another type", mgr.lock("theirs"));
    set.servers[0].stop();
    let _: () = set.servers[1].query(&["REPLICAOF", "127.0.0.1", "1"]);
    faults.add("one silent, one a replica", mgr.try_lock("a"));
    let _: () = set.servers[1].query(&["REPLICAOF", "NO", "ONE"]);
    set.servers[0].cont();
    on_all(&["CONFIG", "SET", "requirepass", "right"]);
    faults.add("no login: build", builder(quorum()).build());
    on_all(&["CONFIG", "SET", "requirepass", ""]);
    set.servers[..2].iter().for_each(Server::kill);
    faults.add("two gone", mgr.try_lock("a"));
    faults.add("two gone: build", builder(quorum()).build());
}
