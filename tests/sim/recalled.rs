//! A kept lock that others want, while the renewal thread has yet to send its release.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Handovers, Request};
use crate::key::Key;
use crate::local::{GuardEnd, SteppedManager, TryStart};
use crate::memory::Memory;
use crate::options::LockOptions;
use crate::script::LockSpec;
use crate::setting::LOCAL_HANDOVERS;

#[test]
fn caller_releases_what_was_recalled_before_it_asks() {
    let manager = SteppedManager::on_memory(&Memory::new());
    let engine = manager.engine();
    manager.note_proof(engine.now());
    let key = Key::new("fairlock", "a").expect("a good name");
    let options = LockOptions::new().keep_idle(Duration::from_secs(3));
    let handovers = Handovers {
        most: 0,
        spare_fences: LOCAL_HANDOVERS.most,
        hears: true,
        keep: options.keep_time(),
        shared_as: 2,
    };
    let request = |handovers| {
        let key = key.clone();
        Arc::new(Request::with_handovers(
            LockSpec::MUTEX,
            key,
            &options,
            1,
            handovers,
        ))
    };
    let keeps = request(handovers);
    let TryStart::Asks(of_line) = manager.begin_try_in_line(&keeps) else {
        panic!("nobody has it");
    };
    let granted = engine.try_acquire(&of_line).expect("it is answered");
    let turn = manager.end_try(&keeps, granted).expect("it is free");
    let fence = turn.renewed_lease().fence();
    assert!(manager.begin_release(&turn, GuardEnd::Drop).is_none());
    assert_eq!(manager.kept(&key).len(), 1, "it is not kept");
    manager.on_message(&format!("wanted {fence} {}", key.record()));
    assert!(manager.kept(&key).is_empty(), "it is kept although wanted");
    // No thread has sent the release: nobody plays the renewal thread here.
    manager.make_way(&key);
    let other = request(Handovers::NONE);
    let other = engine.try_acquire(&other).expect("it is answered");
    assert!(other.is_some(), "its own process was in its way");
}
