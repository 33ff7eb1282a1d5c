//! Follows a chain of waits through what was seen of the locks. It asks nobody.
//!
//! A holder waits where its own thread waits. A run waits for the processes of its command, too: on
//! this host `/proc` shows which processes are below one, and a run on any host writes into its
//! label which run is around it.

use std::collections::HashSet;

use fairlock::inspect::{Kind, LockInfo, Party};

use super::Locks;
use super::report::{Deadlock, Report, Wait};
use crate::command::run::label;
use crate::parties::{Place, fence_of, is_same_thread, live_holders, places};
use crate::processes::Descent;
use crate::times;

/// The waits are followed through this many names. Only a program that goes wrong has longer
/// chains.
const MOST_NAMES: usize = 200;
/// More runs inside each other than this are a circle of labels that people wrote.
const MOST_AROUND: usize = 100;

/// The locks, and the processes of this host, as they were a moment ago.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    locks: &'a Locks,
    host: String,
    descent: Option<Descent>,
}

impl<'a> Scene<'a> {
    pub(super) fn new(locks: &'a Locks) -> Scene<'a> {
        let name = rustix::system::uname();
        Scene {
            locks,
            // As the library writes it.
            host: name.nodename().to_string_lossy().replace(' ', "-"),
            descent: Descent::read(),
        }
    }

    /// The chain behind a name: its holders, the names for which they wait, and so on.
    pub(super) fn follow(&'a self, name: &'a str) -> Report<'a> {
        let mut found: Vec<&LockInfo> = self.locks.get(name).into_iter().collect();
        let mut waits = Vec::new();
        for at in 0..MOST_NAMES {
            let Some(&lock) = found.get(at) else { break };
            for holder in live_holders(lock) {
                let places = self.locks.values().flat_map(places);
                waits.extend(places.filter_map(|place| self.wait(lock, holder, place)));
            }
            for wait in &waits {
                if found.iter().all(|lock| lock.name != wait.waits_for.name) {
                    found.push(wait.waits_for);
                }
            }
        }
        // Circles that may end without help are of no interest beside one that cannot.
        let certain = deadlocks(&waits, true);
        let holders = found.iter().copied().flat_map(live_holders);
        let unseen = holders.filter(|holder| self.may_miss_waits_of(holder));
        Report {
            name,
            unseen: unseen.collect(),
            locks: found,
            deadlocks: match certain.is_empty() {
                true => deadlocks(&waits, false),
                false => certain,
            },
            waits,
        }
    }

    /// The wait of a holder at a place in a queue, if it waits there.
    fn wait(&self, holds: &'a LockInfo, holder: &'a Party, place: Place<'a>) -> Option<Wait<'a>> {
        let Place { lock, waiter, .. } = place;
        let is_same_process = (&holder.host, holder.pid) == (&waiter.host, waiter.pid);
        let is_related = is_same_process || holder.manager == waiter.manager;
        // A process lets go of a lock that it keeps, also for another thread of its own.
        let is_other = holder.thread_id != waiter.thread_id;
        let is_behind_itself = holder.keeps && is_other && holds.name == lock.name;
        let own = is_same_thread(holder, waiter).filter(|_| is_related && !is_behind_itself);
        Some(Wait {
            holds,
            waits_for: lock,
            position: place.position,
            waited: times::waited(lock, waiter).as_secs_f64(),
            certain: own.or_else(|| self.waits_for_process(holds, holder, waiter))?,
            holder,
            through: own.is_none().then_some(waiter),
            // A second reader waits only behind a writer, and that writer waits for the first.
            free: match lock.kind {
                Kind::Semaphore { permits, .. } => permits.saturating_sub(waiter.permits),
                _ => 0,
            },
        })
    }

    /// Whether the run that holds this lock waits for the waiter's process: surely, maybe
    /// (`false`), or not at all (`None`).
    fn waits_for_process(&self, holds: &LockInfo, holder: &Party, waiter: &Party) -> Option<bool> {
        // A process of the library does other work than to wait for its children.
        is_run(holder).then_some(())?;
        let seen = self.processes_of(holder).and(self.processes_of(waiter));
        let mut above = seen
            .map(|descent| descent.above(waiter.pid))
            .into_iter()
            .flatten();
        if let Some((_, is_in_session)) = above.find(|(pid, _)| *pid == holder.pid) {
            // A run waits for its command, and then for the rest of its session.
            return Some(is_in_session);
        }
        let fence = fence_of(holds, holder);
        self.is_inside(waiter, (&holds.name, fence)).then_some(())?;
        // The readers of a lock share a fence, so the label does not say which one it is below.
        let with_fence = live_holders(holds).filter(|other| fence_of(holds, other) == fence);
        let is_only_one = with_fence.count() == 1;
        // If both are here, the waiter has left the processes of the run.
        match seen {
            None => Some(is_only_one),
            Some(_) => is_only_one.then_some(false),
        }
    }

    /// The processes of this host, if this one is among them.
    fn processes_of(&self, party: &Party) -> Option<&Descent> {
        let is_here = |descent: &&Descent| party.host == self.host && descent.has(party.pid);
        self.descent.as_ref().filter(is_here)
    }

    /// Whether a process of the holder's command may wait unseen.
    fn may_miss_waits_of(&self, holder: &Party) -> bool {
        is_run(holder) && self.processes_of(holder).is_none()
    }

    /// Whether the labels of the waiter, and of the runs around it, lead to this name and fence.
    fn is_inside(&self, waiter: &Party, run: (&str, u64)) -> bool {
        let mut inner = Some(waiter);
        for _ in 0..MOST_AROUND {
            let around = inner.and_then(|inner| label::around(&inner.label));
            let Some((name, fence)) = around.filter(|around| *around != run) else {
                return around.is_some();
            };
            inner = self.locks.get(name).and_then(|lock| {
                let mut holders = live_holders(lock);
                holders.find(|holder| fence_of(lock, holder) == fence)
            });
        }
        false
    }
}

/// Whether `fairlock run` holds it.
fn is_run(holder: &Party) -> bool {
    holder.thread == label::THREAD
}

/// The circles of waits. In a certain one, each wait lasts for as long as the next one.
fn deadlocks<'a>(waits: &[Wait<'a>], certain: bool) -> Vec<Deadlock<'a>> {
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
    for at in 0..waits.len() {
        walk(waits, certain, &mut vec![at], &mut seen, &mut found);
    }
    found
}

/// A depth-first walk: a wait leads to those of the holders of its lock. The first one that comes
/// twice on a path closes a circle.
fn walk<'a>(
    waits: &[Wait<'a>],
    certain: bool,
    path: &mut Vec<usize>,
    seen: &mut HashSet<usize>,
    found: &mut Vec<Deadlock<'a>>,
) {
    let at = path[path.len() - 1];
    if let Some(start) = path.iter().position(|before| *before == at)
        && start < path.len() - 1
    {
        let circle = path[start..path.len() - 1].iter();
        let locks = circle.map(|at| waits[*at].clone()).collect();
        found.push(Deadlock { certain, locks });
    } else if seen.insert(at) {
        let wait = &waits[at];
        for (next, other) in waits.iter().enumerate() {
            let lasts = wait.certain && other.holder.permits > wait.free;
            if wait.waits_for.name == other.holds.name && (lasts || !certain) {
                path.push(next);
                walk(waits, certain, path, seen, found);
                path.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    /// `name: holders < waiters`, for instance `x: a < b`. A party is a letter, or `3*a` with
    /// permits. `a!` passes the lock from guard to guard, and `a!!` keeps it too.
    fn locks(texts: &[&str]) -> Locks {
        let parse = |text: &&str| {
            let (name, rest) = text.split_once(": ").expect("a name");
            let (holders, waiters) = rest.split_once('<').expect("holders and waiters");
            let kind = match name.split_once('/') {
                Some((_, permits)) => {
                    let permits: u32 = permits.parse().expect("a number");
                    json!({"semaphore": {"permits": permits}})
                }
                None => json!("mutex"),
            };
            let parties = |text: &str| text.split_whitespace().map(party).collect::<Vec<_>>();
            let info = json!({
                "name": name, "seen_at": 2.0, "kind": kind, "fence": 7, "holder": null,
                "state": if holders.trim().is_empty() { "free" } else { "held" },
                "holders": parties(holders), "time_left": 9.5,
                "waiters": parties(waiters).len(), "queue": parties(waiters),
                "lapsed": [], "previous_holder": "released", "served": 0
            });
            let info: LockInfo = serde_json::from_value(info).expect("a lock");
            (Arc::clone(&info.name), info)
        };
        texts.iter().map(parse).collect()
    }

    /// `a` and `a2` are one thread, with two managers.
    fn party(text: &str) -> Value {
        let (permits, thread) = text.split_once('*').unwrap_or(("1", text));
        let letter = thread.chars().next().expect("a letter");
        let permits: u32 = permits.parse().expect("a number");
        json!({
            "manager": thread[letter.len_utf8()..].trim_end_matches('!'), "host": "h", "pid": 1,
            "thread": letter, "thread_id": u32::from(letter), "label": "", "since": 1.0,
            "ttl": 10.0, "fence": 7, "permits": permits, "shared": false, "fixed_lease": false,
            "lapsed_for": null, "last_heard": null,
            "hands_over": thread.ends_with('!'), "keeps": thread.ends_with("!!")
        })
    }

    /// Compares the names and the number of waits of a chain, and its circles: `!` is behind a
    /// certain one, and `?` behind another.
    #[track_caller]
    fn check(texts: &[&str], from: &str, expected: (&str, usize, &str)) {
        let locks = locks(texts);
        let scene = Scene::new(&locks);
        let report = scene.follow(from);
        let names: Vec<&str> = report.locks.iter().map(|lock| &*lock.name).collect();
        let circle = |deadlock: &Deadlock| {
            let held = deadlock.locks.iter().map(|wait| &*wait.holds.name);
            let sign = if deadlock.certain { "!" } else { "?" };
            held.collect::<Vec<_>>().join(" ") + sign
        };
        let circles: Vec<String> = report.deadlocks.iter().map(circle).collect();
        let found = (&*names.join(" "), report.waits.len(), &*circles.join(", "));
        assert_eq!(found, expected, "{texts:?}");
    }

    #[test]
    fn chain_ends_at_holders_that_do_not_wait() {
        let locks = ["x: a < z", "y: b < a", "z: c < b", "other: d < e"];
        check(&locks, "x", ("x y z", 2, ""));
        let every_holder = ["s/4: a 2*b c < d", "x: e < a", "y: f < c"];
        check(&every_holder, "s/4", ("s/4 x y", 2, ""));
        let reached_twice = ["s/9: a b < c", "x: d < a b", "y: e < d"];
        check(&reached_twice, "s/9", ("s/9 x y", 3, ""));
    }

    #[test]
    fn circle_is_found_from_outside_and_from_within() {
        let locks = ["w: d < ", "x: a < b d", "y: b < c", "z: c < a"];
        check(&locks, "w", ("w x z y", 4, "x z y!"));
        check(&locks, "x", ("x z y", 3, "x z y!"));
        check(&locks, "y", ("y x z", 3, "y x z!"));
        check(&["x: a < b a"], "x", ("x", 1, "x!"));
    }

    #[test]
    fn circle_through_permits_that_others_can_release_is_not_certain() {
        let uncertain = ["s/4: a b < c", "x: c < a"];
        check(&uncertain, "s/4", ("s/4 x", 2, "s/4 x?"));
        let certain = ["s/4: 3*a < 2*c", "x: c < a"];
        check(&certain, "s/4", ("s/4 x", 2, "s/4 x!"));
    }

    #[test]
    fn certain_circle_through_another_holder_is_found_from_everywhere() {
        let locks = ["s/4: a 3*b < 2*c", "x: c < a b"];
        check(&locks, "s/4", ("s/4 x", 3, "x s/4!"));
        check(&locks, "x", ("x s/4", 3, "x s/4!"));
    }

    #[test]
    fn certain_circle_hides_an_uncertain_one() {
        let certain = ["y: d < b", "z: e < d", "w: b < e"];
        let locks = [&["s/2: a b < c", "x: c < a"], &certain[..]].concat();
        check(&locks, "s/2", ("s/2 x y z w", 6, "y z w!"));
    }

    #[test]
    fn thread_that_is_not_surely_the_same_makes_a_circle_uncertain() {
        for (one, other) in [
            ("x: a2 < b", "y: b < a"),
            ("x: a! < b", "y: b < a"),
            ("x: a < b", "y: b < a!"),
            ("x: a!! < b", "y: b < a"),
            // Another thread of the keeper's process.
            ("x: a!! < b", "y: b < c"),
        ] {
            check(&[one, other], "x", ("x y", 2, "x y?"));
        }
        check(&["x: a! < b", "y: b < c"], "x", ("x", 0, ""));
    }

    #[test]
    fn long_chain_is_cut() {
        let thread = |at: u32| char::from_u32(0x4e00 + at).expect("a letter");
        let texts = (0..500).map(|at| format!("n{at}: {} < {}", thread(at + 1), thread(at)));
        let texts: Vec<String> = texts.collect();
        let locks = locks(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(Scene::new(&locks).follow("n0").waits.len(), MOST_NAMES);
    }
}
