//! What a lock on a quorum is.

use super::set::Set;

#[test]
fn one_client_holds_a_lock_on_all_nodes() {
    let set = Set::start(3);
    let (a, b) = (set.manager(), set.manager());
    let guard = a.lock("x").expect("it is free");
    set.await_owners("x", 3);
    assert!(b.try_lock("x").expect("all nodes answer").is_none());
    let fence = guard.fence();
    drop(guard);
    set.await_owners("x", 0);
    let guard = b.try_lock("x").expect("all nodes answer").expect("free");
    assert!(guard.fence() > fence);
    guard.unlock().expect("it was held");
}
