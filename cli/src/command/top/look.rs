//! The threads that ask Redis. The main loop never does: keys and drawing wait for no reply.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use fairlock::{LockManager, inspect::LockInfo};

use super::Event;
use super::seen::{Opened, Seen};
use crate::exit::Failure;

/// At most this share of the time is spent on looks, apart from the time that the network takes.
const SHARE: u32 = 5;
/// How often a long look says how far it is.
const PROGRESS: Duration = Duration::from_millis(200);

/// All names at one look.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) names: Vec<Seen>,
    pub(super) round_trip: Duration,
    /// The server's time at `ended`, if there was a name that showed it.
    pub(super) server_time: Option<SystemTime>,
    /// How long the next look will not begin.
    pub(super) pause: Duration,
    pub(super) took: Duration,
    pub(super) ended: Instant,
}

/// Why a look failed.
#[derive(Debug, Clone)]
pub(super) struct Trouble {
    /// In a few words, for the header.
    pub(super) what: &'static str,
    /// The error with its causes.
    pub(super) why: String,
}

/// The names to look at, and where to report them.
#[derive(Debug, Clone)]
pub(super) struct Looker {
    pub(super) manager: LockManager,
    pub(super) glob: String,
    pub(super) interval: Duration,
    pub(super) events: Sender<Event>,
}

impl Looker {
    /// Looks at all names again and again, in a thread of its own. A message makes it look soon.
    pub(super) fn watch_all(self, wake: Receiver<()>) {
        thread::spawn(move || {
            let mut least_round_trip = Duration::MAX;
            loop {
                let looked = self.look(&mut least_round_trip);
                let pause = looked.as_ref().map_or(self.interval, |look| look.pause);
                if self.events.send(Event::Looked(looked)).is_err()
                    || wake.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected)
                {
                    return;
                }
            }
        });
    }

    /// Looks at one name again and again, in a thread of its own, until the other end of `stop` is
    /// gone.
    pub(super) fn watch_one(self, name: Arc<str>, stop: Receiver<()>) {
        thread::spawn(move || {
            loop {
                let seen = self.manager.inspect(&name).map_err(Trouble::from);
                let now = Instant::now();
                let opened = seen.map(|info| info.map(|info| Box::new(Opened::new(&info, now))));
                let event = Event::LookedAtOne(Arc::clone(&name), opened);
                if self.events.send(event).is_err()
                    || stop.recv_timeout(self.interval) != Err(RecvTimeoutError::Timeout)
                {
                    return;
                }
            }
        });
    }

    /// Takes a lock from its holder, in a thread of its own, if its fence is still this one.
    pub(super) fn release(self, name: Arc<str>, fence: u64) {
        thread::spawn(move || {
            let released = self.manager.force_release(&name, fence);
            let released = released.map_err(Trouble::from);
            // If the main loop has ended, nobody wants to know.
            let _ = self.events.send(Event::Released(name, released));
        });
    }

    fn look(&self, least_round_trip: &mut Duration) -> Result<Look, Trouble> {
        let round_trip = self.round_trip().map_err(Trouble::from)?;
        *least_round_trip = round_trip.min(*least_round_trip);
        let (began, requests) = (Instant::now(), self.manager.stats().requests);
        let mut names = Vec::new();
        let (mut pages, mut shown_at, mut newest) = (0, began, None);
        let mut list = self.manager.list(&self.glob);
        loop {
            let asked = Instant::now();
            let Some(info) = list.next() else { break };
            let info: LockInfo = info.map_err(Trouble::from)?;
            let now = Instant::now();
            pages += u32::from(now - asked >= *least_round_trip);
            names.push(Seen::new(&info, now));
            newest = Some((info.seen_at, now));
            if now - shown_at >= PROGRESS {
                shown_at = now;
                // The main loop may have ended. The next report finds out.
                let _ = self.events.send(Event::Looking(names.len()));
            }
        }
        let took = began.elapsed();
        let requests = self.manager.stats().requests - requests;
        let scans = requests.saturating_sub(2 * names.len() as u64);
        let trips = u32::try_from(scans).unwrap_or(u32::MAX).max(2 * pages);
        let ended = Instant::now();
        Ok(Look {
            names,
            round_trip,
            server_time: newest.map(|(time, at)| time + (ended - at)),
            pause: pause(self.interval, took, least_round_trip.saturating_mul(trips)),
            took,
            ended,
        })
    }

    /// How long Redis takes for a question about a name that nobody uses.
    fn round_trip(&self) -> fairlock::Result<Duration> {
        let unused = format!("fairlock top, process {}", std::process::id());
        let began = Instant::now();
        self.manager.inspect(unused)?;
        Ok(began.elapsed())
    }
}

/// How long to wait after a look. The network's share of it is no load for the server, so a slow
/// link needs no longer pause.
fn pause(interval: Duration, took: Duration, network: Duration) -> Duration {
    let load = took.saturating_sub(network);
    interval.saturating_sub(took).max((SHARE - 1) * load)
}

impl From<fairlock::Error> for Trouble {
    fn from(error: fairlock::Error) -> Trouble {
        let what = match &error {
            fairlock::Error::Unavailable { .. } => "Redis does not answer",
            _ => "Redis refuses",
        };
        let why = Failure::from(error).to_string();
        Trouble { what, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_pause_for_their_load_and_not_for_the_network() {
        let ms = Duration::from_millis;
        let second = ms(1000);
        assert_eq!(pause(second, ms(10), ms(2)), ms(990), "a light look");
        assert_eq!(pause(second, ms(500), ms(0)), ms(2000), "a heavy look");
        assert_eq!(pause(second, ms(3000), ms(3000)), ms(0), "a slow link");
        assert_eq!(pause(second, ms(3000), ms(2000)), ms(4000), "both");
    }
}
