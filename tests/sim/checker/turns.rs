//! P2, P3: the turns of local hand-overs. A grant has no more turns than it has reserved fences for,
//! and their fences rise. A waiter waits for at most so many turns of each other process.

use std::collections::HashMap;

use super::{Checker, RanAt};
use crate::script::{Mode, Token, Verb};
use crate::sim::breach::Breach;
use crate::sim::executed_call::ExecutedCall;
use crate::sim::model::{ModelKind, Promise};
use crate::sim::record::{HolderView, RecordView};

/// The turns of grants, and who waited meanwhile.
pub(super) struct Turns {
    /// How many turns a grant may have.
    most: u32,
    /// The fence of the last guard of each grant with turns, by the grant's token and fence.
    last: HashMap<(Token, u64), u64>,
    /// The waiters in Redis's queue.
    waiters: HashMap<Token, TurnsSeen>,
}

/// The fences of guards, and what excuses a smaller one.
#[derive(Default)]
pub(super) struct Fences {
    /// The largest fence that a guard had.
    highest: u64,
    latest_clock: u64,
    clock_went_back: bool,
    /// By the server's clock.
    ahead_until: u64,
}

/// The turns that began while a waiter waited.
struct TurnsSeen {
    /// When the waiter came, in µs of the run.
    came_at: u64,
    manager: String,
    /// How many each line of another manager had.
    by_line: HashMap<(String, u64), u32>,
}

impl Turns {
    pub(super) fn new(most: u32) -> Turns {
        Turns {
            most,
            last: HashMap::new(),
            waiters: HashMap::new(),
        }
    }

    /// Data was lost or came back, so waiters may have places before those that they know.
    pub(super) fn forget_waiters(&mut self) {
        self.waiters.clear();
    }
}

impl Checker {
    /// A grant of this token became a guard of a line's caller. Its process knows the waiters that came before
    /// `knows_waiters_since`, in ns of the run.
    pub(in crate::sim) fn on_guard_taken(
        &mut self,
        token: Token,
        first_fence: u64,
        fence: u64,
        line: u64,
        knows_waiters_since: u64,
    ) -> Result<(), Breach> {
        self.grants.guarded.insert(token);
        self.fences.highest = self.fences.highest.max(fence);
        let holder = self.record.holder(token).cloned();
        let is_turn = |holder: &HolderView| holder.fence == first_fence && holder.spare > 0;
        let Some(holder) = holder.filter(is_turn) else {
            return Ok(());
        };
        self.count_turn(&holder, line, knows_waiters_since / 1000)?;
        let last = self.turns.last.insert((token, first_fence), fence);
        if !holder.has_fence(fence) || last.is_some_and(|last| last >= fence) {
            let said = format!("a guard of {holder:?} has the fence {fence} after {last:?}");
            return Err(Breach::new(Promise::Fencing, said));
        }
        Ok(())
    }

    /// P2: a grant has a larger fence than all guards before it, also after a loss of data. It is excepted
    /// once the clock went back, and for 70 ms after a release by force: nobody says how many of the
    /// fences were used that the grant had reserved.
    pub(super) fn check_fences_rise(
        &mut self,
        at: RanAt,
        before: &RecordView,
        executed: &ExecutedCall<'_>,
    ) -> Result<(), Breach> {
        let fences = &mut self.fences;
        fences.clock_went_back |= at.clock < fences.latest_clock;
        fences.latest_clock = fences.latest_clock.max(at.clock);
        let is_forced = matches!(
            executed.call.verb,
            Verb::Release {
                mode: Mode::Forced(_),
                ..
            }
        );
        if is_forced {
            fences.ahead_until = at.clock + 70_000;
        }
        let is_excepted = fences.clock_went_back || at.clock < fences.ahead_until;
        if self.kind != ModelKind::Mutex || is_excepted {
            return Ok(());
        }
        let highest = fences.highest;
        match self
            .record
            .granted_since(before)
            .find(|new| new.fence <= highest)
        {
            Some(holder) => {
                let said = format!("{holder:?} came after a guard with the fence {highest}");
                Err(Breach::new(Promise::Fencing, said))
            }
            None => Ok(()),
        }
    }

    /// P2: a release names the last fence that a guard of its grant had. The model compares it with
    /// the record, and so with the fences of later grants.
    pub(super) fn check_last_fence(
        &self,
        before: &RecordView,
        executed: &ExecutedCall<'_>,
    ) -> Result<(), Breach> {
        let Verb::Release {
            token,
            fence,
            last: named,
            mode,
        } = executed.call.verb
        else {
            return Ok(());
        };
        let named = match (mode, named) {
            (_, Some(last)) => last,
            (Mode::Used | Mode::Unused, None) => fence,
            _ => return Ok(()),
        };
        let last = self.turns.last.get(&(token, fence)).copied();
        let is_its = before
            .holder(token)
            .is_some_and(|holder| holder.fence == fence);
        match last.filter(|last| is_its && named < *last) {
            Some(last) => {
                let said = format!("{mode:?} of {token:?}, of which a guard had the fence {last}");
                Err(Breach::new(Promise::Fencing, said))
            }
            None => Ok(()),
        }
    }

    /// P3: a waiter waits for at most one grant of each line before it, and a grant has only so many
    /// turns. Those that began before the line's process could know of the waiter do not count.
    fn count_turn(
        &mut self,
        holder: &HolderView,
        line: u64,
        known_since: u64,
    ) -> Result<(), Breach> {
        let manager = &holder.manager;
        let most = self.turns.most;
        let waiters = self.turns.waiters.iter_mut();
        let counts = |seen: &TurnsSeen| seen.manager != *manager && seen.came_at <= known_since;
        for (waiter, seen) in waiters.filter(|(_, seen)| counts(seen)) {
            let turns = seen.by_line.entry((manager.clone(), line)).or_default();
            *turns += 1;
            if *turns > most {
                let said = format!(
                    "{waiter:?} of {} waits while {manager} has its turn number {turns}, \
                     and {most} are allowed",
                    seen.manager
                );
                return Err(Breach::new(Promise::Order, said));
            }
        }
        Ok(())
    }

    /// Notes who waits after a request.
    pub(super) fn note_waiters(&mut self, now: u64) {
        let record = &self.record;
        let waiters = &mut self.turns.waiters;
        waiters.retain(|token, _| record.is_queued(*token));
        for entry in record.queue.iter().filter(|entry| entry.waits) {
            waiters.entry(entry.token).or_insert_with(|| TurnsSeen {
                came_at: now,
                manager: entry.manager.clone(),
                by_line: HashMap::new(),
            });
        }
    }
}
