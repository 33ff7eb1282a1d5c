//! The line alone, in every order in which threads can take their turns. Nobody has a connection here, and who waits does
//! so until it has looked once.

use std::sync::Arc;

use loom::thread;

use super::batch::{BatchQueue, Follower, Leadership, MOST, Role, Turn};
use crate::key::Key;
use crate::script::{Call, LockSpec, Token, Verb};
use crate::store::clock::Time;

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    /// It led, and took so many along.
    Led(usize),
    TakenAlong,
    GaveUp,
}

/// What one does who waits no longer and finds that its turn has changed.
#[derive(Clone, Copy)]
enum AtDeadline {
    LooksAgain,
    /// A mistake: it may have been made the leader.
    Goes,
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

fn come(line: &BatchQueue, most: usize, at_deadline: AtDeadline) -> End {
    match line.enter(&call(), Time::NEVER) {
        Role::Leader => lead(line, most),
        Role::Follower(joiner) => match look(&joiner) {
            Look::Waits if line.leave(&joiner) => End::GaveUp,
            Look::Waits => match (at_deadline, look(&joiner)) {
                (AtDeadline::Goes, _) => End::GaveUp,
                (_, Look::Leads) => lead(line, most),
                (_, Look::IsTaken) => End::TakenAlong,
                (_, Look::Waits) => panic!("it is in no line, and has no turn"),
            },
            Look::Leads => lead(line, most),
            Look::IsTaken => End::TakenAlong,
        },
    }
}

enum Look {
    Waits,
    Leads,
    IsTaken,
}

fn look(joiner: &Follower) -> Look {
    match *joiner.turn.lock() {
        Turn::Waiting => Look::Waits,
        Turn::Leads => Look::Leads,
        Turn::Taken { .. } | Turn::Answered(_) => Look::IsTaken,
    }
}

fn lead(line: &BatchQueue, most: usize) -> End {
    End::Led(Leadership(Some(line)).take(most, |_| 0).len())
}

/// Three come, of whom each that leads takes along at most so many.
fn three_come(most: usize, at_deadline: AtDeadline) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let line = Arc::new(BatchQueue::new());
        let others = [(); 2].map(|()| {
            let line = Arc::clone(&line);
            thread::spawn(move || come(&line, most, at_deadline))
        });
        let own = come(&line, most, at_deadline);
        let [first, second] = others.map(|other| other.join().expect("it ends"));
        let ends = [own, first, second];
        let taken = ends.iter().filter(|end| **end == End::TakenAlong).count();
        let along = ends
            .iter()
            .map(|end| if let End::Led(along) = end { *along } else { 0 })
            .sum();
        assert_eq!(taken, along, "each goes along with one leader: {ends:?}");
        assert!(
            !line.is_led(),
            "nobody leads, and whoever comes waits: {ends:?}"
        );
        assert!(
            line.waiting.lock().is_empty(),
            "somebody waits for nobody: {ends:?}"
        );
    });
}

#[test]
fn whoever_waits_is_taken_along_once_or_leads_or_gives_up() {
    three_come(MOST, AtDeadline::LooksAgain);
}

#[test]
fn the_lead_goes_on_to_whoever_is_left() {
    three_come(0, AtDeadline::LooksAgain);
}

#[test]
#[should_panic = "nobody leads, and whoever comes waits"]
fn one_who_gives_up_the_lead_that_it_was_just_given_is_found() {
    three_come(0, AtDeadline::Goes);
}
