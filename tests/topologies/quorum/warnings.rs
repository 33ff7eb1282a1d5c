//! The log lines about callers that wait for a lock of a quorum, which has no queue. A logger
//! belongs to a whole process, so a child waits.

use std::{thread, time::Duration};

use fairlock::endpoint::Endpoint;

use super::set::{Set, builder};
use crate::support::{
    Child,
    child::{Role, report},
};

pub(crate) const WARNINGS: (&str, Role) = ("quorum_warnings", warnings);

const SOON: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_millis(300);

/// Reports each warning as it is logged.
struct Report;

impl log::Log for Report {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("fairlock")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            report(record.args());
        }
    }

    fn flush(&self) {}
}

/// One thread waits for another that does not, and then for itself.
fn warnings(args: &[String]) {
    log::set_logger(&Report).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let manager = builder(Endpoint::quorum(args))
        .long_wait(LONG)
        .build()
        .unwrap();
    let guard = manager.lock("n").unwrap();
    thread::scope(|scope| {
        let named = thread::Builder::new().name("worker".to_owned());
        let wait = || assert!(manager.try_lock_for("n", 5 * LONG).unwrap().is_none());
        named.spawn_scoped(scope, wait).unwrap();
    });
    assert!(manager.try_lock_for("n", LONG / 3).unwrap().is_none());
    report("done");
    guard.unlock().unwrap();
}

#[test]
fn long_waits_and_waits_for_oneself_are_logged_without_a_queue() {
    let set = Set::start(3);
    let urls: Vec<String> = set.servers.iter().map(|server| server.url()).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let mut child = Child::spawn(WARNINGS.0, &urls);
    // After 0.3 s and after 0.6 s.
    for _ in 0..2 {
        let line = child.expect("waited ", SOON);
        assert!(line.ends_with(" for \"n\" (thread \"worker\")"), "{line}");
    }
    child.expect(
        "a thread waits for \"n\" (thread \"child_process\"), which it took itself",
        SOON,
    );
    child.expect("done", SOON);
    child.join();
}
