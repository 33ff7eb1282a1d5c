//! Logins that change: providers of credentials, rotated passwords and tokens that end. On Redis alone:
//! a `Memory` has no login.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use fairlock::{
    Error, LockManager, Step,
    credentials::{Credentials, CredentialsError, CredentialsRequest, PasswordFile},
};

use crate::fixtures::{P, SOON, STEADY_T, STEADY_TTL, Waiters, build, steady, warm_up};
use crate::support::gateway::Gateway;
use crate::support::scripted_server::{ScriptedReply, is};
use crate::support::{SLACK, Server, until};

/// One answer of a provider.
type Answer = Result<Credentials, CredentialsError>;

/// Creates the user, or gives it this password alone. It may do everything.
fn set_password(server: &Server, user: &str, password: &str) {
    let password = format!(">{password}");
    let rules = ["ACL", "SETUSER", user, "reset", "on", &password];
    let all = ["~*", "&*", "+@all"];
    let _: () = server.query(&[&rules[..], &all].concat());
}

/// The clients of a user: the name of each, by its id.
fn clients_of(server: &Server, user: &str) -> BTreeMap<String, String> {
    let field = |line: &str, name: &str| {
        let found = line.split(' ').find_map(|field| field.strip_prefix(name));
        found.unwrap_or_default().to_owned()
    };
    let mut clients = BTreeMap::new();
    for line in server.clients() {
        if field(&line, "user=") == user {
            clients.insert(field(&line, "id="), field(&line, "name="));
        }
    }
    clients
}

/// A service of tokens. Each is a user of its own, which the service deletes when the token ends: so
/// the server closes every connection that has not logged in anew by then.
struct Tokens {
    server: Server,
    validity: Duration,
    issued: AtomicU64,
    /// The connections that were open when their tokens ended.
    late: Mutex<Vec<String>>,
}

impl Tokens {
    fn start(validity: Duration) -> Arc<Tokens> {
        Arc::new(Tokens {
            server: Server::start(),
            validity,
            issued: AtomicU64::new(0),
            late: Mutex::default(),
        })
    }

    fn issue(self: &Arc<Self>) -> Answer {
        let number = self.issued.fetch_add(1, Ordering::SeqCst) + 1;
        let user = format!("token-{number}");
        set_password(&self.server, &user, "p");
        let ends_at = Instant::now() + self.validity;
        let (tokens, ended) = (Arc::clone(self), user.clone());
        thread::spawn(move || {
            until(tokens.validity + SLACK, "the token ends", || {
                Instant::now() >= ends_at
            });
            let late = clients_of(&tokens.server, &ended).into_values();
            tokens.late.lock().unwrap().extend(late);
            let _: i64 = tokens.server.query(&["ACL", "DELUSER", &ended]);
        });
        Ok(Credentials::new(user, "p").valid_for(self.validity))
    }

    /// The connections whose tokens are valid: the name of each, by its id.
    fn clients(&self) -> BTreeMap<String, String> {
        let all = 1..=self.issued.load(Ordering::SeqCst);
        all.flat_map(|n| clients_of(&self.server, &format!("token-{n}")))
            .collect()
    }

    #[track_caller]
    fn await_clients(&self, count: usize) -> BTreeMap<String, String> {
        until(SOON, "all connections are open", || {
            self.clients().len() == count
        });
        self.clients()
    }

    /// Every connection is still there, with a newer token. Only a subscription cannot log in anew,
    /// so another one has taken its place.
    #[track_caller]
    fn assert_renewed_since(&self, before: &BTreeMap<String, String>) {
        let late = self.late.lock().unwrap();
        assert_eq!(*late, [""; 0], "these had an ended token");
        drop(late);
        // For a moment there may be two subscriptions.
        let after = self.await_clients(before.len());
        for (id, name) in before {
            let stays = !name.ends_with(":subscription");
            assert_eq!(after.contains_key(id), stays, "{name}");
        }
    }
}

#[test]
fn provider_is_asked_for_each_connection_with_its_server() {
    let server = Server::tcp();
    set_password(&server, "u", "p");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let requests = Arc::clone(&asked);
    let mgr = steady(server.url())
        .credentials(move |request: &CredentialsRequest| {
            let seen = (request.server().to_owned(), request.was_refused());
            requests.lock().unwrap().push(seen);
            Ok(Credentials::new("u", "p"))
        })
        .build()
        .unwrap();
    warm_up(&mgr);
    let _held = mgr.lock("held").unwrap();
    // Both lanes, the renewal thread's and the subscription.
    until(SOON, "four connections", || {
        clients_of(&server, "u").len() == 4
    });
    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 4, "one answer for each connection");
    let expected = (server.addr().to_string(), false);
    assert!(asked.iter().all(|seen| *seen == expected), "{asked:?}");
}

#[test]
fn password_rotated_under_locks_and_waiters_costs_none() {
    let server = Server::start();
    set_password(&server, "u", "one");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("password");
    fs::write(&path, "one\n").unwrap();
    let file = || PasswordFile::new(&path).user("u");
    let connect = || {
        let file = file();
        let builder = steady(server.url()).credentials(move |_| file.credentials());
        builder.build().unwrap()
    };
    let (mgr, other) = (connect(), connect());
    warm_up(&mgr);
    let held = mgr.lock("held").unwrap();
    let mut waiters = Waiters::of("held");
    waiters.add(&other);
    waiters.add(&mgr);
    for password in ["two", "three"] {
        fs::write(&path, password).unwrap();
        set_password(&server, "u", password);
        let _: i64 = server.query(&["CLIENT", "KILL", "USER", "u"]);
        let killed_at = Instant::now();
        until(STEADY_TTL + SLACK, "more than a ttl passes", || {
            assert!(held.is_held(), "{:?}", killed_at.elapsed());
            killed_at.elapsed() > STEADY_TTL
        });
    }
    held.unlock().unwrap();
    waiters.expect_grant(0, SOON).unlock().unwrap();
    waiters.expect_grant(1, SOON).unlock().unwrap();
}

#[test]
fn password_changed_while_connections_are_open_costs_nothing() {
    let server = Server::start_with(&["--requirepass", "one"]);
    let password = Arc::new(Mutex::new("one"));
    let current = Arc::clone(&password);
    let mgr = steady(server.url())
        .credentials(move |_: &CredentialsRequest| {
            Ok(Credentials::password(*current.lock().unwrap()))
        })
        .build()
        .unwrap();
    warm_up(&mgr);
    let held = mgr.lock("held").unwrap();
    let mut admin = redis::Client::open(format!("{}?pass=one", server.url()))
        .unwrap()
        .get_connection()
        .unwrap();
    let _: () = redis::cmd("CONFIG")
        .arg(&["SET", "requirepass", "two"])
        .query(&mut admin)
        .unwrap();
    *password.lock().unwrap() = "two";
    let _: () = redis::cmd("CLIENT")
        .arg(&["KILL", "SKIPME", "yes"])
        .query(&mut admin)
        .unwrap();
    mgr.lock("another").unwrap().unlock().unwrap();
    assert!(held.is_held());
    held.unlock().unwrap();
}

#[test]
fn refused_answer_is_asked_for_once_more() {
    let server = Server::start();
    set_password(&server, "u", "right");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let requests = Arc::clone(&asked);
    let mgr = steady(server.url())
        .credentials(move |request: &CredentialsRequest| {
            requests.lock().unwrap().push(request.was_refused());
            let password = if request.was_refused() {
                "right"
            } else {
                "old"
            };
            Ok(Credentials::new("u", password))
        })
        .build()
        .unwrap();
    mgr.lock("a").unwrap().unlock().unwrap();
    let asked = asked.lock().unwrap().clone();
    assert!(
        asked.chunks(2).all(|pair| pair == [false, true]),
        "{asked:?}"
    );

    // The same wrong answer again is not sent a second time.
    let refusals = || -> u64 {
        let log: Vec<redis::Value> = server.query(&["ACL", "LOG"]);
        log.len() as u64
    };
    let _: () = server.query(&["ACL", "LOG", "RESET"]);
    let wrong = steady(server.url())
        .credentials(|_: &CredentialsRequest| Ok(Credentials::new("u", "still wrong")))
        .build();
    assert!(
        matches!(&wrong, Err(Error::Refused { code, .. }) if code == "WRONGPASS"),
        "{wrong:?}"
    );
    assert_eq!(refusals(), 1);
}

/// A provider whose answers the test decides, one after the other; then they are good.
fn scripted(
    server: &Server,
    answers: impl Fn(u64) -> Option<Answer> + Send + Sync + 'static,
) -> (fairlock::Builder, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let provider = move |_: &CredentialsRequest| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        answers(number).unwrap_or_else(|| Ok(Credentials::new("u", "p")))
    };
    (steady(server.url()).credentials(provider), asked)
}

fn assert_no_credentials(result: Result<LockManager, Error>, why: &str) {
    let error = result.expect_err("there are no credentials");
    let Error::Unavailable { step, cause, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(*step, Step::Credentials);
    assert!(cause.to_string().contains(why), "{cause}");
}

#[test]
fn provider_that_fails_or_panics_fails_that_connection_alone() {
    let server = Server::start();
    set_password(&server, "u", "p");
    let (builder, _) = scripted(&server, |number| match number {
        0 => Some(Err("the vault is sealed".into())),
        1 => panic!("on purpose"),
        _ => None,
    });
    assert_no_credentials(builder.clone().build(), "the vault is sealed");
    assert_no_credentials(builder.clone().build(), "panicked");
    let mgr = builder.build().unwrap();
    mgr.lock("a").unwrap().unlock().unwrap();
}

#[test]
fn provider_that_panics_later_leaks_no_connection() {
    let server = Server::start();
    set_password(&server, "u", "p");
    // More panics than the manager has lanes: each would cost a place in a pool.
    let (builder, _) = scripted(&server, |number| {
        assert!(!(1..20).contains(&number), "on purpose");
        None
    });
    let mgr = builder.build().unwrap();
    until(SOON, "the provider answers again", || {
        let _: i64 = server.query(&["CLIENT", "KILL", "USER", "u"]);
        mgr.lock("a").is_ok()
    });
    let locks: Vec<_> = (0..16)
        .map(|n| mgr.lock(format!("n{n}")).unwrap())
        .collect();
    drop(locks);
}

#[test]
fn provider_that_hangs_costs_a_bounded_number_of_threads() {
    let server = Server::start();
    set_password(&server, "u", "p");
    let hangs = Arc::new(AtomicBool::new(false));
    let hanging = Arc::clone(&hangs);
    let (release, hang): (_, Receiver<()>) = bounded(0);
    let (builder, asked) = scripted(&server, move |_| {
        if hanging.load(Ordering::SeqCst) {
            let _ = hang.recv();
        }
        None
    });
    let mgr = build(builder.connect_timeout(STEADY_T / 2));
    warm_up(&mgr);
    hangs.store(true, Ordering::SeqCst);
    let before = asked.load(Ordering::SeqCst);
    let _: i64 = server.query(&["CLIENT", "KILL", "USER", "u"]);
    for _ in 0..30 {
        let started = Instant::now();
        let error = mgr.try_lock("a").expect_err("nobody can log in");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(
            started.elapsed() < STEADY_T * 2 + SLACK,
            "{:?}",
            started.elapsed()
        );
        if asked.load(Ordering::SeqCst) - before >= 8 {
            break;
        }
    }
    let hung = asked.load(Ordering::SeqCst) - before;
    for _ in 0..3 {
        mgr.try_lock("a").expect_err("nobody can log in");
    }
    // A few may have been under way at the same time when the eighth was given up.
    assert!(
        hung >= 8 && asked.load(Ordering::SeqCst) - before <= 8 + 4,
        "{hung}"
    );
    hangs.store(false, Ordering::SeqCst);
    drop(release);
    until(SOON, "it can log in again", || mgr.try_lock("a").is_ok());
}

#[test]
fn open_connections_log_in_anew_before_their_token_ends() {
    let validity = Duration::from_secs(5);
    let tokens = Tokens::start(validity);
    let issuer = Arc::clone(&tokens);
    let mgr = steady(tokens.server.url())
        .credentials(move |_: &CredentialsRequest| issuer.issue())
        .build()
        .unwrap();
    warm_up(&mgr);
    let server = &tokens.server;
    let other = steady(server.url()).build().unwrap();
    let held = mgr.lock("held").unwrap();
    let theirs = other.lock("theirs").unwrap();
    let mut waiters = Waiters::of("theirs");
    waiters.add(&mgr);
    let before = tokens.await_clients(4);
    let started = Instant::now();
    until(validity * 3, "two tokens have ended", || {
        assert!(held.is_held());
        started.elapsed() > validity * 2
    });
    tokens.assert_renewed_since(&before);
    theirs.unlock().unwrap();
    waiters.expect_grant(0, P + SLACK).unlock().unwrap();
    held.unlock().unwrap();
    // One answer renews all connections of a node.
    let issued = tokens.issued.load(Ordering::SeqCst);
    assert!(issued <= before.len() as u64 + 12, "{issued}");
}

#[test]
fn connections_that_idle_log_in_anew_too() {
    let validity = Duration::from_secs(5);
    let tokens = Tokens::start(validity);
    let issuer = Arc::clone(&tokens);
    let mgr = steady(tokens.server.url())
        .credentials(move |_: &CredentialsRequest| issuer.issue())
        .build()
        .unwrap();
    warm_up(&mgr);
    let held = mgr.lock("held").unwrap();
    let before = tokens.await_clients(4);
    held.unlock().unwrap();
    let started = Instant::now();
    until(validity * 3, "two tokens have ended", || {
        started.elapsed() > validity * 2
    });
    tokens.assert_renewed_since(&before);
    mgr.lock("a").unwrap().unlock().unwrap();
    assert_eq!(mgr.stats().retries, 0, "no call met a closed connection");
}

/// A proxy that ends logins by itself: it keeps the connections open, and answers NOAUTH.
struct LoginProxy {
    gateway: Gateway,
    /// Logins before this one have ended.
    valid_from: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
}

impl LoginProxy {
    fn to(server: &Server) -> LoginProxy {
        let (valid_from, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (current, count) = (Arc::clone(&valid_from), Arc::clone(&refused));
        // The proxy has a thread for each connection.
        let logins: Mutex<HashMap<ThreadId, u64>> = Mutex::default();
        let gateway = Gateway::to(server.addr(), move |words| {
            let now = current.load(Ordering::SeqCst);
            let mut logins = logins.lock().unwrap();
            if is(words, "HELLO") || is(words, "AUTH") {
                logins.insert(thread::current().id(), now);
                return None;
            }
            let login = logins.get(&thread::current().id()).copied();
            let has_ended = login.is_some_and(|login| login < now);
            count.fetch_add(u64::from(has_ended), Ordering::SeqCst);
            has_ended.then(|| ScriptedReply::error("NOAUTH Authentication required."))
        });
        LoginProxy {
            gateway,
            valid_from,
            refused,
        }
    }

    fn end_logins(&self) {
        self.valid_from.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn login_that_ends_on_open_connections_costs_no_call() {
    let server = Server::tcp();
    set_password(&server, "u", "p");
    let proxy = LoginProxy::to(&server);
    let url = proxy.gateway.url();
    let in_url = steady(url.replace("redis://", "redis://u:p@"));
    let provided = steady(url).credentials(|_: &CredentialsRequest| Ok(Credentials::new("u", "p")));
    for builder in [in_url, provided] {
        let mgr = builder.build().unwrap();
        warm_up(&mgr);
        let other = steady(server.url()).build().unwrap();
        let held = mgr.lock("held").unwrap();
        let permits = mgr.semaphore("permits", 2).acquire(1).unwrap();
        let theirs = other.lock("theirs").unwrap();
        let mut waiters = Waiters::of("theirs");
        waiters.add(&mgr);
        let refused = proxy.refused.load(Ordering::SeqCst);
        for _ in 0..3 {
            proxy.end_logins();
            let name = |verb: &str| format!("{verb} after the end of a login");
            let tried = mgr.try_lock(name("try")).unwrap();
            tried.expect("it is free").unlock().unwrap();
            held.renew().unwrap();
            mgr.inspect("held").unwrap().unwrap();
        }
        // Drops, renewals and the subscription meet the end of a login, too.
        drop(mgr.lock("dropped").unwrap());
        proxy.end_logins();
        drop(permits);
        until(SOON, "the permit is free", || {
            other.inspect("permits").unwrap().is_none()
        });
        let started = Instant::now();
        until(STEADY_TTL + SLACK, "more than a ttl passes", || {
            assert!(held.is_held(), "{:?}", started.elapsed());
            started.elapsed() > STEADY_TTL
        });
        proxy.end_logins();
        theirs.unlock().unwrap();
        waiters
            .expect_grant(0, P + STEADY_T + SLACK)
            .unlock()
            .unwrap();
        held.unlock().unwrap();
        assert!(
            proxy.refused.load(Ordering::SeqCst) > refused,
            "it ended logins"
        );
    }
}
