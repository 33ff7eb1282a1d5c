//! The run in peace: from every world, a run without further faults must serve everybody in time.

use super::check_world::check_world;
use super::client::{Client, ClientStage};
use super::event::{SmallAction, SmallEvent};
use super::record_state::{STEP, TTL};
use super::report::Trace;
use super::search::{Search, digest};
use super::world::{Budget, SmallWorld};

impl Search {
    /// P4, P5, P7: without further faults everybody is served in time, and nothing is left behind.
    ///
    /// Many worlds lead to the same worlds in peace, so the result of each is kept. A run with a
    /// trace does not use those results, since it has to show all of its steps.
    pub(super) fn run_in_peace(
        &mut self,
        world: &SmallWorld,
        mut trace: Option<&mut Trace>,
    ) -> Result<(), String> {
        let mut world = SmallWorld {
            budget: Budget::default(),
            ..world.clone()
        };
        let bound = bound(&world);
        let mut ticks = 0;
        let mut served = None;
        let mut visited = Vec::new();
        loop {
            let digest = digest(&world);
            if let Some(more) = self.peace.get(&digest).filter(|_| trace.is_none()) {
                served = served.or(Some(ticks + more));
                break;
            }
            visited.push((digest, ticks));
            let is_anyone_waiting = world.clients.iter().any(Client::is_waiting);
            if !is_anyone_waiting {
                served = served.or(Some(ticks));
            }
            let nothing_to_release = world
                .clients
                .iter()
                .all(|client| client.releases.is_empty());
            let action = match peaceful_action(&world) {
                Some(action) => action,
                None if !is_anyone_waiting && nothing_to_release => {
                    check_nothing_left(&world)?;
                    break;
                }
                None => SmallAction::Tick,
            };
            ticks += u8::from(action == SmallAction::Tick);
            if ticks > bound + 2 * TTL {
                return Err(format!(
                    "P4, P5: the run in peace never ends: {:?}",
                    world.clients
                ));
            }
            let event = SmallEvent::without_fault(action);
            if let Some(trace) = &mut trace {
                trace.add_in_peace(&event, &world);
            }
            world = world.step(&mut self.runner, event).0?;
            check_world(&world)?;
            let became = world.simplify();
            if let Some(trace) = &mut trace {
                trace.rename(became);
            }
        }
        let served = served.unwrap_or(ticks);
        if served > bound {
            return Err(format!(
                "P4, P5: in peace a waiter waits for {served} ticks, and {bound} are promised"
            ));
        }
        for (digest, at) in visited {
            self.peace.insert(digest, served.saturating_sub(at));
        }
        Ok(())
    }
}

/// P + T, and one TTL more for each process that crashed.
fn bound(world: &SmallWorld) -> u8 {
    let crashed = world
        .clients
        .iter()
        .filter(|client| client.stage == ClientStage::Crashed)
        .count() as u8;
    STEP + TTL * crashed
}

/// The next action without faults, if any: messages arrive first, then delayed requests and
/// answers. Then clients do what is due, and holders release the lock. No client starts a new
/// attempt.
fn peaceful_action(world: &SmallWorld) -> Option<SmallAction> {
    let first_client = |wanted: &dyn Fn(&Client) -> bool| {
        world
            .clients
            .iter()
            .position(wanted)
            .map(|client| client as u8)
    };
    let deliver = || (!world.messages.is_empty()).then_some(SmallAction::Deliver(0));
    let arrive = || {
        let c = first_client(&|client| !client.in_flight.is_empty())?;
        Some(SmallAction::Arrive(c, 0))
    };
    let unlock = || {
        let c = first_client(&|client| client.stage == ClientStage::Holding)?;
        Some(SmallAction::Unlock(c))
    };
    let deliver_wanted = || (!world.wanted.is_empty()).then_some(SmallAction::DeliverWanted(0));
    // It is kept for as long as nobody wants it. Then it is unused for long enough.
    let let_go = || {
        let is_wanted = world.clients.iter().any(Client::is_waiting);
        let c = first_client(&|client| client.stage == ClientStage::Kept && !is_wanted)?;
        Some(SmallAction::LetGo(c))
    };
    deliver()
        .or_else(deliver_wanted)
        .or_else(arrive)
        .or_else(|| world.due())
        .or_else(unlock)
        .or_else(let_go)
}

/// P7: the record has no holder and no waiter of a live process, once these have nothing to do.
fn check_nothing_left(world: &SmallWorld) -> Result<(), String> {
    let is_alive = |c: u8| world.clients[usize::from(c)].stage != ClientStage::Crashed;
    if let Some(holder) = world
        .record
        .holding()
        .find(|holder| is_alive(holder.token.client))
    {
        return Err(format!(
            "P7: the record says that {:?} holds the lock, and no client does",
            holder.token
        ));
    }
    match world
        .record
        .waiters
        .iter()
        .find(|(token, _)| is_alive(token.client))
    {
        Some((token, _)) => Err(format!(
            "P7: the record says that {token:?} waits, and no client does"
        )),
        None => Ok(()),
    }
}
