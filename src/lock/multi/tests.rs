use super::*;
use crate::loss::LossReason;
use crate::memory::Memory;

/// The last look at the leases comes before the guard. The renewal thread is silent about a loss
/// in between: only the caller can report it.
#[test]
fn loss_before_the_guard_exists_is_an_error() {
    let manager = LockManager::connect(&Memory::new()).expect("it is there");
    let keys = SortedKeys::new(&manager, ["a", "b"]).expect("two names");
    let (requests, group) = keys
        .requests(&manager, request_to_try, Time::NEVER)
        .expect("they fit");
    let leases = manager.engine().try_acquire_all(&requests);
    let GroupOutcome::Granted(leases) = leases.expect("it is there") else {
        panic!("both are free")
    };
    leases[1].lose(LossReason::NotOwner);
    let error = MultiGuard::new(leases, group, &manager).expect_err("b is lost");
    let Error::Lost { loss } = error else {
        panic!("{error}")
    };
    assert_eq!((&*loss.lock, loss.reason), ("b", LossReason::NotOwner));
    let other = manager.try_lock("a").expect("it is there");
    assert!(other.is_some(), "the one that was not lost is released");
}

/// Another thread may read the statistics as soon as it has the message.
#[test]
fn loss_is_counted_when_its_message_comes() {
    let memory = Memory::new();
    let [ours, theirs] = [(); 2].map(|()| LockManager::connect(&memory).expect("it is there"));
    for lost in (1..=1000).step_by(2) {
        let several = ours.lock_all(["a", "b"]).expect("both are free");
        let fence = several.fence("a").expect("it is one of them");
        assert!(theirs.force_release("a", fence).expect("it is there"));
        let _ = several.renew();
        several.lost().recv().expect("a is lost");
        assert_eq!(ours.stats().losses(), lost, "several");
        let one = ours.lock("c").expect("it is free");
        assert!(theirs.force_release("c", one.fence()).expect("it is there"));
        let _ = one.renew();
        one.lost().recv().expect("it is lost");
        assert_eq!(ours.stats().losses(), lost + 1, "one");
    }
}
