//! The shape of the public API, and the wording of its errors and losses. On Redis alone: the tests
//! use URLs, and errors that only a network or a server can cause.

use std::{
    borrow::Cow,
    collections::HashSet,
    error::Error as StdError,
    fmt::{Debug, Display},
    fs, io,
    sync::Arc,
    thread,
    time::Duration,
};

use fairlock::{
    Builder, Error, FenceGate, Lease, LockGuard, LockManager, LockOptions, Loss, LossReason,
    Misuse, Mutex, PreviousHolder, Step, Waiter,
    credentials::{Credentials, CredentialsError, CredentialsRequest},
    endpoint::Endpoint,
    inspect::{Kind, LockInfo, LockState, Party},
    stats::Stats,
};
use fairlock_tests::ROOT;

use crate::support::{
    Proxy, SLACK, ScriptedReply, ScriptedServer, Server, scripted_server::is, until,
};

const TTL: Duration = Duration::from_secs(2);

fn to(url: &str) -> Builder {
    LockManager::builder(url).options(LockOptions::new().ttl(TTL))
}

fn manager(server: &Server) -> LockManager {
    to(&server.url()).build().unwrap()
}

/// Never called: compiling is the test.
#[allow(dead_code, reason = "the compiler is the test")]
fn types_have_the_promised_traits() {
    fn shared<T: Send + Sync + Debug + 'static>() {}
    fn sent<T: Send + Debug + 'static>() {}
    fn cloned<T: Clone>() {}
    fn compared<T: Clone + PartialEq>() {}

    shared::<LockManager>();
    shared::<LockGuard>();
    shared::<Mutex>();
    shared::<LockOptions>();
    shared::<Builder>();
    shared::<Endpoint>();
    shared::<Loss>();
    shared::<LossReason>();
    shared::<PreviousHolder>();
    shared::<Error>();
    shared::<Step>();
    shared::<Kind>();
    shared::<FenceGate>();
    shared::<Stats>();
    shared::<LockInfo>();
    shared::<LockState>();
    shared::<Party>();
    sent::<Waiter>();

    cloned::<LockManager>();
    cloned::<Mutex>();
    cloned::<LockOptions>();
    cloned::<Builder>();
    cloned::<Endpoint>();
    compared::<Loss>();
    compared::<LossReason>();
    compared::<PreviousHolder>();
    compared::<Step>();
    compared::<LockState>();
    compared::<Kind>();
    compared::<LockInfo>();
    cloned::<Error>();

    fn shown<T: Display>() {}
    shown::<Error>();
    shown::<Kind>();
    shown::<LockInfo>();
    shown::<LockState>();
    shown::<Loss>();
    shown::<LossReason>();
    shown::<Party>();
    shown::<PreviousHolder>();
    shown::<Stats>();

    fn an_error<T: StdError + Send + Sync + 'static>() {}
    an_error::<Error>();
    const _OPTIONS: LockOptions = LockOptions::new()
        .ttl(TTL)
        .fixed_lease(TTL)
        .max_hold(TTL)
        .hold_at_least(TTL);
    static _GATE: FenceGate = FenceGate::new();
}

#[test]
fn an_endpoint_can_be_made_from_a_str_or_string() {
    let server = Server::start();
    for mgr in [
        LockManager::connect(server.url()),
        LockManager::connect(&*server.url()),
        LockManager::connect(Endpoint::from(server.url())),
        LockManager::builder(server.url()).build(),
    ] {
        mgr.unwrap().lock("n").unwrap().unlock().unwrap();
    }
}

#[test]
fn every_connection_uses_the_database_of_the_url() {
    let server = Server::start();
    let zero = manager(&server);
    let one = to(&format!("{}?db=1", server.url())).build().unwrap();
    let guard = one.lock("n").unwrap();
    assert!(zero.try_lock("n").unwrap().is_some());
    let waiter = one.enqueue("n").unwrap();
    until(TTL + SLACK, "it is renewed there", || {
        one.stats().renewals_confirmed > 0
    });
    guard.unlock().unwrap();
    waiter.wait().unwrap().unlock().unwrap();
    assert!(server.keys_without_ttl().is_empty());
}

#[test]
fn error_messages_are_lower_case_without_full_stop_or_cause() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let mgr = to(&proxy.url()).lanes(1).build().unwrap();
    let mut errors = Vec::new();

    errors.push(("Misused", mgr.lock("").unwrap_err()));
    let _: () = server.query(&["SET", "fairlock:{n}", "x"]);
    errors.push(("Refused", mgr.lock("n").unwrap_err()));
    let _: () = server.query(&["DEL", "fairlock:{n}"]);
    let _: () = server.query(&["HSET", "fairlock:{n}", "k", "semaphore/1"]);
    errors.push(("Misused", mgr.lock("n").unwrap_err()));
    let _: () = server.query(&["DEL", "fairlock:{n}"]);
    let guard = mgr.lock("n").unwrap();
    assert!(mgr.force_release("n", guard.fence()).unwrap());
    errors.push(("Lost", guard.unlock().unwrap_err()));

    // The first call has no reply, which ends the lane's connection. The second opens no other.
    proxy.pause_requests();
    errors.push(("Unavailable", mgr.try_lock("n").unwrap_err()));
    errors.push(("Unavailable", mgr.try_lock("n").unwrap_err()));
    let steps: Vec<Step> = errors
        .iter()
        .filter_map(|(_, error)| match error {
            Error::Unavailable { step, .. } => Some(*step),
            _ => None,
        })
        .collect();
    assert_eq!(steps, [Step::Reply, Step::Connect]);
    proxy.resume_requests();
    proxy.refuse();
    proxy.close_all();
    let refused = mgr.try_lock("n").unwrap_err();
    assert!(
        matches!(
            &refused,
            Error::Unavailable {
                step: Step::Connect | Step::Reply,
                ..
            }
        ),
        "{refused:?}"
    );
    errors.push(("Unavailable", refused));
    mgr.shutdown(Duration::ZERO).unwrap_err();
    errors.push(("Closed", mgr.lock("n").unwrap_err()));

    for (variant, error) in &errors {
        assert_well_worded(variant, error);
        let is_about_a_name = error.to_string().contains("\"n\"");
        assert_eq!(error.lock().is_some(), is_about_a_name, "{error}");
        let is_about_none = match error {
            Error::Misused { misuse, .. } => matches!(misuse, Misuse::Name),
            other => matches!(other, Error::Closed),
        };
        assert_eq!(is_about_a_name, !is_about_none, "{error}");
    }
    let variants: HashSet<&str> = errors.iter().map(|(variant, _)| *variant).collect();
    assert_eq!(variants.len(), 5);
}

#[track_caller]
fn assert_well_worded(variant: &str, error: &Error) {
    let said = error.to_string();
    let is_it = match error {
        Error::Misused { .. } => variant == "Misused",
        Error::Unavailable { .. } => variant == "Unavailable",
        Error::Refused { .. } => variant == "Refused",
        Error::Lost { .. } => variant == "Lost",
        Error::Closed => variant == "Closed",
        _ => false,
    };
    assert!(is_it, "{variant}: {error:?}");
    assert!(said.starts_with(|c: char| c.is_lowercase()), "{said}");
    assert!(!said.ends_with('.') && !said.contains('\n'), "{said}");
    let fields = format!("{error:?}");
    let is_derived = fields == variant || fields.starts_with(&format!("{variant} {{ "));
    assert!(is_derived, "{fields}");
    // A program that prints the chain of sources prints nothing twice.
    assert!(error.source().is_none(), "{error:?}");
    if let Error::Unavailable { cause, .. } = error {
        assert_eq!(said.matches(&cause.to_string()).count(), 1, "{said}");
        assert!(fields.contains("cause: "), "{fields}");
    }
}

/// An error of a program, with a cause that its text does not have, or has.
#[derive(Debug)]
struct Chained(&'static str, Option<Box<Chained>>);

impl Display for Chained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl StdError for Chained {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.1.as_deref().map(|cause| cause as _)
    }
}

#[test]
fn error_line_has_each_cause_once() {
    let server = Server::start();
    for first in ["no token", "no token: the vault is sealed"] {
        let provider = move |_: &CredentialsRequest| -> Result<Credentials, CredentialsError> {
            let cause = Chained("the vault is sealed", None);
            Err(Chained(first, Some(Box::new(cause))).into())
        };
        let error = to(&server.url()).credentials(provider).build().unwrap_err();
        let said = error.to_string();
        // Between the two stands the time, if it took long.
        assert!(said.contains("(no credentials"), "{said}");
        let end = "): no token: the vault is sealed";
        assert!(said.ends_with(end), "{said}");
        assert!(error.source().is_none(), "{error:?}");
    }
}

#[test]
fn quick_refusal_speaks_of_no_time() {
    let error = LockManager::connect("redis+unix:///nonexistent/fairlock.sock").unwrap_err();
    let Error::Unavailable { waited, .. } = &error else {
        panic!("{error:?}")
    };
    let said = error.to_string();
    let says_time = said.contains("gave up after ");
    assert_eq!(says_time, *waited >= Duration::from_millis(1), "{said}");
    assert!(!said.contains("0.0ns") && !said.contains("µs"), "{said}");
}

#[test]
fn no_secret_is_shown_by_display() {
    let api = fs::read_to_string(format!("{ROOT}/docs/public-api.txt")).unwrap();
    for secret in [
        "DetachedLock",
        "credentials::Credentials",
        "credentials::PasswordFile",
    ] {
        let is_shown =
            |how: &str| api.contains(&format!("impl core::fmt::{how} for fairlock::{secret}\n"));
        assert!(is_shown("Debug") && !is_shown("Display"), "{secret}");
    }
}

#[test]
fn a_servers_message_is_shown_without_its_full_stop() {
    let server = Server::start_with(&["--requirepass", "right"]);
    let error = LockManager::connect(format!("{}?pass=wrong", server.url())).unwrap_err();
    assert_well_worded("Refused", &error);
    let error = LockManager::connect(server.url()).unwrap_err();
    assert_well_worded("Refused", &error);
}

#[test]
fn an_error_about_no_lock_names_no_lock() {
    let mute = ScriptedServer::start(|_| ScriptedReply::Close);
    let error = LockManager::connect(mute.url()).unwrap_err();
    assert_well_worded("Unavailable", &error);
    assert!(!error.to_string().contains('"'), "{error}");
}

#[test]
fn a_servers_refusal_carries_its_code_and_message() {
    let scripted_server = ScriptedServer::start(|words| {
        if is(words, "EVALSHA") || is(words, "EVAL") {
            return ScriptedReply::error(
                "NOPERM this user has no permissions to run the 'evalsha' command",
            );
        }
        ScriptedReply::polite(words)
    });
    let mgr = to(&scripted_server.url()).build().unwrap();
    for result in [
        mgr.lock("n").map(drop),
        mgr.try_lock("n").map(drop),
        mgr.inspect("n").map(drop),
    ] {
        let error = result.unwrap_err();
        assert_well_worded("Refused", &error);
        let Error::Refused {
            lock,
            code,
            message,
            ..
        } = &error
        else {
            panic!("{error:?}")
        };
        assert_eq!((lock.as_deref(), code.as_str()), (Some("n"), "NOPERM"));
        assert!(message.contains("'evalsha'"), "{message}");
        assert!(error.to_string().contains("NOPERM"), "{error}");
    }
}

#[test]
fn a_fence_gate_admits_the_newest_fence_repeatedly() {
    static GATE: FenceGate = FenceGate::new();
    assert!(GATE.admit(0) && GATE.admit(0) && GATE.admit(7) && GATE.admit(7));
    assert!(!GATE.admit(6) && !GATE.admit(0));
    assert!(GATE.admit(u64::MAX) && GATE.admit(u64::MAX) && !GATE.admit(u64::MAX - 1));

    // With many threads: after a fence was admitted, no smaller one is.
    let gate = FenceGate::default();
    let newest = std::sync::Mutex::new(0);
    thread::scope(|scope| {
        for start in 0..4 {
            let gate = &gate;
            let newest = &newest;
            scope.spawn(move || {
                for fence in (start..4000).step_by(4) {
                    let mut newest = newest.lock().unwrap();
                    let admitted = gate.admit(fence);
                    assert_eq!(admitted, fence >= *newest);
                    *newest = fence.max(*newest);
                }
            });
        }
    });
}

#[test]
fn each_loss_reason_has_its_own_wording() {
    let said: HashSet<String> = [
        LossReason::Expired,
        LossReason::NotOwner,
        LossReason::MaxHold,
        LossReason::Forced,
        LossReason::Shutdown,
    ]
    .iter()
    .map(ToString::to_string)
    .collect();
    assert_eq!(said.len(), 5);
    assert!(said.iter().all(|reason| !reason.ends_with('.')));
}

#[test]
fn a_name_is_any_text_and_so_is_a_url() {
    let server = Server::start();
    let url: String = server.url();
    let mgr = LockManager::builder(&url)
        .prefix(String::from("p"))
        .build()
        .unwrap();
    let shared: Arc<str> = "n".into();
    drop(LockManager::connect(Arc::<str>::from(&*url)).unwrap());

    drop(mgr.lock(format!("n{}", 1)).unwrap());
    drop(mgr.lock(&shared).unwrap());
    drop(mgr.lock(Cow::Borrowed("n")).unwrap());
    drop(mgr.try_lock(&url).unwrap());
    drop(mgr.try_lock_for(String::from("n"), TTL).unwrap());
    drop(mgr.enqueue(Box::<str>::from("n")).unwrap());
    drop(mgr.mutex(&shared).lock().unwrap());
    drop(mgr.reentrant_mutex(format!("r{}", 1)).lock().unwrap());
    drop(mgr.semaphore(format!("s{}", 1), 2).acquire(1).unwrap());
    drop(mgr.rw_lock(format!("w{}", 1)).read().unwrap());
    let several = mgr.lock_all(vec![String::from("a"), String::from("b")]);
    let several = several.unwrap();
    assert!(several.fence(String::from("a")).is_some());
    assert!(several.previous_holder(Cow::Borrowed("b")).is_some());
    assert!(mgr.inspect(String::from("a")).unwrap().is_some());
    assert_eq!(mgr.list(String::from("a")).count(), 1);
    assert!(!mgr.force_release(String::from("a"), 1).unwrap());
    let labelled = mgr.with(LockOptions::new().label(format!("{}", 1)));
    drop(labelled.lock_all([&url, &*shared]).unwrap());
}

/// Only such a text says how to do it right: rustc suggests `let _ =`, which drops the guard.
#[test]
fn each_guard_says_that_it_must_be_bound() {
    let sources = [
        "guard",
        "waiter",
        "lock/multi",
        "lock/reentrant",
        "lock/rw_lock",
        "lock/semaphore",
    ];
    let mut guards = 0;
    for file in sources {
        let path = format!("{ROOT}/src/{file}.rs");
        let source = fs::read_to_string(path).unwrap();
        let mut before = "";
        for line in source.lines() {
            let name = line.strip_prefix("pub struct ").unwrap_or_default();
            let name = name.split([' ', '(', '<']).next().unwrap_or_default();
            if name.ends_with("Guard") || name == "Waiter" {
                let says = before.contains("bind it to") && before.contains("`let _ =` drops it");
                assert!(says, "{file}: {line} has {before}");
                guards += 1;
            }
            before = line;
        }
    }
    assert_eq!(guards, 6);
}

#[test]
fn a_cloned_error_says_the_same_with_the_same_cause() {
    let silent = ScriptedServer::start(|_| ScriptedReply::Close);
    let error = LockManager::connect(silent.url()).unwrap_err();
    let copy = error.clone();
    assert_eq!(copy.to_string(), error.to_string());
    let kind = |error: &Error| {
        let Error::Unavailable { cause, .. } = error else {
            panic!("{error:?}")
        };
        cause.downcast_ref::<io::Error>().map(io::Error::kind)
    };
    assert!(kind(&error).is_some(), "{error:?}");
    assert_eq!(kind(&copy), kind(&error));
    let lost = to("").build().unwrap_err();
    assert_eq!(lost.clone().to_string(), lost.to_string());
}

#[test]
fn what_a_manager_returns_can_be_shown_to_people() {
    let server = Server::start();
    let mgr = manager(&server).with(LockOptions::new().label("why"));
    let guard = mgr.lock("n").unwrap();
    let info = mgr.inspect("n").unwrap().unwrap();
    let said = info.to_string();
    let holder = info.holder.as_ref().unwrap();
    let shown = format!("process {} on {}, ", std::process::id(), holder.host);
    assert!(
        said.starts_with(&format!("\"n\": mutex, held by {shown}")),
        "{said}"
    );
    assert!(holder.to_string().ends_with(", label \"why\""), "{holder}");
    for part in [
        format!("fence {}", guard.fence()),
        "0 waiting".to_owned(),
        holder.to_string(),
    ] {
        assert!(said.contains(&part), "{said} without {part}");
    }
    let stats = mgr.stats().to_string();
    assert!(stats.starts_with("held 1, waiting 0, acquisitions at once 1, "));
    assert!(
        stats.contains(", requests ") && stats.contains("; longest wait "),
        "{stats}"
    );
    let none = "longest hold less than 1ms, latest renewal less than 1ms";
    assert!(stats.ends_with(none), "{stats}");

    let fence = guard.fence();
    assert!(mgr.force_release("n", fence).unwrap());
    let Err(Error::Lost { loss, .. }) = guard.unlock() else {
        panic!("it was not lost")
    };
    let said = loss.to_string();
    assert_eq!(
        said,
        format!("lost \"n\" (fence {fence}): it was released by force")
    );
    let guard = mgr.lock("n").unwrap();
    assert_eq!(guard.previous_holder().to_string(), "forced");
    assert_eq!(LockState::Cooling.to_string(), "cooling");
}

#[test]
fn fence_of_each_guard_fits_an_i64() {
    let server = Server::start();
    let mgr = manager(&server);
    let same = |guard: &Lease| {
        assert_eq!(u64::try_from(guard.fence_i64()), Ok(guard.fence()));
        assert!(guard.fence() > 0);
    };
    same(&mgr.lock("a").unwrap());
    same(&mgr.semaphore("s", 2).acquire(1).unwrap());
    same(&mgr.rw_lock("r").write().unwrap());
    same(&mgr.rw_lock("r").read().unwrap());
    same(&mgr.reentrant_mutex("m").lock().unwrap());
    let both = mgr.lock_all(["a", "b"]).unwrap();
    assert!(
        both.fence("b")
            .is_some_and(|fence| i64::try_from(fence).is_ok())
    );
    assert_eq!(both.fence("c"), None);
    drop(both);
    let detached = mgr.lock("a").unwrap().detach(TTL).unwrap();
    assert!(i64::try_from(detached.fence()).is_ok());
}
