//! Follows a chain of waits through what was seen of the locks. It asks nobody.

use std::collections::{HashMap, HashSet};

use fairlock::inspect::{LockInfo, Party};

use super::Locks;
use super::below::{Below, Sight};
use super::circles::{Circle, Wait, circles};
use crate::parties::{Place, is_same_thread, live_holders, places};

/// The waits are followed through this many names, one behind the other. Only a program that goes
/// wrong has longer chains.
const MOST_LINKS: usize = 200;

/// A name and what is behind it: its holders, the names for which they wait, and so on.
#[derive(Debug)]
pub(super) struct Chain<'a> {
    pub(super) first: &'a str,
    /// The locks of the chain, the first name first. Each once.
    pub(super) locks: Vec<&'a LockInfo>,
    pub(super) waits: Vec<Wait<'a>>,
    pub(super) deadlocks: Vec<Circle<'a>>,
}

impl<'a> Chain<'a> {
    pub(super) fn follow(first: &'a str, locks: &'a Locks, sight: &'a Sight) -> Chain<'a> {
        let mut search = Search {
            queues: Queues::of(locks, sight),
            seen: HashSet::new(),
            chain: Chain {
                first,
                locks: Vec::new(),
                waits: Vec::new(),
                deadlocks: Vec::new(),
            },
        };
        if let Some(info) = locks.get(first) {
            search.look_behind(info, 1);
        }
        search.chain.deadlocks = circles(&search.chain.waits);
        search.chain
    }

    /// The waits of this holder of this lock.
    pub(super) fn waits_of(
        &self,
        lock: &LockInfo,
        holder: &Party,
    ) -> impl Iterator<Item = &Wait<'a>> {
        let of_holder = move |wait: &&Wait<'a>| {
            wait.holds.name == lock.name && std::ptr::eq(wait.holder, holder)
        };
        self.waits.iter().filter(of_holder)
    }
}

struct Search<'a> {
    queues: Queues<'a>,
    seen: HashSet<&'a str>,
    chain: Chain<'a>,
}

impl<'a> Search<'a> {
    /// `links`: how many locks lead here, this one included.
    fn look_behind(&mut self, lock: &'a LockInfo, links: usize) {
        self.seen.insert(&lock.name);
        self.chain.locks.push(lock);
        for holder in live_holders(lock) {
            for wait in self.queues.waits_of(lock, holder) {
                let next = wait.waits_for;
                self.chain.waits.push(wait);
                if links < MOST_LINKS && !self.seen.contains(&*next.name) {
                    self.look_behind(next, links + 1);
                }
            }
        }
    }
}

/// The places in all queues, by who has them.
struct Queues<'a> {
    by_manager: HashMap<&'a str, Vec<Place<'a>>>,
    by_process: HashMap<(&'a str, u32), Vec<Place<'a>>>,
    below: Below<'a>,
}

impl<'a> Queues<'a> {
    fn of(locks: &'a Locks, sight: &'a Sight) -> Queues<'a> {
        let mut queues = Queues {
            by_manager: HashMap::new(),
            by_process: HashMap::new(),
            below: Below::of(locks.values().flat_map(places), locks, sight),
        };
        for place in locks.values().flat_map(places) {
            let waiter = place.waiter;
            let of_manager = queues.by_manager.entry(&waiter.manager).or_default();
            of_manager.push(place);
            let process = (&*waiter.host, waiter.pid);
            queues.by_process.entry(process).or_default().push(place);
        }
        queues
    }

    /// The waits of the thread that holds a lock, and those of the processes below it.
    fn waits_of(&self, holds: &'a LockInfo, holder: &'a Party) -> Vec<Wait<'a>> {
        let own = self.by_manager.get(&*holder.manager);
        let process = (&*holder.host, holder.pid);
        let others = self.by_process.get(&process).into_iter().flatten();
        let others = others.filter(|place| place.waiter.manager != holder.manager);
        // A process lets go of a lock that it keeps, also for another thread of its own.
        let is_behind_itself = |place: &&Place<'_>| {
            let is_other = holder.thread_id != place.waiter.thread_id;
            holder.keeps && is_other && place.lock.name == holds.name
        };
        let places = own.into_iter().flatten().chain(others);
        let places = places.filter(|place| !is_behind_itself(place));
        let waits = places.filter_map(|place| {
            Some(Wait {
                holds,
                holder,
                waits_for: place.lock,
                waiter: place.waiter,
                position: place.position,
                is_below: false,
                is_certain: is_same_thread(holder, place.waiter)?,
            })
        });
        let below = self.below.places_of(holds, holder).into_iter();
        let below = below.map(|(place, is_certain)| Wait {
            holds,
            holder,
            waits_for: place.lock,
            waiter: place.waiter,
            position: place.position,
            is_below: true,
            is_certain,
        });
        waits.chain(below).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, LazyLock};

    use super::*;

    static NO_SIGHT: LazyLock<Sight> = LazyLock::new(Sight::nothing);

    fn follow<'a>(first: &'a str, locks: &'a Locks) -> Chain<'a> {
        Chain::follow(first, locks, &NO_SIGHT)
    }

    /// `name: holders < waiters`, for instance `x: a < b`. A party is a letter, or `3*a` with
    /// permits; a capital letter has no number, as of an older version. `a!` passes the lock from
    /// guard to guard, and `a!!` keeps it too.
    fn locks(texts: &[&str]) -> Locks {
        let parse = |text: &&str| {
            let (name, rest) = text.split_once(": ").expect("a name");
            let (holders, waiters) = rest.split_once('<').expect("holders and waiters");
            let kind = match name.split_once('/') {
                Some((_, permits)) => format!(r#"{{"semaphore": {{"permits": {permits}}}}}"#),
                None => "\"mutex\"".to_owned(),
            };
            let parties = |text: &str| {
                let parties: Vec<String> = text.split_whitespace().map(party).collect();
                format!("[{}]", parties.join(","))
            };
            let state = if holders.trim().is_empty() {
                "free"
            } else {
                "held"
            };
            let json = format!(
                r#"{{"name": "{name}", "seen_at": 2.0, "kind": {kind}, "state": "{state}",
                "fence": 7, "holder": null, "holders": {},
                "time_left": 9.5, "waiters": {}, "queue": {}}}"#,
                parties(holders),
                waiters.split_whitespace().count(),
                parties(waiters)
            );
            let info: LockInfo = serde_json::from_str(&json).expect("a lock");
            (Arc::clone(&info.name), info)
        };
        texts.iter().map(parse).collect()
    }

    fn party(text: &str) -> String {
        let (permits, thread) = text.split_once('*').unwrap_or(("1", text));
        let keeps = thread.ends_with("!!");
        let hands_over = thread.ends_with('!');
        let thread = thread.trim_end_matches('!');
        // `a` and `a2` are one thread, with two managers.
        let letter = thread.chars().next().expect("a letter");
        let id = match letter {
            'A'..='Z' => "null".to_owned(),
            _ => u32::from(letter).to_string(),
        };
        let manager = thread.get(1..).unwrap_or_default();
        format!(
            r#"{{"manager": "m{manager}", "host": "h", "pid": 1, "thread": "{letter}",
            "thread_id": {id}, "label": "", "since": 1.0, "ttl": 10.0, "fence": 7,
            "permits": {permits}, "access": "owner", "lapsed_for": null,
            "hands_over": {hands_over}, "keeps": {keeps}}}"#
        )
    }

    fn names(chain: &Chain<'_>) -> Vec<String> {
        chain
            .locks
            .iter()
            .map(|lock| lock.name.to_string())
            .collect()
    }

    fn circles(chain: &Chain<'_>) -> Vec<(String, bool)> {
        let circles = chain.deadlocks.iter();
        let shown = circles.map(|circle| (circle.names().join(" "), circle.is_certain));
        shown.collect()
    }

    #[test]
    fn chain_ends_at_a_holder_that_does_not_wait() {
        let locks = locks(&["x: a < z", "y: b < a", "z: c < b", "other: d < e"]);
        let chain = follow("x", &locks);
        assert_eq!(names(&chain), ["x", "y", "z"]);
        assert_eq!(circles(&chain), []);
        assert_eq!(chain.waits.len(), 2);
    }

    #[test]
    fn circle_is_found_from_outside_and_from_within() {
        let locks = locks(&["w: d < ", "x: a < b d", "y: b < c", "z: c < a"]);
        for (from, circle) in [("w", "x z y"), ("x", "x z y"), ("y", "y x z")] {
            let chain = follow(from, &locks);
            assert_eq!(circles(&chain), [(circle.to_owned(), true)], "{from}");
        }
    }

    #[test]
    fn thread_that_waits_for_itself_is_a_circle() {
        let locks = locks(&["x: a < b a"]);
        let chain = follow("x", &locks);
        assert_eq!(circles(&chain), [("x".to_owned(), true)]);
        assert_eq!(chain.waits[0].position, 2);
    }

    #[test]
    fn every_holder_of_permits_is_followed() {
        let locks = locks(&["s/4: a 2*b c < d", "x: e < a", "y: f < c"]);
        let chain = follow("s/4", &locks);
        assert_eq!(names(&chain), ["s/4", "x", "y"]);
    }

    #[test]
    fn circle_through_permits_that_others_can_release_is_not_certain() {
        for (semaphore, is_certain) in [("s/4: a b < c", false), ("s/4: 3*a < 2*c", true)] {
            let locks = locks(&[semaphore, "x: c < a"]);
            let chain = follow("s/4", &locks);
            assert_eq!(circles(&chain), [("s/4 x".to_owned(), is_certain)]);
        }
    }

    #[test]
    fn certain_circle_through_another_holder_is_found_from_everywhere() {
        let locks = locks(&["s/4: a 3*b < 2*c", "x: c < a b"]);
        for from in ["s/4", "x"] {
            let chain = follow(from, &locks);
            assert_eq!(circles(&chain), [("x s/4".to_owned(), true)], "{from}");
        }
    }

    #[test]
    fn circles_that_share_a_name_are_all_found() {
        let locks = locks(&[
            "s/2: a b < c",
            "x: c < a",
            "y: d < b",
            "z: e < d",
            "w: b < e",
        ]);
        let chain = follow("s/2", &locks);
        let expected = [("y z w".to_owned(), true), ("s/2 x".to_owned(), false)];
        assert_eq!(circles(&chain), expected);
    }

    #[test]
    fn older_versions_and_other_managers_make_a_circle_uncertain() {
        for other in ["x: A < b", "x: a2 < b"] {
            let back = if other.contains('A') {
                "y: b < A"
            } else {
                "y: b < a"
            };
            let locks = locks(&[other, back]);
            let chain = follow("x", &locks);
            assert_eq!(circles(&chain), [("x y".to_owned(), false)], "{other}");
        }
    }

    #[test]
    fn thread_of_a_lock_that_is_passed_on_makes_a_circle_uncertain() {
        // The last one is another thread of the keeper's process.
        for (other, back) in [
            ("x: a! < b", "y: b < a"),
            ("x: a < b", "y: b < a!"),
            ("x: a!! < b", "y: b < a"),
            ("x: a!! < b", "y: b < c"),
        ] {
            let locks = locks(&[other, back]);
            let chain = follow("x", &locks);
            assert_eq!(circles(&chain), [("x y".to_owned(), false)], "{other}");
        }
        let locks = locks(&["x: a! < b", "y: b < c"]);
        assert_eq!(circles(&follow("x", &locks)), []);
    }

    #[test]
    fn name_that_is_reached_twice_is_followed_once() {
        let locks = locks(&["s/9: a b < c", "x: d < a b", "y: e < d"]);
        let chain = follow("s/9", &locks);
        assert_eq!(names(&chain), ["s/9", "x", "y"]);
        assert_eq!(chain.waits.len(), 3);
    }

    #[test]
    fn long_chain_is_cut() {
        let texts: Vec<String> = (0..500)
            .map(|at| format!("n{at}: {} < {}", thread(at), thread(at.wrapping_sub(1))))
            .collect();
        fn thread(at: u32) -> char {
            char::from_u32(0x4e00_u32.wrapping_add(at)).unwrap_or('z')
        }
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let locks = locks(&texts);
        assert_eq!(follow("n0", &locks).locks.len(), MOST_LINKS);
    }
}
