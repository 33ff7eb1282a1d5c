//! Captures what fairlock logs, at level Warn and above. A logger belongs to a whole process, so
//! only child processes use this. On no store: it has no tests.

use std::sync::Mutex;
use std::thread;

use fairlock::endpoint::Endpoint;
#[cfg(feature = "memory")]
use fairlock::memory::Memory;

use crate::support::{Child, Server, child::report};
use crate::worker::SOON;

/// In place of the URL of a server: a store in the child's own memory.
const MEMORY: &str = "memory";

/// Runs a test on a server, and then on a store in memory. The test gives the text to a child as its
/// argument, and the child calls [`store`].
pub(crate) fn on_each_store(test: impl Fn(&str) + Sync) {
    let server = Server::start();
    thread::scope(|scope| {
        if cfg!(feature = "memory") {
            scope.spawn(|| test(MEMORY));
        }
        test(&server.url());
    });
}

/// The store of a child.
pub(crate) fn store(text: &str) -> Endpoint {
    #[cfg(feature = "memory")]
    if text == MEMORY {
        return Endpoint::from(&Memory::new());
    }
    Endpoint::from(text)
}

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Capture;

impl log::Log for Capture {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("fairlock")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let line = format!("{} {}", record.level(), record.args());
            LINES.lock().unwrap().push(line);
        }
    }

    fn flush(&self) {}
}

/// How many lines have this part so far.
pub(crate) fn logged(part: &str) -> usize {
    let lines = LINES.lock().unwrap();
    lines.iter().filter(|line| line.contains(part)).count()
}

pub(crate) fn start() {
    log::set_logger(&Capture).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
}

/// All lines so far.
pub(crate) fn lines() -> Vec<String> {
    LINES.lock().unwrap().clone()
}

/// Reports all lines so far to the parent.
pub(crate) fn report_lines() {
    let lines = lines();
    report(format_args!("logged {}", lines.len()));
    lines
        .iter()
        .for_each(|line| report(format_args!("line {line}")));
}

/// In the parent: the lines that the child reports.
pub(crate) fn receive_lines(child: &mut Child) -> Vec<String> {
    let many: usize = child.expect("logged", 2 * SOON).parse().unwrap();
    (0..many).map(|_| child.expect("line", SOON)).collect()
}
