//! How a process ends in good order after SIGTERM or Ctrl-C.
//!
//!     cargo run --features memory --example shutdown
//!     cargo run --example shutdown
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example shutdown
//!     cargo run --example shutdown -- --wait
//!
//! On the signal the program makes one call, [`LockManager::shutdown`]. From then on the manager
//! grants no lock, waits end with [`Error::Closed`], and holders have some time to finish their
//! work. So workers need no flag: they end when they cannot get the next lock. A holder that takes
//! longer loses its lock, and learns of that. The manager releases that lock, and `shutdown`
//! returns its name, for the log.
//!
//! Give the shutdown less time than there is before SIGKILL. By default `docker stop` sends it
//! after 10 s, Kubernetes after 30 s, systemd after 90 s.
//!
//! Here one worker takes lock after lock, one hangs while it holds a lock, and one waits for that
//! lock. The program sends SIGTERM to itself after a second. With `--wait` it waits for your signal
//! instead.
//!
//! The program uses the Redis of `REDIS_URL`. Without that it uses an in-memory store, if it is
//! built with one, or else it starts a private redis-server. It exits with 0 if all checks hold,
//! with 1 if not, and with 2 if it has no store.

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
use support::{Outcome, Store, check, own_name, run, until};

/// How long holders have to finish their work.
const WITHIN: Duration = Duration::from_secs(1);

/// Registers for SIGTERM, SIGINT and SIGQUIT. Copy this, `work`, and what `shutdown` does on the
/// signal.
fn listen() -> io::Result<Signals> {
    let signals = Signals::new(TERM_SIGNALS)?;
    let again = Arc::new(AtomicBool::new(false));
    for signal in TERM_SIGNALS {
        // A second signal kills the process at once, as if nothing were registered.
        flag::register_conditional_default(*signal, Arc::clone(&again))?;
        flag::register(*signal, Arc::clone(&again))?;
    }
    Ok(signals)
}

/// A worker: calls `each` again and again, each time under the lock, until the manager is shut
/// down. Returns how often.
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
    run(shutdown)
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
    // Hangs until the shutdown is over, and then checks its lock.
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
        "One worker takes lock after lock, one hangs while it holds a lock, and one waits for that lock."
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
        "{signal} came. Holders have {} s to finish.",
        WITHIN.as_secs()
    );
    let came = Instant::now();
    let still_held = mgr.shutdown(WITHIN)?;
    for name in &still_held {
        println!("{name} was still held after that.");
    }
    println!();

    drop(hang);
    let done = busy.join().expect("a worker does not panic")?;
    check(
        format!("the busy worker finished its work and ended; it took {done} locks"),
        done > 0,
    )?;
    let (waited, ended) = waiting.join().expect("it only joins the worker");
    let waited = waited.expect("a worker does not panic")?;
    check(
        "the waiting worker did not get the lock, and ended at once",
        waited == 0 && ended < came + WITHIN,
    )?;
    let lost = hung.join().expect("a worker does not panic").err();
    let lost =
        matches!(lost, Some(Error::Lost { loss, .. }) if loss.reason == LossReason::Shutdown);
    check(
        "the worker that hung learned that the shutdown took its lock",
        lost,
    )?;
    check(
        "shutdown returned the name of that lock",
        still_held.iter().map(|name| &**name).eq([reports.as_str()]),
    )?;
    check(
        "the manager grants no more locks",
        matches!(mgr.try_lock(&orders), Err(Error::Closed)),
    )?;
    let order = other_host
        .try_lock(&orders)?
        .map(|guard| guard.previous_holder());
    check(
        "another host gets the lock of the orders at once",
        order == Some(PreviousHolder::Released),
    )?;
    let report = other_host
        .try_lock(&reports)?
        .map(|guard| guard.previous_holder());
    check(
        "it gets the lock of the reports too, and knows that they are half done",
        report == Some(PreviousHolder::Lapsed),
    )
}

fn start(
    mgr: &LockManager,
    name: &str,
    each: impl Fn(&LockGuard) -> fairlock::Result<()> + Send + 'static,
) -> JoinHandle<fairlock::Result<u32>> {
    let mgr = mgr.clone();
    let name = name.to_owned();
    thread::spawn(move || work(&mgr, &name, each))
}
