//! One of many processes leads. It holds a lock for as long as all goes well, and stops at once
//! when it loses the lock.
//!
//!     cargo run --features memory --example leader
//!     cargo run --example leader
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example leader
//!
//! Every candidate waits in the queue of one lock. The holder leads, and the others are ready to
//! take over. One `select!` waits for the two things that can happen to a candidate: it leads, or it
//! must stop. Another one waits for the three things that can happen to a leader: it is time to act,
//! it must stop, or the lock is lost. A new leader first claims with its fence what the leaders
//! work on, and only then reads it. So an old leader that does not know yet changes nothing more.
//!
//! `lead.rs` has the candidate, which is the part to copy. `table.rs` in `examples/support` stands
//! for the database, and has each statement in SQL.
//!
//! Here three candidates lead one after the other. Each is a thread with its own manager. An
//! operator takes the lock away from the first, the second stops in good order, and the third leads
//! until the end.
//!
//! The program uses the Redis of `REDIS_URL`. Without that it uses an in-memory store, if it is
//! built with one, or else it starts a private redis-server. It exits with 0 if all checks hold,
//! with 1 if not, and with 2 if it has no store.

mod lead;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/table.rs"]
mod table;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fairlock::crossbeam_channel::{Sender, bounded};
use fairlock::{Builder, LockManager, LockOptions, LossReason, PreviousHolder};
use lead::{Event, Plan, run_candidate};
use support::{Outcome, Store, check, own_name, run, until};
use table::Table;

fn main() -> ExitCode {
    run(leader)
}

fn leader(store: &Store) -> Outcome {
    let name = own_name("leader");
    let work = Arc::new(SharedWork::default());
    let candidates = ["anna", "bert", "cora"].map(|who| Candidate::start(who, store, &name, &work));
    let candidates = candidates.into_iter().collect::<Outcome<Vec<_>>>()?;
    let operator = builder(store).build()?;
    let two_wait = || {
        Ok(operator
            .inspect(&name)?
            .is_some_and(|info| info.waiters == 2))
    };

    let (first, previous) = work.await_leader(1)?;
    until("the others wait", two_wait)?;
    println!("{first} leads, and two wait.");
    check(
        "there is no record of an earlier leader",
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
        "the lock was taken from the holder that the operator saw",
        operator.force_release(&name, seen.fence)?,
    )?;
    let (second, previous) = work.await_leader(2)?;
    println!("{second} leads.");
    check(
        "it was next in the queue, and knows that the lock was taken by force",
        previous == PreviousHolder::Forced && second != first,
    )?;
    check(
        "the old fence cannot take the lock away from the new leader",
        !operator.force_release(&name, seen.fence)?,
    )?;
    until(
        "the first leader learns of the loss, and queues again",
        || Ok(!work.losses().is_empty() && two_wait()?),
    )?;
    check(
        format!("{first} learned why it lost the lock, and waits again"),
        work.losses() == [(first, LossReason::Forced)],
    )?;
    println!();

    println!("We stop {second}.");
    candidates
        .iter()
        .filter(|candidate| candidate.who == second)
        .for_each(Candidate::stop);
    let (third, previous) = work.await_leader(3)?;
    println!("{third} leads.");
    let others = third != first && third != second;
    check(
        "it was next in the queue, and the leader before it ended in good order",
        previous == PreviousHolder::Released && others,
    )?;
    println!();

    println!("We stop all candidates: the leader, and the one that waits.");
    candidates.iter().for_each(Candidate::stop);
    for candidate in candidates {
        candidate.end()?;
    }
    check(
        "nobody leads, and nobody waits",
        operator.inspect(&name)?.is_none(),
    )?;
    let rounds = work.plans.read(&name).rounds;
    check(
        format!("{rounds} rounds were done, and the plan counts each of them"),
        work.rounds() == (1..=rounds).collect::<Vec<_>>(),
    )
}

/// In a real program each candidate is a process with one manager.
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
        work: &Arc<SharedWork>,
    ) -> Outcome<Candidate> {
        let mgr = builder(store)
            .options(options().label(who))
            // A candidate has nothing better to do than wait, even while Redis is away.
            .outage_limit(Duration::MAX)
            .build()?;
        let (stop, stopped) = bounded(1);
        let candidate = mgr.clone();
        let name = name.to_owned();
        let work = Arc::clone(work);
        let thread = thread::spawn(move || {
            run_candidate(&candidate, &work.plans, &name, &stopped, &|event| {
                work.record(who, event)
            })
        });
        Ok(Candidate {
            who,
            mgr,
            stop,
            thread,
        })
    }

    /// Stops the candidate, whether it leads or waits.
    fn stop(&self) {
        let _ = self.stop.try_send(());
    }

    /// Waits for its thread. Then nothing is left that a shutdown could end.
    fn end(self) -> Outcome {
        self.thread.join().expect("a candidate does not panic")?;
        let still_held = self.mgr.shutdown(Duration::from_secs(5))?;
        check(
            format!("{} has ended, and holds nothing", self.who),
            still_held.is_empty(),
        )
    }
}

/// A connect timeout is a tenth of the ttl by default. With so short a ttl that may not be enough.
fn builder(store: &Store) -> Builder {
    LockManager::builder(store)
        .options(options())
        .connect_timeout(Duration::from_secs(2))
}

/// The shortest ttl, so that a leader soon learns that it lost the lock.
fn options() -> LockOptions {
    LockOptions::new().ttl(Duration::from_secs(1))
}

/// The work of the leaders, and a history of who did what.
#[derive(Default)]
struct SharedWork {
    plans: Table<Plan>,
    history: Mutex<History>,
}

#[derive(Default)]
struct History {
    leaders: Vec<(&'static str, PreviousHolder)>,
    losses: Vec<(&'static str, LossReason)>,
    /// The candidate that acted, and the round.
    acts: Vec<(&'static str, u64)>,
}

impl SharedWork {
    fn record(&self, who: &'static str, event: Event) {
        let mut history = self.history.lock().unwrap();
        match event {
            Event::Elected(previous) => history.leaders.push((who, previous)),
            Event::Acted(round) => history.acts.push((who, round)),
            Event::Overtaken => println!("  a late act of {who} was refused"),
            Event::Lost(reason) => history.losses.push((who, reason)),
        }
    }

    /// Waits until the nth leader is elected and has acted. Returns its name, and how the leader
    /// before it ended.
    fn await_leader(&self, nth: usize) -> Outcome<(&'static str, PreviousHolder)> {
        until("another leads, and acts", || {
            let history = self.history.lock().unwrap();
            let leader = history.leaders.get(nth - 1);
            let has_acted = |who| history.acts.iter().any(|(acted, _)| *acted == who);
            Ok(leader.is_some_and(|(who, _)| has_acted(*who)))
        })?;
        Ok(self.history.lock().unwrap().leaders[nth - 1])
    }

    fn losses(&self) -> Vec<(&'static str, LossReason)> {
        self.history.lock().unwrap().losses.clone()
    }

    /// The rounds that were reported, in order.
    fn rounds(&self) -> Vec<u64> {
        let history = self.history.lock().unwrap();
        let mut rounds: Vec<u64> = history.acts.iter().map(|(_, round)| *round).collect();
        rounds.sort_unstable();
        rounds
    }
}
