//! URLs, addresses, passwords and servers that cannot be used, and passwords that must not leak. On
//! Redis alone, or on a server that is not even Redis.

use std::{
    error::Error as StdError,
    io,
    net::{Ipv4Addr, TcpListener},
    sync::Mutex,
    time::{Duration, Instant},
};

use fairlock::{Error, LockManager, LockOptions, Misuse, Step, endpoint::Endpoint};
use proptest::prop_assert;
use proptest::test_runner::{Config, TestRunner};

use crate::{
    behaviour::bad_input::assert_config,
    support::{
        Child, SLACK, ScriptedReply, ScriptedServer, Server,
        child::{Role, report},
        scripted_server::is,
    },
};

pub(crate) const LOG_CAPTURE: (&str, Role) = ("log_capture", log_capture);

const SECRET: &str = "hunter2-pa55phrase";

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn p10_an_invalid_url_is_refused_without_showing_its_password() {
    let bad = [
        format!("redis://:{SECRET}@host:notaport/"),
        format!("redis://user:{SECRET}@host:6379/notadb"),
        format!("redis://:{SECRET}@"),
        format!("redis://:{SECRET}@[::1/"),
        format!("redis://user:1?{SECRET}@host/"),
        format!("redis://user:1#{SECRET}@host/"),
        format!("redis://user:pass@{SECRET}#@host/"),
        format!("redis+unix:///socket?pass=1&{SECRET}"),
        format!("redis-sentinel://user:1/{SECRET}@host/service"),
        format!("redis-sentinel://host/service?sentinelPassword=1&{SECRET}"),
        format!("redis-cluster://user:1?node={SECRET}@host/"),
        format!("http://user:{SECRET}@host/"),
        format!("user:{SECRET}@host"),
        SECRET.to_owned(),
        String::new(),
    ];
    for url in bad {
        let endpoint = Endpoint::from(url.as_str());
        let error = LockManager::connect(endpoint.clone()).unwrap_err();
        assert!(
            matches!(
                &error,
                Error::Misused {
                    misuse: Misuse::Setting { name: "url", .. },
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(
            error.to_string().contains("://[user:password@]host"),
            "{error}"
        );
        let builder = LockManager::builder(url);
        assert_no_secret(&format!("{error} {error:?} {endpoint:?} {builder:?}"));
    }
}

#[test]
fn p10_an_unsupported_part_of_a_url_is_refused_by_name() {
    let bad = [
        ("redis://127.0.0.1/?db=1", "parameter \"db\""),
        ("redis://127.0.0.1/1?x", "parameter \"x\""),
        (
            "redis+unix:///nonexistent/s?database=1",
            "parameter \"database\"",
        ),
        ("redis://127.0.0.1/one", "its database is not a number"),
        ("redis://127.0.0.1:99999/", "did not parse"),
        ("redis://:pa#ss@127.0.0.1/", "%23"),
        ("redis+unix:///nonexistent/s#1", "%23"),
        #[cfg(not(feature = "tls"))]
        ("rediss://127.0.0.1/", "the feature `tls`"),
        ("memory://", "&Memory"),
        ("127.0.0.1:6379", "does not begin with redis://"),
        ("redis://127.0.0.1/?ssl_cert_reqs=none", "\"ssl_cert_reqs\""),
        (
            "redis://:secret@127.0.0.1/?ssl_cert_reqs=none",
            "\"ssl_cert_reqs\"",
        ),
        (
            "redis-cluster://u:secret@a,b?read_timeout=1",
            "\"read_timeout\"",
        ),
        ("redis-sentinel://u:secret@a/m?ssl=1", "\"ssl\""),
        ("redis://:p?ss@127.0.0.1/?a=b", "percent-encoded"),
        ("redis://[fe80::7%25]/", "zone"),
        ("redis://[fe80::7%25a*b]/", "fe80::7%25eth0"),
        ("redis://[2001:db8::7%25lo]/", "link-local"),
        ("redis://a%25lo/", "letters"),
    ];
    for (url, why) in bad {
        let error = LockManager::connect(url).unwrap_err();
        assert!(
            matches!(
                &error,
                Error::Misused {
                    misuse: Misuse::Setting { name: "url", .. },
                    ..
                }
            ),
            "{url}: {error:?}"
        );
        assert!(error.to_string().contains(why), "{url}: {error}");
    }
}

#[test]
fn an_errors_cause_is_shown_once_with_its_kind() {
    let addr = crate::support::server::free_address();
    let error = LockManager::connect(format!("redis://{addr}/")).unwrap_err();
    let cause = cause_of(&error);
    assert_eq!(
        cause.downcast_ref::<io::Error>().map(io::Error::kind),
        Some(io::ErrorKind::ConnectionRefused)
    );
    assert_eq!(error.to_string().matches("Connection refused").count(), 1);
    assert_eq!(error.to_string().matches(&cause.to_string()).count(), 1);
    let web =
        ScriptedServer::start(|_| ScriptedReply::Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()));
    let error = LockManager::connect(web.url()).unwrap_err();
    assert_eq!(
        cause_of(&error).to_string(),
        "expected a Redis server; the reply is not in Redis's protocol"
    );
}

#[test]
fn client_that_is_turned_away_is_told_the_server_s_reason() {
    let denied = "DENIED Redis is running in protected mode because no password is set. In this \
                  mode 1) Just disable protected mode";
    let server = ScriptedServer::start(move |words| match is(words, "SENTINEL") {
        true => ScriptedReply::Close,
        false => ScriptedReply::error(denied),
    });
    let addr = server.addr();
    for url in [
        format!("redis://{addr}"),
        format!("redis-cluster://{addr}"),
        format!("redis-sentinel://{addr}/m"),
    ] {
        let error = LockManager::connect(&url).unwrap_err();
        assert_code(&error, "DENIED");
        let message = error.to_string();
        assert!(message.contains(&addr.to_string()), "{message}");
        assert!(message.contains("until it has a password"), "{message}");
        for wrong in ["disable", "CLUSTER SLOTS", "proxy"] {
            assert!(!message.contains(wrong), "{url}: {message}");
        }
    }
    let rude = ScriptedServer::start(|_| ScriptedReply::Close);
    let error = LockManager::connect(rude.url()).unwrap_err();
    let cause = cause_of(&error).to_string();
    assert!(cause.contains("closed the connection"), "{cause}");
}

#[test]
fn p8_a_refusing_port_is_reported_within_the_connect_timeout() {
    let addr = crate::support::server::free_address();
    assert_unreachable(&format!("redis://{addr}/"));
    assert_unreachable("redis+unix:///nonexistent/fairlock.sock");
}

#[test]
fn p8_a_silent_server_is_reported_within_the_connect_timeout() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    assert_unreachable(&format!("redis://{}/", listener.local_addr().unwrap()));
    let mute = ScriptedServer::start(|_| ScriptedReply::Silent);
    assert_unreachable(&mute.url());
    let rude = ScriptedServer::start(|_| ScriptedReply::Close);
    assert_unreachable(&rude.url());
}

#[track_caller]
fn assert_unreachable(url: &str) {
    let timeout = ms(300);
    let started = Instant::now();
    let error = LockManager::builder(url)
        .connect_timeout(timeout)
        .build()
        .unwrap_err();
    let took = started.elapsed();
    assert!(took < timeout + SLACK, "{took:?}: {error}");
    let Error::Unavailable { lock, step, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!((lock, *step), (&None, Step::Connect), "{error:?}");
    let cause = cause_of(&error).to_string();
    assert!(error.to_string().contains(&cause), "{error}");
}

#[track_caller]
fn cause_of(error: &Error) -> &(dyn StdError + Send + Sync + 'static) {
    let Error::Unavailable { cause, .. } = error else {
        panic!("{error:?}")
    };
    &***cause
}

#[test]
fn garbage_from_another_kind_of_server_is_an_error() {
    for reply in [
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "*-5\r\n",
        ":1\r\n:1\r\n",
    ] {
        let web = ScriptedServer::start(move |_| ScriptedReply::Raw(reply.into()));
        let started = Instant::now();
        let result = LockManager::builder(web.url())
            .connect_timeout(ms(300))
            .build();
        assert!(result.is_err(), "{reply:?}");
        assert!(started.elapsed() < ms(300) + SLACK, "{reply:?}");
    }
}

#[test]
fn a_wrong_password_fails_at_once_in_the_servers_words() {
    let server = Server::start_with(&["--requirepass", "right"]);
    let patient = Duration::from_secs(10);
    let wrong = format!("{}?pass={SECRET}", server.url());
    let started = Instant::now();
    let error = LockManager::builder(wrong)
        .connect_timeout(patient)
        .build()
        .unwrap_err();
    // The server answered, so the client does not wait for the connect timeout.
    assert!(started.elapsed() < SLACK, "{:?}", started.elapsed());
    assert_code(&error, "WRONGPASS");
    assert_no_secret(&spell_out(&error));

    let error = LockManager::connect(server.url()).unwrap_err();
    assert_code(&error, "NOAUTH");
    assert!(LockManager::connect(format!("{}?pass=right", server.url())).is_ok());
}

#[test]
fn a_changed_password_is_reported_by_the_next_connection() {
    let server = Server::start_with(&["--requirepass", SECRET]);
    let url = format!("{}?pass={SECRET}", server.url());
    let timeout = ms(200);
    let mgr = LockManager::builder(url.as_str())
        .options(LockOptions::new().ttl(Duration::from_secs(2)))
        .build()
        .unwrap();
    let guard = mgr.lock("held").unwrap();
    let mut admin = redis::Client::open(url.as_str())
        .unwrap()
        .get_connection()
        .unwrap();
    let _: () = redis::cmd("CONFIG")
        .arg(&["SET", "requirepass", "another"])
        .query(&mut admin)
        .unwrap();
    let _: () = redis::cmd("CLIENT")
        .arg(&["KILL", "SKIPME", "yes", "TYPE", "normal"])
        .query(&mut admin)
        .unwrap();
    // The first call sends its request on a connection that the server has closed, and must report
    // the same error.
    for _ in 0..2 {
        let started = Instant::now();
        let error = mgr.try_lock("n").unwrap_err();
        assert!(
            started.elapsed() < timeout * 2 + SLACK,
            "{:?}",
            started.elapsed()
        );
        assert_code(&error, "WRONGPASS");
        assert!(
            matches!(&error, Error::Refused { lock: Some(lock), .. } if &**lock == "n"),
            "{error:?}"
        );
        assert_no_secret(&spell_out(&error));
    }
    // No renewal reaches the server any more.
    let loss = guard
        .lost()
        .recv_timeout(Duration::from_secs(2) + timeout + SLACK)
        .unwrap();
    assert_eq!(loss.reason, fairlock::LossReason::Expired);
    assert_no_secret(&format!("{mgr:?} {guard:?} {loss:?}"));
}

#[test]
fn the_error_of_a_server_without_auth_hides_the_password() {
    let server = Server::start_with(&["--rename-command", "AUTH", ""]);
    let error = LockManager::connect(format!("{}?user=u&pass={SECRET}", server.url())).unwrap_err();
    assert!(matches!(&error, Error::Refused { .. }), "{error:?}");
    assert_no_secret(&spell_out(&error));
}

/// Servers that repeat what they do not understand, and texts that look like parts of a URL.
#[test]
fn no_password_is_shown_by_errors_builders_and_managers() {
    let server = ScriptedServer::start(|words| {
        if is(words, "AUTH") {
            let password = String::from_utf8_lossy(words.last().expect("a word"));
            return ScriptedReply::error(&match password.len() % 2 {
                0 => format!("ERR unknown command 'AUTH', with args beginning with: '{password}' "),
                _ => format!("ERR nobody logs in with {password} here"),
            });
        }
        ScriptedReply::polite(words)
    });
    let (host, port) = (server.addr().ip().to_string(), server.addr().port());
    let at = || [(host.as_str(), port)];
    let password = "[!-~]{12,40}";
    let config = Config {
        failure_persistence: None,
        cases: 64,
        ..Config::default()
    };
    let shown = |endpoint: Endpoint| {
        let builder =
            LockManager::builder(endpoint.clone()).connect_timeout(Duration::from_secs(5));
        let error = builder.clone().build().expect_err("AUTH is refused");
        format!("{endpoint:?} {builder:?} {}", spell_out(&error))
    };
    TestRunner::new(config)
        .run(&(password, password), |(own, of_sentinels)| {
            let encoded: String = own.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let one = Endpoint::server(&host, port).user("u").password(&own);
            let sentinel = Endpoint::sentinel("m", at())
                .password(&own)
                .sentinel_password(&of_sentinels);
            let all = [
                shown(Endpoint::from(format!(
                    "redis://u:{encoded}@{host}:{port}/"
                ))),
                shown(Endpoint::from(format!(
                    "redis-cluster://u:{encoded}@{host}:{port}/"
                ))),
                shown(one.clone()),
                shown(sentinel),
                shown(Endpoint::cluster(at()).password(&own)),
                shown(Endpoint::quorum([
                    one,
                    Endpoint::server("127.0.0.2", port).password(&own),
                    Endpoint::server("127.0.0.3", port).password(&own),
                ])),
            ]
            .concat();
            for secret in [&own, &of_sentinels, &encoded] {
                prop_assert!(!all.contains(secret.as_str()), "{secret}: {all}");
                // Nor as a part of a Debug text.
                let escaped = format!("{secret:?}");
                prop_assert!(!all.contains(escaped.trim_matches('"')), "{secret}: {all}");
            }
            Ok(())
        })
        .unwrap();
    let mgr = manager_with_password();
    assert_no_secret(&format!("{mgr:?} {mgr:#?} {:?}", mgr.stats()));
}

fn manager_with_password() -> LockManager {
    let polite = ScriptedServer::start(ScriptedReply::polite);
    let (host, port) = (polite.addr().ip().to_string(), polite.addr().port());
    LockManager::connect(Endpoint::server(host, port).password(SECRET)).unwrap()
}

#[test]
fn a_password_appears_in_no_log_line_or_message() {
    let server = Server::start_with(&["--requirepass", SECRET]);
    let url = format!("{}?user=default&pass={SECRET}", server.url());
    let mut child = Child::spawn("log_capture", &[&url, SECRET]);
    child.expect("ready", Duration::from_secs(20));
    server.kill();
    child.send("go on");
    let logged: usize = child
        .expect("logged", Duration::from_secs(20))
        .parse()
        .unwrap();
    assert!(logged > 0, "the child's logger captured nothing");
    assert_eq!(child.expect("leaks", Duration::from_secs(20)), "0");
    child.join();
}

/// A child role that captures the log at level Trace: a logger belongs to the whole process, so it
/// needs its own.
fn log_capture(args: &[String]) {
    struct Capture;
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    impl log::Log for Capture {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            LINES
                .lock()
                .unwrap()
                .push(format!("{record:?} {}", record.args()));
        }
        fn flush(&self) {}
    }
    log::set_logger(&Capture).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let [url, secret] = args else {
        panic!("a url and its password")
    };

    let mut shown = Vec::new();
    let wrong = url.replace(secret, &format!("{secret}-and-more"));
    shown.push(spell_out(
        &LockManager::connect(wrong.as_str()).unwrap_err(),
    ));
    let builder =
        LockManager::builder(url.as_str()).options(LockOptions::new().ttl(Duration::from_secs(1)));
    shown.push(format!(
        "{builder:?} {builder:#?} {:?}",
        Endpoint::from(url.as_str())
    ));
    let mgr = builder.build().unwrap();
    let guard = mgr.lock("held").unwrap();
    let waiter = mgr.enqueue("held").unwrap();
    let mutex = mgr.mutex("held");
    shown.push(format!(
        "{mgr:#?} {guard:#?} {waiter:#?} {mutex:#?} {:#?} {:#?}",
        mgr.inspect("held"),
        mgr.stats()
    ));
    report("ready");
    crate::support::child::receive();
    // The server is gone now, so the lanes, the subscription and the renewal thread all log errors.
    shown.push(spell_out(&mgr.try_lock("n").unwrap_err()));
    shown.push(format!("{:?}", guard.lost().recv()));
    shown.push(format!("{:?}", mgr.shutdown(Duration::ZERO)));
    drop((waiter, guard, mutex, mgr));

    let lines = LINES.lock().unwrap();
    let leaks = lines
        .iter()
        .chain(&shown)
        .filter(|line| line.contains(secret.as_str()));
    leaks.clone().for_each(|leak| eprintln!("leak: {leak}"));
    report(format_args!("logged {}", lines.len()));
    report(format_args!("leaks {}", leaks.count()));
}

/// Everything that an error can show. Its formats have those of each of its causes.
fn spell_out(error: &Error) -> String {
    format!("{error} {error:?} {error:#?}")
}

#[track_caller]
fn assert_no_secret(said: &str) {
    assert!(!said.contains(SECRET), "{said}");
}

#[track_caller]
fn assert_code(error: &Error, expected: &str) {
    let Error::Refused { code, message, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(code, expected, "{error:?}");
    assert!(!message.is_empty());
}

#[test]
fn p10_a_server_older_than_6_2_is_refused() {
    for version in ["6.0.16", "6.1.240", "5.9.9"] {
        let old = ScriptedServer::start(move |words| {
            if is(words, "HELLO") {
                return ScriptedReply::array(
                    ["server", "redis", "version", version].map(ScriptedReply::bulk),
                );
            }
            ScriptedReply::polite(words)
        });
        assert_config(
            LockManager::connect(old.url()),
            "server",
            &["redis 6.2 or newer", version],
        );
    }
    let ancient = ScriptedServer::start(|words| {
        if is(words, "HELLO") {
            return ScriptedReply::error(
                "ERR unknown command `HELLO`, with args beginning with: `2`, ",
            );
        }
        if is(words, "INFO") {
            return ScriptedReply::bulk("# Server\r\nredis_version:5.0.14\r\n");
        }
        ScriptedReply::polite(words)
    });
    assert_config(
        LockManager::connect(ancient.url()),
        "server",
        &["redis 6.2 or newer", "5.0.14"],
    );
    for version in ["6.2.0", "7.0.15", "10.1.0"] {
        let good = ScriptedServer::start(move |words| {
            if is(words, "HELLO") {
                return ScriptedReply::array(
                    ["server", "redis", "version", version].map(ScriptedReply::bulk),
                );
            }
            ScriptedReply::polite(words)
        });
        assert!(LockManager::connect(good.url()).is_ok(), "{version}");
    }
}

#[test]
fn no_message_shows_needless_digits() {
    let third = Duration::from_secs(5) / 3;
    let url = "redis+unix:///nonexistent/fairlock.sock";
    let builder = || LockManager::builder(url);
    let options = |change: fn(LockOptions) -> LockOptions| {
        builder().options(change(LockOptions::new().ttl(Duration::from_secs(5))))
    };
    for refused in [
        options(|new| new.keep_idle(Duration::from_secs(2))),
        options(|new| new.ttl(ms(2333))).command_timeout(third),
        options(|new| new).horizon(ms(7)).check_period(ms(10) / 3),
        options(|new| new)
            .command_timeout(ms(1000))
            .outage_limit(ms(999)),
        options(|new| new)
            .command_timeout(ms(1001))
            .replica_acks(1, ms(600)),
        options(|new| new).long_wait(Duration::ZERO),
    ] {
        let error = refused.build().unwrap_err();
        let Error::Misused { message, .. } = &error else {
            panic!("{error:?}");
        };
        // The value that was given stays as it is.
        let said = message.split("it is ").next().unwrap_or_default();
        let longest = said
            .split('.')
            .skip(1)
            .map(|rest| rest.chars().take_while(char::is_ascii_digit).count());
        assert!(longest.max().is_none_or(|digits| digits <= 3), "{message}");
    }
}
