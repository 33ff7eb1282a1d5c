//! A command that is sent repeatedly while a test runs.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Server;

/// The command is sent until this is dropped.
pub(crate) struct Repeated {
    thread: Option<JoinHandle<()>>,
    end: Option<Sender<()>>,
}

impl Server {
    /// Sends this command at once and then once per pause, over a connection of its own.
    pub(crate) fn repeat(&self, command: &'static [&str], pause: Duration) -> Repeated {
        let mut connection = self.connection();
        let (end, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut request = redis::cmd(command[0]);
            request.arg(&command[1..]);
            while {
                request
                    .query::<redis::Value>(&mut connection)
                    .unwrap_or_else(|e| panic!("{command:?} failed: {e}"));
                ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout)
            } {}
        });
        Repeated {
            thread: Some(thread),
            end: Some(end),
        }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        drop(self.end.take());
        let end = self.thread.take().expect("it is joined once").join();
        if !thread::panicking() {
            end.expect("each repetition was carried out");
        }
    }
}
