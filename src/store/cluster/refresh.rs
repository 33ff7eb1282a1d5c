//! How the slot map is refreshed: by one thread, which asks one known node after the other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use redis::{Cmd, Value};

use super::slots::{SlotRange, parse_slots};
use super::state::ClusterState;
use crate::error::Step;
use crate::logging::Logger;
use crate::store::clock::Time;
use crate::store::node::{Node, Role};
use crate::store::{Address, StoreFault};

const THREAD: &str = "fairlock-cluster";

/// A refresh goes on to the next node when this part of its time has passed without an answer.
const STEPS: u32 = 8;

/// A node's answer to the question for its map.
struct MapAnswer {
    node: Arc<Node>,
    address: Address,
    reply: Result<Value, StoreFault>,
}

impl ClusterState {
    /// Asks the known nodes for the map until one has answered, and takes it over. A node that does
    /// not answer soon is skipped: the next is asked, too. Blocks until `until` at most.
    ///
    /// The node at `turn` is the first to be asked. So one whose map is old is not always the first.
    pub(super) fn refresh(&self, turn: usize, until: Time) -> Result<(), StoreFault> {
        let mut nodes = self.nodes_to_ask();
        let first = turn % nodes.len().max(1);
        nodes.rotate_left(first);
        let step = (until - self.clock.now()) / STEPS;
        let (sender, answers) = unbounded();
        let asked: Vec<String> = nodes.iter().map(Address::to_string).collect();
        let mut failed = None;
        for address in nodes {
            let node = self.node_at(&address);
            let sender = sender.clone();
            let own = Arc::clone(&node);
            node.ask_in_background(Role::SlotMap, cluster_slots(), move |reply| {
                let node = own;
                // The refresh may be over.
                let _ = sender.send(MapAnswer {
                    node,
                    address,
                    reply,
                });
            })?;
            if let Ok(answer) = answers.recv_timeout(step) {
                match self.take_answer(answer) {
                    Ok(()) => return Ok(()),
                    Err(fault) => failed = failed.or(Some(fault)),
                }
            }
        }
        drop(sender);
        while let Ok(answer) = answers.recv_timeout(until - self.clock.now()) {
            match self.take_answer(answer) {
                Ok(()) => return Ok(()),
                Err(fault) => failed = failed.or(Some(fault)),
            }
        }
        let silent = || StoreFault::timed_out(Step::Connect).at(&asked.join(", ").into());
        Err(failed.unwrap_or_else(silent))
    }

    fn take_answer(&self, answer: MapAnswer) -> Result<(), StoreFault> {
        self.members.count(&answer.node);
        let reply = answer
            .reply
            .map_err(|fault| fault.naming(self.user().as_deref(), "+cluster|slots"));
        let ranges = read_map(reply, &answer.address).map_err(|f| f.at(answer.node.name()))?;
        self.install(&ranges);
        Ok(())
    }
}

fn cluster_slots() -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

fn read_map(
    reply: Result<Value, StoreFault>,
    asked: &Address,
) -> Result<Vec<SlotRange>, StoreFault> {
    let reply = reply.map_err(|fault| match &fault {
        StoreFault::Server { message, .. } if message.contains("cluster support disabled") => {
            StoreFault::Unfit {
                what: "server",
                message: format!("{asked} is no cluster node; use a redis:// URL for it"),
            }
        }
        _ => {
            let needed = format!(
                "which redis-cluster:// needs; for a proxy in front of a cluster use redis://{asked}"
            );
            fault.of_command("CLUSTER SLOTS", &needed)
        }
    })?;
    let ranges = parse_slots(&reply, asked)?;
    if ranges.is_empty() {
        // It has been reset, or has not met the others yet.
        return Err(StoreFault::server(
            "CLUSTERDOWN",
            format!("{asked} knows no owner of any slot"),
        ));
    }
    Ok(ranges)
}

/// Starts the thread. It ends when the state is gone.
pub(super) fn start(state: &Arc<ClusterState>, wanted: Receiver<()>) -> Result<(), StoreFault> {
    let weak = Arc::downgrade(state);
    thread::Builder::new()
        .name(THREAD.to_owned())
        .spawn(move || run(&weak, &wanted))
        .map_err(StoreFault::no_thread)?;
    Ok(())
}

fn run(state: &Weak<ClusterState>, wanted: &Receiver<()>) {
    let mut turn = 0;
    let mut pause = Duration::ZERO;
    loop {
        let since = Instant::now();
        if wanted.recv().is_err() {
            return;
        }
        let Some(state) = state.upgrade() else { return };
        turn += 1;
        // Each refused call wants a refresh, and many may be refused at once. Where calls go round,
        // or the cluster is down, they go on wanting. A refresh costs a connection.
        pause = if since.elapsed() >= state.config.back_off {
            state.config.back_off / 20
        } else {
            (pause * 2).clamp(state.config.back_off / 20, state.config.back_off / 2)
        };
        let timeouts = state.config.command_timeout * 2;
        // The program's logger may panic. Without this thread no map would ever be asked for again.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            match state.refresh(turn, state.clock.now() + timeouts) {
                Ok(()) => {
                    log::debug!(logger: Logger, "the map of the cluster's slots was refreshed")
                }
                Err(fault) => {
                    log::debug!(logger: Logger, "no node has a map of the cluster's slots: {fault}")
                }
            }
        }));
        drop(state);
        thread::sleep(pause);
    }
}
