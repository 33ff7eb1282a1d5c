//! The renewal thread's way to all masters: a connection to each, and what is on its way over them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::members::ClusterNode;
use super::redirect::Route;
use super::state::ClusterState;
use crate::error::Step;
use crate::script::Call;
use crate::store::again::Next;
use crate::store::clock::Time;
use crate::store::node::{AckedLink, LinkCall, LinkReply};
use crate::store::{CallResult, Link, StoreFault};

/// How long all masters may take together before the renewal thread goes on without the replies of
/// the slow ones. It reads those later.
const COMMON_WAIT: Duration = Duration::from_millis(20);

/// The renewal thread's connections, one for each master.
///
/// A tick's calls go out to all masters before any reply is read. A master that owes replies gets no
/// more calls until it has sent them, or the command timeout has passed.
pub(super) struct ClusterLink {
    state: Arc<ClusterState>,
    on_ready: Arc<dyn Fn() + Send + Sync>,
    masters: Vec<ShardLink>,
    /// The calls without a result, by their numbers.
    open_calls: BTreeMap<u64, OpenCall>,
    /// The results that nobody has fetched.
    results: BTreeMap<u64, CallResult>,
    /// The number of the next call of [`Link::run`]. Those of [`Link::begin`] are far smaller.
    next_run: u64,
}

struct ShardLink {
    member: Arc<ClusterNode>,
    link: AckedLink,
    /// The largest number of a call that was sent to it.
    newest: u64,
}

/// A call on its way.
struct OpenCall {
    call: Call,
    route: Route,
    /// A node has refused it, in this form at least.
    is_sent_again: bool,
    /// It was sent to this member, and has no reply yet.
    asked: Option<Arc<ClusterNode>>,
}

impl ClusterLink {
    pub(super) fn new(
        state: &Arc<ClusterState>,
        on_ready: Arc<dyn Fn() + Send + Sync>,
    ) -> ClusterLink {
        ClusterLink {
            state: Arc::clone(state),
            on_ready,
            masters: Vec::new(),
            open_calls: BTreeMap::new(),
            results: BTreeMap::new(),
            next_run: u64::MAX / 2,
        }
    }

    fn add(&mut self, calls: &[Call], first: u64) {
        self.masters
            .retain(|m| m.link.owes_replies() || !m.member.is_retired.load(Ordering::Acquire));
        for (number, call) in (first..).zip(calls) {
            let open = OpenCall {
                call: call.clone(),
                route: Route::new(call),
                is_sent_again: false,
                asked: None,
            };
            self.open_calls.insert(number, open);
        }
    }

    /// Sends what can be sent, reads what has come, and follows redirects. Until `until` it waits for
    /// the replies to calls from number `first` on.
    fn pump(&mut self, first: u64, until: Time) {
        loop {
            self.send_open();
            let mut has_replies = false;
            for at in 0..self.masters.len() {
                let master = &mut self.masters[at];
                // A master that owes only older replies was waited for already.
                let is_awaited = master.newest >= first;
                let wait_until = if is_awaited {
                    until
                } else {
                    Time::from_nanos(0)
                };
                let replies = master.link.receive(wait_until);
                has_replies |= !replies.is_empty();
                replies.into_iter().for_each(|reply| self.on_reply(reply));
            }
            let is_done = self.open_calls.range(first..).next().is_none();
            if !has_replies && (is_done || self.state.clock.now() >= until) {
                return;
            }
        }
    }

    /// Sends the open calls that are not on their way, to all masters before any reply is read.
    fn send_open(&mut self) {
        // Refused at once: it may free those behind it for the next round.
        loop {
            let batches = self.collect();
            if batches.is_empty() {
                return;
            }
            for (member, calls) in batches {
                let replies = self.link_to(&member).send(calls);
                replies.into_iter().for_each(|reply| self.on_reply(reply));
            }
        }
    }

    /// The open calls that are to be sent now, for each master.
    ///
    /// R4 (lost places): once an acquire was redirected, those of its name behind it wait until it
    /// has its result. Together on their way, one could be refused and the next not.
    fn collect(&mut self) -> Vec<(Arc<ClusterNode>, Vec<LinkCall>)> {
        let mut redirected = HashSet::new();
        let mut without_owner = Vec::new();
        let mut batches: Vec<(Arc<ClusterNode>, Vec<LinkCall>)> = Vec::new();
        for (number, open) in &mut self.open_calls {
            if open.call.is_acquire() {
                let is_behind = redirected.contains(&open.call.key.name);
                if open.is_sent_again {
                    redirected.insert(Arc::clone(&open.call.key.name));
                }
                if is_behind {
                    continue;
                }
            }
            if open.asked.is_some() {
                continue;
            }
            let Some(member) = open.route.target(&self.state) else {
                without_owner.push(*number);
                continue;
            };
            open.asked = Some(Arc::clone(&member));
            let call = open.link_call(*number);
            match batches.iter_mut().find(|(m, _)| m.number == member.number) {
                Some((_, calls)) => calls.push(call),
                None => batches.push((member, vec![call])),
            }
        }
        for number in without_owner {
            self.state.want_refresh();
            let fault = self
                .open_calls
                .get(&number)
                .map(|open| open.route.no_owner());
            if let Some(fault) = fault {
                self.finish(number, CallResult::not_sent(fault));
            }
        }
        batches
    }

    fn link_to(&mut self, member: &Arc<ClusterNode>) -> &mut ShardLink {
        let known = self
            .masters
            .iter()
            .position(|m| m.member.number == member.number);
        let at = known.unwrap_or_else(|| {
            self.masters.push(ShardLink {
                member: Arc::clone(member),
                link: AckedLink::new(&member.node, Arc::clone(&self.on_ready)),
                newest: 0,
            });
            self.masters.len() - 1
        });
        &mut self.masters[at]
    }

    fn on_reply(&mut self, reply: LinkReply) {
        let (number, result) = match reply {
            LinkReply::Result(number, result) => (number, result),
            LinkReply::OtherForm(LinkCall { number, .. }) => {
                if let Some(open) = self.open_calls.get_mut(&number) {
                    open.route.bring_source();
                    open.asked = None;
                    open.is_sent_again = true;
                }
                return;
            }
        };
        let Some(open) = self.open_calls.get_mut(&number) else {
            return;
        };
        let Some(asked) = open.asked.take() else {
            return;
        };
        open.is_sent_again = true;
        let next = open
            .route
            .take(&self.state, &open.call, &asked.address, result);
        // A call that goes round fails: the renewal thread makes the pause.
        let is_over = open.route.was_sent_on_too_often() || open.route.rounds() > 0;
        match next {
            Next::Done => {
                let result = open.route.take_result();
                self.finish(number, result);
            }
            Next::Again | Next::Elsewhere if !is_over => {}
            Next::Again | Next::Elsewhere | Next::Later => {
                if let Some(open) = self.open_calls.remove(&number) {
                    self.finish_call(number, &open.call, open.route.into_refusal());
                }
            }
        }
    }

    fn finish(&mut self, number: u64, result: CallResult) {
        if let Some(open) = self.open_calls.remove(&number) {
            self.finish_call(number, &open.call, result);
        }
    }

    /// R4 (lost places): if an acquire fails, those of its name that waited behind it fail with it.
    fn finish_call(&mut self, number: u64, call: &Call, result: CallResult) {
        if let (true, Err(fault)) = (call.is_acquire(), &result.answer) {
            let fault = fault.clone();
            let waited = |(_, open): &(&u64, &OpenCall)| {
                open.call.is_acquire() && open.asked.is_none() && open.call.key == call.key
            };
            let behind: Vec<u64> = self
                .open_calls
                .range(number..)
                .filter(waited)
                .map(|(number, _)| *number)
                .collect();
            for number in behind {
                self.open_calls.remove(&number);
                let result = CallResult::not_sent(fault_of_first(&fault));
                self.results.insert(number, result);
            }
        }
        self.results.insert(number, result);
    }
}

impl ShardLink {
    fn send(&mut self, calls: Vec<LinkCall>) -> Vec<LinkReply> {
        if !self.link.owes_replies() {
            let newest = calls.iter().map(|call| call.number).max();
            self.newest = newest.unwrap_or_default();
        }
        self.link.send(calls)
    }
}

impl OpenCall {
    fn link_call(&self, number: u64) -> LinkCall {
        LinkCall::new(number, self.call.clone(), self.route.form_and_hop())
    }
}

/// The fault of a call that was not sent, because another had this fault before it.
fn fault_of_first(fault: &StoreFault) -> StoreFault {
    if fault.is_ambiguous() {
        StoreFault::NotReady
    } else {
        fault.clone()
    }
}

impl Link for ClusterLink {
    fn log_in_anew(&mut self) {
        for master in &mut self.masters {
            master.link.log_in_anew();
        }
    }

    fn run(&mut self, calls: &[Call]) -> Vec<CallResult> {
        let first = self.next_run;
        self.next_run += calls.len() as u64;
        self.add(calls, first);
        let until = self.state.clock.now() + self.state.config.command_timeout;
        let numbers = first..first + calls.len() as u64;
        while self.open_calls.range(numbers.clone()).next().is_some()
            && self.state.clock.now() < until
        {
            self.pump(first, until);
        }
        numbers
            .map(|number| {
                let was_sent = self
                    .open_calls
                    .remove(&number)
                    .is_some_and(|open| open.asked.is_some());
                let late = if was_sent {
                    StoreFault::timed_out(Step::Reply)
                } else {
                    StoreFault::NotReady
                };
                let result = self.results.remove(&number);
                result.unwrap_or_else(|| CallResult::not_sent(late))
            })
            .collect()
    }

    fn begin(&mut self, calls: &[Call], first: u64) -> Vec<Option<CallResult>> {
        self.add(calls, first);
        let wait = COMMON_WAIT.min(self.state.config.command_timeout / 8);
        self.pump(first, self.state.clock.now() + wait);
        let numbers = first..first + calls.len() as u64;
        numbers.map(|number| self.results.remove(&number)).collect()
    }

    fn late_results(&mut self) -> Vec<(u64, CallResult)> {
        if !self.open_calls.is_empty() {
            self.pump(u64::MAX, self.state.clock.now());
        }
        std::mem::take(&mut self.results).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::slots::slot_of;
    use super::super::state::tests::state;
    use super::*;
    use crate::key::Key;
    use crate::script::{Family, LockSpec, Token, Verb, Wait};

    fn acquire(name: &str) -> Call {
        Call {
            spec: LockSpec::any(Family::Mutex),
            key: Key::new("fairlock", name).expect("a name"),
            verb: Verb::Acquire {
                token: Token::new(),
                wait: Wait::Yes,
                params: "3000 0 0 -".into(),
            },
        }
    }

    /// A link that has sent these acquires to the owner of their slots.
    fn link_with(calls: &[Call]) -> ClusterLink {
        let (state, asked) = state();
        let state = Arc::new(state);
        for call in calls {
            state.on_moved(slot_of(&call.key), ("", 7001), &asked);
        }
        let mut link = ClusterLink::new(&state, Arc::new(|| {}));
        link.add(calls, 0);
        assert_eq!(
            numbers(link.collect()),
            (0..calls.len() as u64).collect::<Vec<_>>()
        );
        link
    }

    fn numbers(batches: Vec<(Arc<ClusterNode>, Vec<LinkCall>)>) -> Vec<u64> {
        let calls = batches.into_iter().flat_map(|(_, calls)| calls);
        calls.map(|call| call.number).collect()
    }

    fn refuse(link: &mut ClusterLink, number: u64, code: &str, details: &str) {
        let fault = StoreFault::refused(code, details);
        link.on_reply(LinkReply::Result(number, CallResult::not_sent(fault)));
    }

    /// R4 (lost places): the order of the waiters is that of their acquires.
    #[test]
    fn redirected_acquires_of_one_name_go_one_at_a_time() {
        let mut link = link_with(&[acquire("a"), acquire("a"), acquire("b"), acquire("a")]);
        for number in 0..4 {
            refuse(&mut link, number, "MOVED", "7 10.0.0.3:7002");
        }
        assert_eq!(numbers(link.collect()), [0, 2]);
        assert_eq!(numbers(link.collect()), Vec::<u64>::new());
        // The first goes to another node once more, and keeps its turn.
        refuse(&mut link, 0, "ASK", "7 10.0.0.3:7003");
        assert_eq!(numbers(link.collect()), [0]);
        link.finish(0, CallResult::not_sent(StoreFault::timed_out(Step::Reply)));
        assert_eq!(link.results.keys().copied().collect::<Vec<_>>(), [0, 1, 3]);
    }

    #[test]
    fn acquire_behind_one_that_was_carried_out_goes_next() {
        let mut link = link_with(&[acquire("a"), acquire("a"), acquire("a")]);
        for number in 0..3 {
            refuse(&mut link, number, "MOVED", "7 10.0.0.3:7002");
        }
        assert_eq!(numbers(link.collect()), [0]);
        link.open_calls.remove(&0);
        assert_eq!(numbers(link.collect()), [1]);
    }
}
