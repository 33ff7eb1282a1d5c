//! The state machine of one line. It is pure: it does no I/O and reads no clock. `turns` and
//! `places` call it with what happened, under the mutex of the lines, and do what it returns.
//!
//! A *line* is one manager's waiters for the same name, ttl and number of local hand-overs. Only
//! the line's own *place* is in the queue in Redis. A *tenure* is one grant by Redis. Within a
//! tenure, the members of the line have the lock one after the other, in *turns*.
//!
//! | event | call | then its caller |
//! |---|---|---|
//! | a waiter comes | [`LineState::join`] | sends the place, if the result says so, after [`LineState::set_place`] |
//! | a waiter leaves | [`LineState::leave`] | cancels the place that is returned |
//! | Redis grants the place | [`LineState::begin_tenure`] | offers the first turn |
//! | a guard is released | [`LineState::end_turn`] | offers the next turn, or leaves |
//! | a turn is to be offered | [`LineState::next_member`] | asks the member, and then calls [`LineState::set_turn`] |
//! | nobody takes the turn | [`LineState::end_tenure`] | releases the grant, and sends the place of the members that are left |
//! | the grant is lost while its last turn ends | [`LineState::note_lost`] | reports it to that turn's guard |
//! | the grant is lost | [`LineState::lose_tenure`] | reports it, and sends the place of the members that are left |
//!
//! The machine knows a member, its place and a lease only as `W` and `L`. A member's number says
//! when it came, and no two have the same.

use std::collections::BTreeMap;
use std::time::Duration;

/// The waiters of one line, and what the line has.
pub(crate) struct LineState<W, L> {
    /// The waiters that have no turn, in the order in which they came.
    members: BTreeMap<u64, W>,
    stage: LineStage<W, L>,
    /// The most local hand-overs in one tenure.
    max: u32,
}

/// | stage | meaning | becomes |
/// |---|---|---|
/// | Idle   | nobody waits, and nothing is held         | Queued |
/// | Queued | its place is in Redis's queue, or on its way there | Held, Idle |
/// | Held   | a member has a turn, or is offered one    | Queued, Idle |
enum LineStage<W, L> {
    Idle,
    Queued { number: u64, place: W },
    Held(Tenure<W, L>),
}

/// A grant by Redis, and the turn that a member has now.
pub(crate) struct Tenure<W, L> {
    pub(crate) lease: L,
    turn: Option<Turn<W, L>>,
    /// How many turns were offered after the first. The fence of the next turn is larger by this.
    offered: u32,
    /// How the last guard of this tenure ended. `None`: no guard had it yet.
    last_end: Option<TurnEnd>,
}

/// The time in which one member has the lock.
pub(crate) struct Turn<W, L> {
    pub(crate) number: u64,
    pub(crate) member: W,
    pub(crate) lease: L,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnEnd {
    Finished,
    /// Its guard left its work half done.
    Unfinished,
    /// No guard had it.
    Unused,
}

/// The line's choice after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterTurn {
    /// The next member gets a turn, under a fence that is larger than the first by this.
    Pass { fence_offset: u32 },
    /// The grant is released.
    Leave,
}

impl<W: Clone, L> LineState<W, L> {
    pub(crate) fn new(max: u32) -> LineState<W, L> {
        LineState {
            members: BTreeMap::new(),
            stage: LineStage::Idle,
            max,
        }
    }

    /// A waiter comes. True: the line needs a place in Redis's queue.
    #[must_use]
    pub(crate) fn join(&mut self, number: u64, member: W) -> bool {
        self.members.insert(number, member);
        matches!(self.stage, LineStage::Idle)
    }

    /// The line has a place, which is not sent yet.
    pub(crate) fn set_place(&mut self, number: u64, place: W) {
        self.stage = LineStage::Queued { number, place };
    }

    /// A waiter does not wait any more. The last one takes the line's place with it: the result is
    /// the place that nobody wants.
    #[must_use]
    pub(crate) fn leave(&mut self, number: u64) -> Option<W> {
        self.members.remove(&number);
        if !self.members.is_empty() || !matches!(self.stage, LineStage::Queued { .. }) {
            return None;
        }
        match std::mem::replace(&mut self.stage, LineStage::Idle) {
            LineStage::Queued { place, .. } => Some(place),
            _ => unreachable!("the stage was looked at above"),
        }
    }

    /// Redis has granted the place. Its first turn is to be offered: [`LineState::next_member`].
    pub(crate) fn begin_tenure(&mut self, lease: L) {
        self.stage = LineStage::Held(Tenure {
            lease,
            turn: None,
            offered: 0,
            last_end: None,
        });
    }

    /// The member that has waited longest leaves the line. It is offered the turn, or the error of
    /// the line's place.
    pub(crate) fn next_member(&mut self) -> Option<(u64, W)> {
        self.members.pop_first()
    }

    /// A member has accepted the turn.
    pub(crate) fn set_turn(&mut self, number: u64, member: W, lease: L) {
        if let LineStage::Held(tenure) = &mut self.stage {
            tenure.turn = Some(Turn {
                number,
                member,
                lease,
            });
        }
    }

    /// The current turn ends. Of the lease, which is `ttl` long, `remaining` is left.
    ///
    /// The grant is passed on if somebody waits, if this tenure may have one more hand-over, and if
    /// at least half of the lease is left. Then the next member has as much time as a waiter that
    /// Redis grants the lock.
    pub(crate) fn end_turn(
        &mut self,
        end: TurnEnd,
        remaining: Duration,
        ttl: Duration,
    ) -> AfterTurn {
        let LineStage::Held(tenure) = &mut self.stage else {
            return AfterTurn::Leave;
        };
        tenure.turn = None;
        if end != TurnEnd::Unused {
            tenure.last_end = Some(end);
        }
        if self.members.is_empty() || tenure.offered >= self.max || remaining < ttl / 2 {
            return AfterTurn::Leave;
        }
        tenure.offered += 1;
        AfterTurn::Pass {
            fence_offset: tenure.offered,
        }
    }

    /// The grant is released. How its last guard ended. `None`: no guard had it.
    pub(crate) fn end_tenure(&mut self) -> Option<TurnEnd> {
        let end = self.tenure().and_then(|tenure| tenure.last_end);
        self.stage = LineStage::Idle;
        end
    }

    /// The grant was lost while the turn of its last guard ended.
    pub(crate) fn note_lost(&mut self) {
        if let LineStage::Held(tenure) = &mut self.stage {
            tenure.last_end = Some(TurnEnd::Unfinished);
        }
    }

    /// The grant is lost. Returns the turn that was lost with it. If its member has not taken it
    /// yet, the member may come back by [`LineState::join`].
    pub(crate) fn lose_tenure(&mut self) -> Option<Turn<W, L>> {
        match std::mem::replace(&mut self.stage, LineStage::Idle) {
            LineStage::Held(tenure) => tenure.turn,
            other => {
                self.stage = other;
                None
            }
        }
    }

    pub(crate) fn tenure(&self) -> Option<&Tenure<W, L>> {
        match &self.stage {
            LineStage::Held(tenure) => Some(tenure),
            _ => None,
        }
    }

    /// The line's place, with its number.
    pub(crate) fn place(&self) -> Option<(u64, &W)> {
        match &self.stage {
            LineStage::Queued { number, place } => Some((*number, place)),
            _ => None,
        }
    }

    /// How many members come before this one. `None` if it is not in the line.
    pub(crate) fn members_before(&self, number: u64) -> Option<usize> {
        let is_member = self.members.contains_key(&number);
        is_member.then(|| self.members.range(..number).count())
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &W> {
        self.members.values()
    }

    pub(crate) fn has_members(&self) -> bool {
        !self.members.is_empty()
    }

    /// Whether nobody waits, and nothing is held.
    pub(crate) fn is_idle(&self) -> bool {
        self.members.is_empty() && matches!(self.stage, LineStage::Idle)
    }
}

impl<W, L> Tenure<W, L> {
    /// Whether the last guard of this tenure left its work half done. `None`: no guard had it yet.
    pub(crate) fn last_end(&self) -> Option<TurnEnd> {
        self.last_end
    }
}

#[cfg(all(test, not(fairlock_loom)))]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    /// A line whose members 1, 2, … wait for its place, which is number 9.
    fn waiting(members: u64, max: u32) -> LineState<u64, &'static str> {
        let mut line = LineState::new(max);
        for number in 1..=members {
            assert_eq!(line.join(number, number), number == 1);
            if number == 1 {
                line.set_place(9, 9);
            }
        }
        line
    }

    fn give_turn(line: &mut LineState<u64, &'static str>) -> Option<u64> {
        let (number, member) = line.next_member()?;
        line.set_turn(number, member, "turn");
        Some(number)
    }

    /// The members that have a turn, one after the other, until the line leaves.
    fn turns(line: &mut LineState<u64, &'static str>, remaining: Duration) -> Vec<u64> {
        line.begin_tenure("grant");
        let mut turns = vec![give_turn(line).expect("somebody waits")];
        while let AfterTurn::Pass { fence_offset } =
            line.end_turn(TurnEnd::Finished, remaining, TTL)
        {
            assert_eq!(fence_offset as usize, turns.len());
            turns.push(give_turn(line).expect("it said that somebody waits"));
        }
        turns
    }

    #[test]
    fn members_have_their_turns_in_the_order_in_which_they_came() {
        assert_eq!(turns(&mut waiting(4, 100), TTL), [1, 2, 3, 4]);
    }

    #[test]
    fn tenure_has_no_more_hand_overs_than_the_option_says() {
        let mut line = waiting(4, 2);
        assert_eq!(turns(&mut line, TTL), [1, 2, 3]);
        assert_eq!(line.end_tenure(), Some(TurnEnd::Finished));
        assert!(line.has_members() && !line.is_idle());
        line.set_place(10, 10);
        assert_eq!(turns(&mut line, TTL), [4]);
    }

    #[test]
    fn grant_is_not_passed_with_less_than_half_of_the_ttl() {
        assert_eq!(turns(&mut waiting(2, 9), TTL / 2), [1, 2]);
        let short = TTL / 2 - Duration::from_nanos(1);
        assert_eq!(turns(&mut waiting(2, 9), short), [1]);
    }

    #[test]
    fn last_member_that_leaves_takes_the_place_along() {
        let mut line = waiting(2, 9);
        assert_eq!(line.leave(1), None);
        assert_eq!(line.leave(2), Some(9));
        assert!(line.is_idle());
        let mut held = waiting(2, 9);
        held.begin_tenure("grant");
        assert_eq!(give_turn(&mut held), Some(1));
        assert_eq!(
            held.leave(2),
            None,
            "a turn is held, and no place is queued"
        );
    }

    #[test]
    fn unused_turn_does_not_change_how_the_last_guard_ended() {
        for end in [TurnEnd::Finished, TurnEnd::Unfinished] {
            let mut line = waiting(3, 9);
            line.begin_tenure("grant");
            for end in [end, TurnEnd::Unused] {
                let _ = give_turn(&mut line);
                assert!(matches!(
                    line.end_turn(end, TTL, TTL),
                    AfterTurn::Pass { .. }
                ));
            }
            assert_eq!(line.end_tenure(), Some(end));
        }
        let mut unused = waiting(1, 9);
        unused.begin_tenure("grant");
        let _ = give_turn(&mut unused);
        assert_eq!(unused.end_turn(TurnEnd::Unused, TTL, TTL), AfterTurn::Leave);
        assert_eq!(unused.end_tenure(), None);
    }

    #[test]
    fn member_that_comes_back_is_the_first_again() {
        let mut line = waiting(3, 9);
        line.begin_tenure("grant");
        assert_eq!(give_turn(&mut line), Some(1));
        let turn = line.lose_tenure().expect("it had a turn");
        assert!(line.join(turn.number, turn.member), "it needs a place");
        line.set_place(10, 10);
        assert_eq!(line.members_before(1), Some(0));
        assert_eq!(line.members_before(3), Some(2));
        assert_eq!(turns(&mut line, TTL), [1, 2, 3]);
    }
}
