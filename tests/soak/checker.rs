//! Decides from a history alone whether the promises were kept. Written apart from the engine: it knows what is
//! promised (docs/SAFETY.md), and nothing of how that is done.
//!
//! It accuses only where no order of what lay between the lines could be innocent. Where a promise does not hold by its
//! own words (data were lost, a process was silent for too long), it spares, and counts that.

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
    /// How often it looked broken, or was not looked at, where the promise says that it does not hold.
    pub(crate) spared: usize,
    pub(crate) broken: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// P1: the times in which a name is held are disjoint.
    Exclusion,
    /// P2: fences rise in the order of grants.
    Fences,
    /// P3: grants come in the order of the enqueues.
    Order,
    /// P4, P9: no live waiter waits while nobody has the lock and nothing goes wrong.
    WakeUp,
    /// P5: after a crash of a holder the next is granted in time.
    Crash,
    /// P6: what was lost is never held again.
    Loss,
    /// P8: every call ends, and a try within its bound.
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
    let waits = history.attempts.iter().filter(|a| a.may_wait()).map(|a| case.over(a).saturating_sub(a.asked));
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
            names.entry(attempt.name.as_str()).or_default().push(attempt);
        }
        let deaths = history.faults.iter().filter(|f| f.kind == "kill").map(|f| (f.victim.as_str(), f.from)).collect();
        Case { history, terms, names, deaths }
    }

    fn exclusion(&self) -> Finding {
        let mut finding = Finding::new(Rule::Exclusion);
        for attempts in self.names.values() {
            let mut holdings: Vec<_> = attempts.iter().filter_map(|a| Some((a, a.granted.as_ref()?.held?))).collect();
            holdings.sort_by_key(|(_, (first, last))| *first.min(last));
            let mut open: Vec<(&Attempt, (u64, u64))> = Vec::new();
            for (b, held) in holdings {
                finding.judged += 1;
                open.retain(|(_, (first, last))| *first.max(last) >= held.0.min(held.1));
                for (a, earlier) in &open {
                    // Also right for a single look, of which only the moments around it are known.
                    if earlier.0 >= held.1 || held.0 >= earlier.1 {
                        continue;
                    }
                    if self.data_lost(a.asked.min(b.asked), granted_at(a).max(granted_at(b))) {
                        finding.spared += 1;
                    } else {
                        finding
                            .accuse(format!("{} and {} held {:?} at once: {earlier:?}, {held:?}", a.id, b.id, b.name));
                    }
                }
                open.push((b, held));
            }
        }
        finding
    }

    fn fences(&self) -> Finding {
        let mut finding = Finding::new(Rule::Fences);
        for attempts in self.names.values() {
            let grants: Vec<(&Attempt, &Grant)> =
                attempts.iter().filter_map(|a| Some((*a, a.granted.as_ref()?))).collect();
            // Whoever asked after another had its guard was granted later, also over a loss of data.
            let mut by_end = grants.clone();
            by_end.sort_by_key(|(_, grant)| grant.at);
            let mut by_end = by_end.into_iter().peekable();
            let mut largest: Option<(&Attempt, &Grant)> = None;
            for (b, grant) in &grants {
                finding.judged += 1;
                while let Some(earlier) = by_end.next_if(|(_, earlier)| earlier.at < b.asked) {
                    if largest.is_none_or(|(_, largest)| largest.fence < earlier.1.fence) {
                        largest = Some(earlier);
                    }
                }
                if let Some((a, earlier)) = largest.filter(|(_, earlier)| earlier.fence >= grant.fence) {
                    finding.accuse(format!(
                        "{} was granted {:?} with {} after {} with {}",
                        b.id, b.name, grant.fence, a.id, earlier.fence
                    ));
                }
            }
            // Whoever held later, of two that held one after the other, was granted later.
            let mut turns: Vec<_> = grants.iter().filter_map(|(a, g)| Some((*a, g.fence, g.held?))).collect();
            turns.sort_by_key(|(_, _, (first, _))| *first);
            for pair in turns.windows(2) {
                let [(a, earlier, held), (b, later, next)] = pair else { unreachable!("windows of two") };
                let sure = held.1 < next.0 && held.0 < next.1;
                if !sure || earlier < later {
                    continue;
                }
                if self.data_lost(a.asked.min(b.asked), granted_at(a).max(granted_at(b))) && earlier != later {
                    finding.spared += 1;
                } else {
                    finding.accuse(format!("{} held {:?} with {later} after {} with {earlier}", b.id, b.name, a.id));
                }
            }
        }
        finding
    }

    fn order(&self) -> Finding {
        let mut finding = Finding::new(Rule::Order);
        for attempts in self.names.values() {
            let mut standing: Vec<&Attempt> = Vec::new();
            let mut queued: Vec<&Attempt> = attempts.iter().copied().filter(|a| a.queued.is_some()).collect();
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
                        Some(own) => own.fence > grant.fence,
                        None => self.stood_until(a).is_some_and(|until| until > grant.at),
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
        let faults: Vec<(u64, u64)> =
            self.history.faults.iter().filter(|f| !f.is(&HARMLESS)).map(|f| (f.from, f.to)).collect();
        for attempts in self.names.values() {
            let mut busy = faults.clone();
            for attempt in attempts {
                if let Some(grant) = &attempt.granted {
                    let looks = grant.held.map(|(_, last)| last);
                    let end = attempt.ended.as_ref().map(|(at, _)| *at);
                    busy.push((grant.at, looks.max(grant.release).max(end).max(grant.lost).unwrap_or(grant.at)));
                }
            }
            let busy = union(busy);
            for attempt in attempts.iter().filter(|a| a.may_wait()) {
                finding.judged += 1;
                let over = self.over(attempt);
                let mut idle_from = attempt.asked;
                let first = busy.partition_point(|(_, to)| *to < attempt.asked);
                let ends = busy[first..].iter().take_while(|(from, _)| *from < over).copied();
                for (from, to) in ends.chain([(over, over)]) {
                    let bound = self.bound_after_crashes(idle_from, from);
                    if from.saturating_sub(idle_from) > bound {
                        finding.accuse(format!(
                            "{} waited for {:?} from {idle_from} to {from}, while nobody had it and all was well",
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
                        && a.granted.as_ref().is_some_and(|g| g.release.is_none() && g.lost.is_none())
                        && a.ended.is_none()
                });
                let bound = self.bound_after_crashes(*died, *died);
                let next = attempts.iter().filter_map(|a| Some(a.granted.as_ref()?.at)).filter(|at| at > died).min();
                let watched_until = next.unwrap_or(u64::MAX).min(died.saturating_add(bound));
                let awaited = attempts
                    .iter()
                    .any(|a| a.worker != *worker && a.may_wait() && a.asked < *died && self.over(a) >= watched_until);
                if !held || !awaited {
                    continue;
                }
                // What the machine does to all in passing is what the slack is for.
                let slack = nanos(self.terms.slack);
                let serious = |f: &Fault| !f.is(&HARMLESS) && (f.kind != "gap" || f.to - f.from > slack);
                let during = |f: &Fault| f.victim != *worker && f.from < watched_until && f.to > *died;
                if watched_until > self.history.end || self.history.faults.iter().any(|f| serious(f) && during(f)) {
                    finding.spared += 1;
                    continue;
                }
                finding.judged += 1;
                if next.is_none_or(|next| next - died > bound) {
                    finding.accuse(format!("{worker} died with {name:?} at {died}; the next grant was at {next:?}"));
                }
            }
        }
        finding
    }

    fn losses(&self) -> Finding {
        let mut finding = Finding::new(Rule::Loss);
        for attempt in &self.history.attempts {
            let Some(grant) = attempt.granted.as_ref().filter(|grant| grant.lost.is_some()) else { continue };
            finding.judged += 1;
            if let Some(at) = grant.revived {
                finding.accuse(format!("{} lost {:?}, and held it again at {at}", attempt.id, attempt.name));
            }
        }
        finding
    }

    fn ends(&self) -> Finding {
        let mut finding = Finding::new(Rule::End);
        for attempt in self.history.attempts.iter().filter(|a| !self.deaths.contains_key(a.worker.as_str())) {
            finding.judged += 1;
            let (id, verb, name) = (&attempt.id, &attempt.verb, &attempt.name);
            if attempt.ended.is_none() {
                finding.accuse(format!("{id} asked ({verb}) for {name:?} and never ended"));
            }
            let Some(bound) = self.bound_of(verb) else { continue };
            let until = self.over(attempt);
            let asleep = |f: &&Fault| f.victim == attempt.worker && !f.kind.starts_with("link-");
            let part = |f: &Fault| f.to.min(until).saturating_sub(f.from.max(attempt.asked));
            let slept: u64 = self.history.faults.iter().filter(asleep).map(part).sum();
            if until - attempt.asked > bound.saturating_add(slept) {
                let took = until - attempt.asked;
                finding.accuse(format!("{id} asked ({verb}) for {name:?} and had no answer for {took} ns"));
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
        let Terms { command_timeout, slack, .. } = self.terms;
        match verb.split_once(':') {
            None if verb == "try_lock" => Some(nanos(command_timeout * 2 + slack)),
            Some(("try_lock_for", at_most)) => Some(at_most.parse::<u64>().ok()? + nanos(command_timeout + slack)),
            _ => None,
        }
    }

    /// Whether data may have been lost between these.
    fn data_lost(&self, from: u64, to: u64) -> bool {
        self.history.faults.iter().any(|f| f.is(&LOSSES) && f.from < to && f.to > from)
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
        // Its last sign of life can be a period and two timeouts old when the silence begins; the half of what is left
        // of the horizon is for the machine.
        let patience = nanos(terms.horizon - terms.check_period - terms.command_timeout * 2) / 2;
        let lapsed = self.names[a.name.as_str()].iter().any(|other| {
            let Some(grant) = other.granted.as_ref().filter(|g| other.worker == a.worker && g.at < until) else {
                return false;
            };
            let badly = |how: &str| how.starts_with("lost") || how.starts_with("unavailable");
            other.ended.as_ref().is_some_and(|(at, how)| *at > from && (grant.lost.is_some() || badly(how)))
        });
        // Over a long outage leases end that nobody has heard of yet, and their processes count as dead.
        self.data_lost(a.asked, until) || silent > patience || outage > nanos(terms.ttl / 4) || lapsed
    }

    /// Until when this one certainly stood in the queue, unless it was passed over; `None` if that is not known.
    fn stood_until(&self, a: &Attempt) -> Option<u64> {
        let died = self.deaths.get(a.worker.as_str()).copied();
        match (&a.granted, a.left, &a.ended) {
            (Some(grant), ..) => Some(grant.at),
            (None, Some(left), _) => Some(left),
            // It ended with an error, at some moment before that.
            (None, None, Some(_)) => None,
            (None, None, None) => Some(died.unwrap_or(self.history.end)),
        }
    }

    /// Until when this one waited.
    fn over(&self, a: &Attempt) -> u64 {
        let ended = a.granted.as_ref().map(|g| g.at).or(a.left).or(a.ended.as_ref().map(|(at, _)| *at));
        ended.or(self.deaths.get(a.worker.as_str()).copied()).unwrap_or(self.history.end)
    }

    /// How long a lock may be out of everybody's hands: a ttl for each that died lately, at least one, and what the
    /// next holder's process needs to find out.
    fn bound_after_crashes(&self, from: u64, to: u64) -> u64 {
        let terms = &self.terms;
        let lately = from.saturating_sub(nanos(terms.ttl * 2));
        let crashes = self.deaths.values().filter(|at| (lately..=to).contains(at)).count().max(1) as u32;
        nanos(terms.ttl * crashes + terms.check_period + terms.command_timeout + terms.slack)
    }
}

impl Attempt {
    /// Whether it stays until it is granted, for a time at least. A try that does not says nothing about waiting.
    fn may_wait(&self) -> bool {
        self.queued.is_some() || self.verb == "lock"
    }
}

impl Fault {
    fn is(&self, kinds: &[&str]) -> bool {
        kinds.contains(&self.kind.as_str())
    }
}

impl Finding {
    fn new(rule: Rule) -> Finding {
        Finding { rule, judged: 0, spared: 0, broken: Vec::new() }
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
