//! A line on the terminal that says that a long search goes on.

use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

/// How long a search may take before the line appears.
const SHOW_AFTER: Duration = Duration::from_secs(1);

/// The line is on standard error, from one second after the start to the drop. Not there if
/// standard error is no terminal.
pub(crate) struct Progress {
    line: Arc<Line>,
    /// Its end ends the thread.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Line {
    found: AtomicUsize,
    is_shown: Mutex<bool>,
}

impl Progress {
    pub(crate) fn start() -> Progress {
        let line = Arc::new(Line::default());
        if !io::stderr().is_terminal() {
            return Progress {
                line,
                running: None,
                thread: None,
            };
        }
        let (running, ended) = bounded::<()>(0);
        let (started, shown) = (Instant::now(), Arc::clone(&line));
        let thread = thread::spawn(move || {
            while ended.recv_timeout(SHOW_AFTER) == Err(RecvTimeoutError::Timeout) {
                shown.show(started.elapsed());
            }
        });
        Progress {
            line,
            running: Some(running),
            thread: Some(thread),
        }
    }

    /// Counts one more name.
    pub(crate) fn found(&self) {
        self.line.found.fetch_add(1, Ordering::Relaxed);
    }

    /// Clears the line, so that another one can be printed there.
    pub(crate) fn make_room(&self) {
        self.line.clear();
    }
}

impl Line {
    fn show(&self, elapsed: Duration) {
        let mut is_shown = self.is_shown.lock().unwrap_or_else(PoisonError::into_inner);
        let found = self.found.load(Ordering::Relaxed);
        let seconds = elapsed.as_secs();
        crate::note::note!("\r\x1b[Kgoing through all keys: {seconds}s, {found} names found");
        *is_shown = true;
    }

    fn clear(&self) {
        let mut is_shown = self.is_shown.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut *is_shown) {
            crate::note::note!("\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
        self.line.clear();
    }
}
