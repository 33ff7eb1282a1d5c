//! When the subscription counts as alive, which PINGs that takes, and what counts as trouble.

#[path = "../../../tests/it/support/scripted_server.rs"]
#[allow(
    dead_code,
    reason = "these tests use the parser and the replies of a healthy server"
)]
mod scripted_server;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::time::Instant;

use scripted_server::{ScriptedReply, is, next_command};

use super::*;
use crate::config::{Config, Settings};
use crate::engine::{EngineHandle, HeldLease, Request};
use crate::manager::LockManager;
use crate::memory::{Fault, Memory};
use crate::options::LockOptions;
use crate::script::{CallerId, LockSpec, Outcome, ScriptReply};
use crate::store::Answer;
use crate::store::memory::Session;

const P: Duration = Duration::from_millis(100);
const T: Duration = Duration::from_millis(200);
/// The time that a loaded machine may take for a step.
const SLACK: Duration = Duration::from_millis(1500);
const SOON: Duration = Duration::from_secs(8);

#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < SOON, "not in time: {what}");
        thread::yield_now();
    }
}

/// A server that answers what comes before a script, and all subscriptions.
#[derive(Default)]
struct Peer {
    addr: Option<SocketAddr>,
    subscriptions: Mutex<Vec<TcpStream>>,
    pings: AtomicUsize,
    pinged_at: Mutex<Option<Instant>>,
    /// For how long the reply to a PING is under way, in ms.
    delay: AtomicU64,
    /// Nothing reaches it on subscriptions any more, and no side closes them.
    is_cut_off: AtomicBool,
}

impl Peer {
    fn start() -> Arc<Peer> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let peer = Arc::new(Peer {
            addr: Some(listener.local_addr().expect("it is bound")),
            ..Peer::default()
        });
        let accepting = Arc::clone(&peer);
        // It ends with the process.
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let peer = Arc::clone(&accepting);
                thread::spawn(move || peer.serve(stream));
            }
        });
        peer
    }

    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let mut pending = Vec::new();
        let mut buffer = [0; 4096];
        let mut is_subscription = false;
        loop {
            while let Some((words, length)) = next_command(&pending) {
                pending.drain(..length);
                if is(&words, "SCAN") {
                    return None;
                }
                if is_subscription && self.is_cut_off.load(Ordering::SeqCst) {
                    continue;
                }
                if is(&words, "SUBSCRIBE") {
                    is_subscription = true;
                    let twin = stream.try_clone().ok()?;
                    self.subscriptions.lock().ok()?.push(twin);
                }
                if is(&words, "PING") {
                    *self.pinged_at.lock().ok()? = Some(Instant::now());
                    self.pings.fetch_add(1, Ordering::SeqCst);
                    // Time itself is under test: the reply is on its way.
                    thread::sleep(Duration::from_millis(self.delay.load(Ordering::SeqCst)));
                }
                let ScriptedReply::Raw(reply) = ScriptedReply::polite(&words) else {
                    return None;
                };
                stream.write_all(&reply).ok()?;
            }
            match stream.read(&mut buffer).ok()? {
                0 => return None,
                n => pending.extend_from_slice(&buffer[..n]),
            }
        }
    }

    /// Sends an empty message to the subscriptions.
    fn publish(&self) {
        let words = ["message", "channel", ""].map(ScriptedReply::bulk);
        let ScriptedReply::Raw(message) = ScriptedReply::array(words) else {
            unreachable!("it has bytes")
        };
        for mut stream in self.subscriptions.lock().expect("no panic").iter() {
            let _ = stream.write_all(&message);
        }
    }

    fn pings(&self) -> usize {
        self.pings.load(Ordering::SeqCst)
    }

    fn manager(&self) -> LockManager {
        self.manager_with(P)
    }

    fn manager_with(&self, period: Duration) -> LockManager {
        let addr = self.addr.expect("it has started");
        let manager = LockManager::builder(format!("redis://{addr}/"))
            .check_period(period)
            .command_timeout(T);
        manager.build().expect("it answers")
    }
}

#[derive(Default)]
struct Listener {
    is_listening: AtomicBool,
    wanted: Mutex<Vec<u64>>,
}

impl WantedListener for Listener {
    fn on_wanted(&self, _: &Key, fence: u64) {
        self.wanted.lock().expect("no panic").push(fence);
    }

    fn on_unheard(&self) {}

    fn is_listening(&self) -> bool {
        self.is_listening.load(Ordering::SeqCst)
    }
}

/// A listener of this manager, whose subscription begins.
fn listener(manager: &LockManager) -> Arc<Listener> {
    let listener = Arc::new(Listener::default());
    let weak: Weak<Listener> = Arc::downgrade(&listener);
    let engine = manager.engine();
    engine.hearing().set_listener(weak);
    engine.acquiring().start_subscription();
    until("it is heard", || is_heard(manager));
    listener
}

fn is_heard(manager: &LockManager) -> bool {
    let engine = manager.engine();
    engine.hearing().is_heard(engine.now())
}

fn take(manager: &LockManager, name: &str) -> Arc<HeldLease> {
    let key = manager.key(name).expect("a good name");
    let request = Arc::new(Request::new(LockSpec::MUTEX, key, &LockOptions::new(), 1));
    let taken = manager.engine().try_acquire(&request);
    taken.expect("it answers").expect("it is free")
}

fn is_confirmed(manager: &LockManager, lease: &HeldLease) -> bool {
    lease.is_confirmed(manager.engine().hearing().troubles())
}

#[test]
fn half_open_subscription_is_not_heard_after_its_bound() {
    let peer = Peer::start();
    let manager = peer.manager();
    let listener = listener(&manager);
    listener.is_listening.store(true, Ordering::SeqCst);
    let pings = peer.pings();
    until("it is proven several times", || peer.pings() > pings + 3);
    assert!(is_heard(&manager));
    let troubles = manager.engine().hearing().troubles();
    peer.is_cut_off.store(true, Ordering::SeqCst);
    let cut_off = Instant::now();
    until("it is not heard any more", || !is_heard(&manager));
    assert!(cut_off.elapsed() < P * 2 + T + SLACK);
    until("its end is trouble", || {
        manager.engine().hearing().troubles() > troubles
    });
}

/// Also while nobody ends the connection, as while this thread is not run.
#[test]
fn proof_of_the_subscription_lasts_two_periods_and_a_timeout() {
    let peer = Peer::start();
    let manager = peer.manager();
    let hearing = Hearing::new(manager.engine().client());
    let proven = manager.engine().now();
    assert!(!hearing.is_heard(proven), "there is no subscription");
    hearing.note_proof(proven);
    let last = Duration::from_nanos(1);
    let ends = proven + (P * 2 + T);
    assert!(hearing.is_heard(proven + (P * 2 + T - last)) && !hearing.is_heard(ends));
    // An older proof is none.
    hearing.note_proof(proven - T);
    assert!(!hearing.is_heard(ends) && hearing.is_heard(proven));
    hearing.note_end();
    assert!(!hearing.is_heard(proven));
}

/// The connection may have died right after the server answered.
#[test]
fn late_reply_proves_the_subscription_from_when_its_ping_was_sent() {
    let peer = Peer::start();
    let period = P * 6;
    let manager = peer.manager_with(period);
    let listener = listener(&manager);
    let engine = manager.engine();
    let heard_until = || engine.hearing().heard_until.load(Ordering::SeqCst);
    let before = heard_until();
    peer.delay.store(150, Ordering::SeqCst);
    listener.is_listening.store(true, Ordering::SeqCst);
    until("the reply has come", || heard_until() > before);
    let pinged_at = peer
        .pinged_at
        .lock()
        .expect("no panic")
        .expect("a PING came");
    let latest = engine.now() - pinged_at.elapsed() + (period * 2 + T);
    assert!(heard_until() <= latest.as_nanos());
}

#[test]
fn only_a_listener_has_the_subscription_proven() {
    let peer = Peer::start();
    let manager = peer.manager();
    let listener = listener(&manager);
    until("the first proof is old", || !is_heard(&manager));
    assert_eq!(peer.pings(), 0, "nobody listens");
    listener.is_listening.store(true, Ordering::SeqCst);
    until("it is proven", || is_heard(&manager) && peer.pings() > 1);
    listener.is_listening.store(false, Ordering::SeqCst);
    until("nobody proves it", || !is_heard(&manager));
    let pings = peer.pings();
    let engine = manager.engine();
    let asks = || engine.hearing().ask_for_proof(engine.now());
    assert!(asks() && !asks(), "one caller is told to wake the thread");
    until("it is proven once more", || is_heard(&manager));
    until("that ends", || !is_heard(&manager));
    // For 2 P + T, once per P, and what a slow machine makes of it.
    let asked = peer.pings() - pings;
    assert!((1..=4).contains(&asked), "{asked} PINGs");
}

/// The thread would look after a check period, which is longer than this test.
#[test]
fn proof_that_is_asked_for_comes_before_the_next_look() {
    let memory = Memory::new();
    let manager = LockManager::builder(&memory)
        .check_period(SOON * 2)
        .options(LockOptions::new().ttl(SOON * 20));
    let manager = manager.build().expect("it is there");
    let _listener = listener(&manager);
    let engine = manager.engine();
    let hearing = engine.hearing();
    let key = manager.key("a").expect("a good name");
    // The last proof is over, or soon will be.
    for left in [Duration::ZERO, SOON] {
        let ends = (engine.now() + left).as_nanos();
        hearing.heard_until.store(ends, Ordering::SeqCst);
        // The subscription is heard a moment before it counts as up.
        until("it is proven", || {
            hearing.proof_until.store(0, Ordering::SeqCst);
            engine.acquiring().ask_for_proof(&key, engine.now());
            hearing.is_heard(engine.now() + SOON * 2)
        });
    }
    // That lasts for longer than a check period.
    hearing.proof_until.store(0, Ordering::SeqCst);
    assert!(!hearing.ask_for_proof(engine.now()), "no message is needed");
}

#[test]
fn stream_of_messages_does_not_stop_the_proofs() {
    let peer = Peer::start();
    let manager = peer.manager();
    let listener = listener(&manager);
    let publish = || {
        // Time itself is under test: the messages come more often than once per check period.
        thread::sleep(P / 5);
        peer.publish();
    };
    (0..15).for_each(|_| publish());
    assert_eq!(peer.pings(), 0, "nobody listens");
    listener.is_listening.store(true, Ordering::SeqCst);
    (0..30).for_each(|_| publish());
    // Six periods, of which a slow machine may take some for one.
    assert!(peer.pings() >= 2, "{} PINGs", peer.pings());
}

#[test]
fn closed_lane_is_trouble() {
    let peer = Peer::start();
    let manager = peer.manager();
    let troubles = manager.engine().hearing().troubles();
    // It closes each connection over which this comes.
    let page = manager.engine().client().scan(0, "*");
    assert!(page.is_err());
    assert!(manager.engine().hearing().troubles() > troubles);
}

#[test]
fn ended_subscription_is_trouble_and_is_not_heard() {
    let memory = Memory::new();
    let manager = LockManager::connect(&memory).expect("it is there");
    let _listener = listener(&manager);
    let troubles = manager.engine().hearing().troubles();
    memory.go_down();
    until("it is not heard", || !is_heard(&manager));
    assert!(manager.engine().hearing().troubles() > troubles);
    memory.come_back();
    until("it is heard again", || is_heard(&manager));
}

fn session(memory: &Memory) -> (Config, Session, Arc<CallerId>) {
    let (config, _) = Config::new(Settings::default()).expect("the defaults fit");
    let step = config.check_period + config.command_timeout;
    let caller_id = Arc::new(CallerId::new(&config.prefix, step, config.horizon));
    let session = Session::open(memory, config.command_timeout, Arc::clone(&caller_id));
    (config, session.expect("it is up"), caller_id)
}

#[test]
fn manager_without_a_queue_starts_no_subscription() {
    let (config, session, caller_id) = session(&Memory::new());
    let store = Box::new(session.without_queue());
    let started = EngineHandle::start(config, store, caller_id);
    let handle = started.expect("threads can start");
    let engine = handle.engine();
    engine.acquiring().start_subscription();
    assert!(!engine.subscription.is_started());
    assert!(!engine.hearing().is_heard(engine.now()));
}

#[test]
fn trouble_leaves_a_lease_unconfirmed_until_it_is_renewed() {
    let memory = Memory::new();
    let manager = LockManager::connect(&memory).expect("it is there");
    let engine = manager.engine();
    let lease = take(&manager, "a");
    assert!(is_confirmed(&manager, &lease));
    engine.hearing().note_trouble();
    assert!(!is_confirmed(&manager, &lease));
    engine.renew(&[Arc::clone(&lease)]).expect("it is held");
    assert!(is_confirmed(&manager, &lease));
    // By the renewal thread.
    engine.hearing().note_trouble();
    memory.advance(lease.request.ttl / 3);
    until("it is renewed", || is_confirmed(&manager, &lease));
    // A lease that is taken after it is confirmed, and one that fails is not.
    engine.hearing().note_trouble();
    let other = take(&manager, "b");
    assert!(is_confirmed(&manager, &other) && !is_confirmed(&manager, &lease));
    // The first request closes the connection, which is trouble; the second one is after it.
    let before = engine.hearing().troubles();
    memory.inject(Fault::Disconnect);
    engine.renew(&[Arc::clone(&other)]).expect("it is held");
    assert!(engine.hearing().troubles() > before);
    assert!(is_confirmed(&manager, &other) && !is_confirmed(&manager, &lease));
}

/// The reply may be about a server that has changed since the request was sent.
#[test]
fn trouble_during_a_renewal_leaves_its_lease_unconfirmed() {
    let memory = Memory::new();
    let manager = LockManager::connect(&memory).expect("it is there");
    let lease = take(&manager, "a");
    let sent = manager.engine().now();
    manager.engine().hearing().note_trouble();
    lease.note_confirmed(sent);
    assert!(!is_confirmed(&manager, &lease));
    lease.note_confirmed(manager.engine().now());
    assert!(is_confirmed(&manager, &lease));
    // A reply that comes late does not take that back.
    lease.note_confirmed(sent);
    assert!(is_confirmed(&manager, &lease));
}

#[test]
fn renewal_by_a_guard_tells_those_who_hear_that_somebody_waits() {
    let memory = Memory::new();
    let manager = LockManager::connect(&memory).expect("it is there");
    let engine = manager.engine();
    let listener = Arc::new(Listener::default());
    let weak: Weak<Listener> = Arc::downgrade(&listener);
    engine.hearing().set_listener(weak);
    for (name, hears, waiting) in [("a", true, true), ("b", true, false), ("c", false, true)] {
        let key = manager.key(name).expect("a good name");
        let mut request = Request::new(LockSpec::MUTEX, key, &LockOptions::new(), 1);
        request.hears = hears;
        let taken = engine.try_acquire(&Arc::new(request));
        let lease = taken.expect("it answers").expect("it is free");
        let renewed = Outcome::Renewed {
            left: lease.request.ttl,
            fence: lease.fence(),
            waiting,
        };
        let answer = Answer {
            reply: ScriptReply::of(renewed, None),
            sent: engine.now(),
            resent: false,
        };
        let renewed = engine.base.holding.on_renew_reply(&lease, &answer);
        renewed.expect("it is held");
        let wanted = std::mem::take(&mut *listener.wanted.lock().expect("no panic"));
        let expected = (hears && waiting).then_some(lease.fence());
        assert_eq!(wanted, Vec::from_iter(expected));
    }
}
