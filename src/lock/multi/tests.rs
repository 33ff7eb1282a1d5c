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
    let leases = leases.expect("it is there").expect("both are free");
    assert!(leases[1].lose(LossReason::Taken));
    let error = MultiGuard::new(leases, group, &manager).expect_err("b is lost");
    let Error::Lost { loss } = error else {
        panic!("{error}")
    };
    assert_eq!((&*loss.lock, loss.reason), ("b", LossReason::Taken));
    let other = manager.try_lock("a").expect("it is there");
    assert!(other.is_some(), "the one that was not lost is released");
}
