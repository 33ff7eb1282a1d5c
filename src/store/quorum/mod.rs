//! The store that is a majority of independent nodes (Redlock, with fences).
//!
//! | file | holds |
//! |---|---|
//! | `mod` | [`QuorumStore`]: the store |
//! | `decision` | what the answers of all nodes mean together; pure |
//! | `proposal` | one call, put to all nodes, and what they have answered so far |
//! | `request` | the proposals that a caller waits for, and how it is woken |
//! | `nodes` | all nodes: how a call is sent to them, and again where that helps |
//! | `wait_list` | where callers wait: one of them reads all sockets, for all |
//! | `member` | one node, and how its lanes are opened in the background |
//! | `shared` | the numbers, and what is open on single nodes |
//! | `voters` | which nodes are refused as voters, and the fences that are proposed |
//! | `outstanding` | requests that may still take a lock on a node, and releases without an answer or a decision |
//! | `gaps` | leases that some node lacks, which are renewed soon |
//! | `link` | the renewal thread's connections |

pub(crate) mod decision;
mod gaps;
mod link;
mod member;
mod nodes;
mod outstanding;
mod proposal;
mod request;
mod shared;
#[cfg(all(test, feature = "memory"))]
#[path = "../../../tests/sim/quorum/mod.rs"]
mod simulator;
mod voters;
mod wait_list;

use std::sync::Arc;
use std::time::Duration;

use self::decision::majority_of;
use self::link::QuorumLink;
use self::member::Member;
use self::nodes::{Nodes, Unreachable};
use self::request::PendingRequest;
use self::shared::Shared;
use self::voters::Voters;
use self::wait_list::WaitList;
use super::clock::{Clock, Time};
use super::node::{Identities, Lanes, Node, Role};
use super::{
    Anchor, CallResult, ConnectionWait, Deadlines, Leave, Link, OnResult, ServerSettings, Service,
    Store, StoreFault,
};
use crate::config::Config;
use crate::error::{Error, Result as ApiResult, Step};
use crate::key::Key;
use crate::script::{Call, CallerId};
use crate::stats::Traffic;

/// A majority of independent nodes.
pub(crate) struct QuorumStore {
    shared: Arc<Shared>,
    /// For callers.
    nodes: Arc<Nodes>,
    /// For the renewal thread.
    link_nodes: Arc<Nodes>,
}

impl QuorumStore {
    /// Opens all lanes to all nodes at once. Blocks until each attempt has ended, at most for
    /// the connect timeout. Fails if no majority can be reached, or if a node refuses for good.
    pub(crate) fn connect(
        servers: Vec<ServerSettings>,
        config: &Config,
        caller_id: &Arc<CallerId>,
    ) -> ApiResult<QuorumStore> {
        let clock = Clock::default();
        let started = clock.now();
        let urls = servers.iter().map(ServerSettings::url);
        let identities = Arc::new(Identities::new(urls));
        let node = |(number, server)| {
            let node = Node::new(server, caller_id, &clock, config);
            let node = node.known_among(&identities, number);
            Arc::new(match config.uptime_check {
                true => node.watching_uptime(config.ttl),
                false => node,
            })
        };
        let all: Vec<Arc<Node>> = servers.into_iter().enumerate().map(node).collect();
        let with_lanes = |role: Role, lanes: u32| {
            let wait_list = Arc::new(WaitList::new(clock.clone()).map_err(|error| {
                StoreFault::unavailable(Step::Connect, error).into_error(None, Duration::ZERO)
            })?);
            let member = |node| {
                let of_node = Lanes::posted(node, role, lanes);
                let of_member = Arc::clone(&wait_list);
                let interrupt = Box::new(move || of_member.interrupt());
                Member::new(node, of_node, lanes, interrupt)
            };
            let members = all.iter().map(member).collect();
            Ok::<_, Error>(Nodes::new(members, wait_list))
        };
        let nodes = with_lanes(Role::Lane, config.lanes)?;
        let link_nodes = with_lanes(Role::Renewal, 1)?;
        nodes.stand_in_for_each_other(&link_nodes);
        let voters = Voters::new(clock.clone(), all.clone(), identities, config.ttl);
        let quorum = QuorumStore {
            shared: Arc::new(Shared::new(clock.clone(), all, voters, config)),
            nodes,
            link_nodes,
        };
        quorum
            .open_all(started + config.connect_timeout)
            .map_err(|fault| fault.into_error(None, clock.now() - started))?;
        Ok(quorum)
    }

    /// Opens all lanes to each node, and waits for the outcome of each attempt. A call whose lane is
    /// still closed would be decided without that node.
    fn open_all(&self, until: Time) -> Result<(), StoreFault> {
        let request = Arc::new(PendingRequest::new(Vec::new()));
        for (member, lane) in self.nodes.members.iter().flat_map(Member::all_lanes) {
            member.begin_opening(lane, Some(&request));
        }
        let opened = || self.nodes.members.iter().map(|member| member.all_opened());
        while opened().any(|opened| opened.is_none()) && self.shared.clock.now() < until {
            if request.begin_sleep() {
                request.sleep(&self.shared.clock, until);
            }
        }
        let refused = opened().flatten().find_map(|opened| {
            let fault = opened.err()?;
            (!fault.is_transient()).then_some(fault)
        });
        if let Some(fault) = refused {
            return Err(fault);
        }
        if let Some([one, other]) = self.shared.voters.any_twins() {
            let message = format!(
                "3 or 5 servers, each of its own; {one} and {other} are the same server, which would \
                 have two votes"
            );
            let what = "servers";
            return Err(StoreFault::Unfit { what, message });
        }
        let open = opened()
            .filter(|opened| matches!(opened, Some(Ok(()))))
            .count();
        if open >= majority_of(self.nodes.members.len()) {
            return Ok(());
        }
        // Somebody has to remedy that, so it says more than the number of nodes.
        let faults = || opened().flatten().filter_map(Result::err);
        let is_of_settings = |fault: &StoreFault| {
            matches!(fault, StoreFault::Tls { .. }) || fault.lacks_credentials()
        };
        if let Some(fault) = faults().find(is_of_settings) {
            return Err(fault);
        }
        let nodes = self.shared.addresses.iter().zip(opened());
        let failed: Vec<(&str, StoreFault)> = nodes
            .filter_map(|(address, opened)| {
                let outcome = opened.unwrap_or_else(|| Err(StoreFault::timed_out(Step::Connect)));
                Some((&**address, outcome.err()?))
            })
            .collect();
        let why = failed
            .iter()
            .map(|(at, why)| format!("{at}: {}", why.reason()));
        let text = format!(
            "{open} of {} nodes can be reached: {}",
            self.nodes.members.len(),
            why.collect::<Vec<_>>().join("; ")
        );
        let reasons = failed.iter().map(|(_, why)| why);
        let fault = StoreFault::none_available(Step::Majority, text, reasons);
        let failed: Vec<&str> = failed.iter().map(|(at, _)| *at).collect();
        Err(fault.at(&failed.join(", ").into()))
    }
}

impl Store for QuorumStore {
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
            .min(self.shared.clock.now() + self.shared.config.command_timeout);
        let unreachable = match deadlines.connection {
            ConnectionWait::Never => Unreachable::AreLeftOut,
            ConnectionWait::Until(_) => Unreachable::AreAwaited,
        };
        self.nodes.run(&self.shared, calls, until, unreachable)
    }

    fn send(&self, calls: &[Call], reply_by: Time, leave: &Leave<'_>) -> Vec<Option<CallResult>> {
        let until = reply_by.min(self.shared.clock.now() + self.shared.config.command_timeout);
        let sent: Vec<Result<Arc<PendingRequest>, StoreFault>> = calls
            .iter()
            .map(|call| {
                let call = self.shared.for_nodes(call)?;
                for member in &self.nodes.members {
                    member.lanes.read_due(&call.key);
                }
                let proposal = self.shared.new_proposal(call);
                let request = Arc::new(PendingRequest::new(vec![proposal]));
                let left_out = Unreachable::AreLeftOut;
                self.nodes.send(&self.shared, &request, until, left_out);
                Ok(request)
            })
            .collect();
        let end = |(index, sent): (usize, Result<Arc<PendingRequest>, StoreFault>)| {
            let request = match sent {
                Ok(request) => request,
                Err(fault) => return Some(CallResult::not_sent(fault)),
            };
            self.end_sent(&request, until, || leave(index))
        };
        sent.into_iter().enumerate().map(end).collect()
    }

    fn unread_due(&self) -> Time {
        self.nodes
            .unread_due()
            .min(self.link_nodes.unread_due())
            .min(self.shared.open_releases.next_due())
    }

    fn read_unread(&self) {
        self.nodes.read_unread();
        self.link_nodes.read_unread();
        self.nodes.send_open_releases(&self.shared);
        let now = self.shared.clock.now();
        self.shared.doubts.forget_over(now);
        self.shared.undecided.forget_over(now);
    }

    fn read_all_unread(&self, until: Time) {
        let nobody = Arc::new(PendingRequest::new(Vec::new()));
        loop {
            self.read_unread();
            let now = self.shared.clock.now();
            if self.unread_due() == Time::NEVER || now >= until {
                return;
            }
            let moment = now + READ_STEP;
            self.nodes
                .wait_list
                .wait(&nobody, &self.nodes.members, moment.min(until));
        }
    }

    fn logins_due(&self) -> Time {
        let due = self
            .nodes
            .members
            .iter()
            .map(|member| member.node.login_due());
        due.min().unwrap_or(Time::NEVER)
    }

    fn renew_logins(&self) {
        for member in &self.nodes.members {
            member.node.renew_login();
        }
    }

    fn link(&self, on_ready: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Link> {
        // There is one link.
        let _ = self.shared.waker.set(Arc::clone(&on_ready));
        for member in &self.link_nodes.members {
            member.call_when_ready(&on_ready);
        }
        Box::new(QuorumLink {
            shared: Arc::clone(&self.shared),
            nodes: Arc::clone(&self.link_nodes),
            callers: Arc::clone(&self.nodes),
            first_wait: None,
            look_at: Time::from_nanos(0),
        })
    }

    /// The keys of all nodes, one node after the other. Nodes that do not answer are left out, unless
    /// a majority is missing: a lock that is held is on one of the others.
    fn scan(&self, cursor: u64, pattern: &str) -> Result<(u64, Vec<String>), StoreFault> {
        let nodes = self.nodes.members.len();
        let mut page = ScanPage::parse(cursor);
        let member = &self.nodes.members[page.node.min(nodes - 1)];
        let scanned = self
            .await_open(member)
            .and_then(|()| member.lanes.scan(page.cursor, pattern));
        // Its lane may have another connection now.
        self.nodes.wait_list.interrupt();
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

    /// Nobody waits for a message, so nobody asks whose clock a grant uses.
    fn anchor(&self, _key: &Key) -> Option<Anchor> {
        None
    }

    fn traffic(&self) -> Traffic {
        self.shared.nodes.iter().map(|node| node.traffic()).sum()
    }
}

/// How often [`Store::read_all_unread`] looks whether all is read.
const READ_STEP: Duration = Duration::from_millis(5);

impl QuorumStore {
    /// Leaves a release that was sent, or waits for its result.
    fn end_sent(
        &self,
        request: &Arc<PendingRequest>,
        until: Time,
        leave: impl FnOnce() -> Option<OnResult>,
    ) -> Option<CallResult> {
        let majority = majority_of(self.nodes.members.len());
        let (call, unsent) = request.with(|proposals| {
            proposals[0].stop_sending();
            (proposals[0].call.clone(), proposals[0].not_sent_to())
        });
        let is_written = self.nodes.members.len() - unsent.len() >= majority;
        let on_result = if is_written { leave() } else { None };
        let Some(on_result) = on_result else {
            let left_out = Unreachable::AreLeftOut;
            request.with(|proposals| proposals[0].go_on_sending());
            self.nodes.drive(&self.shared, request, until, left_out);
            return self.nodes.conclude(&self.shared, request).pop();
        };
        for node in unsent {
            self.shared.release_later(node, &call);
        }
        let on_result = self.ending_release(request, call, on_result);
        if let Some((on_result, result)) = request.leave(on_result) {
            on_result(result);
        }
        None
    }

    /// The handler of a release whose caller leaves. It keeps the votes if no majority decides.
    fn ending_release(
        &self,
        request: &Arc<PendingRequest>,
        call: Call,
        on_result: OnResult,
    ) -> OnResult {
        // The request has the handler.
        let (shared, request) = (Arc::clone(&self.shared), Arc::downgrade(request));
        Box::new(move |result| {
            let votes = || {
                let request = request.upgrade();
                let votes =
                    request.map(|request| request.with(|proposals| proposals[0].release_votes()));
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
        let until = self.shared.clock.now() + self.shared.config.command_timeout;
        let request = Arc::new(PendingRequest::new(Vec::new()));
        if member.lanes.is_open(0) {
            return Ok(());
        }
        member.begin_opening(0, Some(&request));
        while member.opened(0).is_none() && self.shared.clock.now() < until {
            if request.begin_sleep() {
                request.sleep(&self.shared.clock, until);
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
