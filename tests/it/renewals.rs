//! Renewals of many mutexes that go together, when their requests or replies are lost, and when the
//! server forgets the script or refuses one of the keys. On Redis alone, where a proxy selects the
//! exact request.

use std::thread;

use fairlock::{LockGuard, LockManager, LossReason};

use crate::fixtures::{SOON, STEADY_TTL as TTL, build, steady, warm_up};
use crate::sums::Sums;
use crate::support::proxy::ProxyFault;
use crate::support::scripted_server::{is, next_command};
use crate::support::{Proxy, SLACK, Server, until};

/// So many that one call does not renew them all.
pub(crate) const LOCKS: u64 = 70;

pub(crate) fn hold_many(manager: &LockManager) -> Vec<LockGuard> {
    let lock = |number| manager.lock(format!("many-{number}"));
    let locks = (0..LOCKS).map(lock);
    locks.map(|lock| lock.expect("it is free")).collect()
}

/// Waits until as many renewals were answered as renew all of them this number of times.
#[track_caller]
pub(crate) fn are_renewed(manager: &LockManager, rounds: u64) {
    let before = manager.stats().renewals_confirmed;
    until(TTL * rounds as u32 + SOON, "all are renewed", || {
        manager.stats().renewals_confirmed >= before + rounds * LOCKS
    });
}

#[track_caller]
pub(crate) fn all_are_held(manager: &LockManager, guards: &[LockGuard]) {
    assert_eq!(manager.stats().losses(), 0);
    assert!(guards.iter().all(|guard| guard.is_held()));
}

/// A renewal of several mutexes has more keys than any other request.
fn is_together(request: &[u8]) -> bool {
    next_command(request).is_some_and(|(words, _)| {
        let keys = words.get(2).and_then(|keys| str::from_utf8(keys).ok());
        let keys = keys.and_then(|keys| keys.parse::<u32>().ok());
        (is(&words, "EVALSHA") || is(&words, "EVAL")) && keys > Some(3)
    })
}

#[test]
fn lost_requests_and_replies_of_renewals_together_cost_no_lock() {
    let losses: [fn(&Proxy) -> ProxyFault; 5] = [
        |proxy| proxy.swallow_reply_when(is_together),
        |proxy| proxy.swallow_and_reset_when(is_together),
        |proxy| proxy.swallow_silently_when(is_together),
        |proxy| proxy.cut_reply_when(100, is_together),
        |proxy| proxy.reset_request_when(is_together),
    ];
    thread::scope(|scope| {
        for lose in losses {
            scope.spawn(move || {
                let server = Server::tcp();
                let proxy = Proxy::to(server.addr());
                let manager = build(steady(proxy.url()));
                let guards = hold_many(&manager);
                are_renewed(&manager, 1);
                for _ in 0..2 {
                    lose(&proxy).wait(TTL);
                }
                are_renewed(&manager, 2);
                all_are_held(&manager, &guards);
            });
        }
    });
}

#[test]
fn renewals_go_together_after_the_server_forgot_the_scripts() {
    let server = Server::start();
    let manager = build(steady(server.url()));
    let guards = hold_many(&manager);
    are_renewed(&manager, 1);
    let before = manager.stats();
    for _ in 0..2 {
        server.query::<()>(&["SCRIPT", "FLUSH"]);
        are_renewed(&manager, 1);
    }
    let after = manager.stats();
    let renewed = after.renewals_confirmed - before.renewals_confirmed;
    let requests = after.requests - before.requests;
    assert!(
        requests * 4 <= renewed,
        "{requests} requests for {renewed} renewals"
    );
    all_are_held(&manager, &guards);
}

#[test]
fn a_key_without_rights_harms_no_other_renewal() {
    let server = Server::start();
    let rules = ["on", ">p", "~*", "&*", "+@all"];
    server.query::<()>(&[&["ACL", "SETUSER", "u"], &rules[..]].concat());
    let manager = build(steady(format!("{}?user=u&pass=p", server.url())));
    warm_up(&manager);
    let refused = manager.lock("refused").expect("it is free");
    let guards = hold_many(&manager);
    let keys = ["resetkeys", "~fairlock:{many-*"];
    server.query::<()>(&[&["ACL", "SETUSER", "u"], &keys[..]].concat());
    are_renewed(&manager, 3);
    let loss = refused.lost().recv_timeout(TTL + SLACK);
    assert_eq!(
        loss.expect("its loss is reported").reason,
        LossReason::Expired
    );
    are_renewed(&manager, 1);
    assert!(guards.iter().all(|guard| guard.is_held()));
}
