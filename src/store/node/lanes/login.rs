//! Lanes that are open log in anew, before their credentials end.

use std::sync::Arc;

use redis::Value;

use super::NodeLane;
use crate::store::StoreFault;
use crate::store::node::connection::refusal;
use crate::store::node::unread::PostedCommand;
use crate::store::node::{Counts, Node};

/// Has these lanes log in anew, each time the login of their node is renewed.
pub(super) fn log_in_with_node(node: &Node, lanes: &Arc<[NodeLane]>) {
    let lanes = Arc::downgrade(lanes);
    let counts = Arc::clone(&node.counts);
    node.login.on_renewal(move || {
        let Some(lanes) = lanes.upgrade() else {
            return false;
        };
        lanes.iter().for_each(|lane| log_in_anew(lane, &counts));
        true
    });
}

/// Sends newer credentials over a lane. They go between two calls, and nobody waits for the reply.
fn log_in_anew(lane: &NodeLane, counts: &Arc<Counts>) {
    let Some(mut guard) = lane.if_open() else {
        return;
    };
    let Some(login) = &mut guard.connected().login else {
        return;
    };
    let Some(auth) = login.take_anew() else {
        return;
    };
    let on_reply = login.on_reply();
    // If the connection ends, the next one logs in by itself.
    let on_reply = move |outcome: Result<Value, StoreFault>| {
        if let Ok(reply) = outcome {
            on_reply(refusal(reply));
        }
    };
    guard.post(0, PostedCommand::new(auth, counts, on_reply));
    guard.write();
}
