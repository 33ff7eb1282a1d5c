//! The program's logger, which is not ours: it may block, and it may panic.
//!
//! A thread of fairlock keeps locks alive, so it never writes a line itself. It asks the logger
//! whether a line is wanted, and queues it. A thread that lives only while there are lines writes
//! them. Threads of the program call the logger directly, unless they read replies for others.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::thread;
use std::time::Duration;

use log::{Level, Log, Metadata, Record};
use parking_lot::{Condvar, Mutex, const_mutex};

/// The names of all threads of fairlock begin so.
const OURS: &str = "fairlock-";

const WRITER: &str = "fairlock-log";

/// While the logger blocks, more lines than these are only counted.
const MOST_LINES: usize = 256;

/// A fork may have copied the mutex while another thread had it. Then its child goes without lines.
const AT_MOST: Duration = Duration::from_millis(10);

static QUEUE: Mutex<Queue> = const_mutex(Queue {
    process: 0,
    lines: VecDeque::new(),
    left_out: 0,
    is_being_written: false,
});

static WRITTEN: Condvar = Condvar::new();

thread_local! {
    static IS_AWAITED: Cell<bool> = const { Cell::new(false) };
}

/// The lines that wait for the logger.
struct Queue {
    /// Whose lines these are: a forked child has a copy, but not the thread.
    process: u32,
    lines: VecDeque<Line>,
    /// How many found no place since the last that did.
    left_out: u64,
    is_being_written: bool,
}

struct Line {
    level: Level,
    target: String,
    module: Option<&'static str>,
    file: Option<&'static str>,
    number: Option<u32>,
    text: String,
}

/// To be named in each `log` call.
#[derive(Clone, Copy)]
pub(crate) struct Logger;

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        log::logger().enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        let here = thread::current();
        let is_ours = here.name().is_some_and(|name| name.starts_with(OURS));
        if !(is_ours || IS_AWAITED.get()) || here.name() == Some(WRITER) {
            log::logger().log(record);
        } else if self.enabled(record.metadata()) {
            queue(Line::new(record));
        }
    }

    fn flush(&self) {}
}

/// Waits until the logger has taken all lines, for `at_most`. Whether it has.
pub(crate) fn flush(at_most: Duration) -> bool {
    if let Some(mut queue) = QUEUE.try_lock_for(AT_MOST) {
        let has_lines =
            |queue: &mut Queue| queue.is_being_written && queue.process == process::id();
        let slept = WRITTEN.wait_while_for(&mut queue, has_lines, at_most);
        return !slept.timed_out();
    }
    false
}

/// While the result lives, this thread queues its lines as a thread of fairlock does: others wait for
/// what it does meanwhile.
pub(crate) fn queue_here() -> QueuesHere {
    QueuesHere(IS_AWAITED.replace(true))
}

pub(crate) struct QueuesHere(bool);

impl Drop for QueuesHere {
    fn drop(&mut self) {
        IS_AWAITED.set(self.0);
    }
}

fn queue(line: Line) {
    let Some(mut queue) = QUEUE.try_lock_for(AT_MOST) else {
        return;
    };
    if queue.process != process::id() {
        *queue = Queue {
            process: process::id(),
            lines: VecDeque::new(),
            left_out: 0,
            is_being_written: false,
        };
    }
    if queue.lines.len() < MOST_LINES {
        queue.lines.push_back(line);
    } else {
        queue.left_out += 1;
    }
    if !queue.is_being_written {
        let writer = thread::Builder::new().name(WRITER.to_owned()).spawn(write);
        // Without a thread, the next line tries again.
        queue.is_being_written = writer.is_ok();
    }
}

fn write() {
    let mut queue = QUEUE.lock();
    while let Some(line) = queue.lines.pop_front() {
        let left_out = std::mem::take(&mut queue.left_out);
        drop(queue);
        // The program's own code may panic.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            line.write();
            if left_out > 0 {
                log::warn!(
                    logger: Logger,
                    "the logger was slow, and {left_out} lines were left out"
                );
            }
        }));
        queue = QUEUE.lock();
    }
    queue.is_being_written = false;
    WRITTEN.notify_all();
}

impl Line {
    fn new(record: &Record<'_>) -> Line {
        Line {
            level: record.level(),
            target: record.target().to_owned(),
            module: record.module_path_static(),
            file: record.file_static(),
            number: record.line(),
            text: record.args().to_string(),
        }
    }

    fn write(&self) {
        log::logger().log(
            &Record::builder()
                .level(self.level)
                .target(&self.target)
                .module_path_static(self.module)
                .file_static(self.file)
                .line(self.number)
                .args(format_args!("{}", self.text))
                .build(),
        );
    }
}
