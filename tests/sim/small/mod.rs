//! The exhaustive check of small worlds: three processes with a waiter each, one name, and all that can happen.
//!
//! The name is a mutex, or there are permits: readers and writers, or a semaphore of which each process asks for one
//! permit or several ([`Setting`]). A writer may give back all permits but one at any moment.
//!
//! A world is a plain value: what the keys hold (`shelf`; `record` makes keys of it and reads them back), what each
//! process knows (`client`), what is under way (`world`). A step is one request with its reply, or a tick of the clock. The search goes breadth first from the
//! empty world, so what it finds first is a shortest way to it. It has no bound on time or on the number of locks
//! taken: processes lock and unlock for ever, and all ends when every world that can be reached was seen.
//!
//! What makes it end, and soon:
//! - Requests are answered at once, unless a fault is spent on them. The faults are a [`Budget`].
//! - Time goes on only when nobody has anything left to do at that moment. All times are relative to now and end where
//!   they cease to count: a lease that lapsed long ago is a lapsed one.
//! - Fences, tickets, tokens and rows of stamps are renumbered in their order, and processes that are alike, which ask for
//!   as many permits, change places, after each step. Fences of permits are told apart only if they are one token's: a new
//!   one is compared with the record's, and that is none less than its holders'.
//! - A script does the same thing to the same record, so each pair is run once by the interpreter, and looked up then.
//!
//! After each step the model of the other tests says what the script has to leave: holders, their permits, fences, order
//! (`check`). Beside it: whoever is granted something is told, with the right fence and how the last holder ended; of
//! permits, that as many count as taken as the holders have, that no holder lapses before the time from which on a script
//! looks for those who do, and that one who lapsed can hear of it; and of the processes, that each that believes to hold
//! permits has a holder's entry with that fence, as many permits and as much time, and that all of them believe to hold no
//! more than there are. Then the world is left in peace: from each that was reached, a run without faults must serve
//! everybody in P + T, and one TTL more for each process that crashed, and leave no holder and no record of a waiter. That
//! is what finds locks and waiters that are forgotten.
//!
//! In ticks P, T and, at a ttl of 3, the renewals' period are 1 and H is 2, so P + 3 T ≤ H, which `Builder::build` asks
//! for, does not hold. A process whose syncs are lost for longer than two ticks is taken for dead here while it lives.
//! That is all right, since more can happen by it and not less: the living lose their places, and must take them again
//! without harm. The model, too, calls them silent then.
//!
//! Stateright would bring the search, which is the short part of this, and not the renumbering, the runs in peace or
//! the table of what scripts did; and it wants states that are cheap to clone and to hash, as these are for our own.
//!
//! Not explored: more than one waiter of a process, and with it the ticket by which a place finds that its turn is over
//! while others of its process wait; leases that differ in length, fixed ones, `hold_at_least`, `try_lock`, forced
//! releases, names that become another kind, a queue longer than three, loss of data, outages longer than a request, and
//! clocks that step. The simulator and the tests of the behaviours have those. Two worlds are taken for one if two hashes
//! of 64 bits agree.

mod check;
mod client;
mod event;
mod lab;
mod names;
mod permit_tests;
mod record;
mod setting;
mod shelf;
mod tests;
mod world;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

pub(crate) use setting::Setting;
pub(crate) use world::Budget;

use super::mutation::ScriptMutation;
use client::{Client, Stage};
use event::{Act, Event};
use lab::Lab;
use shelf::{CLIENTS, STEP, TTL};
use world::World;

/// What a search found.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    /// Worlds that were reached.
    pub(crate) worlds: usize,
    /// Steps between them.
    pub(crate) steps: usize,
    /// Requests on records that differed from each other, each run by the interpreter.
    pub(crate) scripts: usize,
    /// The largest number of steps that any world needs at least.
    pub(crate) depth: usize,
    /// Every world was reached that can be. Else the bound came first.
    pub(crate) is_complete: bool,
    /// The first thing that was broken.
    pub(crate) violation: Option<Violation>,
}

/// What is broken, and the shortest way to it.
#[derive(Debug, Clone)]
pub(crate) struct Violation {
    /// What is broken.
    pub(crate) what: String,
    /// One line for each step.
    pub(crate) trace: Vec<String>,
}

/// Searches all worlds of a setting that can be reached with these faults, or the first `most` of them.
pub(crate) fn explore(
    setting: Setting,
    budget: Budget,
    most: usize,
    mutation: Option<&ScriptMutation>,
) -> Report {
    Search::new(setting, budget, mutation).run(most)
}

/// A world that was reached, by what step from which.
struct Seen {
    from: u32,
    mark: u128,
}

struct Search {
    lab: Lab,
    start: World,
    seen: Vec<Seen>,
    known: HashMap<u128, u32>,
    /// Of worlds in peace: in how many ticks all are served.
    peace: HashMap<u128, u8>,
    steps: usize,
}

impl Search {
    fn new(setting: Setting, budget: Budget, mutation: Option<&ScriptMutation>) -> Search {
        let mut start = World::new(setting, budget);
        start.simplify();
        Search {
            lab: Lab::new(setting, mutation),
            start,
            seen: Vec::new(),
            known: HashMap::new(),
            peace: HashMap::new(),
            steps: 0,
        }
    }

    /// The main loop: all worlds that are `depth` steps away, then those that are one more.
    fn run(mut self, most: usize) -> Report {
        let start = self.start.clone();
        self.add(0, &start);
        let mut frontier = vec![(0, start)];
        let mut depth = 0;
        while !frontier.is_empty() {
            let mut next = Vec::new();
            for (from, world) in frontier {
                for act in world.acts() {
                    for (event, after) in world.after(&mut self.lab, act) {
                        self.steps += 1;
                        let result = after.and_then(|mut after| {
                            check::world(&after)?;
                            after.simplify();
                            let Some(id) = self.add(from, &after) else {
                                return Ok(());
                            };
                            self.in_peace(&after, None)?;
                            next.push((id, after));
                            Ok(())
                        });
                        if let Err(what) = result {
                            let violation = self.violation(from, event, &what);
                            return self.report(depth + 1, false, Some(violation));
                        }
                    }
                }
                if self.seen.len() >= most {
                    return self.report(depth, false, None);
                }
            }
            frontier = next;
            depth += usize::from(!frontier.is_empty());
        }
        self.report(depth, true, None)
    }

    fn report(&self, depth: usize, is_complete: bool, violation: Option<Violation>) -> Report {
        let (worlds, scripts) = (self.seen.len(), self.lab.runs());
        Report {
            worlds,
            steps: self.steps,
            scripts,
            depth,
            is_complete,
            violation,
        }
    }

    /// `None` if it was reached before.
    fn add(&mut self, from: u32, world: &World) -> Option<u32> {
        let mark = mark(world);
        let Entry::Vacant(entry) = self.known.entry(mark) else {
            return None;
        };
        let id = self.seen.len() as u32;
        entry.insert(id);
        self.seen.push(Seen { from, mark });
        Some(id)
    }

    /// P4, P5, P7: without any more faults everybody is served in time, and nothing is left behind.
    fn in_peace(&mut self, world: &World, mut trace: Option<&mut Trace>) -> Result<(), String> {
        let mut world = World {
            budget: Budget::default(),
            ..world.clone()
        };
        let crashed = world
            .clients
            .iter()
            .filter(|client| client.stage == Stage::Crashed)
            .count() as u8;
        let bound = STEP + TTL * crashed;
        let (mut ticks, mut served) = (0, None);
        let mut way = Vec::new();
        loop {
            let mark = mark(&world);
            // What is to be told is told to its end.
            if let Some(more) = self.peace.get(&mark).filter(|_| trace.is_none()) {
                served = served.or(Some(ticks + more));
                break;
            }
            way.push((mark, ticks));
            let is_waiting = world.clients.iter().any(Client::is_waiting);
            if !is_waiting {
                served = served.or(Some(ticks));
            }
            let act = match peaceful_act(&world) {
                Some(act) => act,
                None if !is_waiting
                    && world.clients.iter().all(|client| client.jobs.is_empty()) =>
                {
                    left_behind(&world)?;
                    break;
                }
                None => Act::Tick,
            };
            ticks += u8::from(act == Act::Tick);
            if ticks > bound + 2 * TTL {
                return Err(format!(
                    "P4, P5: in peace it goes on for ever: {:?}",
                    world.clients
                ));
            }
            let event = Event::fine(act);
            if let Some(trace) = &mut trace {
                trace.tell("in peace, ", &event, &world);
            }
            world = world.step(&mut self.lab, event).0?;
            check::world(&world)?;
            let became = world.simplify();
            if let Some(trace) = &mut trace {
                trace.rename(became);
            }
        }
        let served = served.unwrap_or(ticks);
        if served > bound {
            return Err(format!(
                "P4, P5: in peace somebody waits for {served} ticks, and {bound} are promised"
            ));
        }
        for (mark, at) in way {
            self.peace.insert(mark, served.saturating_sub(at));
        }
        Ok(())
    }

    /// Goes the way again, to tell of it.
    fn violation(&mut self, last: u32, event: Event, what: &str) -> Violation {
        let mut way = vec![last];
        while let Some(at) = way.last().copied().filter(|at| *at > 0) {
            way.push(self.seen[at as usize].from);
        }
        let mut trace = Trace {
            names: ['A', 'B', 'C'],
            lines: Vec::new(),
        };
        let mut world = self.start.clone();
        for id in way[..way.len() - 1].iter().rev() {
            let wanted = self.seen[*id as usize].mark;
            let (event, next, became) = self.step_to(&world, wanted);
            trace.tell("", &event, &world);
            trace.rename(became);
            world = next;
        }
        trace.tell("", &event, &world);
        if let Ok(mut world) = world.step(&mut self.lab, event).0
            && check::world(&world).is_ok()
        {
            let became = world.simplify();
            trace.rename(became);
            // What it finds is what was found before.
            let _ = self.in_peace(&world, Some(&mut trace));
        }
        let name = |what: String, c: u8| {
            what.replace(&format!("@{c}"), &trace.names[usize::from(c)].to_string())
        };
        let what = (0..CLIENTS).fold(what.to_owned(), name);
        Violation {
            what,
            trace: trace.lines,
        }
    }

    fn step_to(&mut self, world: &World, wanted: u128) -> (Event, World, [u8; CLIENTS as usize]) {
        for act in world.acts() {
            for (event, after) in world.after(&mut self.lab, act) {
                if let Ok(mut after) = after {
                    let became = after.simplify();
                    if mark(&after) == wanted {
                        return (event, after, became);
                    }
                }
            }
        }
        unreachable!("a step that was made can be made again")
    }
}

/// What happens next when nothing goes wrong: all that is under way arrives, all that is due is done, and whoever holds
/// the lock releases it. Nobody begins.
fn peaceful_act(world: &World) -> Option<Act> {
    let arrive = || {
        let c = world
            .clients
            .iter()
            .position(|client| !client.flights.is_empty())?;
        Some(Act::Arrive(c as u8, 0))
    };
    let unlock = || {
        let c = world
            .clients
            .iter()
            .position(|client| client.stage == Stage::Holding)?;
        Some(Act::Unlock(c as u8))
    };
    let hear = || (!world.news.is_empty()).then_some(Act::Hear(0));
    hear()
        .or_else(arrive)
        .or_else(|| world.due())
        .or_else(unlock)
}

fn left_behind(world: &World) -> Result<(), String> {
    let is_alive = |c: u8| world.clients[usize::from(c)].stage != Stage::Crashed;
    if let Some(holder) = world
        .shelf
        .holding()
        .find(|holder| is_alive(holder.tok.client))
    {
        return Err(format!("P7: nobody has the lock of {:?}", holder.tok));
    }
    match world
        .shelf
        .waiters
        .iter()
        .find(|(tok, _)| is_alive(tok.client))
    {
        Some((tok, _)) => Err(format!("P7: nobody waits in the place of {tok:?}")),
        None => Ok(()),
    }
}

/// A way through worlds, in which clients keep the names that they began with.
struct Trace {
    names: [char; CLIENTS as usize],
    lines: Vec<String>,
}

impl Trace {
    fn tell(&mut self, when: &str, event: &Event, world: &World) {
        let who = match event.act {
            Act::Hear(at) => Some(world.news[at].to.client),
            act => act.client(),
        };
        let who = who.map_or_else(String::new, |c| format!("{}: ", self.names[usize::from(c)]));
        self.lines.push(format!("{when}{who}{event}"));
    }

    fn rename(&mut self, became: [u8; CLIENTS as usize]) {
        let before = self.names;
        for (from, to) in became.into_iter().enumerate() {
            self.names[usize::from(to)] = before[from];
        }
    }
}

fn mark(world: &World) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        world.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            worlds,
            steps,
            scripts,
            depth,
            ..
        } = self;
        let all = if self.is_complete { "all" } else { "the first" };
        write!(
            f,
            "{all} {worlds} worlds, {steps} steps, {depth} deep, {scripts} script calls"
        )?;
        match &self.violation {
            Some(violation) => write!(f, "\n{violation}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, after", self.what)?;
        self.trace
            .iter()
            .try_for_each(|step| writeln!(f, "  {step}"))
    }
}
