//! Faults of the process itself: signals, a lack of descriptors, a renewal thread that does not run
//! or panics. On Redis alone, since the holders are separate processes.

use std::{
    collections::HashSet,
    fs::{self, File},
    mem,
    os::raw::c_int,
    ptr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use fairlock::{Error, LockGuard, LockManager, LockOptions, LossReason, PreviousHolder, Step};

use crate::sums::Sums;
use crate::{
    fixtures::with_ttl,
    managers::{assert_nothing_left, check_period, command_timeout, manager, patient},
    support::{
        Child, Proxy, SLACK, Server,
        child::{receive, report},
        throughout, until,
    },
    worker::{SOON, expect_got, machine_time},
};

/// The thread's name as the kernel shows it: the first 15 bytes.
const RENEWAL: &str = "fairlock-renewa";

#[test]
fn signals_every_millisecond_disturb_no_call_with_sa_restart() {
    let server = Server::start();
    check_under_signals(&server, &server.url(), libc::SA_RESTART, 10_000);
}

#[test]
fn signals_every_millisecond_disturb_no_call_without_sa_restart() {
    let server = Server::start();
    check_under_signals(&server, &server.url(), 0, 10_000);
}

/// A client that started again after each signal would never get a reply.
#[test]
fn signals_faster_than_replies_disturb_no_call() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    proxy.delay(Duration::from_millis(3));
    check_under_signals(&server, &proxy.url(), libc::SA_RESTART, 800);
}

/// All threads of a child together run this many lock cycles while signals arrive.
fn check_under_signals(server: &Server, url: &str, flags: c_int, cycles: u64) {
    let mut child = Child::spawn("signalled", &[url, &flags.to_string(), &cycles.to_string()]);
    assert_eq!(child.expect("cycles", 6 * SOON).parse(), Ok(cycles));
    let [hits, threads]: [u64; 2] =
        [child.expect("hits", SOON), child.expect("threads", SOON)].map(|n| n.parse().unwrap());
    // The child's four threads, the renewal thread and the subscription's. Each got many signals.
    assert!(
        threads >= 6 && hits > 1000,
        "{hits} signals in {threads} threads"
    );
    child.join();
    for name in ["k0", "k1", "held"] {
        assert_nothing_left(server, name);
    }
}

static HITS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_signal: c_int) {
    HITS.fetch_add(1, Ordering::Relaxed);
}

/// Starts the kernel timers that profilers use. A thread also sends a signal to each other thread,
/// since the kernel delivers most signals of a timer to one thread.
fn send_signals(flags: c_int) {
    for signal in [libc::SIGALRM, libc::SIGPROF] {
        handle(signal, count, flags);
    }
    let each = libc::timeval {
        tv_sec: 0,
        tv_usec: 1000,
    };
    let timer = libc::itimerval {
        it_interval: each,
        it_value: each,
    };
    for which in [libc::ITIMER_REAL, libc::ITIMER_PROF] {
        // SAFETY: the timer is valid for the call, and the old value is not requested.
        assert_eq!(
            unsafe { libc::setitimer(which, &raw const timer, ptr::null_mut()) },
            0
        );
    }
    thread::Builder::new()
        .name("send-signals".to_owned())
        .spawn(|| {
            loop {
                tasks()
                    .iter()
                    .filter(|(_, name)| name != "send-signals")
                    .for_each(|(id, _)| signal_thread(*id, libc::SIGALRM));
                // Time itself is under test: signals come in the middle of calls.
                thread::sleep(Duration::from_millis(1));
            }
        })
        .unwrap();
}

fn handle(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) {
    // SAFETY: all zeroes is a valid sigaction, and the handlers do only what is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(
            libc::sigaction(signal, &raw const action, ptr::null_mut()),
            0
        );
    }
}

/// The ids and names of this process's threads.
fn tasks() -> Vec<(libc::pid_t, String)> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(|task| {
        let task = task.ok()?;
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        Some((
            task.file_name().to_str()?.parse().ok()?,
            name.trim_end().to_owned(),
        ))
    });
    tasks.collect()
}

fn signal_thread(id: libc::pid_t, signal: c_int) {
    // SAFETY: the call takes no pointers. If the thread has ended, the call only fails.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, signal) };
}

pub(crate) fn signalled(args: &[String]) {
    send_signals(args[1].parse().unwrap());
    let cycles: u64 = args[2].parse().unwrap();
    // The manager is built while signals arrive, too.
    let mgr = patient(args[0].as_str());
    let held = mgr.lock("held").unwrap();
    let hit: HashSet<libc::pid_t> = thread::scope(|scope| {
        for who in 0..4 {
            let mgr = &mgr;
            scope.spawn(move || (0..cycles / 4).for_each(|turn| cycle(mgr, who, turn)));
        }
        // The subscription's thread starts with the first caller that must wait.
        until(SOON, "the subscription has started", || {
            tasks().iter().any(|(_, name)| name == "fairlock-listen")
        });
        tasks().into_iter().map(|(id, _)| id).collect()
    });
    held.renew().unwrap();
    held.unlock().unwrap();
    assert_eq!(mgr.stats().losses(), 0);
    report(format_args!("cycles {cycles}"));
    report(format_args!("hits {}", HITS.load(Ordering::Relaxed)));
    report(format_args!("threads {}", hit.len()));
}

/// Runs one verb; every error ends the process.
fn cycle(mgr: &LockManager, who: u64, turn: u64) {
    let shared = format!("k{}", turn % 2);
    let own = format!("own{who}");
    match turn % 8 {
        0 => mgr
            .try_lock(&own)
            .unwrap()
            .expect("it is this thread's")
            .unlock()
            .unwrap(),
        1 => mgr
            .enqueue(&shared)
            .unwrap()
            .wait()
            .unwrap()
            .unlock()
            .unwrap(),
        2 => drop(
            mgr.try_lock_for(&shared, Duration::from_micros(500))
                .unwrap(),
        ),
        3 => {
            let guard = mgr.lock(&own).unwrap();
            guard.renew().unwrap();
            guard.unlock().unwrap();
        }
        4 if turn % 64 == 4 => {
            mgr.inspect(&shared).unwrap();
            assert!(mgr.list("*").all(|info| info.is_ok()));
            mgr.lock(&own).unwrap().unlock().unwrap();
        }
        _ => mgr.lock(&shared).unwrap().unlock().unwrap(),
    }
}

/// A process that cannot open another descriptor: open connections keep working, for renewals, too.
/// Calls end in time and without a panic. Everything works again when there are descriptors.
#[test]
fn without_descriptors_locks_are_kept_and_calls_end_in_time() {
    let server = Server::start();
    let other = manager(server.url(), TTL);
    let _theirs = other.lock("theirs").unwrap();
    let mut child = Child::spawn("without_descriptors", &[&server.url()]);
    child.expect("kept", SOON);
    child.expect("served", SOON);
    child.expect("recovered", 2 * SOON);
    assert!(
        other.try_lock("kept").unwrap().is_none(),
        "the child holds it again"
    );
    child.send("end");
    child.join();
    assert_nothing_left(&server, "kept");
    assert_nothing_left(&server, "free");
}

const TTL: Duration = Duration::from_secs(2);

pub(crate) fn without_descriptors(args: &[String]) {
    let limit = Duration::from_secs(1);
    // On one lane, which is open from the start.
    let mgr = with_ttl(args[0].as_str(), TTL)
        .lanes(1)
        .outage_limit(limit)
        .build()
        .unwrap();
    let guard = mgr.lock("kept").unwrap();
    // Neither the renewal thread nor the subscription has a connection yet.
    let (taken, old) = exhaust();
    let error = LockManager::connect(&*args[0]).map(|_| ()).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("this host has no file descriptor left"),
        "{error:?}"
    );
    // The lane is open.
    mgr.try_lock("free")
        .unwrap()
        .expect("it is free")
        .unlock()
        .unwrap();
    let start = Instant::now();
    let end = mgr.try_lock_for("theirs", limit);
    assert!(end.unwrap().is_none(), "another manager has it");
    assert!(
        start.elapsed() < limit + 2 * command_timeout(TTL) + SLACK,
        "{:?}",
        start.elapsed()
    );
    let start = Instant::now();
    thread::scope(|scope| {
        for i in 0..16 {
            let mgr = &mgr;
            scope.spawn(move || match mgr.try_lock(format!("free{i}")) {
                Ok(guard) => drop(guard.expect("it is free")),
                Err(e) => assert!(matches!(e, Error::Unavailable { .. }), "{e:?}"),
            });
        }
    });
    assert!(
        start.elapsed() < 3 * command_timeout(TTL) + SLACK,
        "{:?}",
        start.elapsed()
    );
    throughout(2 * TTL, "it is held", || guard.check().is_ok());
    report("kept");
    drop(guard);
    mgr.try_lock("free")
        .unwrap()
        .expect("it is free")
        .unlock()
        .unwrap();
    report("served");
    drop(taken);
    set_limit(libc::RLIMIT_NOFILE, old);
    let renewed = mgr.stats().renewals_confirmed;
    let guard = mgr.lock("kept").unwrap();
    until(TTL + SLACK, "it is renewed", || {
        mgr.stats().renewals_confirmed > renewed
    });
    assert!(
        mgr.try_lock_for("theirs", limit).unwrap().is_none(),
        "it can wait again"
    );
    guard.check().unwrap();
    report("recovered");
    receive();
    guard.unlock().unwrap();
}

/// Opens files until the process has no descriptor left.
fn exhaust() -> (Vec<File>, libc::rlim_t) {
    let old = set_limit(libc::RLIMIT_NOFILE, 100);
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    assert!(!taken.is_empty());
    (taken, old)
}

/// A manager needs a thread, and the system gives none: Redis is not to blame.
#[test]
fn host_without_threads_is_blamed_and_not_redis() {
    let server = Server::start();
    let child = Child::spawn("without_threads", &[&server.url()]);
    let error = child.expect("error", SOON);
    assert!(error.starts_with("the system starts no thread"), "{error}");
    assert!(!error.contains("redis"), "{error}");
    child.expect("recovered", SOON);
}

/// Leaves no room for the stack of a thread. Returns the limit before.
pub(crate) fn leave_no_room_for_threads() -> libc::rlim_t {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: libc::rlim_t = statm.split(' ').next().unwrap().parse().unwrap();
    set_limit(libc::RLIMIT_AS, pages * 4096 + (1 << 20))
}

pub(crate) fn without_threads(args: &[String]) {
    let old = leave_no_room_for_threads();
    let refused = LockManager::connect(&*args[0]);
    set_limit(libc::RLIMIT_AS, old);
    let error = refused.map(|_| ()).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Unavailable {
                step: Step::Thread,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(error.is_temporary());
    report(format_args!("error {error}"));
    LockManager::connect(&*args[0]).unwrap();
    report("recovered");
}

/// Sets a soft limit, which the process may lower and raise again, and returns the old value.
fn set_limit(resource: libc::__rlimit_resource_t, to: libc::rlim_t) -> libc::rlim_t {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both pointers are valid for the calls.
    unsafe {
        assert_eq!(libc::getrlimit(resource, &raw mut limit), 0);
        let old = mem::replace(&mut limit.rlim_cur, to);
        assert_eq!(libc::setrlimit(resource, &raw const limit), 0);
        old
    }
}

/// Only the renewal thread is kept from running: a signal handler sleeps on it.
#[test]
fn p6_a_lease_ends_at_its_deadline_without_its_renewal_thread() {
    let server = Server::start();
    let mut child = Child::spawn("starved_renewal", &[&server.url()]);
    let old = expect_got(&child, "k", SOON);
    let mgr = manager(server.url(), TTL);
    let waiter = mgr.enqueue("k").unwrap();
    child.send("starve");
    let last_held: u64 = child.expect("false", SOON).parse().unwrap();
    let guard = waiter.wait().unwrap();
    assert!(last_held < machine_time());
    assert_eq!(guard.previous_holder(), PreviousHolder::Lapsed);
    assert!(guard.fence() > old.fence);
    // Only the renewal thread reports losses, and it does so when it runs again.
    assert_eq!(child.expect("reported", SOON), "Expired");
    assert_eq!(child.expect("unlocked", SOON), "Expired");
    guard
        .renew()
        .expect("the late release harmed the successor");
    guard.unlock().unwrap();
    child.join();
}

/// How long the handler keeps the renewal thread asleep.
const HANDLER_SLEEP: Duration = Duration::from_secs(4);

extern "C" fn sleep_in_handler(_signal: c_int) {
    let time = libc::timespec {
        tv_sec: HANDLER_SLEEP.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    // SAFETY: the pointer is valid for the call, which is async-signal-safe.
    unsafe { libc::nanosleep(&raw const time, ptr::null_mut()) };
}

pub(crate) fn starved_renewal(args: &[String]) {
    handle(libc::SIGUSR1, sleep_in_handler, libc::SA_RESTART);
    let mgr = manager(args[0].as_str(), TTL);
    let guard = mgr.lock("k").unwrap();
    report(format_args!(
        "got k {} {:?} {}",
        guard.fence(),
        guard.previous_holder(),
        guard.is_held()
    ));
    receive();
    let start = Instant::now();
    let (renewal, _) = tasks()
        .into_iter()
        .find(|(_, name)| name == RENEWAL)
        .expect("it has been started");
    signal_thread(renewal, libc::SIGUSR1);
    let deadline = start + guard.remaining();
    let mut last_held = machine_time();
    while guard.is_held() {
        last_held = machine_time();
        // A pause between two polls.
        thread::sleep(Duration::from_millis(1));
    }
    assert!(
        Instant::now() <= deadline + SLACK,
        "is_held was true past the deadline"
    );
    report(format_args!("false {last_held}"));
    assert!(
        guard.lost().is_empty(),
        "the thread was not kept from running"
    );
    let loss = guard
        .lost()
        .recv_deadline(start + HANDLER_SLEEP + command_timeout(TTL) + SLACK)
        .expect("the loss is reported");
    report(format_args!("reported {:?}", loss.reason));
    match guard.unlock() {
        Err(Error::Lost { loss, .. }) => report(format_args!("unlocked {:?}", loss.reason)),
        other => panic!("{other:?}"),
    }
}

/// The program's own logger panics whenever the renewal thread asks it, so also when that thread
/// reports a loss. Then every verb returns `Closed`.
#[test]
fn p6_a_renewal_thread_panic_reports_all_leases_lost_at_once() {
    let server = Server::start();
    let mut child = Child::spawn("panicking_logger", &[&server.url()]);
    child.expect("locked", SOON);
    // The renewal thread logs the first renewal that fails.
    server.stop();
    assert_eq!(child.expect("reported", SOON), "Expired Expired Expired");
    assert_eq!(child.expect("called", SOON), "3");
    assert_eq!(child.expect("verbs", SOON), "Closed Closed Closed");
    server.cont();
    child.expect("dropped", SOON);
    child.join();
    let mgr = manager(server.url(), TTL);
    let guard = mgr
        .try_lock_for("k0", TTL + check_period(TTL) + SLACK)
        .unwrap()
        .expect("the TTL ends it at the latest");
    guard.unlock().unwrap();
}

pub(crate) fn panicking_logger(args: &[String]) {
    struct PanickingLogger;
    static ARMED: AtomicBool = AtomicBool::new(false);
    impl log::Log for PanickingLogger {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            let on_renewal_thread = thread::current().name() == Some("fairlock-renewal");
            assert!(
                !(on_renewal_thread && ARMED.load(Ordering::Relaxed)),
                "a logger that panics"
            );
            true
        }
        fn log(&self, _: &log::Record<'_>) {}
        fn flush(&self) {}
    }
    log::set_logger(&PanickingLogger).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    ARMED.store(true, Ordering::Relaxed);
    static CALLED: AtomicU64 = AtomicU64::new(0);
    let options = LockOptions::new().ttl(TTL).on_lost(|_| {
        CALLED.fetch_add(1, Ordering::Relaxed);
    });
    let mgr = manager(args[0].as_str(), TTL).with(options);
    let guards = ["k0", "k1", "k2"].map(|name| mgr.lock(name).unwrap());
    let waiter = mgr.enqueue("k0").unwrap();
    report("locked");
    let deadline = Instant::now() + TTL;
    let losses = guards.each_ref().map(|guard: &LockGuard| {
        let loss = guard
            .lost()
            .recv_deadline(deadline + command_timeout(TTL) + SLACK)
            .expect("the loss is reported");
        assert!(!guard.is_held());
        assert_eq!(loss.reason, LossReason::Expired);
        format!("{:?}", loss.reason)
    });
    report(format_args!("reported {}", losses.join(" ")));
    until(SLACK, "each callback is called", || {
        CALLED.load(Ordering::Relaxed) == 3
    });
    report(format_args!("called {}", CALLED.load(Ordering::Relaxed)));
    let ends = [
        mgr.try_lock("x").err(),
        mgr.lock("x").err(),
        waiter.wait().err(),
    ];
    let ends = ends.map(|end| match end {
        Some(Error::Closed) => "Closed".to_owned(),
        other => format!("{other:?}"),
    });
    report(format_args!("verbs {}", ends.join(" ")));
    drop((guards, mgr));
    report("dropped");
}
