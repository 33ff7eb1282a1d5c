//! Lanes that are open log in anew, before their credentials end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::{Cmd, Value};

use super::NodeLane;
use crate::store::StoreFault;
use crate::store::node::Node;
use crate::store::node::connection::refusal;
use crate::store::node::counts::Counts;
use crate::store::node::lane::Unread;

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
    let unread = LoginAnew {
        auth,
        counts: Arc::clone(counts),
        on_reply: Box::new(login.on_reply()),
    };
    guard.post(0, Box::new(unread));
    guard.write();
}

/// An AUTH whose reply nobody waits for.
struct LoginAnew {
    auth: Cmd,
    counts: Arc<Counts>,
    on_reply: Box<dyn Fn(Result<Value, StoreFault>) + Send>,
}

impl Unread for LoginAnew {
    fn is_to_resend(&mut self, _: &Value) -> bool {
        false
    }

    /// The next connection logs in by itself.
    fn may_resend(&mut self) -> bool {
        false
    }

    fn write(&mut self, bytes: &mut Vec<u8>) {
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        self.auth.write_packed_command(bytes);
    }

    fn finish(self: Box<Self>, outcome: Result<Value, StoreFault>) {
        if let Ok(reply) = outcome {
            (self.on_reply)(refusal(reply));
        }
    }
}
