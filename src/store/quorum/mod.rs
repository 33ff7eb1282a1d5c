//! The store that is a majority of independent nodes (Redlock, with fences).
//!
//! | file | holds |
//! |---|---|
//! | `mod` | [`Quorum`]: the store |
//! | `decision` | what the answers of all nodes mean together; pure |
//! | `ballot` | one call, put to all nodes, and what they have answered so far |
//! | `caller` | a thread that waits for some ballots, and how it is woken |
//! | `panel` | the ways to all nodes: how a call is sent to them, and again where that helps |
//! | `desk` | where callers wait: one of them reads all sockets, for all |
//! | `member` | one node, and how its lanes are opened in the background |
//! | `shared` | the numbers, and which nodes are refused as voters |
//! | `fences` | the fences that are proposed, and clocks that do not agree |
//! | `outstanding` | requests that may still take a lock on a node, and releases without an answer or a decision |
//! | `gaps` | leases that some node lacks, which are renewed soon |
//! | `link` | the renewal thread's connections |

mod ballot;
mod caller;
pub(crate) mod decision;
mod desk;
mod fences;
mod gaps;
mod link;
mod member;
mod outstanding;
mod panel;
mod shared;
#[cfg(all(test, feature = "memory"))]
#[path = "../../../tests/sim/quorum/mod.rs"]
mod simulator;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use self::caller::Caller;
use self::decision::majority_of;
use self::desk::Desk;
use self::link::QuorumLink;
use self::member::Member;
use self::panel::{Panel, Unreachable};
use self::shared::Shared;
use super::clock::{Clock, Time};
use super::node::{ExamTime, Identities, Lanes, Node, Role, Subject, examine_masters};
use super::{
    Anchor, CallResult, ChannelEvent, ConnectionWait, Deadlines, Link, OnResult, ServerSettings,
    Service, Store, StoreFault,
};
use crate::config::Config;
use crate::diagnosis::facts::{Deployment, Facts};
use crate::error::{Error, Result as ApiResult, Step};
use crate::key::Key;
use crate::script::{Call, CallerId, LockSpec};
use crate::stats::Traffic;

/// A majority of independent nodes.
pub(crate) struct Quorum {
    shared: Arc<Shared>,
    /// For callers.
    panel: Arc<Panel>,
    /// For the renewal thread.
    link_panel: Arc<Panel>,
}

impl Quorum {
    /// Opens all lanes to all nodes at once. Blocks until each attempt has ended, at most for
    /// the connect timeout. Fails if no majority can be reached, or if a node refuses for good.
    pub(crate) fn connect(
        servers: Vec<ServerSettings>,
        config: &Config,
        caller_id: &Arc<CallerId>,
    ) -> ApiResult<Quorum> {
        let clock = Clock::default();
        let started = clock.now();
        let urls = servers.iter().map(ServerSettings::url);
        let identities = Arc::new(Identities::new(urls));
        let node = |(number, server)| {
            let node = Node::new(
                server,
                Arc::clone(caller_id),
                clock.clone(),
                config.connect_timeout,
                config.command_timeout,
            );
            let node = node.known_among(&identities, number);
            Arc::new(match config.uptime_check {
                true => node.watching_uptime(config.ttl),
                false => node,
            })
        };
        let nodes: Vec<Arc<Node>> = servers.into_iter().enumerate().map(node).collect();
        let panel = |role: Role, lanes: u32| {
            let desk = Arc::new(Desk::new(clock.clone()).map_err(|error| {
                StoreFault::unavailable(Step::Connect, error).into_error(None, Duration::ZERO)
            })?);
            let member = |node| {
                let of_node = Lanes::posted(node, role, lanes, config.check_period);
                let of_member = Arc::clone(&desk);
                let interrupt = Box::new(move || of_member.interrupt());
                Member::new(node, of_node, lanes, interrupt, config.back_off)
            };
            let members = nodes.iter().map(member).collect();
            Ok::<_, Error>(Arc::new(Panel { members, desk }))
        };
        let (panel, link_panel) = (panel(Role::Lane, config.lanes)?, panel(Role::Renewal, 1)?);
        let quorum = Quorum {
            shared: Arc::new(Shared::new(clock.clone(), nodes, identities, config)),
            panel,
            link_panel,
        };
        quorum
            .open_all(started + config.connect_timeout)
            .map_err(|fault| fault.into_error(None, clock.now() - started))?;
        Ok(quorum)
    }

    /// Opens all lanes to each node, and waits for the outcome of each attempt. A call whose lane is
    /// still closed would be decided without that node.
    fn open_all(&self, until: Time) -> Result<(), StoreFault> {
        let caller = Arc::new(Caller::new(Vec::new()));
        for (member, lane) in self.panel.members.iter().flat_map(Member::all_lanes) {
            member.begin_opening(lane, Some(&caller));
        }
        let opened = || self.panel.members.iter().map(|member| member.all_opened());
        while opened().any(|opened| opened.is_none()) && self.shared.clock.now() < until {
            if caller.begin_sleep() {
                caller.sleep(&self.shared.clock, until);
            }
        }
        let refused = opened().flatten().find_map(|opened| {
            let fault = opened.err()?;
            (!fault.is_transient()).then_some(fault)
        });
        if let Some(fault) = refused {
            return Err(fault);
        }
        if let Some([one, other]) = self.shared.identities.any_twins() {
            let message = format!(
                "3 or 5 servers, each of its own; {one} and {other} are the same server, which would \
                 have two votes"
            );
            let what = "servers".to_owned();
            return Err(StoreFault::Unfit { what, message });
        }
        let open = opened()
            .filter(|opened| matches!(opened, Some(Ok(()))))
            .count();
        if open >= majority_of(self.panel.members.len()) {
            return Ok(());
        }
        // Somebody has to remedy that, so it says more than the number of nodes.
        let faults = || opened().flatten().filter_map(Result::err);
        if let Some(fault) = faults().find(|fault| matches!(fault, StoreFault::Tls { .. })) {
            return Err(fault);
        }
        let why = |(address, opened): (&Arc<str>, Option<Result<(), StoreFault>>)| {
            let fault = opened.map_or(Some(StoreFault::timed_out(Step::Connect)), Result::err);
            fault.map(|fault| format!("{address}: {}", fault.reason()))
        };
        let nodes = || self.shared.addresses.iter().zip(opened());
        let failed: Vec<&str> = nodes()
            .filter(|(_, opened)| !matches!(opened, Some(Ok(()))))
            .map(|(address, _)| &**address)
            .collect();
        let why: Vec<String> = nodes().filter_map(why).collect();
        let text = format!(
            "{open} of {} nodes can be reached: {}",
            self.panel.members.len(),
            why.join("; ")
        );
        let fault = StoreFault::unavailable(Step::Majority, text);
        Err(fault.at(&failed.join(", ").into()))
    }
}

impl Store for Quorum {
    fn clock(&self) -> Clock {
        self.shared.clock.clone()
    }

    fn service(&self) -> Service {
        Service::MUTEXES
    }

    /// One command timeout in all: the nodes that have no open connection by then do not vote.
    fn run(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult> {
        let until = deadlines
            .reply_by
            .min(self.shared.clock.now() + self.shared.command_timeout);
        let unreachable = match deadlines.connection {
            ConnectionWait::Never => Unreachable::AreLeftOut,
            ConnectionWait::Until(_) => Unreachable::AreAwaited,
        };
        self.panel.run(&self.shared, calls, until, unreachable)
    }

    fn send(
        &self,
        calls: &[Call],
        reply_by: Time,
        leave: &dyn Fn(usize) -> Option<OnResult>,
    ) -> Vec<Option<CallResult>> {
        let until = reply_by.min(self.shared.clock.now() + self.shared.command_timeout);
        let sent: Vec<Result<Arc<Caller>, StoreFault>> = calls
            .iter()
            .map(|call| {
                let call = self.shared.for_nodes(call)?;
                for member in &self.panel.members {
                    member.lanes.read_due(&call.key);
                }
                let ballot = self.shared.new_ballot(call);
                let caller = Arc::new(Caller::new(vec![ballot]));
                let left_out = Unreachable::AreLeftOut;
                self.panel.send(&self.shared, &caller, until, left_out);
                Ok(caller)
            })
            .collect();
        let end = |(index, sent): (usize, Result<Arc<Caller>, StoreFault>)| {
            let caller = match sent {
                Ok(caller) => caller,
                Err(fault) => return Some(CallResult::not_sent(fault)),
            };
            self.end_sent(&caller, until, || leave(index))
        };
        sent.into_iter().enumerate().map(end).collect()
    }

    fn unread_due(&self) -> Time {
        self.panel
            .unread_due()
            .min(self.link_panel.unread_due())
            .min(self.shared.open_releases.next_due())
    }

    fn read_unread(&self) {
        self.panel.read_unread();
        self.link_panel.read_unread();
        self.panel.send_open_releases(&self.shared);
        let now = self.shared.clock.now();
        self.shared.doubts.forget_moot(now);
        self.shared.undecided.forget_moot(now);
    }

    fn read_all_unread(&self, until: Time) {
        let nobody = Arc::new(Caller::new(Vec::new()));
        loop {
            self.read_unread();
            let now = self.shared.clock.now();
            if self.unread_due() == Time::NEVER || now >= until {
                return;
            }
            let moment = now + READ_STEP;
            self.panel
                .desk
                .wait(&nobody, &self.panel.members, moment.min(until));
        }
    }

    fn logins_due(&self) -> Time {
        let due = self
            .panel
            .members
            .iter()
            .map(|member| member.node.login_due());
        due.min().unwrap_or(Time::NEVER)
    }

    fn renew_logins(&self) {
        for member in &self.panel.members {
            member.node.renew_login();
        }
    }

    fn link(&self, on_ready: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Link> {
        // There is one link.
        let _ = self.shared.waker.set(Arc::clone(&on_ready));
        for member in &self.link_panel.members {
            member.call_when_ready(&on_ready);
        }
        Box::new(QuorumLink {
            shared: Arc::clone(&self.shared),
            panel: Arc::clone(&self.link_panel),
            callers: Arc::clone(&self.panel),
            first_wait: None,
            looked_at: Time::from_nanos(0),
        })
    }

    /// There is no queue, so nobody subscribes.
    fn listen(
        &self,
        _channel: &str,
        _check_every: Duration,
        _is_awaited: &dyn Fn() -> bool,
        _on_event: &mut dyn FnMut(ChannelEvent<'_>) -> ControlFlow<()>,
    ) -> Result<(), StoreFault> {
        Err(StoreFault::NotReady)
    }

    fn poke(&self, _channel: &str, _by: Time) {}

    /// The keys of all nodes, one node after the other. Nodes that do not answer are left out, unless
    /// a majority is missing: a lock that is held is on one of the others.
    fn scan(&self, cursor: u64, pattern: &str) -> Result<(u64, Vec<String>), StoreFault> {
        let nodes = self.panel.members.len();
        let mut page = ScanPage::parse(cursor);
        let member = &self.panel.members[page.node.min(nodes - 1)];
        let scanned = self
            .await_open(member)
            .and_then(|()| member.lanes.scan(page.cursor, pattern));
        // Its lane may have another connection now.
        self.panel.desk.interrupt();
        let keys = match scanned {
            Ok((next, keys)) => {
                page.cursor = next;
                keys
            }
            Err(fault) => {
                page.left_out += 1;
                if page.left_out >= majority_of(nodes) {
                    return Err(fault);
                }
                page.cursor = 0;
                Vec::new()
            }
        };
        if page.cursor == 0 {
            page.node += 1;
        }
        let is_last = page.node == nodes;
        Ok((if is_last { 0 } else { page.number() }, keys))
    }

    fn examine(&self, config: &Config) -> Facts {
        let subject = |node: &Arc<Node>| Subject {
            node: Arc::clone(node),
            key: Key::for_diagnosis(&config.prefix, 0),
            spec: LockSpec::QUORUM,
            listener: None,
        };
        let subjects: Vec<Subject> = self.shared.nodes.iter().map(subject).collect();
        Facts {
            deployment: Deployment::Quorum,
            sentinels: Vec::new(),
            nodes: examine_masters(&subjects, &ExamTime::new(&self.shared.clock, config)),
        }
    }

    /// Nobody waits for a message, so nobody asks whose clock a grant goes by.
    fn anchor(&self, _key: &Key) -> Option<Anchor> {
        None
    }

    fn traffic(&self) -> Traffic {
        self.shared.nodes.iter().map(|node| node.traffic()).sum()
    }
}

/// How often [`Store::read_all_unread`] looks whether all is read.
const READ_STEP: Duration = Duration::from_millis(5);

impl Quorum {
    /// Leaves a release that was sent, or waits for its result.
    fn end_sent(
        &self,
        caller: &Arc<Caller>,
        until: Time,
        leave: impl FnOnce() -> Option<OnResult>,
    ) -> Option<CallResult> {
        let majority = majority_of(self.panel.members.len());
        let (call, unsent) = caller.with(|ballots| {
            ballots[0].stop_sending();
            (ballots[0].call.clone(), ballots[0].not_sent_to())
        });
        let is_written = self.panel.members.len() - unsent.len() >= majority;
        let on_result = if is_written { leave() } else { None };
        let Some(on_result) = on_result else {
            let left_out = Unreachable::AreLeftOut;
            caller.with(|ballots| ballots[0].go_on_sending());
            self.panel.drive(&self.shared, caller, until, left_out);
            return self.panel.conclude(&self.shared, caller).pop();
        };
        for node in unsent {
            self.shared.release_later(node, &call);
        }
        let on_result = self.ending_release(caller, call, on_result);
        if let Some((on_result, result)) = caller.leave(on_result) {
            on_result(result);
        }
        None
    }

    /// The handler of a release whose caller leaves. It keeps the votes if no majority decides.
    fn ending_release(&self, caller: &Arc<Caller>, call: Call, on_result: OnResult) -> OnResult {
        // The caller has the handler.
        let (shared, caller) = (Arc::clone(&self.shared), Arc::downgrade(caller));
        Box::new(move |result| {
            let votes = || {
                let caller = caller.upgrade();
                let votes = caller.map(|caller| caller.with(|ballots| ballots[0].release_votes()));
                let mut votes = votes.unwrap_or_default();
                // The renewal thread may have sent a copy to the others by now.
                for vote in &mut votes {
                    vote.copies = vote.copies.max(1);
                }
                votes
            };
            shared.end_release(&call, &result, votes);
            on_result(result);
        })
    }

    /// Waits until the first lane of a node is open.
    fn await_open(&self, member: &Arc<Member>) -> Result<(), StoreFault> {
        let until = self.shared.clock.now() + self.shared.command_timeout;
        let caller = Arc::new(Caller::new(Vec::new()));
        if member.lanes.is_open(0) {
            return Ok(());
        }
        member.begin_opening(0, Some(&caller));
        while member.opened(0).is_none() && self.shared.clock.now() < until {
            if caller.begin_sleep() {
                caller.sleep(&self.shared.clock, until);
            }
        }
        member
            .opened(0)
            .unwrap_or_else(|| Err(StoreFault::timed_out(Step::Connect)))
    }
}

/// Where a page of keys begins: the node that is scanned, how many nodes were left out before it,
/// and that node's own cursor.
struct ScanPage {
    node: usize,
    left_out: usize,
    cursor: u64,
}

impl ScanPage {
    /// More nodes than a quorum has.
    const NODES: u64 = 8;

    fn parse(number: u64) -> ScanPage {
        let rest = number / ScanPage::NODES;
        ScanPage {
            node: (number % ScanPage::NODES) as usize,
            left_out: (rest % ScanPage::NODES) as usize,
            cursor: rest / ScanPage::NODES,
        }
    }

    fn number(&self) -> u64 {
        let rest = self.cursor * ScanPage::NODES + self.left_out as u64;
        rest * ScanPage::NODES + self.node as u64
    }
}
