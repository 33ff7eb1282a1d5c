//! One of many leads: a lock that is held for as long as all goes well, and let go of at once when it is lost.
//!
//!     cargo run --features memory --example leader
//!     cargo run --example leader
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example leader
//!
//! Every candidate stands in the queue of one lock; whoever has it leads, and the others are warm spares. Three
//! things can happen to a leader, and one `select!` has them all: it is time to act, it is told to stop, or the lock
//! is lost. Each act carries the leader's fence, since a leader can be overtaken and not know it yet.
//!
//! Here three candidates, which are threads with a manager each, lead one after the other: an operator takes the
//! lock away from the first, the second is stopped in good order, and the third leads until the end. With
//! `REDIS_URL` it uses that Redis; without, an in-memory store if it is built with one, and else a private
//! redis-server. It ends with 0 if all was as it should be, with 1 if not, with 2 without a store.

mod support;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fairlock::crossbeam_channel::{Receiver, Sender, bounded, select, tick};
use fairlock::{
    Builder, Error, FenceGate, LockGuard, LockManager, LockOptions, LossReason, PreviousHolder,
};
use support::{Outcome, Store, check, own_name, play, until};

/// How often a leader acts. Here that is once: it must not take another act to find that the lock is lost.
const EVERY: Duration = Duration::from_secs(60);

/// What a candidate does for as long as it lives. This, with `lead`, is the part to copy.
fn stand_for_leader(
    mgr: &LockManager,
    name: &str,
    stop: &Receiver<()>,
    say: &dyn Fn(Did),
) -> fairlock::Result<()> {
    loop {
        // The others may lead for weeks; a shutdown of the manager ends the wait.
        let guard = match mgr.lock(name) {
            Ok(guard) => guard,
            Err(Error::Closed) => return Ok(()),
            Err(other) => return Err(other),
        };
        say(Did::Lead(guard.previous_holder()));
        match lead(&guard, stop, say) {
            Ok(()) => return guard.unlock(),
            // Another may lead already. There is nothing more to do, but to queue again.
            Err(Error::Lost { loss, .. }) => say(Did::Lose(loss.reason)),
            Err(other) => return Err(other),
        }
    }
}

/// `Ok` when it is told to stop, [`Error::Lost`] when the lock is lost.
fn lead(guard: &LockGuard, stop: &Receiver<()>, say: &dyn Fn(Did)) -> fairlock::Result<()> {
    let ticks = tick(EVERY);
    loop {
        // By a clock, so it needs no message: `lost` may tell a moment later.
        guard.check()?;
        say(Did::Act(guard.fence()));
        select! {
            recv(guard.lost()) -> _ => return guard.check(),
            recv(stop) -> _ => return Ok(()),
            recv(ticks) -> _ => {}
        }
    }
}

fn main() -> ExitCode {
    play(leader)
}

fn leader(store: &Store) -> Outcome {
    let name = own_name("leader");
    let world = Arc::new(World::default());
    let candidates =
        ["anna", "bert", "cora"].map(|who| Candidate::start(who, store, &name, &world));
    let candidates = candidates.into_iter().collect::<Outcome<Vec<_>>>()?;
    let operator = builder(store).build()?;
    let two_wait = || {
        Ok(operator
            .inspect(&name)?
            .is_some_and(|info| info.waiters == 2))
    };

    let (first, previous) = world.await_leader(1)?;
    until("the others wait", two_wait)?;
    println!("{first} leads, and two wait.");
    check(
        "nothing is known of a leader before",
        previous == PreviousHolder::Unknown,
    )?;
    println!();

    let seen = operator.inspect(&name)?.ok_or("nobody leads")?;
    let holder = seen.holder.ok_or("nobody leads")?;
    println!(
        "An operator sees that {} leads, with fence {}, and takes the lock away.",
        holder.label, seen.fence
    );
    check(
        "it was taken from the one that was seen",
        operator.force_release(&name, seen.fence)?,
    )?;
    let (second, previous) = world.await_leader(2)?;
    println!("{second} leads.");
    check(
        "it was the next in the queue, and knows what happened",
        previous == PreviousHolder::Forced && second != first,
    )?;
    check(
        "what the operator saw is of no use any more",
        !operator.force_release(&name, seen.fence)?,
    )?;
    until("the first leader is told, and waits again", || {
        Ok(!world.losses().is_empty() && two_wait()?)
    })?;
    check(
        format!("{first} was told why, and waits again"),
        world.losses() == [(first, LossReason::Forced)],
    )?;
    println!();

    println!("{second} is told to stop.");
    candidates
        .iter()
        .filter(|candidate| candidate.who == second)
        .for_each(Candidate::stop);
    let (third, previous) = world.await_leader(3)?;
    println!("{third} leads.");
    let others = third != first && third != second;
    check(
        "it was the next in the queue, and finds all in order",
        previous == PreviousHolder::Released && others,
    )?;
    println!();

    println!("All are told to stop.");
    candidates.iter().for_each(Candidate::stop);
    for candidate in candidates {
        candidate.end()?;
    }
    check(
        "nobody leads, and nobody waits",
        operator.inspect(&name)?.is_none(),
    )?;
    let (done, refused) = world.acts();
    println!(
        "  {done} acts were done; {refused} were refused, of one that was overtaken and had not been told yet"
    );
    Ok(())
}

/// In life each is a process, with one manager.
struct Candidate {
    who: &'static str,
    mgr: LockManager,
    stop: Sender<()>,
    thread: JoinHandle<fairlock::Result<()>>,
}

impl Candidate {
    fn start(
        who: &'static str,
        store: &Store,
        name: &str,
        world: &Arc<World>,
    ) -> Outcome<Candidate> {
        let mgr = builder(store)
            .options(options().label(who))
            // There is nothing better to do than to wait, also for a Redis to come back.
            .outage_limit(Duration::MAX)
            .build()?;
        let (stop, stopped) = bounded(1);
        let (candidate, name, world) = (mgr.clone(), name.to_owned(), Arc::clone(world));
        let thread = thread::spawn(move || {
            stand_for_leader(&candidate, &name, &stopped, &|did| world.hear(who, did))
        });
        Ok(Candidate {
            who,
            mgr,
            stop,
            thread,
        })
    }

    /// One that leads; others do not listen.
    fn stop(&self) {
        let _ = self.stop.try_send(());
    }

    /// Ends its wait, if it waits, and then itself.
    fn end(self) -> Outcome {
        let left = self.mgr.shutdown(Duration::from_secs(5))?;
        self.thread.join().expect("a candidate does not panic")?;
        check(
            format!("{} has ended, and holds nothing", self.who),
            left.ended.is_empty(),
        )
    }
}

/// To connect may take longer than the tenth of so short a ttl that it would have by default.
fn builder(store: &Store) -> Builder {
    LockManager::builder(store)
        .options(options())
        .connect_timeout(Duration::from_secs(2))
}

/// The shortest ttl there is, so that one who lost the lock is soon told.
fn options() -> LockOptions {
    LockOptions::new().ttl(Duration::from_secs(1))
}

/// What candidates do.
enum Did {
    Lead(PreviousHolder),
    /// With this fence.
    Act(u64),
    Lose(LossReason),
}

/// Where it is done, and what was done there by whom. In life its gate stands where the acts are done: in a
/// database, for instance. The example `fencing` says how.
#[derive(Default)]
struct World {
    gate: FenceGate,
    history: Mutex<History>,
}

#[derive(Default)]
struct History {
    leaders: Vec<(&'static str, PreviousHolder)>,
    losses: Vec<(&'static str, LossReason)>,
    /// Who acted, and whether it was done.
    acts: Vec<(&'static str, bool)>,
}

impl World {
    fn hear(&self, who: &'static str, did: Did) {
        let mut history = self.history.lock().unwrap();
        match did {
            Did::Lead(previous) => history.leaders.push((who, previous)),
            Did::Act(fence) => history.acts.push((who, self.gate.admit(fence))),
            Did::Lose(reason) => history.losses.push((who, reason)),
        }
    }

    /// Waits until so many have led, the last of them has acted, and answers who that is and what it was told.
    fn await_leader(&self, nth: usize) -> Outcome<(&'static str, PreviousHolder)> {
        until("another leads, and acts", || {
            let history = self.history.lock().unwrap();
            let leader = history.leaders.get(nth - 1);
            Ok(leader.is_some_and(|(who, _)| history.acts.contains(&(who, true))))
        })?;
        Ok(self.history.lock().unwrap().leaders[nth - 1])
    }

    fn losses(&self) -> Vec<(&'static str, LossReason)> {
        self.history.lock().unwrap().losses.clone()
    }

    /// How many were done, and how many refused.
    fn acts(&self) -> (usize, usize) {
        let history = self.history.lock().unwrap();
        let done = history.acts.iter().filter(|(_, done)| *done).count();
        (done, history.acts.len() - done)
    }
}
