//! What is not allowed is refused with what is, before anything is written; everything else works.

use std::{
    collections::HashSet,
    error::Error as _,
    net::{Ipv4Addr, TcpListener},
    sync::Mutex,
    time::{Duration, Instant},
};

use fairlock::{Builder, Endpoint, Error, LockManager, LockOptions, LockState, Result, Step};

use crate::support::{
    Fake, FakeReply, Kid, SLACK, Server,
    fake::is,
    kid::{Role, say},
    until,
};

pub(crate) const SPILL: (&str, Role) = ("spill", spill);

const SECRET: &str = "hunter2-pa55phrase";
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The error must be of `what` and say each of `allowed`.
#[track_caller]
fn assert_config<T>(result: Result<T>, of: &str, allowed: &[&str]) {
    let Err(Error::Config { what, message, .. }) = result else {
        panic!("no Config error of {of:?} but {:?}", result.err().map(|e| e.to_string()));
    };
    assert_eq!(what, of, "{message}");
    for words in allowed {
        assert!(message.contains(words), "the error of {of:?} does not say {words:?}: {message}");
    }
}

#[track_caller]
fn assert_nothing_written(server: &Server) {
    assert_eq!(server.query::<i64>(&["DBSIZE"]), 0);
}

fn manager(server: &Server) -> LockManager {
    LockManager::builder(server.url()).options(LockOptions::new().ttl(Duration::from_secs(2))).build().unwrap()
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn a_name_that_is_empty_or_too_long_is_refused_by_every_verb() {
    let server = Server::start();
    let mgr = manager(&server);
    for name in [String::new(), "n".repeat(513), "é".repeat(257)] {
        let length = name.len().to_string();
        let allowed = ["1 to 512 bytes", &length];
        assert_config(mgr.lock(&name), "name", &allowed);
        assert_config(mgr.try_lock(&name), "name", &allowed);
        assert_config(mgr.try_lock_for(&name, ms(1)), "name", &allowed);
        assert_config(mgr.try_lock_until(&name, Instant::now()), "name", &allowed);
        assert_config(mgr.enqueue(&name), "name", &allowed);
        assert_config(mgr.inspect(&name), "name", &allowed);
        assert_config(mgr.force_release(&name, 1), "name", &allowed);
        let mutex = mgr.mutex(&name);
        assert_eq!(mutex.name(), name);
        assert_config(mutex.lock(), "name", &allowed);
        assert_config(mutex.try_lock(), "name", &allowed);
        assert_config(mutex.try_lock_for(ms(1)), "name", &allowed);
        assert_config(mutex.try_lock_until(Instant::now()), "name", &allowed);
        assert_config(mutex.enqueue(), "name", &allowed);
    }
    assert_nothing_written(&server);
}

#[test]
fn a_ttl_out_of_range_is_refused_by_the_builder_and_by_a_handle() {
    let server = Server::start();
    let mgr = manager(&server);
    let renewed = [Duration::ZERO, ms(1), ms(999), DAY + Duration::from_nanos(1), Duration::MAX];
    for ttl in renewed {
        let options = LockOptions::new().ttl(ttl);
        let allowed = ["1s to 86400s", &format!("{ttl:?}")];
        assert_config(LockManager::builder(server.url()).options(options.clone()).build(), "ttl", &allowed);
        assert_config(mgr.with(options.clone()).lock("n"), "ttl", &allowed);
        assert_config(mgr.with(options.clone()).try_lock("n"), "ttl", &allowed);
        assert_config(mgr.with(options).mutex("n").enqueue(), "ttl", &allowed);
    }
    let fixed = [Duration::ZERO, Duration::from_micros(9_999), DAY + ms(1), Duration::MAX];
    for lease in fixed {
        let options = LockOptions::new().fixed_lease(lease);
        let allowed = ["10ms to 86400s", &format!("{lease:?}")];
        assert_config(LockManager::builder(server.url()).options(options.clone()).build(), "fixed_lease", &allowed);
        assert_config(mgr.with(options).try_lock("n"), "fixed_lease", &allowed);
    }
    assert_nothing_written(&server);
}

#[test]
fn a_ttl_at_the_edge_of_its_range_works() {
    let server = Server::start();
    for ttl in [Duration::from_secs(1), DAY] {
        let options = LockOptions::new().ttl(ttl);
        let mgr = LockManager::builder(server.url()).options(options).build().unwrap();
        assert!(mgr.lock("n").unwrap().remaining() > ttl / 2);
    }
    let mgr = manager(&server).with(LockOptions::new().fixed_lease(DAY));
    assert!(mgr.try_lock("n").unwrap().unwrap().remaining() > DAY / 2);
    // So short a lease may end on the way of its reply.
    let shortest = mgr.with(LockOptions::new().fixed_lease(ms(10))).try_lock("n");
    assert!(matches!(shortest, Ok(Some(_)) | Err(Error::Lost { .. })), "{shortest:?}");
}

#[test]
fn a_handles_ttl_that_is_too_short_for_its_manager_is_refused_with_what_to_build() {
    let server = Server::start();
    let mgr = LockManager::connect(server.url()).unwrap();
    let short = mgr.with(LockOptions::new().ttl(Duration::from_secs(2)));
    // H is 5 s, and H × 30/17 is 8.824 s.
    assert_config(short.try_lock("n"), "ttl", &["8.824s", "horizon", "5s", "builder the ttl 2s"]);
    assert_config(short.lock("n"), "ttl", &["8.824s"]);
    assert_nothing_written(&server);
    let enough = mgr.with(LockOptions::new().ttl(ms(8824)));
    assert!(enough.try_lock("n").unwrap().is_some());
}

#[test]
fn a_fixed_lease_too_short_to_wait_for_is_for_try_lock_alone() {
    let server = Server::start();
    let mgr = LockManager::connect(server.url()).unwrap();
    // P + 2 T is 2 s here; the lease must be longer.
    for lease in [ms(10), ms(999), Duration::from_secs(2)] {
        let short = mgr.with(LockOptions::new().fixed_lease(lease));
        let allowed = ["at least 1s", "more than", "2s", "try_lock"];
        assert_config(short.lock("n"), "fixed_lease", &allowed);
        assert_config(short.enqueue("n"), "fixed_lease", &allowed);
        assert_config(short.try_lock_for("n", ms(5)), "fixed_lease", &allowed);
        assert_nothing_written(&server);
    }
    let short = mgr.with(LockOptions::new().fixed_lease(ms(999)));
    assert!(short.try_lock("n").unwrap().is_some());
    // A deadline that has passed is one try, so nothing is waited for.
    assert!(short.try_lock_for("n", Duration::ZERO).unwrap().is_some());
    assert!(mgr.with(LockOptions::new().fixed_lease(ms(2001))).lock("n").is_ok());
}

#[test]
fn timeouts_that_do_not_fit_each_other_are_refused() {
    let server = Server::start();
    let of = |set: fn(Builder) -> Builder, what: &str, allowed: &[&str]| {
        assert_config(set(LockManager::builder(server.url())).build(), what, allowed);
    };
    let zero = |b: Builder| b.command_timeout(Duration::ZERO);
    of(zero, "command_timeout", &["1ms to 86400s"]);
    of(|b| b.command_timeout(Duration::MAX), "command_timeout", &["1ms to 86400s"]);
    of(|b| b.connect_timeout(Duration::ZERO), "connect_timeout", &["1ms to 86400s"]);
    of(|b| b.connect_timeout(Duration::MAX), "connect_timeout", &["1ms to 86400s"]);
    of(|b| b.check_period(Duration::ZERO), "check_period", &["1ms to 86400s"]);
    of(|b| b.check_period(Duration::MAX), "check_period", &["1ms to 86400s"]);
    of(|b| b.horizon(Duration::ZERO), "horizon", &["1ms to 86400s"]);
    of(|b| b.horizon(Duration::MAX), "horizon", &["1ms to 86400s"]);
    // P + 3 T is 2.5 s with the defaults.
    of(|b| b.horizon(ms(2499)), "horizon", &["check_period + 3 × command_timeout", "2.5s", "2.499s"]);
    of(|b| b.command_timeout(ms(1400)), "horizon", &["5.2s", "5s"]);
    of(|b| b.check_period(ms(4000)), "horizon", &["5.5s", "5s"]);
    // 2/3 − 1/10 of the ttl of 10 s is 5.667 s.
    of(|b| b.horizon(ms(5700)), "ttl", &["at least 10.059s", "shorter horizon"]);
    of(|b| b.outage_limit(ms(499)), "outage_limit", &["at least the command timeout", "500ms"]);
    assert_nothing_written(&server);
}

#[test]
fn a_pool_size_or_a_prefix_that_cannot_be_used_is_refused() {
    let server = Server::start();
    for size in [0, 10_001, u32::MAX] {
        assert_config(LockManager::builder(server.url()).pool_size(size).build(), "pool_size", &["1 to 10,000"]);
    }
    let long = "p".repeat(129);
    for prefix in ["", "a{b", "a}b", "a\nb", "\0", &long] {
        assert_config(
            LockManager::builder(server.url()).prefix(prefix).build(),
            "prefix",
            &["1 to 128 bytes", "without braces and control characters"],
        );
    }
    assert_nothing_written(&server);
}

#[test]
fn options_that_cannot_be_kept_are_refused_by_the_builder_and_by_a_handle() {
    let server = Server::start();
    let mgr = manager(&server);
    let refused = |options: LockOptions, what: &str, allowed: &[&str]| {
        let options = options.ttl(Duration::from_secs(2));
        assert_config(LockManager::builder(server.url()).options(options.clone()).build(), what, allowed);
        assert_config(mgr.with(options.clone()).lock("n"), what, allowed);
        assert_config(mgr.with(options).try_lock("n"), what, allowed);
    };
    let label = ["at most 256 bytes", "without control characters"];
    refused(LockOptions::new().label("l".repeat(257)), "label", &label);
    refused(LockOptions::new().label("é".repeat(129)), "label", &label);
    for text in ["a\tb", "a\nb", "\0", "\u{7f}", "\u{85}"] {
        refused(LockOptions::new().label(text), "label", &label);
    }
    refused(LockOptions::new().max_hold(Duration::ZERO), "max_hold", &["more than zero"]);
    let cap = ["at most 86400s"];
    refused(LockOptions::new().hold_at_least(DAY + ms(1)), "hold_at_least", &cap);
    refused(LockOptions::new().hold_at_least(Duration::MAX), "hold_at_least", &cap);
    assert_nothing_written(&server);
}

#[test]
fn a_url_that_is_none_is_refused_without_repeating_its_password() {
    let bad = [
        format!("redis://:{SECRET}@host:notaport/"),
        format!("redis://user:{SECRET}@host:6379/notadb"),
        format!("redis://:{SECRET}@"),
        format!("redis://:{SECRET}@[::1/"),
        format!("http://user:{SECRET}@host/"),
        format!("user:{SECRET}@host"),
        SECRET.to_owned(),
        String::new(),
    ];
    for url in bad {
        let endpoint = Endpoint::from(url.as_str());
        let error = LockManager::connect(endpoint.clone()).unwrap_err();
        assert!(matches!(&error, Error::Config { what, .. } if what == "url"), "{error:?}");
        assert!(error.to_string().contains("redis://"), "{error}");
        let builder = LockManager::builder(url);
        assert_no_secret(&format!("{error} {error:?} {endpoint:?} {builder:?}"));
    }
}

#[test]
fn a_port_that_refuses_is_told_within_the_connect_timeout() {
    let addr = {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.local_addr().unwrap()
    };
    assert_unreachable(&format!("redis://{addr}/"));
    assert_unreachable("redis+unix:///nonexistent/fairlock.sock");
}

#[test]
fn a_server_that_accepts_and_never_answers_is_told_within_the_connect_timeout() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    assert_unreachable(&format!("redis://{}/", listener.local_addr().unwrap()));
    let mute = Fake::start(|_| FakeReply::Silent);
    assert_unreachable(&mute.url());
    let rude = Fake::start(|_| FakeReply::Close);
    assert_unreachable(&rude.url());
}

#[track_caller]
fn assert_unreachable(url: &str) {
    let timeout = ms(300);
    let started = Instant::now();
    let error = LockManager::builder(url).connect_timeout(timeout).build().unwrap_err();
    let took = started.elapsed();
    assert!(took < timeout + SLACK, "{took:?}: {error}");
    let Error::Unavailable { lock, step, .. } = &error else { panic!("{error:?}") };
    assert_eq!((lock, *step), (&None, Step::Connect), "{error:?}");
    assert!(error.source().is_some(), "{error:?}");
}

#[test]
fn garbage_from_something_that_is_no_redis_is_an_error() {
    for reply in ["HTTP/1.1 400 Bad Request\r\n\r\n", "*-5\r\n", ":1\r\n:1\r\n"] {
        let web = Fake::start(move |_| FakeReply::Raw(reply.into()));
        let started = Instant::now();
        let result = LockManager::builder(web.url()).connect_timeout(ms(300)).build();
        assert!(result.is_err(), "{reply:?}");
        assert!(started.elapsed() < ms(300) + SLACK, "{reply:?}");
    }
}

#[test]
fn a_wrong_password_is_told_at_once_in_the_servers_words() {
    let server = Server::start_with(&["--requirepass", "right"]);
    let patient = Duration::from_secs(10);
    let wrong = format!("{}?pass={SECRET}", server.url());
    let started = Instant::now();
    let error = LockManager::builder(wrong).connect_timeout(patient).build().unwrap_err();
    // It is an answer, so the connect timeout is not waited out.
    assert!(started.elapsed() < SLACK, "{:?}", started.elapsed());
    assert_code(&error, "WRONGPASS");
    assert_no_secret(&spell_out(&error));

    let error = LockManager::connect(server.url()).unwrap_err();
    assert_code(&error, "NOAUTH");
    assert!(LockManager::connect(format!("{}?pass=right", server.url())).is_ok());
}

#[test]
fn a_password_changed_while_running_is_told_by_the_next_connection() {
    let server = Server::start_with(&["--requirepass", SECRET]);
    let url = format!("{}?pass={SECRET}", server.url());
    let timeout = ms(200);
    let mgr =
        LockManager::builder(url.as_str()).options(LockOptions::new().ttl(Duration::from_secs(2))).build().unwrap();
    let guard = mgr.lock("held").unwrap();
    let mut admin = redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
    let _: () = redis::cmd("CONFIG").arg(&["SET", "requirepass", "another"]).query(&mut admin).unwrap();
    let _: () = redis::cmd("CLIENT").arg(&["KILL", "SKIPME", "yes", "TYPE", "normal"]).query(&mut admin).unwrap();
    // The first to notice has sent its request on a connection that was closed under it.
    for _ in 0..2 {
        let started = Instant::now();
        let error = mgr.try_lock("n").unwrap_err();
        assert!(started.elapsed() < timeout * 2 + SLACK, "{:?}", started.elapsed());
        assert_code(&error, "WRONGPASS");
        assert!(matches!(&error, Error::Server { lock: Some(lock), .. } if &**lock == "n"), "{error:?}");
        assert_no_secret(&spell_out(&error));
    }
    // No renewal gets through any more.
    let loss = guard.lost().recv_timeout(Duration::from_secs(2) + timeout + SLACK).unwrap();
    assert_eq!(loss.reason, fairlock::LossReason::Expired);
    assert_no_secret(&format!("{mgr:?} {guard:?} {loss:?}"));
}

#[test]
fn a_password_is_not_told_in_the_words_of_a_server_that_does_not_know_auth() {
    let server = Server::start_with(&["--rename-command", "AUTH", ""]);
    let error = LockManager::connect(format!("{}?user=u&pass={SECRET}", server.url())).unwrap_err();
    assert!(matches!(&error, Error::Server { .. }), "{error:?}");
    assert_no_secret(&spell_out(&error));
}

#[test]
fn a_password_is_in_no_log_and_no_message() {
    let server = Server::start_with(&["--requirepass", SECRET]);
    let url = format!("{}?user=default&pass={SECRET}", server.url());
    let mut kid = Kid::spawn("spill", &[&url, SECRET]);
    kid.expect("ready", Duration::from_secs(20));
    server.kill();
    kid.tell("go on");
    let logged: usize = kid.expect("logged", Duration::from_secs(20)).parse().unwrap();
    assert!(logged > 0, "the kid's logger caught nothing");
    assert_eq!(kid.expect("leaks", Duration::from_secs(20)), "0");
    kid.join(Duration::from_secs(20));
}

/// Logs at Trace into memory: a logger belongs to the whole process, so this is a worker's role.
fn spill(args: &[String]) {
    struct Capture;
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    impl log::Log for Capture {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            LINES.lock().unwrap().push(format!("{record:?} {}", record.args()));
        }
        fn flush(&self) {}
    }
    log::set_logger(&Capture).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let [url, secret] = args else { panic!("a url and its password") };

    let mut shown = Vec::new();
    let wrong = url.replace(secret, &format!("{secret}-and-more"));
    shown.push(spell_out(&LockManager::connect(wrong.as_str()).unwrap_err()));
    let builder = LockManager::builder(url.as_str()).options(LockOptions::new().ttl(Duration::from_secs(1)));
    shown.push(format!("{builder:?} {builder:#?} {:?}", Endpoint::from(url.as_str())));
    let mgr = builder.build().unwrap();
    let guard = mgr.lock("held").unwrap();
    let waiter = mgr.enqueue("held").unwrap();
    let mutex = mgr.mutex("held");
    shown.push(format!("{mgr:#?} {guard:#?} {waiter:#?} {mutex:#?} {:#?} {:#?}", mgr.inspect("held"), mgr.stats()));
    say("ready");
    crate::support::kid::hear();
    // The server is gone now: the pool, the listener and the renewals all complain.
    shown.push(spell_out(&mgr.try_lock("n").unwrap_err()));
    shown.push(format!("{:?}", guard.lost().recv()));
    shown.push(format!("{:?}", mgr.shutdown(Duration::ZERO)));
    drop((waiter, guard, mutex, mgr));

    let lines = LINES.lock().unwrap();
    let leaks = lines.iter().chain(&shown).filter(|line| line.contains(secret.as_str()));
    leaks.clone().for_each(|leak| eprintln!("leak: {leak}"));
    say(format_args!("logged {}", lines.len()));
    say(format_args!("leaks {}", leaks.count()));
}

/// All that an error can be made to say.
fn spell_out(error: &Error) -> String {
    let mut said = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(cause) = source {
        said.push_str(&format!(" {cause} {cause:?}"));
        source = cause.source();
    }
    said
}

#[track_caller]
fn assert_no_secret(said: &str) {
    assert!(!said.contains(SECRET), "{said}");
}

#[track_caller]
fn assert_code(error: &Error, expected: &str) {
    let Error::Server { code, message, .. } = error else { panic!("{error:?}") };
    assert_eq!(code, expected, "{error:?}");
    assert!(!message.is_empty());
}

#[test]
fn a_wrong_typed_key_in_the_way_is_left_as_it_is() {
    let server = Server::start();
    let mgr = manager(&server);
    let _: () = server.query(&["SET", "fairlock:{n}", "mine"]);
    for result in [
        mgr.lock("n").map(drop),
        mgr.try_lock("n").map(drop),
        mgr.try_lock_for("n", ms(50)).map(drop),
        mgr.enqueue("n").map(drop),
        mgr.inspect("n").map(drop),
        mgr.force_release("n", 1).map(drop),
    ] {
        let error = result.unwrap_err();
        assert_code(&error, "WRONGTYPE");
        assert!(error.to_string().contains("\"n\""), "{error}");
    }
    assert_eq!(server.query::<String>(&["GET", "fairlock:{n}"]), "mine");
    assert_eq!(server.query::<i64>(&["DBSIZE"]), 1);
}

#[test]
fn a_wrong_typed_queue_in_the_way_refuses_those_who_would_wait() {
    let server = Server::start();
    let mgr = manager(&server);
    let _: () = server.query(&["SET", "fairlock:{n}:q", "mine"]);
    let guard = mgr.lock("n").unwrap();
    let before: Vec<String> = record(&server, "n");
    let started = Instant::now();
    assert_code(&mgr.lock("n").unwrap_err(), "WRONGTYPE");
    assert_code(&mgr.enqueue("n").unwrap_err(), "WRONGTYPE");
    assert!(started.elapsed() < SLACK, "{:?}", started.elapsed());
    assert_eq!(record(&server, "n"), before);
    assert_eq!(server.query::<String>(&["GET", "fairlock:{n}:q"]), "mine");
    assert_eq!(mgr.stats().waiting, 0);
    guard.unlock().unwrap();
}

fn record(server: &Server, name: &str) -> Vec<String> {
    server.query(&["HGETALL", &format!("fairlock:{{{name}}}")])
}

#[test]
fn a_server_older_than_6_2_is_refused() {
    for version in ["6.0.16", "6.1.240", "5.9.9"] {
        let old = Fake::start(move |words| {
            if is(words, "HELLO") {
                return FakeReply::array(["server", "redis", "version", version].map(FakeReply::bulk));
            }
            FakeReply::polite(words)
        });
        assert_config(LockManager::connect(old.url()), "server", &["redis 6.2 or newer", version]);
    }
    let ancient = Fake::start(|words| {
        if is(words, "HELLO") {
            return FakeReply::error("ERR unknown command `HELLO`, with args beginning with: `2`, ");
        }
        FakeReply::polite(words)
    });
    assert_config(LockManager::connect(ancient.url()), "server", &["redis 6.2 or newer", "older than 6"]);
    for version in ["6.2.0", "7.0.15", "10.1.0"] {
        let good = Fake::start(move |words| {
            if is(words, "HELLO") {
                return FakeReply::array(["server", "redis", "version", version].map(FakeReply::bulk));
            }
            FakeReply::polite(words)
        });
        assert!(LockManager::connect(good.url()).is_ok(), "{version}");
    }
}

#[test]
fn any_other_name_works_and_none_collide() {
    let server = Server::start();
    let mgr = manager(&server);
    let mut names: Vec<String> = [
        "a",
        "A",
        "a b",
        " a",
        "a ",
        "a\nb",
        "a\r\nb",
        "\t",
        "\0",
        "\"",
        "'",
        "`",
        "\\",
        "\\x00",
        "{",
        "}",
        "{}",
        "}{",
        "}x",
        "{a}",
        "a{b}c",
        "%",
        "%%",
        "%7B",
        "%7b",
        "%257B",
        "%7D",
        "%25",
        "a:q",
        "a}:q",
        "{a}:q",
        ":",
        "*",
        "?",
        "[a]",
        "fairlock:{a}",
        "🦀",
        "👩‍👩‍👧",
        "é",
        "e\u{301}",
        "名前",
        "\u{202e}",
        "\u{feff}",
    ]
    .map(str::to_owned)
    .into();
    names.extend(["x".repeat(512), "é".repeat(256), "{".repeat(512), "🦀".repeat(128)]);
    let guards: Vec<_> =
        names.iter().map(|name| mgr.try_lock(name).unwrap().unwrap_or_else(|| panic!("{name:?} collides"))).collect();
    for (guard, name) in guards.iter().zip(&names) {
        assert_eq!(guard.name(), name);
        assert!(mgr.try_lock(name).unwrap().is_none(), "{name:?}");
        let info = mgr.inspect(name).unwrap().unwrap();
        assert_eq!((&*info.name, info.fence), (name.as_str(), guard.fence()));
        assert_eq!(info.state, LockState::Held);
    }
    // Every name can be waited for, and is handed over.
    let waiters: Vec<_> = names.iter().map(|name| mgr.enqueue(name).unwrap()).collect();
    for guard in guards {
        guard.unlock().unwrap();
    }
    let guards: Vec<_> = waiters.into_iter().map(|waiter| waiter.wait().unwrap()).collect();
    for (guard, name) in guards.iter().zip(&names) {
        assert_eq!(guard.name(), name);
        guard.check().unwrap();
    }
    let listed: Vec<String> = mgr.list("*").map(|info| info.unwrap().name.to_string()).collect();
    assert_eq!(listed.len(), names.len());
    assert_eq!(listed.into_iter().collect::<HashSet<_>>(), names.into_iter().collect::<HashSet<_>>());
}

#[test]
fn a_grant_message_brings_any_name_to_another_manager() {
    let server = Server::start();
    // A check period longer than the test: only the message can bring the news in time.
    let slow = || {
        LockManager::builder(server.url())
            .options(LockOptions::new().ttl(Duration::from_secs(60)))
            .check_period(Duration::from_secs(30))
            .horizon(Duration::from_secs(32))
            .build()
            .unwrap()
    };
    let (here, there) = (slow(), slow());
    for name in ["a b", "a\nb c", " ", "{x} %", "🦀 🦀"] {
        let guard = here.lock(name).unwrap();
        let mut waiter = there.enqueue(name).unwrap();
        guard.unlock().unwrap();
        let next = waiter.wait_for(SLACK).unwrap();
        assert_eq!(next.unwrap_or_else(|| panic!("{name:?} was not handed over")).name(), name);
    }
}

#[test]
fn waiting_for_ever_and_deadlines_that_have_passed_are_no_errors() {
    let server = Server::start();
    let mgr = manager(&server);
    let mutex = mgr.mutex("n");
    let ages_ago = Instant::now().checked_sub(Duration::from_secs(1)).unwrap_or_else(Instant::now);
    let mut far_future = Instant::now();
    while let Some(later) = far_future.checked_add(Duration::from_secs(u32::MAX.into())) {
        far_future = later;
        if far_future.duration_since(ages_ago) > Duration::from_secs(1 << 40) {
            break;
        }
    }
    // Free: each takes it.
    drop(mgr.try_lock_for("n", Duration::MAX).unwrap().unwrap());
    drop(mgr.try_lock_until("n", far_future).unwrap().unwrap());
    drop(mgr.try_lock_for("n", Duration::ZERO).unwrap().unwrap());
    drop(mgr.try_lock_until("n", ages_ago).unwrap().unwrap());
    drop(mutex.try_lock_for(Duration::MAX).unwrap().unwrap());
    drop(mutex.try_lock_until(far_future).unwrap().unwrap());
    drop(mgr.enqueue("n").unwrap().wait_for(Duration::MAX).unwrap().unwrap());

    let guard = mgr.lock("n").unwrap();
    // Taken: a passed deadline is one try.
    assert!(mgr.try_lock_for("n", Duration::ZERO).unwrap().is_none());
    assert!(mgr.try_lock_until("n", ages_ago).unwrap().is_none());
    assert!(mutex.try_lock_until(ages_ago).unwrap().is_none());
    assert_eq!(mgr.stats().waiting, 0);
    // Taken: those who wait for ever do wait.
    std::thread::scope(|scope| {
        let waits: [Box<dyn FnOnce() -> bool + Send>; 4] = [
            Box::new(|| mgr.try_lock_for("n", Duration::MAX).unwrap().is_some()),
            Box::new(|| mgr.try_lock_until("n", far_future).unwrap().is_some()),
            Box::new(|| mgr.try_lock_for("n", Duration::from_nanos(u64::MAX)).unwrap().is_some()),
            Box::new(|| mgr.enqueue("n").unwrap().wait_for(Duration::MAX - Duration::from_nanos(1)).unwrap().is_some()),
        ];
        let waits = waits.map(|wait| scope.spawn(wait));
        until(SLACK, "all four wait", || mgr.stats().waiting == 4);
        drop(guard);
        assert!(waits.into_iter().all(|wait| wait.join().unwrap()));
    });
    // No deadline at all is far enough in the future for a shutdown with nothing to wait for.
    mgr.shutdown(Duration::MAX).unwrap();
}

#[test]
fn largest_settings_build_and_work() {
    let server = Server::start();
    let mgr = LockManager::builder(server.url())
        .options(LockOptions::new().ttl(DAY).max_hold(Duration::MAX).hold_at_least(DAY))
        .outage_limit(Duration::MAX)
        .connect_timeout(DAY)
        .command_timeout(Duration::from_secs(3600))
        .check_period(Duration::from_secs(3600))
        .horizon(Duration::from_secs(12 * 3600))
        .pool_size(10_000)
        .prefix("p".repeat(128))
        .build()
        .unwrap();
    let guard = mgr.lock(&"n".repeat(512)).unwrap();
    assert!(guard.remaining() > DAY / 2);
    guard.renew().unwrap();
    guard.unlock().unwrap();
    assert!(server.keys_without_ttl().is_empty());
}
