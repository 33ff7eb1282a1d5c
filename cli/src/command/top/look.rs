//! The thread that asks Redis. The main loop never does: keys and drawing wait for no reply.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, unbounded};
use fairlock::LockManager;

use super::Event;

/// The pause after a look is at least this many times as long as the look, to spare the server.
const PAUSE: u32 = 4;

/// Looks at all names again and again, in a thread of its own. A message makes it look at once.
pub(super) fn start(
    manager: LockManager,
    glob: String,
    interval: Duration,
    events: Sender<Event>,
) -> Sender<()> {
    let (wake, woken) = unbounded();
    thread::spawn(move || {
        loop {
            let began = Instant::now();
            let looked = manager.list(&glob).collect::<fairlock::Result<_>>();
            let period = match looked {
                Ok(_) => interval.max(began.elapsed() * (PAUSE + 1)),
                Err(_) => interval,
            };
            // The main loop may have ended. Then the other end of `wake` is gone, too.
            let _ = events.send(Event::Looked(looked));
            let next = woken.recv_deadline(began + period);
            if next == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    });
    wake
}
