//! How long the client repeats an abandon: until no copy of the acquire, however late, can have
//! left a lease. In memory alone, because the times are hours.

use std::time::Duration;

use fairlock::{
    Error, LockManager, LockOptions,
    memory::{Fault, Memory},
};

use super::SOON;
use crate::reply::{Commands, Reply};
use crate::support::until;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A manager whose acquire is closed three times, so it abandons the token at once. Until `HOUR`
/// has passed, a copy of the acquire could still arrive. Then come these faults.
fn abandoning(memory: &Memory, options: LockOptions, then: Fault) -> LockManager {
    let mgr = LockManager::builder(memory)
        .options(LockOptions::new().ttl(DAY))
        .command_timeout(HOUR)
        .check_period(HOUR)
        .horizon(4 * HOUR)
        .outage_limit(DAY)
        .build()
        .unwrap()
        .with(options);
    for _ in 0..3 {
        memory.inject(Fault::Disconnect);
    }
    memory.inject(then);
    let end = mgr.try_lock("k");
    assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}");
    until(SOON, "the first release had its fault", || {
        !format!("{memory:?}").contains("Lose") && !format!("{memory:?}").contains("Refuse")
    });
    mgr
}

/// R7: a copy that takes the lock as late as one command timeout after the abandon began leaves a
/// lease for a ttl from then.
#[test]
fn r7_an_unanswered_abandon_outlasts_a_late_copys_lease() {
    let memory = Memory::new();
    let _ours = abandoning(&memory, LockOptions::new(), Fault::LoseRequest);
    memory.go_down();
    memory.advance(HOUR);
    memory.advance(DAY - HOUR + HOUR / 2);
    memory.come_back();
    let owned = || memory.command(&["HEXISTS", "fairlock:{k}", "o"]) == Reply::Int(1);
    assert!(owned());
    memory.advance(Duration::from_secs(1));
    assert!(!owned(), "it was given up before a late lease could lapse");
}

/// R7: an answer counts if its release was sent after the last moment for a late copy, however
/// short the lease is.
#[test]
fn r7_a_short_leases_abandon_outlasts_its_late_copies() {
    let memory = Memory::new();
    let short = LockOptions::new().fixed_lease(Duration::from_millis(10));
    let refusal = Fault::Refuse("LOADING Redis is loading the dataset in memory".to_owned());
    let ours = abandoning(&memory, short, refusal);
    memory.advance(Duration::from_secs(1));
    let answered = ours.stats().requests;
    memory.advance(HOUR);
    assert_eq!(
        ours.stats().requests,
        answered + 1,
        "a copy could arrive after the only answer"
    );
}
