//! Decides from a history alone whether the promises were kept. It shares no code with the engine:
//! it knows what is promised (docs/SAFETY.md), but not how the engine does it.
//!
//! It reports a violation only if no possible order of the events between the lines could be
//! correct. Some promises have exceptions: data were lost, or a process was silent for too long.
//! The checker excuses those cases and counts them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::history::{Attempt, Fault, Grant, History};

/// The managers' timings, and the slack that a noisy machine may add to a bound.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timings {
    pub(crate) ttl: Duration,
    pub(crate) check_period: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) horizon: Duration,
    pub(crate) slack: Duration,
}

/// The result of checking one promise.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) rule: Rule,
    /// How often it was found to be kept or violated.
    pub(crate) checked: usize,
    /// How often an exception of the promise applied: it looked violated, or was not checked.
    pub(crate) excused: usize,
    pub(crate) violations: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// P1: no more is held of a name than exists. A mutex has one holder, a reader/writer lock has
    /// readers or one writer, and a semaphore has a fixed number of permits.
    Exclusion,
    /// P2: fences rise in the order of grants; a reader has the last writer's fence.
    Fences,
    /// P3: grants come in the order of the enqueues.
    Order,
    /// P4, P9: while no fault is active, no live waiter waits although there is enough for every
    /// waiter.
    WakeUp,
    /// P5: after a holder crashed, the next waiter is granted in time.
    Crash,
    /// P6: a lost lock is never held again.
    Loss,
    /// P8: every call ends, and each try and downgrade ends within its bound.
    End,
    /// The resource accepted no write with a smaller fence than one it had seen.
    Resource,
    /// Every key that is left expires.
    Keys,
}

/// Kinds of faults after which Redis may have forgotten what it acknowledged.
const DATA_LOSSES: [&str; 3] = ["server-emptied", "flushall", "failover"];

/// Faults that cost no process a lock or a place.
const HARMLESS: [&str; 1] = ["script-flush"];

pub(crate) fn check(history: &History, timings: &Timings) -> Vec<Finding> {
    let checker = HistoryChecker::new(history, *timings);
    vec![
        checker.exclusion(),
        checker.fences(),
        checker.order(),
        checker.wake_up(),
        checker.crashes(),
        checker.losses(),
        checker.ends(),
        checker.resource(),
        checker.keys(),
    ]
}

/// The longest time from the start of a call that may wait to the end of its wait.
pub(crate) fn longest_wait(history: &History, timings: &Timings) -> Duration {
    let checker = HistoryChecker::new(history, *timings);
    let waits = history
        .attempts
        .iter()
        .filter(|a| a.may_wait())
        .map(|a| checker.wait_end(a).saturating_sub(a.asked));
    Duration::from_nanos(waits.max().unwrap_or(0))
}

/// How many locks a process certainly handed over within itself: only then two fences follow each
/// other without a gap.
pub(crate) fn local_handovers(history: &History) -> usize {
    let fences: BTreeSet<(&str, u64)> = history
        .attempts
        .iter()
        .filter(|a| a.demand.local_handovers > 0)
        .filter_map(|a| Some((a.name.as_str(), a.granted.as_ref()?.fence)))
        .collect();
    let follows = |(name, fence): &&(&str, u64)| fences.contains(&(*name, fence - 1));
    fences.iter().filter(follows).count()
}

/// When two holds that exclude each other certainly overlapped: one span for each pair.
pub(crate) fn overlap_spans(history: &History) -> Vec<(u64, u64)> {
    let mut names = BTreeMap::<&str, Vec<&Attempt>>::new();
    for attempt in &history.attempts {
        names.entry(&attempt.name).or_default().push(attempt);
    }
    let mut spans = Vec::new();
    for attempts in names.values() {
        for (b, others) in overlaps(attempts) {
            let excluded = others
                .iter()
                .filter(|a| a.permits + b.permits > b.of.demand.of);
            spans.extend(excluded.map(|a| {
                let from = a.held.0.max(b.held.0);
                (from, a.held.1.min(b.held.1).max(from))
            }));
        }
    }
    spans.sort_unstable();
    spans
}

/// So long does a try wait for a process that keeps the lock.
const WAIT_FOR_KEEPER: Duration = Duration::from_millis(50);

struct HistoryChecker<'a> {
    history: &'a History,
    timings: Timings,
    names: BTreeMap<&'a str, Vec<&'a Attempt>>,
    /// When each killed worker was killed.
    deaths: BTreeMap<&'a str, u64>,
}

impl<'a> HistoryChecker<'a> {
    fn new(history: &'a History, timings: Timings) -> HistoryChecker<'a> {
        let mut names = BTreeMap::<_, Vec<_>>::new();
        for attempt in &history.attempts {
            names
                .entry(attempt.name.as_str())
                .or_default()
                .push(attempt);
        }
        let deaths = history
            .faults
            .iter()
            .filter(|f| f.kind == "kill")
            .map(|f| (f.victim.as_str(), f.from))
            .collect();
        HistoryChecker {
            history,
            timings,
            names,
            deaths,
        }
    }

    fn exclusion(&self) -> Finding {
        let mut finding = Finding::new(Rule::Exclusion);
        for attempts in self.names.values() {
            for (b, others) in overlaps(attempts) {
                finding.checked += 1;
                let of = b.of.demand.of;
                let together =
                    |others: &[Hold]| b.permits + others.iter().map(|a| a.permits).sum::<u64>();
                if together(&others) <= of {
                    continue;
                }
                let certain: Vec<Hold> = others
                    .into_iter()
                    .filter(|a| !self.lost_between(a.of, b.of))
                    .collect();
                if together(&certain) <= of {
                    finding.excused += 1;
                    continue;
                }
                let all: Vec<_> = certain
                    .iter()
                    .chain([&b])
                    .map(|h| (&h.of.id, h.permits, h.held))
                    .collect();
                finding.add_violation(format!(
                    "{:?} of {of} was held by these at once: {all:?}",
                    b.of.name
                ));
            }
        }
        finding
    }

    fn fences(&self) -> Finding {
        let mut finding = Finding::new(Rule::Fences);
        for attempts in self.names.values() {
            self.fences_after_grants(attempts, &mut finding);
            self.fences_after_turns(attempts, &mut finding);
            self.fences_at_once(attempts, &mut finding);
        }
        finding
    }

    /// A caller that asked after another had its guard was granted later, even across a loss of
    /// data. But a local hand-over gives it a grant from before the loss.
    fn fences_after_grants(&self, attempts: &[&Attempt], finding: &mut Finding) {
        let grants: Vec<(&Attempt, &Grant)> = attempts
            .iter()
            .filter_map(|a| Some((*a, a.granted.as_ref()?)))
            .collect();
        let mut by_end = grants.clone();
        by_end.sort_by_key(|(_, grant)| grant.at);
        let mut by_end = by_end.into_iter().peekable();
        let mut largest: Option<(&Attempt, &Grant)> = None;
        let mut own = BTreeMap::new();
        for (b, grant) in &grants {
            finding.checked += 1;
            while let Some(earlier) = by_end.next_if(|(_, earlier)| earlier.at < b.asked) {
                if largest.is_none_or(|(_, largest)| largest.fence < earlier.1.fence) {
                    largest = Some(earlier);
                }
            }
            if let Some((a, earlier)) = largest.filter(|(_, earlier)| !b.may_follow(earlier.fence))
            {
                // The grant that it has was made before the loss.
                if self.tenure_asked(b) < b.asked && self.lost_between(a, b) {
                    finding.excused += 1;
                } else {
                    finding.add_violation(format!(
                        "{} was granted {:?} with {} after {} with {}",
                        b.id, b.name, grant.fence, a.id, earlier.fence
                    ));
                }
            }
            if b.demand.reads() {
                continue;
            }
            if let Some(a) = own.insert(grant.fence, &b.id) {
                finding.add_violation(format!(
                    "{a} and {} were both granted {:?} with {}",
                    b.id, b.name, grant.fence
                ));
            }
        }
    }

    /// If two holds exclude each other, the later hold has the later grant.
    fn fences_after_turns(&self, attempts: &[&Attempt], finding: &mut Finding) {
        let mut turns: Vec<_> = attempts
            .iter()
            .filter_map(|a| Some((*a, a.granted.as_ref()?.fence, a.granted.as_ref()?.held?)))
            .collect();
        let mut by_end = turns.clone();
        by_end.sort_by_key(|(_, _, (_, last))| *last);
        let mut by_end = by_end.into_iter().peekable();
        turns.sort_by_key(|(_, _, (first, _))| *first);
        // The latest hold that ended, for each number of permits.
        let mut ended = BTreeMap::new();
        for (b, later, next) in turns {
            while let Some(turn) = by_end.next_if(|(_, _, (_, last))| *last < next.0) {
                ended.insert(turn.0.demand.permits, turn);
            }
            for (a, earlier, held) in ended.values() {
                // If `b` had been granted first, it would have kept `a` out, and would still hold.
                let excluded = a.demand.permits + b.least_permits() > a.demand.of;
                if !excluded || held.0 >= next.1 || b.may_follow(*earlier) {
                    continue;
                }
                if self.lost_between(a, b) && *earlier != later {
                    finding.excused += 1;
                } else {
                    finding.add_violation(format!(
                        "{} held {:?} with {later} after {} with {earlier}",
                        b.id, b.name, a.id
                    ));
                }
            }
        }
    }

    /// No writer is granted between readers that hold at the same time, so their fences are equal.
    fn fences_at_once(&self, attempts: &[&Attempt], finding: &mut Finding) {
        for (b, others) in overlaps(attempts) {
            for a in others
                .iter()
                .filter(|a| a.reads && b.reads && a.fence != b.fence)
            {
                if self.lost_between(a.of, b.of) {
                    finding.excused += 1;
                } else {
                    finding.add_violation(format!(
                        "{} and {} read {:?} at once, with {} and {}",
                        a.of.id, b.of.id, b.of.name, a.fence, b.fence
                    ));
                }
            }
        }
    }

    fn order(&self) -> Finding {
        let mut finding = Finding::new(Rule::Order);
        for attempts in self.names.values() {
            self.line_order(attempts, &mut finding);
            let mut waiting: Vec<&Attempt> = Vec::new();
            let mut queued: Vec<&Attempt> = attempts
                .iter()
                .copied()
                .filter(|a| a.queued.is_some())
                .collect();
            queued.sort_by_key(|a| a.queued);
            let mut queued = queued.into_iter().peekable();
            let told = self.told_after(attempts);
            for b in attempts {
                let is_told = |a: &&Attempt| a.queued.is_some_and(|at| at + told < b.asked);
                while let Some(a) = queued.next_if(is_told) {
                    waiting.push(a);
                }
                waiting.retain(|a| self.queued_until(a).is_some_and(|until| until > b.asked));
                let Some(grant) = &b.granted else { continue };
                // Processes that hand over within themselves take turns as `line_order` says.
                let is_one_line =
                    |a: &&&Attempt| b.demand.local_handovers == 0 || a.worker == b.worker;
                for a in waiting.iter().filter(is_one_line) {
                    let overtaken = match &a.granted {
                        // A reader has the fence of the writer before it.
                        Some(own) if a.demand.reads() && !b.demand.reads() => {
                            own.fence >= grant.fence
                        }
                        Some(own) => own.fence > grant.fence,
                        None => {
                            a.last_seen_queued.is_some_and(|at| at > grant.at)
                                || self.was_overtaken(a, b)
                        }
                    };
                    let excused = || {
                        self.may_have_lost_its_place(a, grant.at)
                            || self.may_have_lost_a_grant(a, b)
                            || self.gave_its_place_to_another(a, b, attempts)
                    };
                    if overtaken && excused() {
                        finding.excused += 1;
                        continue;
                    }
                    finding.checked += 1;
                    if overtaken {
                        let queued = a.queued;
                        let asked = b.asked;
                        finding.add_violation(format!(
                            "{} was queued for {:?} at {queued:?}; {} asked ({}) at {asked} and was granted before it",
                            a.id, a.name, b.id, b.verb
                        ));
                    }
                }
            }
        }
        finding
    }

    /// A process that keeps the lock takes it again until it learns that somebody waits. If a message
    /// is lost, that is after a check of the waiter. If the process is deaf, it stops relying on
    /// messages after two check periods and a timeout.
    fn told_after(&self, attempts: &[&Attempt]) -> u64 {
        let timings = &self.timings;
        if attempts.iter().any(|a| a.demand.is_kept) {
            nanos(timings.check_period * 2 + timings.command_timeout + timings.slack)
        } else {
            0
        }
    }

    /// The callers of one process share a place for a lock that it keeps. After a turn of one of them,
    /// the place is behind those that came until then from elsewhere, as `b` did. A dropped guard is
    /// released a little later.
    fn gave_its_place_to_another(&self, a: &Attempt, b: &Attempt, attempts: &[&Attempt]) -> bool {
        let late = nanos(self.timings.command_timeout + self.timings.slack);
        let had_a_turn = |other: &&&Attempt| {
            let (turn, end) = (other.granted.as_ref(), other.ended.as_ref());
            other.id != a.id
                && other.worker == a.worker
                && other.demand.is_kept
                && turn
                    .zip(b.granted.as_ref())
                    .is_some_and(|(turn, next)| turn.fence < next.fence)
                && end.is_some_and(|(at, _)| Some(*at) > a.queued && b.asked < *at + late)
        };
        a.demand.is_kept && a.worker != b.worker && attempts.iter().any(|at| had_a_turn(&at))
    }

    /// With local hand-overs, the threads of one process wait in one line. Before a waiter comes the
    /// tenure that another process has when it comes, and at most one more for each tenure of its
    /// own process until its turn. A tenure of another process has a limited number of turns, and
    /// one of its own has at least one.
    fn line_order(&self, attempts: &[&Attempt], finding: &mut Finding) {
        for a in attempts.iter().filter(|a| a.demand.local_handovers > 0) {
            let (Some(queued), Some(own)) = (a.queued, &a.granted) else {
                continue;
            };
            let mut turns = BTreeMap::<&str, usize>::new();
            for b in attempts {
                let came_first = |grant: &&Grant| grant.fence < own.fence && grant.at > queued;
                if b.granted.as_ref().filter(came_first).is_some() {
                    *turns.entry(&b.worker).or_default() += 1;
                }
            }
            let tenures = turns.remove(a.worker.as_str()).unwrap_or(0) + 2;
            let most = tenures * (a.demand.local_handovers + 1);
            finding.checked += 1;
            if let Some((other, turns)) = turns.into_iter().find(|(_, turns)| *turns > most) {
                if self.may_have_lost_its_place(a, own.at) {
                    finding.excused += 1;
                    continue;
                }
                finding.add_violation(format!(
                    "{} was queued for {:?} at {queued}; {other} had it {turns} times before it",
                    a.id, a.name
                ));
            }
        }
    }

    fn wake_up(&self) -> Finding {
        let mut finding = Finding::new(Rule::WakeUp);
        let faults: Vec<(u64, u64)> = self
            .history
            .faults
            .iter()
            .filter(|f| !f.is(&HARMLESS))
            .map(|f| (f.from, f.to))
            .collect();
        for attempts in self.names.values() {
            let busy = union([self.unavailable(attempts), faults.clone()].concat());
            for attempt in attempts.iter().filter(|a| a.may_wait()) {
                finding.checked += 1;
                let over = self.wait_end(attempt);
                let mut idle_from = attempt.asked;
                let first = busy.partition_point(|(_, to)| *to < attempt.asked);
                let ends = busy[first..]
                    .iter()
                    .take_while(|(from, _)| *from < over)
                    .copied();
                for (from, to) in ends.chain([(over, over)]) {
                    let bound = self.bound_after_crashes(idle_from, from);
                    if from.saturating_sub(idle_from) > bound {
                        finding.add_violation(format!(
                            "{} waited for {:?} from {idle_from} to {from}, while there was enough and no fault was active",
                            attempt.id, attempt.name
                        ));
                    }
                    idle_from = idle_from.max(to);
                }
            }
        }
        finding
    }

    fn crashes(&self) -> Finding {
        let mut finding = Finding::new(Rule::Crash);
        for (name, attempts) in &self.names {
            for (worker, died) in &self.deaths {
                let held = attempts.iter().any(|a| {
                    a.worker == *worker
                        && a.granted
                            .as_ref()
                            .is_some_and(|g| g.release.is_none() && g.lost.is_none())
                        && a.ended.is_none()
                });
                if !held {
                    continue;
                }
                // The live processes may hold enough to keep the others out.
                let living: Vec<&Attempt> = attempts
                    .iter()
                    .copied()
                    .filter(|a| a.worker != *worker)
                    .collect();
                let unavailable = self.unavailable(&living);
                let free_at = unavailable
                    .iter()
                    .find(|(from, to)| from <= died && to > died)
                    .map_or(*died, |(_, to)| *to);
                let bound = self.bound_after_crashes(*died, *died);
                let next = attempts
                    .iter()
                    .filter_map(|a| Some(a.granted.as_ref()?.at))
                    .filter(|at| at > died)
                    .min();
                let watched_until = next.unwrap_or(u64::MAX).min(free_at.saturating_add(bound));
                let awaited = living
                    .iter()
                    .any(|a| a.may_wait() && a.asked < *died && self.wait_end(a) >= watched_until);
                if !awaited {
                    continue;
                }
                // The slack covers short pauses of the whole machine.
                let slack = nanos(self.timings.slack);
                let serious =
                    |f: &Fault| !f.is(&HARMLESS) && (f.kind != "gap" || f.to - f.from > slack);
                let during =
                    |f: &Fault| f.victim != *worker && f.from < watched_until && f.to > *died;
                let later = unavailable
                    .iter()
                    .any(|(from, to)| *from < watched_until && *to > free_at);
                if watched_until > self.history.end
                    || later
                    || self.history.faults.iter().any(|f| serious(f) && during(f))
                {
                    finding.excused += 1;
                    continue;
                }
                finding.checked += 1;
                if next.is_none_or(|next| next.saturating_sub(free_at) > bound) {
                    finding.add_violation(format!(
                        "{worker} died with {name:?} at {died}; the next grant was at {next:?}"
                    ));
                }
            }
        }
        finding
    }

    /// The times in which too much of a name may have been held for one of its possible waiters. A
    /// waiter for much also blocks those behind it, since waiters for little do not overtake it.
    fn unavailable(&self, attempts: &[&Attempt]) -> Vec<(u64, u64)> {
        const BEGINS: u8 = 0;
        const ENDS: u8 = 1;
        // At the same instant, beginnings come before ends.
        let mut events: Vec<(u64, u8, Event)> = Vec::new();
        let mut add = |(from, to): (u64, u64), event| {
            if from <= to {
                events.extend([(from, BEGINS, event), (to, ENDS, event)]);
            }
        };
        for a in attempts {
            let over = self.wait_end(a);
            add((a.asked, over), Event::Waiting(a.demand.permits));
            let Some(grant) = &a.granted else {
                // When several names are acquired together, the first may be held while the call
                // waits for others.
                if a.wants_others_too() {
                    add((a.asked, over), Event::Held(a.demand.permits));
                }
                continue;
            };
            let from = if a.wants_others_too() {
                a.asked
            } else {
                grant.at
            };
            let looks = grant.held.map(|(_, last)| last);
            let end = a.ended.as_ref().map(|(at, _)| *at);
            let to = looks
                .max(grant.release)
                .max(end)
                .max(grant.lost)
                .unwrap_or(grant.at);
            let shared_from = grant.downgraded.unwrap_or(to).min(to);
            add((from, shared_from), Event::Held(a.demand.permits));
            if shared_from < to {
                add((shared_from, to), Event::Held(1));
            }
        }
        events.sort_unstable();
        let of = attempts.first().map_or(1, |a| a.demand.of);
        let (mut held, mut waiting) = (0, BTreeMap::<u64, usize>::new());
        let mut unavailable = Vec::new();
        let mut since = None;
        for (at, which, event) in events {
            match event {
                Event::Held(permits) if which == BEGINS => held += permits,
                Event::Held(permits) => held -= permits,
                Event::Waiting(permits) if which == BEGINS => {
                    *waiting.entry(permits).or_default() += 1
                }
                Event::Waiting(permits) => {
                    let of_these = waiting.get_mut(&permits).expect("it began");
                    *of_these -= 1;
                    if *of_these == 0 {
                        waiting.remove(&permits);
                    }
                }
            }
            let most = waiting.last_key_value().map_or(0, |(permits, _)| *permits);
            match since {
                None if held + most > of => since = Some(at),
                Some(from) if held + most <= of => {
                    unavailable.push((from, at));
                    since = None;
                }
                _ => {}
            }
        }
        union(unavailable)
    }

    fn losses(&self) -> Finding {
        let mut finding = Finding::new(Rule::Loss);
        for attempt in &self.history.attempts {
            let Some(grant) = attempt
                .granted
                .as_ref()
                .filter(|grant| grant.lost.is_some())
            else {
                continue;
            };
            finding.checked += 1;
            if let Some(at) = grant.revived {
                finding.add_violation(format!(
                    "{} lost {:?}, and held it again at {at}",
                    attempt.id, attempt.name
                ));
            }
        }
        finding
    }

    fn ends(&self) -> Finding {
        let mut finding = Finding::new(Rule::End);
        for attempt in self
            .history
            .attempts
            .iter()
            .filter(|a| !self.deaths.contains_key(a.worker.as_str()))
        {
            finding.checked += 1;
            let id = &attempt.id;
            let verb = &attempt.verb;
            let name = &attempt.name;
            if attempt.ended.is_none() {
                finding.add_violation(format!("{id} asked ({verb}) for {name:?} and never ended"));
            }
            // Its process was stopped, or got no CPU time.
            let paused = |f: &&Fault| f.victim == attempt.worker && !f.kind.starts_with("link-");
            let took = |from: u64, until: u64| {
                let part = |f: &Fault| f.to.min(until).saturating_sub(f.from.max(from));
                (until - from)
                    .saturating_sub(self.history.faults.iter().filter(paused).map(part).sum())
            };
            let answered = took(attempt.asked, self.wait_end(attempt));
            if self.bound_of(attempt).is_some_and(|bound| answered > bound) {
                finding.add_violation(format!(
                    "{id} asked ({verb}) for {name:?} and did not return for {answered} ns"
                ));
            }
            let Some(grant) = &attempt.granted else {
                continue;
            };
            let downgraded = grant
                .downgraded
                .or(attempt.ended.as_ref().map(|(at, _)| *at));
            if let (Some(from), Some(until)) = (grant.downgrade, downgraded)
                && took(from, until) > nanos(self.timings.command_timeout + self.timings.slack)
            {
                finding.add_violation(format!(
                    "{id} began to read {name:?} at {from}, which took until {until}"
                ));
            }
        }
        finding
    }

    fn resource(&self) -> Finding {
        let mut finding = Finding::new(Rule::Resource);
        let mut newest = BTreeMap::<&str, u64>::new();
        for write in self.history.writes.iter().filter(|write| write.accepted) {
            finding.checked += 1;
            let newest = newest.entry(&write.name).or_default();
            if write.fence < *newest {
                finding.add_violation(format!(
                    "a write to {:?} by {} with {} was accepted at {} after one with {newest}",
                    write.name, write.attempt, write.fence, write.at
                ));
            }
            *newest = write.fence.max(*newest);
        }
        finding
    }

    fn keys(&self) -> Finding {
        let mut finding = Finding::new(Rule::Keys);
        for (key, left) in &self.history.keys {
            finding.checked += 1;
            if *left < 0 {
                finding.add_violation(format!("{key} stays forever"));
            }
        }
        finding
    }

    /// The bound of a call that does not wait without a limit.
    fn bound_of(&self, attempt: &Attempt) -> Option<u64> {
        let verb = attempt.verb.as_str();
        let Timings {
            command_timeout,
            slack,
            ..
        } = self.timings;
        let is_kept = |a: &&Attempt| a.demand.is_kept;
        match verb.split_once(':') {
            // It gives a process that keeps the lock a moment to release it.
            None if verb == "try_lock" && self.names[attempt.name.as_str()].iter().any(is_kept) => {
                Some(nanos(command_timeout * 3 + WAIT_FOR_KEEPER + slack))
            }
            None if verb == "try_lock" => Some(nanos(command_timeout * 2 + slack)),
            None if verb == "try_lock_all" => Some(nanos(command_timeout * 3 + slack)),
            Some(("try_lock_for", at_most)) => {
                Some(at_most.parse::<u64>().ok()? + nanos(command_timeout + slack))
            }
            Some(("try_lock_all_for", at_most)) => {
                Some(at_most.parse::<u64>().ok()? + nanos(command_timeout * 2 + slack))
            }
            _ => None,
        }
    }

    /// Whether data may have been lost between these times.
    fn data_lost(&self, from: u64, to: u64) -> bool {
        self.history
            .faults
            .iter()
            .any(|f| f.is(&DATA_LOSSES) && f.from < to && f.to > from)
    }

    /// Whether data may have been lost between the grants of these two.
    fn lost_between(&self, a: &Attempt, b: &Attempt) -> bool {
        let from = self.tenure_asked(a).min(self.tenure_asked(b));
        self.data_lost(from, granted_at(a).max(granted_at(b)))
    }

    /// When the grant was asked for that this guard has. After local hand-overs, or if the lock was
    /// kept, that is a grant of an earlier guard of its process, and Redis may have lost it since.
    fn tenure_asked(&self, a: &Attempt) -> u64 {
        let Some(own) = &a.granted else {
            return a.asked;
        };
        let turns = own.fence.saturating_sub(a.demand.turns_before())..own.fence;
        let fence = |other: &Attempt| other.granted.as_ref().map(|grant| grant.fence);
        self.names[a.name.as_str()]
            .iter()
            .filter(|other| {
                other.worker == a.worker && fence(other).is_some_and(|f| turns.contains(&f))
            })
            .map(|other| other.asked)
            .fold(a.asked, u64::min)
    }

    /// Whether `a`, which never got a guard, was still waiting when `b` got one. `a` may have been
    /// granted without learning of it, unless its grant would have kept `b` out.
    fn was_overtaken(&self, a: &Attempt, b: &Attempt) -> bool {
        excludes(a, b)
            && self
                .queued_until(a)
                .is_some_and(|until| until > granted_at(b))
    }

    /// Whether P3 allows that `a` lost its place in the queue before `until`.
    fn may_have_lost_its_place(&self, a: &Attempt, until: u64) -> bool {
        let timings = &self.timings;
        // A lapsed lease or a silence from before the request can still cost the process its
        // places.
        let from = a.asked.saturating_sub(nanos(timings.ttl + timings.horizon));
        let lapsed = self.names[a.name.as_str()].iter().any(|other| {
            let Some(grant) = other
                .granted
                .as_ref()
                .filter(|g| other.worker == a.worker && g.at < until)
            else {
                return false;
            };
            let badly = |how: &str| how.starts_with("lost") || how.starts_with("unavailable");
            other
                .ended
                .as_ref()
                .is_some_and(|(at, how)| *at > from && (grant.lost.is_some() || badly(how)))
        });
        self.data_lost(a.asked, until) || lapsed || self.was_silent(a, from, until, timings.horizon)
    }

    /// Whether `a` may have been granted before `b`, beside which it may hold, but without learning
    /// of it until that lease had lapsed. Then `a` queued again.
    fn may_have_lost_a_grant(&self, a: &Attempt, b: &Attempt) -> bool {
        let until = self.wait_end(a);
        !excludes(a, b)
            && (self.data_lost(a.asked, until)
                || self.was_silent(a, a.asked, until, self.timings.ttl))
    }

    /// Whether the process of `a` may have been silent between these times for as long as Redis
    /// needs to forget it.
    fn was_silent(&self, a: &Attempt, from: u64, until: u64, forgotten_after: Duration) -> bool {
        let timings = &self.timings;
        let reconnected = nanos(timings.command_timeout + timings.ttl / 20);
        let mut silent = 0;
        let mut outage = 0;
        for fault in self.history.faults.iter().filter(|f| f.from < until) {
            let link = fault.kind.starts_with("link-");
            let to = fault.to.saturating_add(if link { reconnected } else { 0 });
            let part = to.min(until).saturating_sub(fault.from.max(from));
            if fault.victim == a.worker || fault.kind == "gap" && fault.victim == "-" {
                silent += part;
            } else if fault.kind.starts_with("server-") {
                outage += part;
            }
        }
        // When the silence begins, its last sign of life can be a check period and two timeouts
        // old. Half of the rest is left as slack for the machine. During a long outage leases lapse
        // without any process noticing, and their processes count as dead.
        let last_sign = timings.check_period + timings.command_timeout * 2;
        silent > nanos(forgotten_after - last_sign) / 2 || outage > nanos(timings.ttl / 4)
    }

    /// Until when this waiter was certainly queued, unless it was overtaken; `None` if that is not
    /// known.
    fn queued_until(&self, a: &Attempt) -> Option<u64> {
        let died = self.deaths.get(a.worker.as_str()).copied();
        match (&a.granted, a.cancelled, &a.ended) {
            (Some(grant), ..) => Some(grant.at),
            (None, Some(cancelled), _) => Some(cancelled),
            // It waited for its full time.
            (None, None, Some((_, how))) if how == "none" => {
                let at_most: u64 = a.verb.strip_prefix("try_lock_for:")?.parse().ok()?;
                Some(a.asked + at_most)
            }
            // It ended with an error, and may have left the queue earlier.
            (None, None, Some(_)) => None,
            (None, None, None) => Some(died.unwrap_or(self.history.end)),
        }
    }

    /// When this call stopped waiting.
    fn wait_end(&self, a: &Attempt) -> u64 {
        let ended = a
            .granted
            .as_ref()
            .map(|g| g.at)
            .or(a.cancelled)
            .or(a.ended.as_ref().map(|(at, _)| *at));
        ended
            .or(self.deaths.get(a.worker.as_str()).copied())
            .unwrap_or(self.history.end)
    }

    /// How long a lock may stay unused: one TTL for each recent crash (at least one), and the time
    /// in which the next holder's process notices.
    fn bound_after_crashes(&self, from: u64, to: u64) -> u64 {
        let timings = &self.timings;
        let lately = from.saturating_sub(nanos(timings.ttl * 2));
        let crashes = self
            .deaths
            .values()
            .filter(|at| (lately..=to).contains(at))
            .count()
            .max(1) as u32;
        nanos(
            timings.ttl * crashes + timings.check_period + timings.command_timeout + timings.slack,
        )
    }
}

/// Permits that were held without interruption; the times are as in [`Grant::held`].
#[derive(Clone, Copy)]
struct Hold<'a> {
    of: &'a Attempt,
    fence: u64,
    permits: u64,
    /// Held as a reader, from the beginning or after a downgrade.
    reads: bool,
    held: (u64, u64),
}

impl<'a> Hold<'a> {
    /// A writer that downgraded held everything at least until it began to downgrade.
    fn of(of: &'a Attempt) -> Vec<Hold<'a>> {
        let Some(grant) = &of.granted else {
            return Vec::new();
        };
        let Some((first, last)) = grant.held else {
            return Vec::new();
        };
        let full = Hold {
            of,
            fence: grant.fence,
            permits: of.demand.permits,
            reads: of.demand.reads(),
            held: (first, last),
        };
        let reader = Hold {
            permits: 1,
            reads: true,
            ..full
        };
        match grant.downgrade {
            Some(at) if at <= first.min(last) => vec![reader],
            Some(at) if first < at && at < last => {
                vec![
                    Hold {
                        held: (first, at),
                        ..full
                    },
                    Hold {
                        held: (at, last),
                        ..reader
                    },
                ]
            }
            _ => vec![full],
        }
    }
}

/// Each hold, with the others that certainly shared one moment with it and with each other.
fn overlaps<'a>(attempts: &[&'a Attempt]) -> Vec<(Hold<'a>, Vec<Hold<'a>>)> {
    let mut holdings: Vec<Hold> = attempts.iter().flat_map(|a| Hold::of(a)).collect();
    holdings.sort_by_key(|holding| holding.held.0.min(holding.held.1));
    let mut open: Vec<Hold> = Vec::new();
    let mut overlaps = Vec::new();
    for b in holdings {
        open.retain(|a| a.held.0.max(a.held.1) >= b.held.0.min(b.held.1));
        // Holds that began earlier cover its first moment or, if there was a single observation,
        // the whole time around it.
        let others = open
            .iter()
            .filter(|a| a.held.0 < b.held.1 && b.held.0 < a.held.1)
            .copied()
            .collect();
        overlaps.push((b, others));
        open.push(b);
    }
    overlaps
}

/// A change of how much of a name is left.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Held(u64),
    Waiting(u64),
}

impl Attempt {
    /// Whether it waits for a grant. A try that does not wait says nothing about waiting.
    fn may_wait(&self) -> bool {
        self.queued.is_some() || self.verb == "lock"
    }

    /// Whether it is one of several names that are acquired all or none.
    fn wants_others_too(&self) -> bool {
        self.verb.starts_with("lock_all") || self.verb.starts_with("try_lock_all")
    }

    /// How many permits it held at the end, or would have held.
    fn least_permits(&self) -> u64 {
        let downgrades = self
            .granted
            .as_ref()
            .is_some_and(|grant| grant.downgrade.is_some());
        if downgrades { 1 } else { self.demand.permits }
    }

    /// Whether a grant with this fence may have come before this one.
    fn may_follow(&self, fence: u64) -> bool {
        let own = self.granted.as_ref().map_or(u64::MAX, |grant| grant.fence);
        if self.demand.reads() {
            fence <= own
        } else {
            fence < own
        }
    }
}

impl Fault {
    fn is(&self, kinds: &[&str]) -> bool {
        kinds.contains(&self.kind.as_str())
    }
}

impl Finding {
    fn new(rule: Rule) -> Finding {
        Finding {
            rule,
            checked: 0,
            excused: 0,
            violations: Vec::new(),
        }
    }

    fn add_violation(&mut self, how: String) {
        self.violations.push(how);
    }
}

/// Whether the two cannot hold at the same time.
fn excludes(a: &Attempt, b: &Attempt) -> bool {
    a.demand.permits + b.demand.permits > a.demand.of
}

/// When a granted attempt was granted.
fn granted_at(a: &Attempt) -> u64 {
    a.granted.as_ref().map_or(0, |grant| grant.at)
}

/// The same times, sorted and without overlaps.
fn union(mut spans: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    spans.sort_unstable();
    let mut apart: Vec<(u64, u64)> = Vec::new();
    for (from, to) in spans {
        match apart.last_mut() {
            Some((_, end)) if from <= *end => *end = to.max(*end),
            _ => apart.push((from, to)),
        }
    }
    apart
}

fn nanos(d: Duration) -> u64 {
    d.as_nanos() as u64
}
