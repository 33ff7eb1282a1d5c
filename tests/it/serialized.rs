//! The serialized form of what the crate reports: the feature `serde`. Scripts and dashboards read
//! it, so the texts here must not change. On no store, but for what one server shows: a form does not
//! depend on where a value came from.

use std::time::Duration;

use fairlock::{
    LockManager, LockOptions, LossReason, PreviousHolder,
    inspect::{Kind, LockInfo, LockState, Party},
    memory::Memory,
};
use proptest::test_runner::TestRunner;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{from_str, to_string};

use crate::support::Server;

const HOLDER: &str = r#"{"manager":"6f1c","host":"web-1","pid":4711,"thread":"main","thread_id":4712,"label":"nightly","since":1700000000.123456,"ttl":10.0,"fixed_lease":false,"fence":1700000000123456,"permits":2,"shared":false,"lapsed_for":null,"last_heard":null,"hands_over":false,"keeps":false}"#;
const LAPSED: &str = r#"{"manager":"77aa","host":"web-2","pid":1,"thread":"-","thread_id":1,"label":"","since":1699999999.0,"ttl":0.25,"fixed_lease":true,"fence":1699999999000000,"permits":1,"shared":false,"lapsed_for":7.000001,"last_heard":null,"hands_over":false,"keeps":false}"#;
const WAITER: &str = r#"{"manager":"77aa","host":"web-2","pid":1,"thread":"-","thread_id":1,"label":"","since":1700000001.5,"ttl":30.0,"fixed_lease":false,"fence":null,"permits":1,"shared":false,"lapsed_for":null,"last_heard":0.5,"hands_over":false,"keeps":false}"#;

fn lock_info() -> String {
    format!(
        r#"{{"name":"jobs","seen_at":1700000002.5,"kind":{{"semaphore":{{"permits":3}}}},"state":"held","fence":1700000000123456,"holder":{HOLDER},"holders":[{HOLDER}],"lapsed":[{LAPSED}],"time_left":9.876543,"waiters":1,"queue":[{WAITER}],"previous_holder":"lapsed","served":17}}"#
    )
}

/// The value that a text stands for. It is written as the same text. Only the program and its tests
/// read values: see the feature `unstable-servers`.
fn read<T: Serialize + DeserializeOwned>(text: &str) -> T {
    let value: T = from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert_eq!(to_string(&value).unwrap(), text);
    value
}

#[test]
fn a_lock_has_this_form_for_good() {
    let info: LockInfo = read(&lock_info());
    assert_eq!((&*info.name, info.state), ("jobs", LockState::Held));
    assert_eq!(info.kind.to_string(), "semaphore of 3 permits");
    assert_eq!(info.time_left, Duration::from_micros(9_876_543));
    let fences = [&info.holder.unwrap(), &info.holders[0]].map(|party| party.fence);
    assert_eq!(fences, [Some(info.fence); 2]);
    assert_eq!(
        info.lapsed[0].lapsed_for,
        Some(Duration::from_micros(7_000_001))
    );
    assert_eq!(info.queue[0].fence, None);
    assert_eq!(info.previous_holder, PreviousHolder::Lapsed);
    assert_eq!(info.served, 17);
}

#[test]
fn every_variant_has_a_name() {
    assert_eq!(read::<Kind>(r#""mutex""#), Kind::Mutex);
    assert_eq!(read::<Kind>(r#""rw_lock""#), Kind::RwLock);
    assert_eq!(
        read::<Kind>(r#"{"other":"gate"}"#),
        Kind::Other("gate".into())
    );
    assert!(matches!(
        read(r#"{"semaphore":{"permits":3}}"#),
        Kind::Semaphore { permits: 3, .. }
    ));
    for (text, state) in [
        (r#""held""#, LockState::Held),
        (r#""detached""#, LockState::Detached),
        (r#""cooling""#, LockState::Cooling),
        (r#""lapsed""#, LockState::Lapsed),
        (r#""free""#, LockState::Free),
    ] {
        assert_eq!(read::<LockState>(text), state);
    }
    for (text, how) in [
        (r#""unknown""#, PreviousHolder::Unknown),
        (r#""released""#, PreviousHolder::Released),
        (r#""lapsed""#, PreviousHolder::Lapsed),
        (r#""forced""#, PreviousHolder::Forced),
    ] {
        assert_eq!(read::<PreviousHolder>(text), how);
    }
    let written = |reason| to_string(&reason).unwrap();
    assert_eq!(written(LossReason::Expired), r#""expired""#);
    assert_eq!(written(LossReason::NotOwner), r#""not_owner""#);
    assert_eq!(written(LossReason::MaxHold), r#""max_hold""#);
    assert_eq!(written(LossReason::Forced), r#""forced""#);
    assert_eq!(written(LossReason::Shutdown), r#""shutdown""#);
}

#[test]
fn a_loss_has_this_form_for_good() {
    let mgr = LockManager::connect(&Memory::new()).unwrap();
    let guard = mgr.lock("é \"1\"").unwrap();
    let lost = guard.lost().clone();
    mgr.shutdown(Duration::ZERO).unwrap();
    let loss = lost.recv().unwrap();
    let text = format!(
        r#"{{"lock":"é \"1\"","fence":{},"reason":"shutdown"}}"#,
        guard.fence()
    );
    assert_eq!(to_string(&loss).unwrap(), text);
}

#[test]
fn every_microsecond_survives() {
    let since_1970 = 0..4_102_444_800_000_000_u64;
    TestRunner::default()
        .run(&(since_1970, 0..86_400_000_000_u64), |(since, length)| {
            let mut party: Party = from_str(LAPSED).unwrap();
            party.since = std::time::SystemTime::UNIX_EPOCH + Duration::from_micros(since);
            party.ttl = Duration::from_micros(length);
            party.lapsed_for = Some(Duration::from_micros(since));
            let text = to_string(&party).unwrap();
            let again: Party = from_str(&text).unwrap();
            assert_eq!((again.since, again.ttl), (party.since, party.ttl), "{text}");
            assert_eq!(again.lapsed_for, party.lapsed_for, "{text}");
            Ok(())
        })
        .unwrap();
}

#[test]
fn what_a_server_shows_has_the_form() {
    let server = Server::start();
    let manager = LockManager::connect(server.url()).unwrap();
    let labelled = manager.with(LockOptions::new().label("a \"quoted\" label ⌂"));
    let _guard = labelled.lock("n").unwrap();
    let _waiter = manager.enqueue("n").unwrap();
    let _permits = manager.semaphore("s", 3).acquire(2).unwrap();
    let _reader = manager.rw_lock("r").read().unwrap();
    for name in ["n", "s", "r"] {
        let info = manager.inspect(name).unwrap().expect("it is held");
        let text = to_string(&info).unwrap();
        assert!(!text.contains('\n'), "{text}");
        let _: LockInfo = read(&text);
    }
    let text = to_string(&manager.stats()).unwrap();
    assert!(text.contains("\"held\":3"), "{text}");
}
