//! Messages for people on stderr, and one line that is updated in place.

use std::io::Write as _;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use crate::printable::printable;
use crate::signal_mask::without_ttou;

/// How long the end of the process waits for a terminal that takes no output.
const FLUSH: Duration = Duration::from_millis(500);

/// Writes to stderr on a thread of its own: a terminal that is stopped with Ctrl-S, or a full pipe,
/// must not delay a signal to the command.
pub(super) struct Messages {
    sender: Sender<Message>,
}

enum Message {
    Say(String),
    /// Replaces the updated line. An empty one erases it.
    Line(String),
    Flush(Sender<()>),
}

impl Messages {
    pub(super) fn start() -> Messages {
        let (sender, receiver) = unbounded();
        // Without the thread there are no messages, and the command runs all the same.
        let _ = thread::Builder::new()
            .name("messages".into())
            .spawn(move || without_ttou(|| write_all(&receiver)));
        Messages { sender }
    }

    /// A line that stays, after `fairlock: `.
    pub(super) fn say(&self, text: impl Into<String>) {
        let _ = self.sender.send(Message::Say(text.into()));
    }

    /// Shows this line in place of the one before.
    pub(super) fn show_line(&self, line: String) {
        let _ = self.sender.send(Message::Line(line));
    }

    /// Erases the line.
    pub(super) fn erase_line(&self) {
        self.show_line(String::new());
    }

    /// Waits until all messages are written, for at most half a second.
    pub(super) fn flush(&self) {
        let (sender, written) = bounded(1);
        if self.sender.send(Message::Flush(sender)).is_ok() {
            let _ = written.recv_timeout(FLUSH);
        }
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.flush();
    }
}

fn write_all(messages: &Receiver<Message>) {
    let mut shown = false;
    for message in messages {
        // Nothing can be done about a message that cannot be written.
        let mut stderr = anstream::stderr().lock();
        match message {
            Message::Say(text) => {
                let erase = if shown { "\r\x1b[K" } else { "" };
                let _ = writeln!(stderr, "{erase}fairlock: {}", printable(&text));
                shown = false;
            }
            Message::Line(line) if line.is_empty() => {
                if shown {
                    let _ = write!(stderr, "\r\x1b[K");
                }
                shown = false;
            }
            Message::Line(line) => {
                let _ = write!(stderr, "\r{line}\x1b[K");
                shown = true;
            }
            Message::Flush(written) => {
                let _ = stderr.flush();
                let _ = written.send(());
            }
        }
    }
}
