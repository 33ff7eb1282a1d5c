//! The record of one turn.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// One turn at the ledger. Its times are in ns, by a clock that all processes of a host share.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    pub(crate) who: String,
    /// Just before the request for a place in the queue.
    pub(crate) asked: u64,
    /// Just after the reply. Redis queued the worker at some moment between these two.
    pub(crate) queued: u64,
    pub(crate) entered: u64,
    pub(crate) left: u64,
    pub(crate) fence: u64,
    /// Whether the worker was alone at the ledger.
    pub(crate) alone: bool,
}

impl Turn {
    pub(crate) fn wait(&self) -> Duration {
        Duration::from_nanos(self.entered - self.asked)
    }
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Turn {
            who,
            asked,
            queued,
            entered,
            left,
            fence,
            alone,
        } = self;
        write!(f, "{who} {asked} {queued} {entered} {left} {fence} {alone}")
    }
}

impl FromStr for Turn {
    type Err = Box<dyn std::error::Error>;

    fn from_str(line: &str) -> Result<Turn, Self::Err> {
        let [who, asked, queued, entered, left, fence, alone] =
            line.split(' ').collect::<Vec<_>>()[..]
        else {
            return Err("not a turn".into());
        };
        Ok(Turn {
            who: who.to_owned(),
            asked: asked.parse()?,
            queued: queued.parse()?,
            entered: entered.parse()?,
            left: left.parse()?,
            fence: fence.parse()?,
            alone: alone.parse()?,
        })
    }
}

pub(crate) fn now() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
