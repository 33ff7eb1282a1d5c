//! A worker process that acquires and keeps locks by command.

use std::{
    process,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use fairlock::{DetachedLock, Error, Lease, LockManager, LockOptions};

use crate::{
    managers::manager,
    permits::{AnyGuard, Want},
    support::{
        Child,
        child::{receive, report},
    },
};

/// How long a healthy worker may take to answer, including its start on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

type Guards = Arc<Mutex<Vec<AnyGuard>>>;

/// Starts a worker and waits until its manager is connected.
pub(crate) fn start(url: &str, ttl: Duration) -> Child {
    let child = launch(url, ttl);
    child.expect("ready", SOON);
    child
}

/// Starts a worker that reports `ready` when its manager is connected.
pub(crate) fn launch(url: &str, ttl: Duration) -> Child {
    Child::spawn("worker", &[url, &ttl.as_millis().to_string()])
}

/// As [`start`], with this outage limit.
pub(crate) fn start_impatient(url: &str, ttl: Duration, outage_limit: Duration) -> Child {
    let [ttl, limit] = [ttl, outage_limit].map(|d| d.as_millis().to_string());
    let child = Child::spawn("worker", &[url, &ttl, &limit]);
    child.expect("ready", SOON);
    child
}

/// A worker's report about a grant.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) fence: u64,
    /// The `Debug` form of `PreviousHolder`.
    pub(crate) previous: String,
    /// The value of `is_held` right after the guard was returned.
    pub(crate) held: bool,
}

/// Waits until the worker reports that it was granted the name.
#[track_caller]
pub(crate) fn expect_got(child: &Child, name: &str, within: Duration) -> Got {
    let said = child.expect(&format!("got {name} "), within);
    let mut words = said.split(' ');
    Got {
        fence: words.next().unwrap().parse().unwrap(),
        previous: words.next().unwrap().to_owned(),
        held: words.next().unwrap() == "true",
    }
}

/// A clock of the machine in ns, the same in all processes.
pub(crate) fn machine_time() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec.cast_unsigned() * 1_000_000_000 + t.tv_nsec.cast_unsigned()
}

/// The role of the worker. It reads commands and reports their results.
///
/// | command            | action                                   | report                                               |
/// |--------------------|------------------------------------------|------------------------------------------------------|
/// | `lock NAME`        | acquires and keeps it                    | `got NAME fence previous held`                       |
/// | `queue NAME`       | enqueues, and keeps it when granted      | `queued NAME`, later `got …`                         |
/// | `turn NAME`        | enqueues, and releases it when granted   | `queued NAME`, later `got …`                         |
/// | `read NAME`        | acquires on a thread, and keeps it       | `got …`                                              |
/// | `write NAME`       | the same                                 | `got …`                                              |
/// | `acquire 2/3 NAME` | the same, with two of three permits      | `got …`                                              |
/// | `all A B …`        | acquires all on a thread, and keeps them | `got all`                                            |
/// | `unlock NAME`      | releases it                              | `unlocked NAME` and `ok`, `lost reason` or the error |
/// | `detach NAME`      | detaches it, valid for an hour           | `detached TEXT`                                      |
/// | `attach TEXT`      | attaches it on a thread, and keeps it    | `got …` or `not attached` and the error              |
/// | `least MS`         | uses `hold_at_least` from now on         |                                                      |
/// | `fixed MS`         | uses fixed leases from now on            |                                                      |
/// | `watch NAME`       | polls `is_held`                          | `false` and when it was last true (machine time)     |
/// | `exit`             | exits without dropping a guard           |                                                      |
/// | `abort`            | aborts                                   |                                                      |
pub(crate) fn worker(args: &[String]) {
    let ttl = ms(&args[1]);
    let mut mgr = match args.get(2) {
        None => manager(args[0].as_str(), ttl),
        Some(limit) => LockManager::builder(args[0].as_str())
            .options(LockOptions::new().ttl(ttl))
            .outage_limit(ms(limit))
            .build()
            .unwrap(),
    };
    let guards = Guards::default();
    report("ready");
    while let Some(line) = receive() {
        let (verb, name) = line.split_once(' ').unwrap_or((&line, ""));
        match verb {
            "lock" => keep(AnyGuard::Guard(mgr.lock(name).unwrap()), &guards),
            "queue" => queue(&mgr, name, Some(Arc::clone(&guards))),
            "turn" => queue(&mgr, name, None),
            "read" => take(&mgr, Want::Read, name, &guards),
            "write" => take(&mgr, Want::Write, name, &guards),
            "acquire" => {
                let (permits, name) = name.split_once(' ').unwrap();
                let (many, of) = permits.split_once('/').unwrap();
                take(
                    &mgr,
                    Want::Permits(many.parse().unwrap(), of.parse().unwrap()),
                    name,
                    &guards,
                );
            }
            "all" => take_all(&mgr, name),
            "unlock" => unlock(name, &guards),
            "detach" => detach(name, &guards),
            "attach" => attach(&mgr, name, &guards),
            "least" => mgr = mgr.with(LockOptions::new().hold_at_least(ms(name))),
            "fixed" => mgr = mgr.with(LockOptions::new().fixed_lease(ms(name))),
            "watch" => watch(name, &guards),
            "exit" => process::exit(0),
            "abort" => process::abort(),
            other => panic!("no such verb: {other}"),
        }
    }
}

fn ms(digits: &str) -> Duration {
    Duration::from_millis(digits.parse().unwrap())
}

fn queue(mgr: &LockManager, name: &str, guards: Option<Guards>) {
    let waiter = mgr.enqueue(name).unwrap();
    report(format_args!("queued {name}"));
    thread::spawn(move || {
        let guard = waiter.wait().unwrap();
        match guards {
            Some(guards) => keep(AnyGuard::Guard(guard), &guards),
            None => report_grant(&guard),
        }
    });
}

fn take(mgr: &LockManager, want: Want, name: &str, guards: &Guards) {
    let mgr = mgr.clone();
    let name = name.to_owned();
    let guards = Arc::clone(guards);
    thread::spawn(move || keep(want.take(&mgr, &name).unwrap(), &guards));
}

fn take_all(mgr: &LockManager, names: &str) {
    let mgr = mgr.clone();
    let names = names.to_owned();
    thread::spawn(move || {
        let _all = mgr.lock_all(names.split(' ')).unwrap();
        report("got all");
        loop {
            thread::park();
        }
    });
}

fn keep(guard: AnyGuard, guards: &Guards) {
    let mut guards = guards.lock().unwrap();
    report_grant(&guard);
    guards.push(guard);
}

fn report_grant(guard: &Lease) {
    let held = guard.is_held();
    report(format_args!(
        "got {} {} {:?} {held}",
        guard.name(),
        guard.fence(),
        guard.previous_holder()
    ));
}

fn unlock(name: &str, guards: &Guards) {
    let mut guards = guards.lock().unwrap();
    let at = guards
        .iter()
        .position(|guard| guard.name() == name)
        .expect("it is held");
    match guards.remove(at).unlock() {
        Ok(()) => report(format_args!("unlocked {name} ok")),
        Err(Error::Lost { loss, .. }) => {
            report(format_args!("unlocked {name} lost {:?}", loss.reason))
        }
        Err(other) => report(format_args!("unlocked {name} {other}")),
    }
}

fn detach(name: &str, guards: &Guards) {
    let mut guards = guards.lock().unwrap();
    let is_it = |guard: &AnyGuard| guard.name() == name;
    let at = guards.iter().position(is_it).expect("it is held");
    let AnyGuard::Guard(guard) = guards.remove(at) else {
        panic!("only a mutex can be detached");
    };
    let detached = guard.detach(Duration::from_secs(3600)).unwrap();
    report(format_args!("detached {}", detached.secret_text()));
}

fn attach(mgr: &LockManager, text: &str, guards: &Guards) {
    let detached: DetachedLock = text.parse().unwrap();
    let mgr = mgr.clone();
    let guards = Arc::clone(guards);
    thread::spawn(move || match mgr.attach(&detached) {
        Ok(guard) => keep(AnyGuard::Guard(guard), &guards),
        Err(error) => report(format_args!("not attached: {error}")),
    });
}

fn watch(name: &str, guards: &Guards) {
    let name = name.to_owned();
    let guards = Arc::clone(guards);
    thread::spawn(move || {
        let mut last = 0;
        loop {
            let now = machine_time();
            let held = guards
                .lock()
                .unwrap()
                .iter()
                .any(|guard| guard.name() == name && guard.is_held());
            if !held {
                break;
            }
            last = now;
            // A pause between two polls.
            thread::sleep(Duration::from_millis(1));
        }
        report(format_args!("false {last}"));
    });
}
