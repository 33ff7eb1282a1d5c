//! The protocol's rules where permits implement them in their own way, tested by reading and
//! rewriting the record.

use std::thread;
use std::time::Duration;

use fairlock::{Error, LockManager, LossReason, Misuse, PreviousHolder};

use crate::backend::{Backend, InjectedFault, on_both_stores};
use crate::fixtures::{
    P, SOON, STEADY_TTL as TTL, T, build, manager, server_time, steady, warm_up,
};
use crate::permits::{AnyGuard, PermitWaiters, Permits, Want};
use crate::support::{SLACK, until};

on_both_stores! {
    r9_lapsed_permits_stay_their_holders_until_somebody_clears_them,
    r13_late_or_repeated_permit_messages_harm_no_holder,
    r13_unwanted_permits_are_released_at_once,
    p1_the_next_request_rebuilds_a_lost_record,
}

on_both_stores! {
    redis_with_faults:
    r15_a_repeated_grant_is_believed_for_one_lease
}

fn r9_lapsed_permits_stay_their_holders_until_somebody_clears_them(backend: &Backend) {
    let (ours, other) = (build(steady(backend)), build(steady(backend)));
    // Each case has a name of its own. A guard that lost its lease releases it some time later,
    // which would be a request by another token.
    for (name, want) in [
        ("a", Want::Write),
        ("b", Want::Read),
        ("c", Want::Permits(2, 3)),
    ] {
        let record = Permits::of(backend, name);
        // A renewal extends them, and a release ends them properly.
        let guard = want.take(&ours, name).unwrap();
        record.was_away(TTL);
        guard.renew().unwrap();
        assert!(record.holders()[0].ends > server_time(backend));
        record.was_away(TTL);
        guard.unlock().unwrap();
        let all = if want == Want::Permits(2, 3) {
            Want::Permits(3, 3)
        } else {
            Want::Write
        };
        let next = all.try_take(&other, name).unwrap().expect("all are free");
        assert_ne!(next.previous_holder(), PreviousHolder::Lapsed, "{want:?}");
        // Another token sees them as free, and from then on they are lost.
        record.was_away(TTL);
        let after = all
            .try_take(&ours, name)
            .unwrap()
            .expect("they have lapsed");
        assert_eq!(after.previous_holder(), PreviousHolder::Lapsed, "{want:?}");
        let renewed = next.renew();
        assert!(
            matches!(&renewed, Err(Error::Lost { loss, .. }) if loss.reason == LossReason::Expired),
            "{renewed:?}"
        );
        after
            .renew()
            .expect("reporting the loss leaves the successor alone");
        after.unlock().unwrap();
        record.comes_to_rest();
    }
}

/// The message that reports a grant to its manager, and the channel on which it is published.
fn grant_message(record: &Permits, token: &str) -> (String, String) {
    let entry = record
        .entries()
        .into_iter()
        .find(|entry| entry.starts_with(token))
        .expect("it holds");
    let words: Vec<&str> = entry.split(' ').collect();
    // An entry has the token, end, permits and state; then kind, capacity, fence, ticket, grant
    // time and manager.
    let (fence, at, by) = (words[6], words[8], words[9]);
    let message = format!(
        "permit {token} {fence} {at} {} 0 {}",
        TTL.as_micros(),
        record.key
    );
    (format!("fairlock:grants:{by}"), message)
}

/// A manager handles messages in order. Once it has handled one for an unknown token, it has
/// handled all before it.
#[track_caller]
fn wait_until_handled(backend: &Backend, channel: &str) {
    let record = Permits::of(backend, "after");
    plant(backend, &record, "0123456789abcdef0123456789abcdef");
    let (_, message) = grant_message(&record, "0123456789abcdef0123456789abcdef");
    let _: i64 = backend.query(&["PUBLISH", channel, &message]);
    record.comes_to_rest();
}

/// Writes a record in which an unknown token holds one permit of three.
fn plant(backend: &Backend, record: &Permits, token: &str) {
    let now = server_time(backend);
    let script = "
        local now = ARGV[2] + 0
        redis.call('HSET', KEYS[1], 'k', 'semaphore/1 3', 'n', struct.pack('<I4I4ddddI4', 0, 0, now, 0, 0, 0, 0))
        redis.call('HSET', KEYS[2],
          'p', struct.pack('<ddI4I4I4I4I4I4I4bb', now, now + 60000000, 60000, 60000, 0, 0, 0, 3, 1, -1, 0),
          ARGV[1], struct.pack('<dI4I4I4bb', now + 60000000, 60000, 0, 1, 0, -1)
          .. 'semaphore/1 3 ' .. ARGV[2] .. ' 1 ' .. ARGV[2] .. ' x 60000 0 0 1 host\\t1\\t-\\t')
        for _, key in ipairs(KEYS) do redis.call('PEXPIREAT', key, string.format('%.0f', now / 1000 + 120000)) end
        return 1";
    let command = [
        "EVAL",
        script,
        "2",
        &record.key,
        &record.holders,
        token,
        &now.to_string(),
    ];
    let _: i64 = backend.query(&command);
}

fn r13_late_or_repeated_permit_messages_harm_no_holder(backend: &Backend) {
    let (ours, other) = (manager(backend), manager(backend));
    warm_up(&ours);
    let record = Permits::of(backend, "a");
    let holder = Want::Permits(3, 3).take(&other, "a").unwrap();
    let before = record.holding();
    let mut queue = PermitWaiters::of(backend, "a");
    queue.add(&ours, Want::Permits(2, 3));
    holder.unlock().unwrap();
    let guard = queue.expect_grant(0, P + T + SLACK);
    let token = record
        .holding()
        .into_iter()
        .find(|token| !before.contains(token))
        .expect("it holds");
    let (channel, message) = grant_message(&record, &token);
    until(SOON, "it has subscribed", || {
        backend.query::<u64>(&["PUBLISH", &channel, ""]) == 1
    });
    for _ in 0..3 {
        let _: i64 = backend.query(&["PUBLISH", &channel, &message]);
    }
    for nonsense in [
        "permit",
        "permit ",
        "permit a b c d e f",
        "permit 0123 1 1 1 1 fairlock:{a}",
    ] {
        let _: i64 = backend.query(&["PUBLISH", &channel, nonsense]);
    }
    wait_until_handled(backend, &channel);
    guard.renew().unwrap();
    assert_eq!(record.used(), 2);
    guard.unlock().unwrap();
    // The same after the release, while another manager holds them.
    let next = Want::Permits(3, 3).take(&other, "a").unwrap();
    let _: i64 = backend.query(&["PUBLISH", &channel, &message]);
    wait_until_handled(backend, &channel);
    next.renew().unwrap();
    assert_eq!(record.used(), 3);
    next.unlock().unwrap();
    record.comes_to_rest();
}

fn r13_unwanted_permits_are_released_at_once(backend: &Backend) {
    let ours = manager(backend);
    warm_up(&ours);
    // The manager's id is read from a lock that it holds.
    let known = Want::Permits(1, 3).take(&ours, "known").unwrap();
    let of = Permits::of(backend, "known");
    let (channel, _) = grant_message(&of, of.holding().first().expect("one holds"));
    until(SOON, "it has subscribed", || {
        backend.query::<u64>(&["PUBLISH", &channel, ""]) == 1
    });
    let record = Permits::of(backend, "a");
    plant(backend, &record, "fedcba9876543210fedcba9876543210");
    assert!(Want::Permits(3, 3).try_take(&ours, "a").unwrap().is_none());
    let (_, message) = grant_message(&record, "fedcba9876543210fedcba9876543210");
    let _: i64 = backend.query(&["PUBLISH", &channel, &message]);
    record.comes_to_rest();
    // They are released as unused, because nobody ever used them.
    let all = Want::Permits(3, 3)
        .try_take(&ours, "a")
        .unwrap()
        .expect("they are free");
    assert_eq!(all.previous_holder(), PreviousHolder::Unknown);
    drop((all, known));
}

fn p1_the_next_request_rebuilds_a_lost_record(backend: &Backend) {
    type First = fn(&LockManager, AnyGuard) -> Option<AnyGuard>;
    let firsts: [(&str, u64, First); 6] = [
        ("a release", 1, |_, reader| {
            reader.unlock().map(|()| None).unwrap()
        }),
        ("a drop", 1, |_, reader| {
            drop(reader);
            None
        }),
        ("a try", 2, |mgr, reader| {
            assert!(Want::Write.try_take(mgr, "a").unwrap().is_none());
            Some(reader)
        }),
        ("a wait", 2, |mgr, reader| {
            assert!(
                Want::Write
                    .take_for(mgr, "a", Duration::from_millis(50))
                    .unwrap()
                    .is_none()
            );
            Some(reader)
        }),
        ("a renewal", 2, |mgr, reader| {
            reader.renew().unwrap();
            assert!(Want::Write.try_take(mgr, "a").unwrap().is_none());
            Some(reader)
        }),
        ("another kind", 2, |mgr, reader| {
            let end = mgr.semaphore("a", 3).try_acquire(1);
            assert!(
                matches!(
                    &end,
                    Err(Error::Misused {
                        misuse: Misuse::Kind { .. },
                        ..
                    })
                ),
                "{end:?}"
            );
            assert!(Want::Write.try_take(mgr, "a").unwrap().is_none());
            Some(reader)
        }),
    ];
    let (ours, theirs) = (manager(backend), manager(backend));
    let record = Permits::of(backend, "a");
    for (what, left, first) in firsts {
        let [reader, stays] = [&ours, &theirs].map(|mgr| Want::Read.take(mgr, "a").unwrap());
        let fence = stays.fence();
        let _: i64 = backend.query(&["DEL", &record.key]);
        let reader = first(&ours, reader);
        until(SLACK, &format!("{left} are left after {what}"), || {
            record.used() == left
        });
        stays
            .renew()
            .unwrap_or_else(|e| panic!("after {what}: {e}"));
        drop((reader, stays));
        let writer = Want::Write
            .take_for(&theirs, "a", SOON)
            .unwrap()
            .expect("all readers have gone");
        assert!(writer.fence() > fence, "after {what}");
        writer.unlock().unwrap();
        record.comes_to_rest();
    }
}

/// The reply to a grant is lost, and the server's clock goes back before the request is sent again.
fn r15_a_repeated_grant_is_believed_for_one_lease(backend: &Backend) {
    // The call whose reply is lost keeps the manager's lane.
    let (ours, theirs) = (build(steady(backend)), build(steady(backend)));
    warm_up(&ours);
    // The server must know the script: the lost reply is the grant.
    Want::Read.take(&ours, "warm-r").unwrap().unlock().unwrap();
    for (name, want) in [
        ("a", Want::Write),
        ("b", Want::Read),
        ("c", Want::Permits(2, 3)),
    ] {
        let record = Permits::of(backend, name);
        backend.inject(InjectedFault::ReplyLost);
        let guard = thread::scope(|scope| {
            let taking = scope.spawn(|| want.take(&ours, name).unwrap());
            until(SOON, "it is granted", || !record.holding().is_empty());
            record.clock_went_back(Duration::from_secs(3600));
            let seen = theirs.inspect(name).unwrap().expect("it is held");
            assert!(seen.time_left <= TTL, "{want:?}: {seen:?}");
            taking.join().unwrap()
        });
        assert!(guard.remaining() <= TTL, "{want:?}: {guard:?}");
        guard.renew().unwrap();
        assert!(guard.remaining() <= TTL, "{want:?}: {guard:?}");
        guard.unlock().unwrap();
        record.comes_to_rest();
    }
}
