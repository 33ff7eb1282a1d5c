//! Tests of the engine's side of a drop that does not wait: when the caller leaves, and what becomes
//! of the reply that it leaves. The store holds the replies back, so each step is a test's own.

use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::{Config, Settings};
use crate::local::Running;
use crate::lock::RwLock;
use crate::manager::LockManager;
use crate::memory::{Fault, Memory};
use crate::options::LockOptions;
use crate::script::CallerId;
use crate::store::StoreFault;

use super::unread_store::{Traffic, UnreadStore, closed};

/// The time that a thread may take beyond the bound of its call.
const SLACK: Duration = Duration::from_millis(1500);

struct World {
    memory: Memory,
    store: UnreadStore,
    ours: LockManager,
    theirs: LockManager,
}

impl World {
    /// With timeouts that no test reaches, unless it puts the clock forward.
    fn new() -> World {
        World::with(World::patient())
    }

    fn patient() -> Settings {
        Settings {
            options: LockOptions::new().ttl(Duration::from_secs(60)),
            command_timeout: Some(Duration::from_secs(4)),
            horizon: Some(Duration::from_secs(20)),
            ..Settings::default()
        }
    }

    fn with(settings: Settings) -> World {
        let memory = Memory::new();
        let (config, options) = Config::new(settings).expect("the settings fit");
        let step = config.check_period + config.command_timeout;
        let caller_id = Arc::new(CallerId::new(&config.prefix, step, config.horizon));
        let store = UnreadStore::open(&memory, config.command_timeout, Arc::clone(&caller_id))
            .expect("the server is up");
        let running = Running::start(config, Box::new(store.clone()), caller_id)
            .expect("a thread can be started");
        World {
            ours: LockManager::new(running, options),
            theirs: LockManager::connect(&memory).expect("the server is up"),
            memory,
            store,
        }
    }

    fn timeout(&self) -> Duration {
        self.ours.engine().config().command_timeout
    }

    #[track_caller]
    fn assert_free(&self, name: &str) {
        let guard = self.theirs.try_lock(name).expect("the server is up");
        assert!(guard.is_some(), "{name:?} is taken");
    }

    #[track_caller]
    fn assert_taken(&self, name: &str) {
        let guard = self.theirs.try_lock(name).expect("the server is up");
        assert!(guard.is_none(), "{name:?} is free");
    }
}

/// The log of all tests of this binary. Each test looks for the names of its own locks.
struct Capture(Mutex<Vec<String>>);

static CAPTURE: LazyLock<Capture> = LazyLock::new(|| Capture(Mutex::new(Vec::new())));

impl Capture {
    fn install() {
        // Only one test does so.
        log::set_logger(&*CAPTURE).expect("there is no other logger");
        log::set_max_level(log::LevelFilter::Warn);
    }

    fn lines_about(name: &str) -> Vec<String> {
        let all = CAPTURE.0.lock();
        let about = all.iter().filter(|line| line.contains(name));
        about.cloned().collect()
    }
}

impl log::Log for Capture {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().push(record.args().to_string());
    }

    fn flush(&self) {}
}

#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + SLACK * 4;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        // A pause between two polls.
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn drop_leaves_the_reply_and_the_next_call_reads_it() {
    let world = World::new();
    drop(world.ours.lock("a").unwrap());
    assert_eq!(world.store.unread(), 1);
    world.assert_free("a");
    drop(world.ours.lock("b").unwrap());
    assert_eq!(world.store.unread(), 1, "that of b alone");
    assert_eq!(world.ours.stats().held, 0);
}

#[test]
fn guard_of_several_names_leaves_all_replies() {
    let world = World::new();
    drop(world.ours.lock_all(["a", "b", "c"]).unwrap());
    assert_eq!(world.store.unread(), 3);
    for name in ["a", "b", "c"] {
        world.assert_free(name);
    }
}

#[test]
fn unlock_downgrade_and_a_part_of_the_permits_wait() {
    let world = World::new();
    world.store.traffic(Traffic::Hangs);
    world.ours.lock("a").unwrap().unlock().unwrap();
    world.ours.lock("a").unwrap().abandon().unwrap();
    world.ours.lock_all(["a", "b"]).unwrap().unlock().unwrap();
    let lock = world.ours.rw_lock("c");
    let reader = RwLock::downgrade(lock.write().unwrap()).unwrap();
    let mut permits = world.ours.semaphore("d", 3).acquire(2).unwrap();
    permits.release_permits(1).unwrap();
    assert_eq!(world.store.unread(), 0);
    drop((reader, permits));
    assert_eq!(world.store.unread(), 2);
}

#[test]
fn drop_waits_for_its_reply_with_wait_on_drop() {
    let settings = Settings {
        wait_on_drop: true,
        ..World::patient()
    };
    let world = World::with(settings);
    world.store.traffic(Traffic::Hangs);
    drop(world.ours.lock("a").unwrap());
    drop(world.ours.lock_all(["a", "b"]).unwrap());
    assert_eq!(world.store.unread(), 0);
}

/// P4: the reply carries the grant, so it must not lie unread.
#[test]
fn drop_waits_while_its_manager_waits_for_the_name() {
    let world = World::new();
    let (a, b) = (world.ours.lock("a").unwrap(), world.ours.lock("b").unwrap());
    let mut waiter = world.ours.enqueue("a").unwrap();
    world.store.traffic(Traffic::Hangs);
    drop(b);
    assert_eq!(world.store.unread(), 1, "nobody waits for b");
    drop(a);
    assert_eq!(world.store.unread(), 1, "the reply about a is read");
    let granted = waiter.wait_for(Duration::ZERO).unwrap();
    assert!(granted.is_some(), "the grant came with the reply");
}

/// P4: the caller looks for waiters after the write. A waiter that came before it may be in front of
/// the release.
#[test]
fn drop_sees_a_waiter_that_comes_before_its_look() {
    let world = World::new();
    let guard = world.ours.lock("a").unwrap();
    let (report, waiters) = crossbeam_channel::bounded(1);
    let ours = world.ours.clone();
    world.store.after_next_write(move || {
        let waiter = ours.enqueue("a").expect("the server is up");
        report.send(waiter).expect("the test wants it");
    });
    drop(guard);
    assert_eq!(world.store.unread(), 0);
    let mut waiter = waiters.try_recv().expect("it was enqueued");
    assert!(waiter.wait_for(Duration::ZERO).unwrap().is_some());
}

/// R7 (late copies): the reply must show that no copy of the acquire can take the lock again.
#[test]
fn drop_of_a_lease_in_doubt_waits() {
    let world = World::new();
    world.memory.inject(Fault::Disconnect);
    drop(world.ours.try_lock("a").unwrap().expect("it is free"));
    assert_eq!(world.store.unread(), 0);
}

#[test]
fn reply_that_nobody_reads_is_read_after_one_command_timeout() {
    let world = World::with(Settings::default());
    let bound = world.timeout() + SLACK;
    let wakes_by_itself = world.ours.options.lease_length() / 3;
    assert!(bound < wakes_by_itself);
    // An advance of the clock would wake the thread.
    let dropped = Instant::now();
    drop(world.ours.lock("a").unwrap());
    until("it is read", || world.store.unread() == 0);
    assert!(dropped.elapsed() < bound, "{:?}", dropped.elapsed());
}

/// One look for each command timeout, and not for each drop.
#[test]
fn ten_thousand_drops_hardly_wake_the_renewal_thread() {
    const LOOKS_PER_TURN: usize = 5;
    let world = World::new();
    for _ in 0..10_000 {
        drop(world.ours.lock("a").unwrap());
    }
    let looks = world.store.looks();
    assert!(looks <= 20 * LOOKS_PER_TURN, "{looks} looks");
}

#[test]
fn unread_release_that_failed_is_sent_again() {
    let timed_out = StoreFault::unavailable(
        crate::error::Step::Reply,
        std::io::Error::from(std::io::ErrorKind::TimedOut),
    );
    for fault in [closed(), timed_out, StoreFault::NotReady] {
        let world = World::new();
        let guard = world.ours.lock("a").unwrap();
        world.store.lose_calls(fault);
        drop(guard);
        assert_eq!(world.store.unread(), 1);
        world.assert_taken("a");
        world.memory.advance(world.timeout());
        world.assert_free("a");
        assert_eq!(world.ours.stats().background_releases, 1);
    }
}

/// The waiter came behind the release, which then failed: only the release in the background
/// carries its grant.
#[test]
fn waiter_behind_a_failed_release_gets_the_lock() {
    let world = World::new();
    let guard = world.ours.lock("a").unwrap();
    world.store.lose_calls(closed());
    drop(guard);
    world.store.traffic(Traffic::Hangs);
    let mut waiter = world.ours.enqueue("a").unwrap();
    assert_eq!(waiter.position(), Some(1));
    world.memory.advance(world.timeout());
    assert!(waiter.wait_for(SLACK).unwrap().is_some());
}

#[test]
fn loss_that_an_unread_reply_reports_is_logged() {
    Capture::install();
    let world = World::new();
    for (name, fault) in [("in the reply", None), ("in the next", Some(closed()))] {
        let guard = world.ours.lock(name).unwrap();
        let info = world.theirs.inspect(name).unwrap().expect("it is held");
        assert!(world.theirs.force_release(name, info.fence).unwrap());
        if let Some(fault) = fault {
            world.store.lose_calls(fault);
        }
        drop(guard);
        assert_eq!(Capture::lines_about(name), [""; 0]);
        world.memory.advance(world.timeout());
        until("it is logged", || !Capture::lines_about(name).is_empty());
        let lines = Capture::lines_about(name);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("dropping the guard of"), "{lines:?}");
    }
}

#[test]
fn shutdown_reads_what_is_unread() {
    let world = World::new();
    drop(world.ours.lock("a").unwrap());
    assert!(world.ours.shutdown(Duration::ZERO).unwrap().is_empty());
    assert_eq!(world.store.unread(), 0);
}

#[test]
fn shutdown_sends_unread_releases_that_failed_again() {
    let world = World::new();
    let guard = world.ours.lock("a").unwrap();
    world.store.lose_calls(closed());
    drop(guard);
    assert!(world.ours.shutdown(Duration::ZERO).unwrap().is_empty());
    world.assert_free("a");
}

#[test]
fn shutdown_names_unread_releases_without_an_answer() {
    for traffic in [Traffic::Flows, Traffic::Hangs] {
        let world = World::with(Settings::default());
        let guard = world.ours.lock("a").unwrap();
        world.memory.go_down();
        world.store.lose_calls(closed());
        world.store.traffic(traffic);
        drop(guard);
        let started = Instant::now();
        let error = world.ours.shutdown(Duration::ZERO).unwrap_err();
        let took = started.elapsed();
        assert!(error.to_string().ends_with("released: a"), "{error}");
        assert!(took <= world.timeout() * 3 + SLACK, "{took:?}");
    }
}

#[test]
fn last_handle_sends_unread_releases_that_failed_again() {
    let World {
        ours,
        theirs,
        store,
        ..
    } = World::new();
    let guard = ours.lock("a").unwrap();
    store.lose_calls(closed());
    drop((guard, ours));
    assert!(theirs.try_lock("a").unwrap().is_some());
    until("the engine ends", || !store.is_in_use());
}

#[test]
fn last_handle_waits_one_command_timeout_for_unread_replies() {
    let World {
        ours,
        memory,
        store,
        ..
    } = World::with(Settings::default());
    let timeout = ours.engine().config().command_timeout;
    let guard = ours.lock("a").unwrap();
    memory.go_down();
    store.lose_calls(closed());
    store.traffic(Traffic::Hangs);
    let left = Instant::now();
    drop(guard);
    let ended = Instant::now();
    drop(ours);
    assert!(left.elapsed() >= timeout, "{:?}", left.elapsed());
    assert!(ended.elapsed() <= timeout + SLACK, "{:?}", ended.elapsed());
    until("the engine ends", || !store.is_in_use());
    assert_eq!(store.unread(), 0, "the release has failed");
}
