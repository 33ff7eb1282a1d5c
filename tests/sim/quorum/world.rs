//! The events in the order of their times, the network, and what goes wrong.

use std::collections::{BTreeMap, VecDeque};

use super::checker::{Breach, Checker, breach};
use super::defect::Defect;
use super::node::{DriftingClock, SimNode};
use super::process::{ConnectionState, SimProcess};
use super::{MS, NODES, PROCESSES, TIMEOUT, TTL};
use crate::key::Key;
use crate::script::{Call, CallerId, ScriptReply, seed_ids};
use crate::sim::{Promise, Rng};
use crate::store::memory::server::ScriptServer;

const SECOND: u64 = 1000 * MS;
/// From then on nothing goes wrong.
pub(super) const CALM_FROM: u64 = 10 * SECOND;
/// From then on every node votes again, so somebody must be served until the callers stop.
const SERVED_FROM: u64 = 15 * SECOND;
const STOP_AT: u64 = 18 * SECOND;
const END: u64 = 22 * SECOND;
/// How many of a run's last events a report shows.
const LAST_EVENTS: usize = 80;

pub(super) struct World<'a> {
    pub(super) now: u64,
    pub(super) rng: Rng,
    pub(super) steps: u64,
    pub(super) defect: Option<Defect>,
    pub(super) is_calm: bool,
    pub(super) server: &'a mut ScriptServer,
    pub(super) nodes: [SimNode; NODES],
    pub(super) processes: Vec<SimProcess>,
    pub(super) keys: Vec<Key>,
    pub(super) checker: Checker,
    /// When a node lost its data for the last time.
    pub(super) last_restart: u64,
    /// The next call releases a lock that was held since this time.
    pub(super) releases_held_since: Option<u64>,
    pub(super) transcript: VecDeque<String>,
    is_traced: bool,
    /// Nothing arrives between a process and a node before this time.
    cut_until: [[u64; NODES]; PROCESSES],
    events: BTreeMap<(u64, u64), Event>,
    numbers: u64,
}

pub(super) enum Event {
    Wake {
        process: usize,
        life: u32,
    },
    /// A connection is to be opened.
    Connect {
        at: Endpoints,
        sent: u64,
    },
    Connected {
        at: Endpoints,
        sent: u64,
        clock: u64,
        uptime: u64,
    },
    /// The process learns that a connection has ended.
    Closed(Endpoints),
    Request(Box<Request>),
    Reply {
        at: Endpoints,
        sent: u64,
        reply: Box<ScriptReply>,
    },
    GoesWrong,
}

/// The two ends of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Endpoints {
    pub(super) process: usize,
    pub(super) life: u32,
    pub(super) node: usize,
    pub(super) number: u32,
}

pub(super) struct Request {
    pub(super) at: Endpoints,
    pub(super) sent: u64,
    pub(super) call: Call,
    pub(super) caller_id: CallerId,
    pub(super) not_after: u64,
    /// It was sent on a connection that ended, and comes all the same.
    pub(super) is_late: bool,
}

impl<'a> World<'a> {
    pub(super) fn new(
        seed: u64,
        server: &'a mut ScriptServer,
        defect: Option<Defect>,
        is_traced: bool,
    ) -> World<'a> {
        seed_ids(seed);
        let mut rng = Rng::new(seed);
        let bad_clock = (rng.below(3) == 0).then(|| rng.below(NODES as u64) as usize);
        let nodes = std::array::from_fn(|at| {
            let ttl = TTL.as_micros() as u64;
            // Pairs differ by less than the ttl, or the node is refused.
            let mut offset = 1_000_000 * SECOND + rng.below(ttl * 8 / 10);
            if bad_clock == Some(at) {
                offset += ttl * 2 + rng.below(4 * ttl);
            }
            SimNode::new(DriftingClock {
                offset,
                ppm: ppm(&mut rng),
            })
        });
        let keys = ["a", "b"].map(|name| Key::new("fairlock", name).expect("a good name"));
        let mut world = World {
            now: 0,
            steps: 0,
            defect,
            is_calm: seed.is_multiple_of(4),
            server,
            nodes,
            processes: Vec::new(),
            keys: keys.into(),
            checker: Checker::default(),
            last_restart: 0,
            releases_held_since: None,
            transcript: VecDeque::new(),
            is_traced,
            cut_until: Default::default(),
            events: BTreeMap::new(),
            numbers: 0,
            rng,
        };
        for at in 0..PROCESSES {
            let process = world.new_process(0);
            world.processes.push(process);
            world.schedule_wake(at);
        }
        if !world.is_calm {
            world.put(SECOND, Event::GoesWrong);
        }
        world
    }

    fn new_process(&mut self, life: u32) -> SimProcess {
        let clock = DriftingClock {
            offset: self.rng.below(1000 * SECOND),
            ppm: ppm(&mut self.rng),
        };
        SimProcess::new(life, clock, CallerId::new("fairlock", TIMEOUT * 2, TTL / 2))
    }

    /// Plays the run to its end.
    pub(super) fn play(&mut self) -> Result<(), Breach> {
        let mut served = 0;
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at > END {
                break;
            }
            if at < SERVED_FROM {
                served = self.checker.grants;
            }
            self.now = at;
            self.steps += 1;
            self.handle(event)?;
            self.checker.check_beliefs(&self.processes, self.now)?;
        }
        if self.checker.grants == served {
            return breach(
                Promise::Service,
                "nobody was served although nothing went wrong",
            );
        }
        self.checker.check_leftovers(&self.nodes, &self.keys, END)
    }

    /// Whether callers still ask.
    pub(super) fn do_callers_ask(&self) -> bool {
        self.now < STOP_AT
    }

    fn handle(&mut self, event: Event) -> Result<(), Breach> {
        match event {
            Event::Wake { process, life } => {
                let due = &mut self.processes[process];
                if due.life != life {
                    return Ok(());
                }
                due.wakes_at = u64::MAX;
                if due.paused_until <= self.now {
                    self.on_wake(process)?;
                }
                self.schedule_wake(process);
                Ok(())
            }
            Event::Connect { at, sent } => {
                self.connect(at, sent);
                Ok(())
            }
            Event::Request(request) => self.arrive(*request),
            Event::GoesWrong => {
                self.go_wrong();
                Ok(())
            }
            Event::Closed(at) | Event::Connected { at, .. } | Event::Reply { at, .. } => {
                let process = &self.processes[at.process];
                if process.life != at.life || process.connections[at.node].number != at.number {
                    return Ok(());
                }
                if process.paused_until > self.now {
                    let resumes = process.paused_until;
                    self.put(resumes, event);
                    return Ok(());
                }
                self.on_event(event)?;
                self.schedule_wake(at.process);
                Ok(())
            }
        }
    }

    fn on_event(&mut self, event: Event) -> Result<(), Breach> {
        match event {
            Event::Closed(at) => self.on_closed(at),
            Event::Connected {
                at,
                sent,
                clock,
                uptime,
            } => self.on_connected(at, sent, clock, uptime),
            Event::Reply { at, sent, reply } => self.on_reply(at, sent, *reply),
            _ => Ok(()),
        }
    }

    /// Events of one time keep the order in which they were put.
    pub(super) fn put(&mut self, at: u64, event: Event) {
        self.numbers += 1;
        self.events.insert((at.max(self.now), self.numbers), event);
    }

    pub(super) fn schedule_wake(&mut self, process: usize) {
        let due = &self.processes[process];
        let next = due.next_due();
        if next == crate::store::clock::Time::NEVER {
            return;
        }
        let at = due.clock.true_time(next.as_nanos().div_ceil(1000));
        let at = at.max(self.now + 1).max(due.paused_until);
        if at < due.wakes_at {
            let life = due.life;
            self.processes[process].wakes_at = at;
            self.put(at, Event::Wake { process, life });
        }
    }

    /// How long something takes on the way: mostly short, sometimes longer than a command timeout.
    fn delay(&mut self) -> u64 {
        let longest = match self.rng.below(if self.is_quiet() { 90 } else { 100 }) {
            0..60 => MS / 5,
            60..90 => 3 * MS,
            90..97 => 40 * MS,
            _ => 500 * MS,
        };
        30 + self.rng.below(longest)
    }

    fn is_quiet(&self) -> bool {
        self.is_calm || self.now >= CALM_FROM
    }

    /// When something arrives that is sent now.
    fn arrival(&mut self, process: usize, node: usize) -> u64 {
        let delay = self.delay();
        (self.now + delay).max(self.cut_until[process][node])
    }

    pub(super) fn begin_connecting(&mut self, process: usize, node: usize) {
        let slot = &mut self.processes[process];
        let connection = &mut slot.connections[node];
        connection.number += 1;
        connection.state = ConnectionState::Opening;
        let number = connection.number;
        let at = Endpoints {
            process,
            life: slot.life,
            node,
            number,
        };
        let (arrives, sent) = (self.arrival(process, node), self.now);
        self.put(arrives, Event::Connect { at, sent });
    }

    fn connect(&mut self, at: Endpoints, sent: u64) {
        let arrives = self.arrival(at.process, at.node);
        let node = &self.nodes[at.node];
        let event = if node.down_until > self.now {
            Event::Closed(at)
        } else {
            let (clock, uptime) = (node.clock.at(self.now), node.least_uptime(self.now));
            Event::Connected {
                at,
                sent,
                clock,
                uptime,
            }
        };
        self.put(arrives, event);
    }

    /// Sends a request behind those that were sent before on its connection.
    pub(super) fn send(&mut self, mut request: Request) {
        let at = request.at;
        request.sent = self.now;
        let arrives = self.arrival(at.process, at.node);
        let connection = &mut self.processes[at.process].connections[at.node];
        let arrives = arrives.max(connection.last_request);
        connection.last_request = arrives;
        self.put(arrives, Event::Request(Box::new(request)));
        if !self.is_quiet() && self.rng.below(200) == 0 {
            let after = self.delay();
            self.put(self.now + after, Event::Closed(at));
        }
    }

    /// A request reaches its node.
    fn arrive(&mut self, mut request: Request) -> Result<(), Breach> {
        let at = request.at;
        let node = &self.nodes[at.node];
        if node.down_until > self.now {
            return Ok(());
        }
        if node.hangs_until > self.now {
            let resumes = node.hangs_until;
            self.put(resumes, Event::Request(Box::new(request)));
            return Ok(());
        }
        // A restart ends all connections, and with them what was on the way.
        if request.sent < node.up_since {
            return Ok(());
        }
        if !request.is_late && self.is_ended(at) {
            // A request on a connection that has ended since is lost, or comes later.
            if self.rng.below(2) == 0 {
                request.is_late = true;
                let longest = [5 * MS, 300 * MS, 3 * SECOND][self.rng.below(3) as usize];
                let arrives = self.now + self.rng.below(longest);
                self.put(arrives, Event::Request(Box::new(request)));
            }
            return Ok(());
        }
        let key = request.call.key.clone();
        let before = self.nodes[at.node].record(&key);
        let reply = self.nodes[at.node].run(
            self.server,
            self.now,
            &request.call,
            &request.caller_id,
            request.not_after,
        );
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => return breach(Promise::BadInput, format!("{:?}: {error}", request.call)),
        };
        let after = self.nodes[at.node].record(&key);
        self.trace(|| {
            format!(
                "node {} < {at:?} {:?}: {:?} -> {after:?}",
                at.node, request.call.verb, reply.outcome
            )
        });
        self.checker.on_request(at.node, before, after)?;
        if request.is_late {
            return Ok(());
        }
        let arrives = self.arrival(at.process, at.node);
        let process = &mut self.processes[at.process];
        if process.life == at.life {
            let connection = &mut process.connections[at.node];
            let arrives = arrives.max(connection.last_reply);
            connection.last_reply = arrives;
            let (sent, reply) = (request.sent, Box::new(reply));
            self.put(arrives, Event::Reply { at, sent, reply });
        }
        Ok(())
    }

    fn is_ended(&self, at: Endpoints) -> bool {
        let process = &self.processes[at.process];
        process.life != at.life || process.connections[at.node].number != at.number
    }

    /// Something goes wrong, and something else after it.
    fn go_wrong(&mut self) {
        if self.now >= CALM_FROM - SECOND {
            return;
        }
        let node = self.rng.below(NODES as u64) as usize;
        let process = self.rng.below(PROCESSES as u64) as usize;
        // Everything is over when the calm begins.
        let left = CALM_FROM - self.now;
        let longest = [20 * MS, 400 * MS, 2 * SECOND, 6 * SECOND][self.rng.below(4) as usize];
        let lasts = self.rng.below(longest).min(left);
        let what = self.rng.below(6);
        self.trace(|| format!("fault {what} of node {node}, process {process} for {lasts} us"));
        match what {
            0 => self.nodes[node].hangs_until = self.now + lasts,
            1 | 2 => {
                self.nodes[node].restart(self.now, lasts.min(SECOND));
                self.last_restart = self.nodes[node].up_since;
                for at in 0..PROCESSES {
                    self.end_connection(at, node);
                }
            }
            3 => self.cut_until[process][node] = self.now + lasts,
            4 => {
                let slot = &mut self.processes[process];
                slot.paused_until = self.now + lasts;
            }
            _ => {
                let life = self.processes[process].life + 1;
                self.processes[process] = self.new_process(life);
                self.schedule_wake(process);
            }
        }
        let next = self.now + self.rng.below(800 * MS);
        self.put(next, Event::GoesWrong);
    }

    /// The process learns soon that its connection has ended.
    fn end_connection(&mut self, process: usize, node: usize) {
        let slot = &self.processes[process];
        let number = slot.connections[node].number;
        let at = Endpoints {
            process,
            life: slot.life,
            node,
            number,
        };
        let after = self.delay();
        self.put(self.now + after, Event::Closed(at));
    }

    pub(super) fn trace(&mut self, line: impl FnOnce() -> String) {
        if !self.is_traced {
            return;
        }
        if self.transcript.len() == LAST_EVENTS {
            self.transcript.pop_front();
        }
        let line = format!("{:>9} {}", self.now, line());
        self.transcript.push_back(line);
    }
}

/// Two clocks run apart by 500 ppm at most.
fn ppm(rng: &mut Rng) -> i64 {
    [-250, 250, rng.below(501) as i64 - 250][rng.below(3) as usize]
}
