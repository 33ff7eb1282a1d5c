//! A logger of the program that blocks, as on a full pipe. A logger belongs to a whole process, so
//! a child has it. On Redis alone, since a server that stops makes the client log.

use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::fixtures::{P, build, with_ttl};
use crate::support::{
    Child, SLACK, Server,
    child::{Role, report},
    throughout, until,
};
use crate::worker::SOON;

pub(crate) const BLOCKED_LOGGER: (&str, Role) = ("blocked_logger", blocked_logger);

const TTL: Duration = Duration::from_secs(8);
const T: Duration = Duration::from_secs(1);
const H: Duration = Duration::from_millis(3500);

#[test]
fn logger_that_blocks_stops_no_renewal_no_loss_and_no_wait() {
    let server = Server::start();
    let mut child = Child::spawn(BLOCKED_LOGGER.0, &[&server.url()]);
    child.expect("locked", SOON);
    server.stop();
    child.expect("blocked", SOON);
    server.cont();
    child.expect("kept", SOON + 2 * TTL);
    server.stop();
    assert_eq!(child.expect("lost", SOON + 2 * TTL), "Expired");
    server.cont();
    child.join();
}

/// A child role: its logger never returns.
fn blocked_logger(args: &[String]) {
    static IS_BLOCKED: AtomicBool = AtomicBool::new(false);
    struct BlockedLogger;
    impl log::Log for BlockedLogger {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, _: &log::Record<'_>) {
            IS_BLOCKED.store(true, Ordering::Relaxed);
            loop {
                thread::park();
            }
        }
        fn flush(&self) {}
    }
    log::set_logger(&BlockedLogger).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let builder = with_ttl(args[0].as_str(), TTL).command_timeout(T);
    let manager = build(builder.check_period(P).horizon(H).long_wait(T / 4));
    let guard = manager.lock("k").unwrap();
    report("locked");
    until(SOON, "the first renewal that fails is logged", || {
        IS_BLOCKED.load(Ordering::Relaxed)
    });
    report("blocked");
    throughout(3 * TTL / 2, "the lock is kept", || guard.is_held());
    // The log has it that this thread waits for itself, and that the wait lasts.
    assert!(manager.try_lock_for("k", T).unwrap().is_none());
    report("kept");
    let loss = guard
        .lost()
        .recv_timeout(TTL + T + SLACK)
        .expect("the loss is reported");
    report(format_args!("lost {:?}", loss.reason));
    // A drop would log on this thread, which is the program's own.
    exit(0);
}
