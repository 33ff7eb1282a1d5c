//! The support type works.

use crate::sentinel_set::SentinelSet;

#[test]
fn killed_master_is_replaced() {
    let set = SentinelSet::start();
    let old = &set.nodes[0];
    old.kill();
    let new = set.await_other_master(&set.all(), old);
    set.await_named(&set.all(), new);
}
