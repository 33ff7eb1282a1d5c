//! The search: breadth first through all worlds, from the empty one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::check_world::check_world;
use super::event::SmallEvent;
use super::record_state::CLIENTS;
use super::report::{Report, SmallViolation, Trace};
use super::script_runner::ScriptRunner;
use super::setting::SmallSetting;
use super::world::{Budget, SmallWorld};
use crate::sim::mutation::ScriptMutation;

/// Searches all worlds of a setting that these faults can lead to. Stops early at the first
/// violation or at `limit` worlds.
pub(crate) fn explore(
    setting: SmallSetting,
    budget: Budget,
    limit: usize,
    mutations: &[ScriptMutation],
) -> Report {
    Search::new(setting, budget, mutations).run(limit)
}

/// A reached world, and the world before it.
struct Reached {
    from: u32,
    digest: u128,
}

pub(super) struct Search {
    pub(super) runner: ScriptRunner,
    start: SmallWorld,
    reached: Vec<Reached>,
    ids: HashMap<u128, u32>,
    /// For worlds in peace, by their digests: in how many ticks everybody is served.
    pub(super) peace: HashMap<u128, u8>,
    steps: usize,
}

impl Search {
    fn new(setting: SmallSetting, budget: Budget, mutations: &[ScriptMutation]) -> Search {
        let mut start = SmallWorld::new(setting, budget);
        start.simplify();
        Search {
            runner: ScriptRunner::new(setting, mutations),
            start,
            reached: Vec::new(),
            ids: HashMap::new(),
            peace: HashMap::new(),
            steps: 0,
        }
    }

    /// THE MAIN LOOP: visits all worlds that are `depth` steps away, then those one step further.
    fn run(mut self, limit: usize) -> Report {
        let start = self.start.clone();
        self.add(0, &start);
        let mut frontier = vec![(0, start)];
        let mut depth = 0;
        while !frontier.is_empty() {
            let mut next = Vec::new();
            for (from, world) in frontier {
                for action in world.actions() {
                    for (event, after) in world.after(&mut self.runner, action) {
                        self.steps += 1;
                        match after.and_then(|after| self.visit(from, after)) {
                            Ok(new) => next.extend(new),
                            Err(what) => {
                                let violation = self.violation(from, event, &what);
                                return self.report(depth + 1).with_violation(violation);
                            }
                        }
                    }
                }
                if self.reached.len() >= limit {
                    return self.report(depth);
                }
            }
            frontier = next;
            depth += usize::from(!frontier.is_empty());
        }
        Report {
            is_complete: true,
            ..self.report(depth)
        }
    }

    /// Checks a world that a step led to. Returns it renumbered with its id, if it is new.
    fn visit(
        &mut self,
        from: u32,
        mut world: SmallWorld,
    ) -> Result<Option<(u32, SmallWorld)>, String> {
        check_world(&world)?;
        world.simplify();
        let Some(id) = self.add(from, &world) else {
            return Ok(None);
        };
        self.run_in_peace(&world, None)?;
        Ok(Some((id, world)))
    }

    /// The report so far.
    fn report(&self, depth: usize) -> Report {
        Report {
            worlds: self.reached.len(),
            steps: self.steps,
            scripts: self.runner.runs(),
            depth,
            is_complete: false,
            violation: None,
        }
    }

    /// Notes a world. Returns its id, or `None` if it was reached before.
    fn add(&mut self, from: u32, world: &SmallWorld) -> Option<u32> {
        let digest = digest(world);
        let Entry::Vacant(entry) = self.ids.entry(digest) else {
            return None;
        };
        let id = self.reached.len() as u32;
        entry.insert(id);
        self.reached.push(Reached { from, digest });
        Some(id)
    }

    /// Replays the steps that led to a violation, to write its trace.
    fn violation(&mut self, last: u32, event: SmallEvent, what: &str) -> SmallViolation {
        let mut path = vec![last];
        while let Some(id) = path.last().copied().filter(|id| *id > 0) {
            path.push(self.reached[id as usize].from);
        }
        let mut trace = Trace::new();
        let mut world = self.start.clone();
        for id in path[..path.len() - 1].iter().rev() {
            let wanted = self.reached[*id as usize].digest;
            let (event, next, became) = self.step_to(&world, wanted);
            trace.add(&event, &world);
            trace.rename(became);
            world = next;
        }
        trace.add(&event, &world);
        if let Ok(mut world) = world.step(&mut self.runner, event).0
            && check_world(&world).is_ok()
        {
            let became = world.simplify();
            trace.rename(became);
            // The step itself broke nothing, so the run in peace breaks the same promise again.
            let _ = self.run_in_peace(&world, Some(&mut trace));
        }
        trace.into_violation(what)
    }

    /// The step from a world to the one with this digest.
    fn step_to(
        &mut self,
        world: &SmallWorld,
        wanted: u128,
    ) -> (SmallEvent, SmallWorld, [u8; CLIENTS as usize]) {
        for action in world.actions() {
            for (event, after) in world.after(&mut self.runner, action) {
                if let Ok(mut after) = after {
                    let became = after.simplify();
                    if digest(&after) == wanted {
                        return (event, after, became);
                    }
                }
            }
        }
        unreachable!("the search made this step, so it can be made again")
    }
}

impl Report {
    fn with_violation(self, violation: SmallViolation) -> Report {
        Report {
            violation: Some(violation),
            ..self
        }
    }
}

/// 128 bits that tell worlds apart.
pub(super) fn digest(world: &SmallWorld) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        world.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}
