//! A lock goes from one process to another. On Redis alone: this needs processes, the server's log,
//! and a network that holds requests back.

use std::time::Duration;

use fairlock::{Error, LossReason, PreviousHolder};

use crate::sums::Sums;
use crate::{
    fixtures::{LOG_ALL, Record, STEADY_T as T, Verb, build, log_of, log_of_all, request, steady},
    managers::{assert_nothing_left, check_period, manager, owner},
    support::{Proxy, Server, throughout, until},
    worker::{self, SOON, expect_got},
};

const TTL: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(60);

fn secret_of(text: &str) -> &str {
    text.rsplit(':').next().expect("it is the last part")
}

#[test]
fn lock_goes_to_another_process_ahead_of_all_waiters() {
    let server = Server::start();
    let mut giver = worker::start(&server.url(), TTL);
    let mut workers = [(); 2].map(|()| worker::start(&server.url(), TTL));
    let mut waiters = [(); 2].map(|()| worker::start(&server.url(), TTL));
    giver.send("lock k");
    let mut fence = expect_got(&giver, "k", SOON).fence;
    for waiter in &mut waiters {
        waiter.send("turn k");
        waiter.expect("queued", SOON);
    }
    giver.send("detach k");
    let text = giver.expect("detached ", SOON);
    // The lock stays the bearer's.
    giver.kill();
    throughout(2 * check_period(TTL), "nobody gets in between", || {
        waiters
            .iter()
            .all(|waiter| waiter.pending_lines().is_empty())
    });
    workers[0].send(&format!("attach {text}"));
    let got = expect_got(&workers[0], "k", SOON);
    assert!(got.held && got.fence > fence, "{got:?}");
    fence = got.fence;
    workers[0].send("detach k");
    let text = workers[0].expect("detached ", SOON);
    // Both at once, and twice.
    for worker in &mut workers {
        worker.send(&format!("attach {text}"));
        worker.send(&format!("attach {text}"));
    }
    let mut told = Vec::new();
    until(SOON, "all four have an answer", || {
        told.extend(workers.iter().flat_map(|worker| worker.pending_lines()));
        told.len() == 4
    });
    let got = told.iter().filter(|line| line.starts_with("got k")).count();
    assert_eq!(got, 1, "{told:?}");
    assert!(
        waiters
            .iter()
            .all(|waiter| waiter.pending_lines().is_empty())
    );
    // The process that has it dies as any holder.
    workers.iter_mut().for_each(|worker| worker.kill());
    let first = expect_got(&waiters[0], "k", TTL + check_period(TTL) + SOON);
    assert!(first.fence > fence);
    assert_eq!(first.previous, "Lapsed");
    let second = expect_got(&waiters[1], "k", SOON);
    assert!(second.fence > first.fence);
}

/// Others can read what Redis ran: its log, or MONITOR.
#[test]
fn server_sees_the_secret_when_it_is_spent_and_never_before() {
    let server = Server::start_with(&LOG_ALL);
    let mgr = manager(server.url(), TTL);
    let guard = mgr.lock("a").unwrap();
    let detached = guard.detach(LONG).unwrap();
    let text = detached.secret_text();
    let secret = secret_of(&text);
    let has_secret = || {
        let words = log_of_all(&server).into_iter().flatten();
        words.filter(|word| word.contains(secret)).count()
    };
    mgr.inspect("a").unwrap();
    assert_eq!(has_secret(), 0);
    assert!(!log_of(&server, Verb::Pass, "a").is_empty());
    server.query::<()>(&["SCRIPT", "FLUSH"]);
    let guard = mgr.attach(&detached).unwrap();
    assert_eq!(has_secret(), 1, "the request that spends it");
    // Whoever reads it there finds another owner.
    let thief = manager(server.url(), TTL);
    let error = thief.attach(&text.parse().unwrap()).unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    guard.unlock().unwrap();
    assert_nothing_left(&server, "a");
}

/// P1 (one holder), R5 (dated requests), R7 (late copies)
#[test]
fn late_copy_of_a_detach_moves_nothing() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let mgr = build(steady(proxy.url()));
    drop(
        mgr.attach(&mgr.lock("w").unwrap().detach(LONG).unwrap())
            .unwrap(),
    );
    let guard = mgr.lock("a").unwrap();
    let held = [(); 2].map(|()| proxy.hold_request_when(request(Verb::Pass, "a")));
    let guard = guard.detach(LONG).unwrap_err().into_parts().0;
    assert!(guard.is_held());
    let before = owner(&server, "a");
    for copy in held {
        copy.wait(SOON);
        let answer = String::from_utf8_lossy(&copy.release()).into_owned();
        assert!(!answer.contains("granted"), "{answer}");
    }
    assert_eq!(owner(&server, "a"), before);
    guard.renew().unwrap();
    guard.unlock().unwrap();
    assert_nothing_left(&server, "a");
}

#[test]
fn late_copy_of_an_attach_takes_nothing() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let (ours, theirs) = (build(steady(proxy.url())), build(steady(server.url())));
    let detached = ours.lock("a").unwrap().detach(LONG).unwrap();
    let held = [(); 2].map(|()| proxy.hold_request_when(request(Verb::Pass, "a")));
    let error = ours.attach(&detached).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let guard = theirs.attach(&detached).unwrap();
    for copy in held {
        copy.wait(SOON);
        copy.release();
    }
    guard.renew().unwrap();
    guard.unlock().unwrap();
    assert_eq!(
        theirs.lock("a").unwrap().previous_holder(),
        PreviousHolder::Released
    );
}

/// The renewal finds the new owner before the detach has its answer. That is no loss.
#[test]
fn renewal_during_a_detach_reports_no_loss() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let mgr = build(steady(proxy.url()));
    drop(
        mgr.attach(&mgr.lock("w").unwrap().detach(LONG).unwrap())
            .unwrap(),
    );
    let guard = mgr.lock("a").unwrap();
    let losses = guard.lost().clone();
    // The first reply is lost, and the connection with it. The second copy gets the same answer.
    let lost = proxy.swallow_reply_when(request(Verb::Pass, "a"));
    let detached = guard.detach(LONG).unwrap();
    assert!(lost.has_triggered());
    assert!(losses.recv().is_err(), "it is no loss");
    mgr.attach(&detached).unwrap().unlock().unwrap();
    assert_eq!(mgr.stats().losses(), 0);
}

#[test]
fn guard_after_an_unanswered_detach_is_lost_by_its_next_renewal() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let mgr = build(steady(proxy.url()));
    drop(
        mgr.attach(&mgr.lock("w").unwrap().detach(LONG).unwrap())
            .unwrap(),
    );
    let guard = mgr.lock("a").unwrap();
    let lost = [(); 2].map(|()| proxy.swallow_silently_when(request(Verb::Pass, "a")));
    let guard = guard.detach(LONG).unwrap_err().into_parts().0;
    assert!(lost.iter().any(|fault| fault.has_triggered()));
    let loss = guard.lost().recv_timeout(SOON + T).unwrap();
    assert_eq!(loss.reason, LossReason::NotOwner);
    drop(guard);
    // Neither token keeps it.
    Record::of(&server, "a").comes_to_rest();
    assert_eq!(
        mgr.lock("a").unwrap().previous_holder(),
        PreviousHolder::Lapsed
    );
}
