//! Decides from a history alone whether the promises were kept. Written apart from the engine: it
//! knows what is promised (docs/SAFETY.md), and nothing of how that is done.
//!
//! It accuses only where no order of what lay between the lines could be innocent. Where a promise
//! does not hold by its own words (data were lost, a process was silent for too long), it spares,
//! and counts that.

use std::{collections::BTreeMap, time::Duration};

use super::history::{Attempt, Fault, Grant, History};

/// The numbers that the managers ran with, and what a noisy machine may add to a bound.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) check_period: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) horizon: Duration,
    pub(crate) slack: Duration,
}

/// What was found about one promise.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) rule: Rule,
    /// How often it was found kept or broken.
    pub(crate) judged: usize,
    /// How often it looked broken, or was not looked at, where the promise says that it does not
    /// hold.
    pub(crate) spared: usize,
    pub(crate) broken: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// P1: never is more held of a name than there is: of a mutex by one, of a reader/writer lock
    /// by readers or by one writer, of a semaphore as many permits as it has.
    Exclusion,
    /// P2: fences rise in the order of grants; a reader has the last writer's.
    Fences,
    /// P3: grants come in the order of the enqueues.
    Order,
    /// P4, P9: no live waiter waits while there is enough for whoever waits, and nothing goes
    /// wrong.
    WakeUp,
    /// P5: after a crash of a holder the next is granted in time.
    Crash,
    /// P6: what was lost is never held again.
    Loss,
    /// P8: every call ends, and a try or a downgrade within its bound.
    End,
    /// The resource accepted no write with a smaller fence than it had seen.
    Resource,
    /// Every key that is left expires.
    Keys,
}

/// Kinds of faults after which Redis may have forgotten what it acknowledged.
const LOSSES: [&str; 2] = ["server-emptied", "flushall"];

/// What takes nothing from anybody.
const HARMLESS: [&str; 1] = ["script-flush"];

pub(crate) fn judge(history: &History, terms: &Terms) -> Vec<Finding> {
    let case = Case::new(history, *terms);
    vec![
        case.exclusion(),
        case.fences(),
        case.order(),
        case.wake_up(),
        case.crashes(),
        case.losses(),
        case.ends(),
        case.resource(),
        case.keys(),
    ]
}

/// The longest time from a question that may wait to its end.
pub(crate) fn longest_wait(history: &History, terms: &Terms) -> Duration {
    let case = Case::new(history, *terms);
    let waits = history
        .attempts
        .iter()
        .filter(|a| a.may_wait())
        .map(|a| case.over(a).saturating_sub(a.asked));
    Duration::from_nanos(waits.max().unwrap_or(0))
}

struct Case<'a> {
    history: &'a History,
    terms: Terms,
    names: BTreeMap<&'a str, Vec<&'a Attempt>>,
    /// When each worker that was killed was killed.
    deaths: BTreeMap<&'a str, u64>,
}

impl<'a> Case<'a> {
    fn new(history: &'a History, terms: Terms) -> Case<'a> {
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
        Case {
            history,
            terms,
            names,
            deaths,
        }
    }

    fn exclusion(&self) -> Finding {
        let mut finding = Finding::new(Rule::Exclusion);
        for attempts in self.names.values() {
            for (b, others) in meetings(attempts) {
                finding.judged += 1;
                let of = b.of.wish.of;
                let together =
                    |others: &[Holding]| b.permits + others.iter().map(|a| a.permits).sum::<u64>();
                if together(&others) <= of {
                    continue;
                }
                let certain: Vec<Holding> = others
                    .into_iter()
                    .filter(|a| !self.lost_between(a.of, b.of))
                    .collect();
                if together(&certain) <= of {
                    finding.spared += 1;
                    continue;
                }
                let all: Vec<_> = certain
                    .iter()
                    .chain([&b])
                    .map(|h| (&h.of.id, h.permits, h.held))
                    .collect();
                finding.accuse(format!(
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

    /// Whoever asked after another had its guard was granted later, also over a loss of data.
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
            finding.judged += 1;
            while let Some(earlier) = by_end.next_if(|(_, earlier)| earlier.at < b.asked) {
                if largest.is_none_or(|(_, largest)| largest.fence < earlier.1.fence) {
                    largest = Some(earlier);
                }
            }
            if let Some((a, earlier)) = largest.filter(|(_, earlier)| !b.may_follow(earlier.fence))
            {
                finding.accuse(format!(
                    "{} was granted {:?} with {} after {} with {}",
                    b.id, b.name, grant.fence, a.id, earlier.fence
                ));
            }
            if b.wish.reads() {
                continue;
            }
            if let Some(a) = own.insert(grant.fence, &b.id) {
                finding.accuse(format!(
                    "{a} and {} were both granted {:?} with {}",
                    b.id, b.name, grant.fence
                ));
            }
        }
    }

    /// Of two that leave no room for each other, whoever held later was granted later.
    fn fences_after_turns(&self, attempts: &[&Attempt], finding: &mut Finding) {
        let mut turns: Vec<_> = attempts
            .iter()
            .filter_map(|a| Some((*a, a.granted.as_ref()?.fence, a.granted.as_ref()?.held?)))
            .collect();
        let mut by_end = turns.clone();
        by_end.sort_by_key(|(_, _, (_, last))| *last);
        let mut by_end = by_end.into_iter().peekable();
        turns.sort_by_key(|(_, _, (first, _))| *first);
        // The last that ended, for each number of permits.
        let mut ended = BTreeMap::new();
        for (b, later, next) in turns {
            while let Some(turn) = by_end.next_if(|(_, _, (_, last))| *last < next.0) {
                ended.insert(turn.0.wish.permits, turn);
            }
            for (a, earlier, held) in ended.values() {
                // Had it come first, it would have kept the other out, and been there still.
                let excluded = a.wish.permits + b.least_permits() > a.wish.of;
                if !excluded || held.0 >= next.1 || b.may_follow(*earlier) {
                    continue;
                }
                if self.lost_between(a, b) && *earlier != later {
                    finding.spared += 1;
                } else {
                    finding.accuse(format!(
                        "{} held {:?} with {later} after {} with {earlier}",
                        b.id, b.name, a.id
                    ));
                }
            }
        }
    }

    /// No writer comes between readers who hold at the same time.
    fn fences_at_once(&self, attempts: &[&Attempt], finding: &mut Finding) {
        for (b, others) in meetings(attempts) {
            for a in others
                .iter()
                .filter(|a| a.reads && b.reads && a.fence != b.fence)
            {
                if self.lost_between(a.of, b.of) {
                    finding.spared += 1;
                } else {
                    finding.accuse(format!(
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
            let mut standing: Vec<&Attempt> = Vec::new();
            let mut queued: Vec<&Attempt> = attempts
                .iter()
                .copied()
                .filter(|a| a.queued.is_some())
                .collect();
            queued.sort_by_key(|a| a.queued);
            let mut queued = queued.into_iter().peekable();
            for b in attempts {
                while let Some(a) = queued.next_if(|a| a.queued.is_some_and(|at| at < b.asked)) {
                    standing.push(a);
                }
                standing.retain(|a| self.stood_until(a).is_some_and(|until| until > b.asked));
                let Some(grant) = &b.granted else { continue };
                for a in &standing {
                    let overtaken = match &a.granted {
                        // A reader has the fence of the writer that came before it.
                        Some(own) if a.wish.reads() && !b.wish.reads() => own.fence >= grant.fence,
                        Some(own) => own.fence > grant.fence,
                        None => {
                            a.stood.is_some_and(|at| at > grant.at) || self.was_passed_over(a, b)
                        }
                    };
                    if overtaken && self.lost_its_place(a, grant.at) {
                        finding.spared += 1;
                        continue;
                    }
                    finding.judged += 1;
                    if overtaken {
                        let (queued, asked) = (a.queued, b.asked);
                        finding.accuse(format!(
                            "{} was queued for {:?} at {queued:?}; {} asked ({}) at {asked} and was granted before it",
                            a.id, a.name, b.id, b.verb
                        ));
                    }
                }
            }
        }
        finding
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
            let busy = union([self.taken(attempts), faults.clone()].concat());
            for attempt in attempts.iter().filter(|a| a.may_wait()) {
                finding.judged += 1;
                let over = self.over(attempt);
                let mut idle_from = attempt.asked;
                let first = busy.partition_point(|(_, to)| *to < attempt.asked);
                let ends = busy[first..]
                    .iter()
                    .take_while(|(from, _)| *from < over)
                    .copied();
                for (from, to) in ends.chain([(over, over)]) {
                    let bound = self.bound_after_crashes(idle_from, from);
                    if from.saturating_sub(idle_from) > bound {
                        finding.accuse(format!(
                            "{} waited for {:?} from {idle_from} to {from}, while there was enough and all was well",
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
                // The living may have as much as keeps the others out.
                let living: Vec<&Attempt> = attempts
                    .iter()
                    .copied()
                    .filter(|a| a.worker != *worker)
                    .collect();
                let taken = self.taken(&living);
                let free_at = taken
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
                    .any(|a| a.may_wait() && a.asked < *died && self.over(a) >= watched_until);
                if !awaited {
                    continue;
                }
                // What the machine does to all in passing is what the slack is for.
                let slack = nanos(self.terms.slack);
                let serious =
                    |f: &Fault| !f.is(&HARMLESS) && (f.kind != "gap" || f.to - f.from > slack);
                let during =
                    |f: &Fault| f.victim != *worker && f.from < watched_until && f.to > *died;
                let later = taken
                    .iter()
                    .any(|(from, to)| *from < watched_until && *to > free_at);
                if watched_until > self.history.end
                    || later
                    || self.history.faults.iter().any(|f| serious(f) && during(f))
                {
                    finding.spared += 1;
                    continue;
                }
                finding.judged += 1;
                if next.is_none_or(|next| next.saturating_sub(free_at) > bound) {
                    finding.accuse(format!(
                        "{worker} died with {name:?} at {died}; the next grant was at {next:?}"
                    ));
                }
            }
        }
        finding
    }

    /// The times in which so much of a name may have been held that there was not enough for one of
    /// those who may have waited for it. Whoever waits for much is not overtaken by those who wait
    /// for little.
    fn taken(&self, attempts: &[&Attempt]) -> Vec<(u64, u64)> {
        const BEGINS: u8 = 0;
        const ENDS: u8 = 1;
        // What begins at a moment comes before what ends at it.
        let mut events: Vec<(u64, u8, Event)> = Vec::new();
        let mut add = |(from, to): (u64, u64), event| {
            if from <= to {
                events.extend([(from, BEGINS, event), (to, ENDS, event)]);
            }
        };
        for a in attempts {
            let over = self.over(a);
            add((a.asked, over), Event::Waits(a.wish.permits));
            let Some(grant) = &a.granted else {
                // Of several that are wanted together the first are held while others are awaited.
                if a.wants_others_too() {
                    add((a.asked, over), Event::Has(a.wish.permits));
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
            add((from, shared_from), Event::Has(a.wish.permits));
            if shared_from < to {
                add((shared_from, to), Event::Has(1));
            }
        }
        events.sort_unstable();
        let of = attempts.first().map_or(1, |a| a.wish.of);
        let (mut had, mut waiting) = (0, BTreeMap::<u64, usize>::new());
        let mut taken = Vec::new();
        let mut since = None;
        for (at, which, event) in events {
            match event {
                Event::Has(permits) if which == BEGINS => had += permits,
                Event::Has(permits) => had -= permits,
                Event::Waits(permits) if which == BEGINS => {
                    *waiting.entry(permits).or_default() += 1
                }
                Event::Waits(permits) => {
                    let of_these = waiting.get_mut(&permits).expect("it began");
                    *of_these -= 1;
                    if *of_these == 0 {
                        waiting.remove(&permits);
                    }
                }
            }
            let most = waiting.last_key_value().map_or(0, |(permits, _)| *permits);
            match since {
                None if had + most > of => since = Some(at),
                Some(from) if had + most <= of => {
                    taken.push((from, at));
                    since = None;
                }
                _ => {}
            }
        }
        union(taken)
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
            finding.judged += 1;
            if let Some(at) = grant.revived {
                finding.accuse(format!(
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
            finding.judged += 1;
            let (id, verb, name) = (&attempt.id, &attempt.verb, &attempt.name);
            if attempt.ended.is_none() {
                finding.accuse(format!("{id} asked ({verb}) for {name:?} and never ended"));
            }
            // Its process was stopped, or kept from running.
            let asleep = |f: &&Fault| f.victim == attempt.worker && !f.kind.starts_with("link-");
            let took = |from: u64, until: u64| {
                let part = |f: &Fault| f.to.min(until).saturating_sub(f.from.max(from));
                (until - from)
                    .saturating_sub(self.history.faults.iter().filter(asleep).map(part).sum())
            };
            let answered = took(attempt.asked, self.over(attempt));
            if self.bound_of(verb).is_some_and(|bound| answered > bound) {
                finding.accuse(format!(
                    "{id} asked ({verb}) for {name:?} and had no answer for {answered} ns"
                ));
            }
            let Some(grant) = &attempt.granted else {
                continue;
            };
            let downgraded = grant
                .downgraded
                .or(attempt.ended.as_ref().map(|(at, _)| *at));
            if let (Some(from), Some(until)) = (grant.downgrade, downgraded)
                && took(from, until) > nanos(self.terms.command_timeout + self.terms.slack)
            {
                finding.accuse(format!(
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
            finding.judged += 1;
            let newest = newest.entry(&write.name).or_default();
            if write.fence < *newest {
                finding.accuse(format!(
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
            finding.judged += 1;
            if *left < 0 {
                finding.accuse(format!("{key} stays for ever"));
            }
        }
        finding
    }

    /// How long a call may take that does not wait for its turn.
    fn bound_of(&self, verb: &str) -> Option<u64> {
        let Terms {
            command_timeout,
            slack,
            ..
        } = self.terms;
        match verb.split_once(':') {
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

    /// Whether data may have been lost between these.
    fn data_lost(&self, from: u64, to: u64) -> bool {
        self.history
            .faults
            .iter()
            .any(|f| f.is(&LOSSES) && f.from < to && f.to > from)
    }

    /// Whether that happened between these two grants.
    fn lost_between(&self, a: &Attempt, b: &Attempt) -> bool {
        self.data_lost(a.asked.min(b.asked), granted_at(a).max(granted_at(b)))
    }

    /// Whether `a`, who never had a guard, was still waiting when `b` had one. It may have been
    /// granted without having heard of it, unless that would have kept the other out.
    fn was_passed_over(&self, a: &Attempt, b: &Attempt) -> bool {
        a.wish.permits + b.wish.permits > a.wish.of
            && self
                .stood_until(a)
                .is_some_and(|until| until > granted_at(b))
    }

    /// Whether P3 lets `a` go to the end of the queue before `until`.
    fn lost_its_place(&self, a: &Attempt, until: u64) -> bool {
        let terms = &self.terms;
        // A lease or a silence from before it asked can still cost its process its places.
        let from = a.asked.saturating_sub(nanos(terms.ttl + terms.horizon));
        let reconnected = nanos(terms.command_timeout + terms.ttl / 20);
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
        // Its last sign of life can be a period and two timeouts old when the silence begins; the
        // half of what is left of the horizon is for the machine.
        let patience = nanos(terms.horizon - terms.check_period - terms.command_timeout * 2) / 2;
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
        // Over a long outage leases end that nobody has heard of yet, and their processes count as
        // dead.
        self.data_lost(a.asked, until)
            || silent > patience
            || outage > nanos(terms.ttl / 4)
            || lapsed
    }

    /// Until when this one certainly stood in the queue, unless it was passed over; `None` if that
    /// is not known.
    fn stood_until(&self, a: &Attempt) -> Option<u64> {
        let died = self.deaths.get(a.worker.as_str()).copied();
        match (&a.granted, a.left, &a.ended) {
            (Some(grant), ..) => Some(grant.at),
            (None, Some(left), _) => Some(left),
            // It stayed for as long as it was told to.
            (None, None, Some((_, how))) if how == "none" => {
                let at_most: u64 = a.verb.strip_prefix("try_lock_for:")?.parse().ok()?;
                Some(a.asked + at_most)
            }
            // It ended with an error, at some moment before that.
            (None, None, Some(_)) => None,
            (None, None, None) => Some(died.unwrap_or(self.history.end)),
        }
    }

    /// Until when this one waited.
    fn over(&self, a: &Attempt) -> u64 {
        let ended = a
            .granted
            .as_ref()
            .map(|g| g.at)
            .or(a.left)
            .or(a.ended.as_ref().map(|(at, _)| *at));
        ended
            .or(self.deaths.get(a.worker.as_str()).copied())
            .unwrap_or(self.history.end)
    }

    /// How long a lock may be out of everybody's hands: a ttl for each that died lately, at least
    /// one, and what the next holder's process needs to find out.
    fn bound_after_crashes(&self, from: u64, to: u64) -> u64 {
        let terms = &self.terms;
        let lately = from.saturating_sub(nanos(terms.ttl * 2));
        let crashes = self
            .deaths
            .values()
            .filter(|at| (lately..=to).contains(at))
            .count()
            .max(1) as u32;
        nanos(terms.ttl * crashes + terms.check_period + terms.command_timeout + terms.slack)
    }
}

/// So many permits that were held without a pause; the time is as of [`Grant::held`].
#[derive(Clone, Copy)]
struct Holding<'a> {
    of: &'a Attempt,
    fence: u64,
    permits: u64,
    /// As a reader, from the beginning or later.
    reads: bool,
    held: (u64, u64),
}

impl<'a> Holding<'a> {
    /// A writer that became a reader had all until then at least.
    fn of(of: &'a Attempt) -> Vec<Holding<'a>> {
        let Some(grant) = &of.granted else {
            return Vec::new();
        };
        let Some((first, last)) = grant.held else {
            return Vec::new();
        };
        let whole = Holding {
            of,
            fence: grant.fence,
            permits: of.wish.permits,
            reads: of.wish.reads(),
            held: (first, last),
        };
        let reader = Holding {
            permits: 1,
            reads: true,
            ..whole
        };
        match grant.downgrade {
            Some(at) if at <= first.min(last) => vec![reader],
            Some(at) if first < at && at < last => {
                vec![
                    Holding {
                        held: (first, at),
                        ..whole
                    },
                    Holding {
                        held: (at, last),
                        ..reader
                    },
                ]
            }
            _ => vec![whole],
        }
    }
}

/// Each holding, with those others that certainly shared one moment of it, and with each other.
fn meetings<'a>(attempts: &[&'a Attempt]) -> Vec<(Holding<'a>, Vec<Holding<'a>>)> {
    let mut holdings: Vec<Holding> = attempts.iter().flat_map(|a| Holding::of(a)).collect();
    holdings.sort_by_key(|holding| holding.held.0.min(holding.held.1));
    let mut open: Vec<Holding> = Vec::new();
    let mut meetings = Vec::new();
    for b in holdings {
        open.retain(|a| a.held.0.max(a.held.1) >= b.held.0.min(b.held.1));
        // Those that began before it cover its first moment, or, if there was a single look, all of
        // the time around it.
        let others = open
            .iter()
            .filter(|a| a.held.0 < b.held.1 && b.held.0 < a.held.1)
            .copied()
            .collect();
        meetings.push((b, others));
        open.push(b);
    }
    meetings
}

/// What changes how much of a name is left.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Has(u64),
    Waits(u64),
}

impl Attempt {
    /// Whether it stays until it is granted, for a time at least. A try that does not says nothing
    /// about waiting.
    fn may_wait(&self) -> bool {
        self.queued.is_some() || self.verb == "lock"
    }

    /// Whether it is one of several that are had together or not at all.
    fn wants_others_too(&self) -> bool {
        self.verb.starts_with("lock_all") || self.verb.starts_with("try_lock_all")
    }

    /// How many permits it had at last, or would have had.
    fn least_permits(&self) -> u64 {
        let downgrades = self
            .granted
            .as_ref()
            .is_some_and(|grant| grant.downgrade.is_some());
        if downgrades { 1 } else { self.wish.permits }
    }

    /// Whether a grant with this fence can have come before this one.
    fn may_follow(&self, fence: u64) -> bool {
        let own = self.granted.as_ref().map_or(u64::MAX, |grant| grant.fence);
        if self.wish.reads() {
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
            judged: 0,
            spared: 0,
            broken: Vec::new(),
        }
    }

    fn accuse(&mut self, how: String) {
        self.broken.push(how);
    }
}

/// Of attempts that were granted.
fn granted_at(a: &Attempt) -> u64 {
    a.granted.as_ref().map_or(0, |grant| grant.at)
}

/// The same times, in order and apart from each other.
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
