//! Loom models of a slot: what one thread does with a kept grant while others use, want, or end it.
//! `engine/loom_models.rs` says how they run.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::lines::{Line, Lines};
use super::tries::Found;
use super::turns::{Ended, Leaving};
use crate::engine::{Engine, Handovers, HeldLease, RenewalModel, Request};
use crate::key::Key;
use crate::loss::PreviousHolder;
use crate::options::LockOptions;
use crate::script::{Grant, LockSpec, Mode, Token, Verb};
use crate::setting::LOCAL_HANDOVERS;

const NAME: &str = "k";
const FENCE: u64 = 7;

/// The lines of a manager that hears, and a kept grant of one of them.
struct Model {
    lines: Arc<Lines>,
    engine: Arc<Engine>,
    renewal: RenewalModel,
    token: Token,
}

/// A thread that has had the lock, and what it did with it.
#[derive(PartialEq, Eq, Debug, Clone, Copy)]
enum Did {
    /// It did not get the lock.
    Nothing,
    Kept,
    /// It is to send the release of the grant.
    Releases,
    PassedOn,
}

fn options() -> LockOptions {
    LockOptions::new().keep_idle(Duration::from_secs(3))
}

fn request() -> Arc<Request> {
    let key = Key::new("fairlock", NAME).expect("a valid name");
    let handovers = Handovers {
        most: 0,
        spare_fences: LOCAL_HANDOVERS.most,
        hears: true,
        keep: options().keep_time(),
        shared_as: 2,
    };
    let request = Request::with_handovers(LockSpec::MUTEX, key, &options(), 1, handovers);
    Arc::new(request)
}

impl Model {
    /// Redis has granted the lock to a try, which does not know that yet.
    fn asking() -> (Model, Arc<Request>, Arc<HeldLease>) {
        let (engine, renewal) = RenewalModel::of_an_engine_that_hears();
        let lines = Lines::new(&engine);
        let request = request();
        let Found::Nothing = lines.begin_try(&request) else {
            panic!("nobody has it yet")
        };
        let grant = Grant {
            token: Token::new(),
            fence: FENCE,
            granted_at: 1,
            left: Duration::from_secs(10),
            previous: PreviousHolder::Unknown,
            waiting: Some(false),
        };
        let now = engine.now();
        let of_line = Arc::new(lines.request_of_line(&request));
        let lease = HeldLease::new(of_line, &grant, now, now + grant.left);
        let model = Model {
            lines,
            engine,
            renewal,
            token: grant.token,
        };
        (model, request, Arc::new(lease))
    }

    /// A guard has the lock, and nothing wants it.
    fn held() -> (Model, Arc<HeldLease>) {
        let (model, request, lease) = Model::asking();
        let turn = model.lines.end_try(&request, Ok(Some(lease)));
        let turn = turn.expect("it is held").expect("it was granted");
        (model, turn)
    }

    /// The lock is kept.
    fn kept() -> Model {
        let (model, turn) = Model::held();
        assert_eq!(drop_guard(&model.lines, &turn), Did::Kept);
        model
    }

    /// How many releases of the grant the renewal thread sends.
    fn released_in_background(&mut self) -> usize {
        let calls = self.renewal.calls();
        let is_its =
            |verb: &Verb| matches!(verb, Verb::Release { token, .. } if *token == self.token);
        calls.iter().filter(|call| is_its(&call.verb)).count()
    }

    /// Whether the grant is kept, and whether a guard has it.
    fn state(&self) -> (bool, bool) {
        let look = |line: &mut Line| {
            let is_kept = line.kept().is_some();
            (is_kept, !is_kept && line.tenure().is_some())
        };
        let states = self.lines.with_known_slot(NAME, |slot| {
            slot.lines().map(|(_, line)| look(line)).collect::<Vec<_>>()
        });
        let states = states.unwrap_or_default();
        (
            states.iter().any(|(is_kept, _)| *is_kept),
            states.iter().any(|(_, is_held)| *is_held),
        )
    }

    /// Others want the grant, and know no more of it than that. Now each of these threads has done what
    /// it does. Exactly one of them releases the grant.
    fn assert_released_once(mut self, did: &[Did]) {
        assert_eq!(
            self.state(),
            (false, false),
            "{did:?} leaves a grant that is wanted"
        );
        let by_threads = did.iter().filter(|did| **did == Did::Releases).count();
        let in_background = self.released_in_background();
        assert_eq!(
            by_threads + in_background,
            1,
            "{did:?}, and {in_background}"
        );
    }
}

fn drop_guard(lines: &Lines, turn: &Arc<HeldLease>) -> Did {
    let now = lines.acquiring.client().now();
    match lines.end_turn(turn, None, Mode::Used, true, now) {
        Ok(Ended::Kept) => Did::Kept,
        Ok(Ended::Left(Leaving { place: None, .. })) => Did::Releases,
        Ok(Ended::PassedTo(..)) => Did::PassedOn,
        Ok(Ended::Left(_) | Ended::Lost(_)) | Err(_) => panic!("it is held, and nobody waits"),
    }
}

fn lend(lines: &Lines) -> Option<Arc<HeldLease>> {
    let slot = lines.known_slot(NAME)?;
    lines.lend_kept(&slot, &options())
}

/// Locks what is kept, and drops the guard.
fn relock(lines: &Lines) -> Did {
    match lend(lines) {
        Some(turn) => drop_guard(lines, &turn),
        None => Did::Nothing,
    }
}

/// Runs a model in every order. At most twice, a thread that could go on loses its turn.
fn in_every_order(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 10_000;
    let model = Arc::new(model);
    builder.check(move || {
        let model = Arc::clone(&model);
        with_room(move || model()).join().unwrap();
    });
}

/// A thread with enough stack for an engine.
fn with_room<R: Send + 'static>(run: impl FnOnce() -> R + Send + 'static) -> thread::JoinHandle<R> {
    let words = 1 << 16;
    let started = thread::Builder::new().stack_size(words).spawn(run);
    started.expect("a thread of the model")
}

fn spawn<R: Send + 'static>(
    lines: &Arc<Lines>,
    run: impl FnOnce(&Lines) -> R + Send + 'static,
) -> thread::JoinHandle<R> {
    let lines = Arc::clone(lines);
    with_room(move || run(&lines))
}

#[test]
fn kept_grant_that_is_wanted_while_it_is_locked_is_released_once() {
    in_every_order(|| {
        let model = Model::kept();
        let caller = spawn(&model.lines, relock);
        model.lines.on_wanted(&NAME.into(), FENCE);
        let did = caller.join().unwrap();
        model.assert_released_once(&[did]);
    });
}

#[test]
fn grant_that_is_wanted_while_its_guard_is_dropped_is_released_once() {
    in_every_order(|| {
        let (model, turn) = Model::held();
        let caller = spawn(&model.lines, move |lines| drop_guard(lines, &turn));
        model.lines.on_wanted(&NAME.into(), FENCE);
        let did = caller.join().unwrap();
        model.assert_released_once(&[did]);
    });
}

#[test]
fn grant_that_is_wanted_twice_between_two_callers_is_released_once() {
    in_every_order(|| {
        let model = Model::kept();
        let first = spawn(&model.lines, relock);
        let again = spawn(&model.lines, |lines| lines.on_wanted(&NAME.into(), FENCE));
        model.lines.on_wanted(&NAME.into(), FENCE);
        let did = first.join().unwrap();
        again.join().unwrap();
        model.assert_released_once(&[did]);
    });
}

/// The message overtakes the reply with the grant.
#[test]
fn grant_that_is_wanted_while_it_becomes_known_is_not_kept() {
    in_every_order(|| {
        let (model, request, lease) = Model::asking();
        let caller = spawn(&model.lines, move |lines| {
            let turn = lines.end_try(&request, Ok(Some(lease)));
            drop_guard(lines, &turn.expect("it is held").expect("it was granted"))
        });
        model.lines.on_wanted(&NAME.into(), FENCE);
        let did = caller.join().unwrap();
        model.assert_released_once(&[did]);
    });
}

#[test]
fn message_about_an_older_grant_ends_nothing() {
    in_every_order(|| {
        let model = Model::kept();
        let caller = spawn(&model.lines, relock);
        model.lines.on_wanted(&NAME.into(), FENCE - 1);
        assert_eq!(caller.join().unwrap(), Did::Kept);
        assert_eq!(model.state(), (true, false));
    });
}

#[test]
fn kept_grant_has_one_guard_at_a_time() {
    in_every_order(|| {
        let model = Model::kept();
        let other = spawn(&model.lines, lend);
        let here = lend(&model.lines);
        let there = other.join().unwrap();
        assert!(here.is_some() != there.is_some(), "one of them gets it");
        assert_eq!(model.state(), (false, true));
    });
}

#[test]
fn unused_grant_that_ends_as_it_is_locked_is_released_once() {
    in_every_order(|| {
        let mut model = Model::kept();
        // It was unused for longer than it is kept.
        let now = model.engine.now() + Duration::from_secs(5);
        model.lines.with_known_slot(NAME, |slot| slot.look_at = now);
        let _ = model.lines.keeper.look_at(&NAME.into(), now);
        let caller = spawn(&model.lines, relock);
        model.lines.look_at_tenures(now);
        let did = caller.join().unwrap();
        let released = model.released_in_background();
        match did {
            Did::Nothing => assert_eq!((released, model.state()), (1, (false, false))),
            // It was used just now, so it goes on, or the look came after that.
            Did::Kept => assert_eq!(released == 0, model.state() == (true, false)),
            Did::Releases | Did::PassedOn => panic!("nobody wants it"),
        }
    });
}

#[test]
fn caller_that_makes_way_meets_a_drop_or_the_kept_grant() {
    in_every_order(|| {
        let model = Model::kept();
        let caller = spawn(&model.lines, relock);
        let now = model.engine.now();
        let ended = model
            .lines
            .with_known_slot(NAME, |slot| model.lines.end_kept(slot, None, now));
        let made_way = ended.is_some_and(|ended| !ended.is_empty());
        let did = caller.join().unwrap();
        let (is_kept, is_held) = model.state();
        assert!(!is_held);
        // One came second: the guard found nothing, or was dropped after the look.
        assert_eq!(is_kept, !made_way, "{did:?}");
        assert!(made_way || did == Did::Kept);
    });
}

#[test]
fn end_of_the_manager_leaves_no_kept_grant_of_a_dropped_guard() {
    in_every_order(|| {
        let (mut model, turn) = Model::held();
        let caller = spawn(&model.lines, move |lines| drop_guard(lines, &turn));
        model.lines.release_all_kept();
        let did = caller.join().unwrap();
        assert_eq!(did, Did::Kept);
        // A guard that is dropped later is kept for the shutdown, which ends all leases.
        let released = model.released_in_background();
        assert_eq!(released == 1, model.state() == (false, false));
    });
}
