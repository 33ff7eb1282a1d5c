//! How a process ends in good order when it is told to, by SIGTERM or Ctrl-C.
//!
//!     cargo run --features memory --example shutdown
//!     cargo run --example shutdown
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example shutdown
//!     cargo run --example shutdown -- --wait
//!
//! The signal ends in one call, [`LockManager::shutdown`]: from then on no lock is granted, waits end with
//! [`Error::Closed`], and those who hold a lock have a while to finish what they are at. So workers need no flag to
//! look at: they end when there is no next lock to be had. Whoever holds one for longer than that is told, its lock
//! is released, and its name is in the answer, for the log. Give the shutdown less time than there is before SIGKILL comes:
//! `docker stop` sends it after 10 s, Kubernetes after 30 s, systemd after 90 s, unless they are told otherwise.
//!
//! Here one worker takes lock after lock, one hangs while it holds one, and one waits for that. The program sends
//! SIGTERM to itself after a second, or with `--wait` leaves that to you. With `REDIS_URL` it uses that Redis;
//! without, an in-memory store if it is built with one, and else a private redis-server. It ends with 0 if all was as
//! it should be, with 1 if not, with 2 without a store.

mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};
use std::{env, io};

use fairlock::crossbeam_channel::bounded;
use fairlock::{Error, LockGuard, LockManager, LossReason, PreviousHolder};
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::TERM_SIGNALS;
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;
use support::{Outcome, Store, check, own_name, play, until};

/// How long those who hold a lock have to finish.
const WITHIN: Duration = Duration::from_secs(1);

/// Asks for SIGTERM, SIGINT and SIGQUIT. This, `work` and what `shutdown` does at the signal are the parts to copy.
fn listen() -> io::Result<Signals> {
    let signals = Signals::new(TERM_SIGNALS)?;
    let again = Arc::new(AtomicBool::new(false));
    for signal in TERM_SIGNALS {
        // A second one, for whoever loses patience, kills the process as if nobody had listened.
        flag::register_conditional_default(*signal, Arc::clone(&again))?;
        flag::register(*signal, Arc::clone(&again))?;
    }
    Ok(signals)
}

/// A worker: does one thing after the other, each under the lock, until the manager is shut down.
fn work(
    mgr: &LockManager,
    name: &str,
    each: impl Fn(&LockGuard) -> fairlock::Result<()>,
) -> fairlock::Result<u32> {
    let mut done = 0;
    loop {
        let guard = match mgr.lock(name) {
            Ok(guard) => guard,
            Err(Error::Closed) => return Ok(done),
            Err(other) => return Err(other),
        };
        each(&guard)?;
        guard.unlock()?;
        done += 1;
    }
}

fn main() -> ExitCode {
    play(shutdown)
}

fn shutdown(store: &Store) -> Outcome {
    let mut signals = listen()?;
    let mgr = LockManager::connect(store)?;
    let other_host = LockManager::connect(store)?;
    let (orders, reports) = (own_name("orders"), own_name("reports"));

    let busy = start(&mgr, &orders, |guard| {
        sleep(Duration::from_millis(300));
        guard.check()
    });
    // It hangs until the shutdown is over, and then looks what has become of its lock.
    let (hang, hanging) = bounded::<()>(0);
    let hung = start(&mgr, &reports, move |guard| {
        let _ = hanging.recv();
        guard.check()
    });
    let held = |name| Ok::<_, Error>(other_host.inspect(name)?.is_some());
    until("both hold a lock", || Ok(held(&orders)? && held(&reports)?))?;
    let waiting = start(&mgr, &reports, |_| Ok(()));
    let waiting = thread::spawn(move || (waiting.join(), Instant::now()));
    until("the third waits", || {
        Ok(other_host
            .inspect(&reports)?
            .is_some_and(|info| info.waiters == 1))
    })?;
    println!(
        "One worker takes lock after lock, one hangs while it holds one, and one waits for that."
    );

    if env::args().any(|arg| arg == "--wait") {
        println!("Waiting for your signal: press Ctrl-C, or");
        println!("    kill {}", getpid().as_raw_nonzero());
    } else {
        thread::spawn(|| {
            sleep(Duration::from_secs(1));
            kill_process(getpid(), Signal::TERM)
        });
    }
    let signal = signals
        .forever()
        .next()
        .and_then(signal_name)
        .unwrap_or("a signal");
    println!();
    println!(
        "{signal} has come; whoever holds a lock has {} s to finish.",
        WITHIN.as_secs()
    );
    let came = Instant::now();
    let left = mgr.shutdown(WITHIN)?;
    for name in &left.ended {
        println!("{name} was still held after that.");
    }
    println!();

    drop(hang);
    let done = busy.join().expect("a worker does not panic")?;
    check(
        format!("the busy worker finished what it was at, and ended; locks it took: {done}"),
        done > 0,
    )?;
    let (waited, ended) = waiting.join().expect("it only watches");
    let waited = waited.expect("a worker does not panic")?;
    check(
        "the one that waited was not granted the lock, and ended at once",
        waited == 0 && ended < came + WITHIN,
    )?;
    let lost = hung.join().expect("a worker does not panic").err();
    let lost =
        matches!(lost, Some(Error::Lost { loss, .. }) if loss.reason == LossReason::Shutdown);
    check(
        "the one that hung was told that the lock was lost, because of the shutdown",
        lost,
    )?;
    check(
        "its lock was named",
        left.ended.iter().map(|name| &**name).eq([reports.as_str()]),
    )?;
    check(
        "no lock is granted any more",
        matches!(mgr.try_lock(&orders), Err(Error::Closed)),
    )?;
    let order = other_host
        .try_lock(&orders)?
        .map(|guard| guard.previous_holder());
    check(
        "another host has the orders at once",
        order == Some(PreviousHolder::Released),
    )?;
    let report = other_host
        .try_lock(&reports)?
        .map(|guard| guard.previous_holder());
    check(
        "and the reports too, and knows that they are half done",
        report == Some(PreviousHolder::Lapsed),
    )
}

fn start(
    mgr: &LockManager,
    name: &str,
    each: impl Fn(&LockGuard) -> fairlock::Result<()> + Send + 'static,
) -> JoinHandle<fairlock::Result<u32>> {
    let (mgr, name) = (mgr.clone(), name.to_owned());
    thread::spawn(move || work(&mgr, &name, each))
}
