//! One of many processes leads. It holds a lock for as long as all goes well, and stops at once
//! when it loses the lock.
//!
//!     cargo run --features memory --example leader
//!     cargo run --example leader
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example leader
//!
//! Every candidate waits in the queue of one lock. The holder leads, and the others are ready to
//! take over. One `select!` waits for the three things that can happen to a leader: it is time to
//! act, it must stop, or the lock is lost. Each act carries the fence of the leader, since a new
//! leader may have overtaken it before it knows.
//!
//! Here three candidates lead one after the other. Each is a thread with its own manager. An
//! operator takes the lock away from the first, the second stops in good order, and the third leads
//! until the end.
//!
//! The program uses the Redis of `REDIS_URL`. Without that it uses an in-memory store, if it is
//! built with one, or else it starts a private redis-server. It exits with 0 if all checks hold,
//! with 1 if not, and with 2 if it has no store.

mod support;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fairlock::crossbeam_channel::{Receiver, Sender, bounded, select, tick};
use fairlock::{
    Builder, Error, FenceGate, LockGuard, LockManager, LockOptions, LossReason, PreviousHolder,
};
use support::{Outcome, Store, check, own_name, run, until};

/// How often a leader acts. This is so long that each leader acts once. So the example shows that a
/// leader learns of the loss without another act.
const EVERY: Duration = Duration::from_secs(60);

/// A candidate's work, all its life. Copy this function and `lead`.
fn run_candidate(
    mgr: &LockManager,
    name: &str,
    stop: &Receiver<()>,
    report: &dyn Fn(Event),
) -> fairlock::Result<()> {
    loop {
        // Others may lead for weeks. A shutdown of the manager ends the wait.
        let guard = match mgr.lock(name) {
            Ok(guard) => guard,
            Err(Error::Closed) => return Ok(()),
            Err(other) => return Err(other),
        };
        report(Event::Elected(guard.previous_holder()));
        match lead(&guard, stop, report) {
            Ok(()) => return guard.unlock(),
            // Another candidate may lead already. All that is left is to queue again.
            Err(Error::Lost { loss, .. }) => report(Event::Lost(loss.reason)),
            Err(other) => return Err(other),
        }
    }
}

/// Returns `Ok` on a message from `stop`, [`Error::Lost`] when the lock is lost.
fn lead(guard: &LockGuard, stop: &Receiver<()>, report: &dyn Fn(Event)) -> fairlock::Result<()> {
    let ticks = tick(EVERY);
    loop {
        // This check reads a clock. The message on `lost` may come a moment later.
        guard.check()?;
        report(Event::Acted(guard.fence()));
        select! {
            recv(guard.lost()) -> _ => return guard.check(),
            recv(stop) -> _ => return Ok(()),
            recv(ticks) -> _ => {}
        }
    }
}

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

    println!("We stop all candidates.");
    candidates.iter().for_each(Candidate::stop);
    for candidate in candidates {
        candidate.end()?;
    }
    check(
        "nobody leads, and nobody waits",
        operator.inspect(&name)?.is_none(),
    )?;
    let (done, refused) = work.count_acts();
    println!(
        "  {done} acts were done; {refused} were refused, because a new leader had acted before"
    );
    Ok(())
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
            run_candidate(&candidate, &name, &stopped, &|event| {
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

    /// Stops the candidate if it leads. A waiting candidate does not read this channel.
    fn stop(&self) {
        let _ = self.stop.try_send(());
    }

    /// Ends its wait, if it waits, and then its thread.
    fn end(self) -> Outcome {
        let left = self.mgr.shutdown(Duration::from_secs(5))?;
        self.thread.join().expect("a candidate does not panic")?;
        check(
            format!("{} has ended, and holds nothing", self.who),
            left.ended.is_empty(),
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

/// A report of a candidate.
enum Event {
    Elected(PreviousHolder),
    /// It acted under this fence.
    Acted(u64),
    Lost(LossReason),
}

/// The work of the leaders, and a history of who did what. In a real program the gate is where the
/// work is, for instance in a database. The example `fencing` shows how.
#[derive(Default)]
struct SharedWork {
    gate: FenceGate,
    history: Mutex<History>,
}

#[derive(Default)]
struct History {
    leaders: Vec<(&'static str, PreviousHolder)>,
    losses: Vec<(&'static str, LossReason)>,
    /// The candidate that acted, and whether the gate admitted the act.
    acts: Vec<(&'static str, bool)>,
}

impl SharedWork {
    fn record(&self, who: &'static str, event: Event) {
        let mut history = self.history.lock().unwrap();
        match event {
            Event::Elected(previous) => history.leaders.push((who, previous)),
            Event::Acted(fence) => history.acts.push((who, self.gate.admit(fence))),
            Event::Lost(reason) => history.losses.push((who, reason)),
        }
    }

    /// Waits until the nth leader is elected and has acted. Returns its name, and how the leader
    /// before it ended.
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

    /// How many acts were done, and how many refused.
    fn count_acts(&self) -> (usize, usize) {
        let history = self.history.lock().unwrap();
        let done = history.acts.iter().filter(|(_, done)| *done).count();
        (done, history.acts.len() - done)
    }
}
