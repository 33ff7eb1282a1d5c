//! A simulator of a quorum: three nodes that know nothing of each other, and the processes that lock
//! by their majority. It is compiled into `store::quorum`, whose pure parts it uses.
//!
//! The simulator of one server has one clock, one record and one lane to it. Here each node has its
//! own clock, keyspace and connections, so this one is separate. It has the same rule: a run is made
//! from its seed, in one thread and without a real clock.
//!
//! | part | what it has | what it uses |
//! |---|---|---|
//! | `node` | a clock, a keyspace, and since when its server runs | the shipped scripts, in the interpreter of the in-memory store |
//! | `process` | a caller that locks, renews and releases; connections, anchors and outstanding releases | `proposal`, `decision`, `fences`, `outstanding` |
//! | `world` | the events in the order of their times, the network, and what goes wrong | all parts |
//! | `client` | what a process does with a reply, and when its time is over | the rules of `nodes` and `shared`, which own sockets and so cannot be used |
//! | `checker` | P1, P2, P7 and what is left behind | the records of the nodes, and what guards believe |
//!
//! A connection is a FIFO in both directions. When it ends, a request without a reply was lost, or
//! comes later, behind those on the next connection. Clocks run apart by 500 ppm at most, and show
//! times that differ by less than the ttl. In some runs the clock of one node is far off, so that
//! the others refuse it.
//!
//! These things go wrong: nodes are cut off from a process, hang, or restart without their data,
//! any number of them. Connections end. Processes pause and crash. Every fourth run is calm: there,
//! no lease may be lost. In each run nothing goes wrong after a time. Then somebody must be served,
//! and nothing may be left at the end.
//!
//! Not played: FLUSHALL and steps of clocks, which SAFETY.md excludes; rights; forced releases.

mod checker;
mod client;
mod defect;
mod node;
mod process;
mod tests;
mod world;

use std::fmt;
use std::time::Duration;

use self::checker::Breach;
use self::defect::Defect;
use self::world::World;
use crate::sim::server_with;

const NODES: usize = 3;
const PROCESSES: usize = 3;
const TTL: Duration = Duration::from_secs(3);
/// T: the command timeout that belongs to this ttl.
const TIMEOUT: Duration = Duration::from_millis(300);
const MS: u64 = 1_000;

/// How much was simulated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Tally {
    /// How many events there were.
    steps: u64,
    runs: u64,
    /// How many locks were granted.
    grants: u64,
}

/// A run that broke a promise.
#[derive(Debug)]
struct Failure {
    breach: Breach,
    seed: u64,
    steps: u64,
    /// Its last events.
    transcript: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.breach)?;
        writeln!(f, "FAIRLOCK_SEED={} plays it again. Its end:", self.seed)?;
        self.transcript
            .iter()
            .try_for_each(|line| writeln!(f, "  {line}"))
    }
}

/// Plays runs of consecutive seeds until this many steps are done, or one run fails.
fn simulate(seed: u64, steps: u64, defect: Option<Defect>) -> Result<Tally, Box<Failure>> {
    let mut server = server_with(&defect.map(Defect::mutations).unwrap_or_default());
    let mut tally = Tally::default();
    while tally.steps < steps {
        let seed = seed + tally.runs;
        let mut world = World::new(seed, &mut server, defect, false);
        let ended = world.play();
        tally.steps += world.steps;
        tally.grants += world.checker.grants;
        tally.runs += 1;
        if let Err(breach) = ended {
            let mut again = World::new(seed, &mut server, defect, true);
            let _ = again.play();
            return Err(Box::new(Failure {
                breach,
                seed,
                steps: tally.steps,
                transcript: again.transcript.into(),
            }));
        }
    }
    Ok(tally)
}
