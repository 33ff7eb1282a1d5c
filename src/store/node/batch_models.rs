//! The batch queue alone, in every order in which threads can take their turns. No thread has a
//! connection here, and a waiting thread looks at its turn once instead of sleeping.

use std::sync::Arc;

use loom::thread;

use super::batch::{BatchQueue, Follower, Leadership, MAX_FOLLOWERS, Role, Turn};
use crate::key::Key;
use crate::script::{Call, LockSpec, Token, Verb};
use crate::store::clock::Time;

/// The end of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
enum CallEnd {
    /// It led, and took this many followers along.
    Led(usize),
    TakenAlong,
    TimedOut,
}

/// The reaction of a follower that stops waiting and finds that its turn has changed.
#[derive(Clone, Copy)]
enum LateFollower {
    LookAgain,
    /// A mistake: it may be the leader now.
    Leave,
}

fn call() -> Call {
    let key = Key::new("fairlock", "k").expect("a name");
    Call {
        spec: LockSpec::MUTEX,
        key,
        verb: Verb::Renew {
            token: Token::new(),
        },
    }
}

fn arrive(queue: &BatchQueue, most: usize, at_deadline: LateFollower) -> CallEnd {
    match queue.join(&call(), Time::NEVER) {
        Role::Leader => lead(queue, most),
        Role::Follower(follower) => match look(&follower) {
            SeenTurn::Waiting if queue.remove(&follower) => CallEnd::TimedOut,
            SeenTurn::Waiting => match (at_deadline, look(&follower)) {
                (LateFollower::Leave, _) => CallEnd::TimedOut,
                (_, SeenTurn::Leading) => lead(queue, most),
                (_, SeenTurn::Taken) => CallEnd::TakenAlong,
                (_, SeenTurn::Waiting) => panic!("it is in no queue, and its turn has not come"),
            },
            SeenTurn::Leading => lead(queue, most),
            SeenTurn::Taken => CallEnd::TakenAlong,
        },
    }
}

/// A follower's turn, without what it carries.
enum SeenTurn {
    Waiting,
    Leading,
    Taken,
}

fn look(follower: &Follower) -> SeenTurn {
    match *follower.turn.lock() {
        Turn::Waiting => SeenTurn::Waiting,
        Turn::Leading => SeenTurn::Leading,
        Turn::InBatch { .. } | Turn::Answered(_) => SeenTurn::Taken,
    }
}

fn lead(queue: &BatchQueue, most: usize) -> CallEnd {
    CallEnd::Led(Leadership::of(queue).take_followers(most, |_| 0).len())
}

/// Three callers arrive. Each of them that leads takes at most `most` others along.
fn three_arrive(most: usize, at_deadline: LateFollower) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let queue = Arc::new(BatchQueue::new());
        let others = [(); 2].map(|()| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || arrive(&queue, most, at_deadline))
        });
        let own = arrive(&queue, most, at_deadline);
        let [first, second] = others.map(|other| other.join().expect("it ends"));
        let ends = [own, first, second];
        let taken = ends
            .iter()
            .filter(|end| **end == CallEnd::TakenAlong)
            .count();
        let along = ends
            .iter()
            .map(|end| match end {
                CallEnd::Led(along) => *along,
                CallEnd::TakenAlong | CallEnd::TimedOut => 0,
            })
            .sum();
        assert_eq!(taken, along, "each goes along with one leader: {ends:?}");
        assert!(
            !queue.is_led(),
            "no leader is left, but new callers would wait for one: {ends:?}"
        );
        assert!(
            queue.followers.lock().is_empty(),
            "a follower is left without a leader: {ends:?}"
        );
    });
}

#[test]
fn follower_is_taken_along_once_or_leads_or_times_out() {
    three_arrive(MAX_FOLLOWERS, LateFollower::LookAgain);
}

#[test]
fn leadership_passes_to_a_follower_that_is_left() {
    three_arrive(0, LateFollower::LookAgain);
}

#[test]
#[should_panic = "no leader is left, but new callers would wait for one"]
fn follower_that_leaves_as_new_leader_is_found() {
    three_arrive(0, LateFollower::Leave);
}
