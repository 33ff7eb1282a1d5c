//! A master takes over from another one.

use std::thread;
use std::time::Instant;

use super::common::{P, SOON, T, manager, moment_of_change};
use crate::sentinel_set::{FAILOVER_WITHIN, SentinelSet};
use crate::support::{SLACK, until};

#[test]
fn lock_is_granted_soon_after_sentinels_name_the_new_master() {
    let set = SentinelSet::start();
    let mgr = manager(&set);
    let before = mgr.lock("a").unwrap();
    let fence = before.fence();
    before.unlock().unwrap();
    let old = &set.nodes[0];
    let killed = Instant::now();
    old.kill();
    let (named, granted) = thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let guard = mgr.lock("a").unwrap();
            assert!(guard.fence() > fence);
            Instant::now()
        });
        let (named, _) = moment_of_change(&set, old);
        (named, waits.join().unwrap())
    });
    let ours = granted.saturating_duration_since(named);
    println!("sentinels: {:?}, ours: {ours:?}", named - killed);
    assert!(ours <= P + SLACK, "{ours:?}");
}
