//! The library's log lines, on standard error.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::printable::printable;
use crate::signal_mask::block_ttou;

/// How many lines wait for a standard error that takes none. Further lines are lost.
const CAPACITY: usize = 1024;
/// How long the end of the process waits for it.
const FLUSH: Duration = Duration::from_millis(500);
/// The target of what the program itself prints.
const PLAIN: &str = "fairlock-cli";

/// Hands the lines to a thread that writes them: a full pipe or a terminal that is stopped with
/// Ctrl-S must not stop the thread that renews the locks.
struct Logger {
    queue: Sender<Entry>,
}

enum Entry {
    Line(String),
    Flush(Sender<()>),
}

/// Prints what the library logs from now on: errors, and with each `-v` more. A command under cron
/// has its output mailed, so a warning that nobody asked for would be noise.
pub(crate) fn start(verbose: u8) {
    let (queue, entries) = bounded(CAPACITY);
    // Without the thread nothing is logged, and the command runs all the same.
    let _ = thread::Builder::new().name("log".into()).spawn(move || {
        block_ttou();
        write_all(&entries, &mut anstream::stderr());
    });
    // Nobody else in this process sets one.
    if log::set_logger(Box::leak(Box::new(Logger { queue }))).is_ok() {
        log::set_max_level(match verbose {
            0 => LevelFilter::Error,
            1 => LevelFilter::Info,
            _ => LevelFilter::Trace,
        });
    }
}

/// Waits until the lines so far are written, for at most half a second. To be called before this
/// process ends or becomes another program.
pub(crate) fn flush() {
    log::logger().flush();
}

/// Prints a message of the program, in order with the lines of the log: a terminal that takes no
/// output must not delay a signal to a command, either.
pub(crate) fn say(text: &str) {
    print(&format!("fairlock: {}\n", printable(text)));
}

/// Prints the text as it is.
pub(crate) fn print(text: &str) {
    log::error!(target: PLAIN, "{text}");
}

impl Log for Logger {
    /// Other libraries stay silent: what they log is nothing that a user can act on.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().split(':').next() == Some("fairlock")
    }

    fn log(&self, record: &Record<'_>) {
        if record.target() == PLAIN {
            let _ = self.queue.try_send(Entry::Line(record.args().to_string()));
        } else if self.enabled(record.metadata()) {
            let level = match record.level() {
                Level::Error => "error",
                Level::Warn => "warning",
                Level::Info => "info",
                Level::Debug | Level::Trace => "debug",
            };
            let line = printable(&record.args().to_string()).to_string();
            let line = format!("fairlock: {level}: {line}\n");
            let _ = self.queue.try_send(Entry::Line(line));
        }
    }

    fn flush(&self) {
        let deadline = Instant::now() + FLUSH;
        let (sender, written) = bounded(1);
        let flush = Entry::Flush(sender);
        if self.queue.send_deadline(flush, deadline).is_ok() {
            let _ = written.recv_deadline(deadline);
        }
    }
}

fn write_all(entries: &Receiver<Entry>, output: &mut impl Write) {
    for entry in entries {
        // Nothing can be done about a line that cannot be written.
        match entry {
            Entry::Line(line) => _ = output.write_all(line.as_bytes()),
            Entry::Flush(written) => _ = written.send(()),
        }
    }
}
