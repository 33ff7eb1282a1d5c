//! The thread that asks Redis. The main loop never does: keys and drawing wait for no reply.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, unbounded};
use fairlock::LockManager;

use super::Event;
use super::row::Row;

/// The pause after a look is at least this many times as long as the look, to spare the server.
const PAUSE: u32 = 4;

/// All names, as a look saw them.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) rows: Vec<Row>,
    pub(super) round_trip: Duration,
    /// From the beginning of this look to that of the next one.
    pub(super) period: Duration,
    pub(super) ended: Instant,
}

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
            let looked = look(&manager, &glob, interval);
            let period = looked.as_ref().map_or(interval, |look| look.period);
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

fn look(manager: &LockManager, glob: &str, interval: Duration) -> fairlock::Result<Look> {
    let began = Instant::now();
    // How long Redis takes for a question about a name that nobody uses.
    manager.inspect(format!("fairlock top, process {}", std::process::id()))?;
    let round_trip = began.elapsed();
    let rows = manager
        .list(glob)
        .map(|info| Ok(Row::new(info?, Instant::now())));
    let rows = rows.collect::<fairlock::Result<_>>()?;
    let ended = Instant::now();
    Ok(Look {
        rows,
        round_trip,
        period: interval.max((PAUSE + 1) * (ended - began)),
        ended,
    })
}
