//! `fairlock show`, and `--follow`.

use std::os::unix::process::ExitStatusExt as _;

use fairlock::RwLock;

use crate::*;

const HOUR: i64 = 3600 * 1_000_000;

fn shows(server: &Server, name: &str, parts: &str) {
    let page = printed(fairlock(server, &format!("show {name}")));
    has_parts(&page, parts);
}

#[test]
fn queue_is_shown_in_order_with_owners() {
    let server = Server::start();
    let holder = labelled(&server, "a label that is rather long for this window");
    let guard = holder.lock("n").unwrap();
    let mut queue = Vec::new();
    for (label, waiters) in ["second", "first", "third"].into_iter().zip(1..) {
        queue.push(labelled(&server, label).enqueue("n").unwrap());
        until_queued(&server, "n", waiters);
    }
    let parts = format!("mutex|held, |{}|rather long for", guard.fence());
    shows(&server, "n", &parts);
    let narrow = "sh -c 'stty columns 40; \"$@\"' sh";
    let mut terminal = Terminal::start(&wrapped(narrow, &fairlock(&server, "show n")));
    terminal.ends();
    terminal.shows("third");
    let (text, pid) = (terminal.text(), std::process::id());
    let parts = format!("3 waiting|1  second| {pid}|2  first| {pid}|3  third| {pid}");
    has_parts(&text, &parts);
    let is_cut = |line: &str| line.starts_with("a label") && line.contains('…');
    assert!(text.lines().any(is_cut), "{text}");
}

/// Times are the server's, which is hours behind.
#[test]
fn each_state_and_kind_is_explained() {
    let shifted = Shifted::start();
    let server = &shifted.server;
    let (one, two) = (labelled(server, "one"), labelled(server, "two"));
    let long = LockOptions::new().fixed_lease(Duration::from_secs(10 * 3600 + 60));
    shifted.step_to(-8 * HOUR);
    let _guard = one.with(long).lock("fixed").unwrap();
    shifted.step_to(-5 * HOUR);
    let _permits = [
        one.semaphore("permits", 5).acquire(3).unwrap(),
        two.semaphore("permits", 5).acquire(1).unwrap(),
    ];
    let _readers = [&one, &two].map(|manager| manager.rw_lock("readers").read().unwrap());
    let _writer = one.rw_lock("readers").enqueue_write().unwrap();
    until_queued(server, "readers", 1);
    let cooling = one.with(LockOptions::new().hold_at_least(Duration::from_secs(3600)));
    cooling.lock("cooling").unwrap().unlock().unwrap();
    let minute = Duration::from_secs(60);
    let _detached = one.lock("detached").unwrap().detach(minute).unwrap();
    lapse(server, "lapsed");
    let lapsed = "state     lapsed|previous  lapsed: the work| ago";
    for (name, parts) in [
        ("fixed", "held, 7h 00m left| 3h 00m |10h 1m fixed"),
        ("permits", "of 5 permits|one|3 permits"),
        ("permits", "two|1 permit"),
        ("readers", "one|reader|1 waiting|writer"),
        ("readers", "two|reader"),
        ("cooling", "cooling: released|last held by"),
        ("detached", "detached: no process|detached by"),
        ("lapsed", lapsed),
    ] {
        shows(server, name, parts);
    }
    gives(fairlock(server, "show nobody"), 1, "");
    gives(fairlock(server, "show nobody --json"), 1, "");
    exits(fairlock(server, "show ''"), 64);
}

/// A process that follows a name, and its lines as objects.
pub(crate) struct Following(Run);

impl Following {
    pub(crate) fn of(server: &Server, name: &str) -> Following {
        let line = format!("show {name} --follow --interval 100ms --json");
        Following(Run::start(fairlock(server, &line)))
    }

    /// The next object, which is about this event.
    #[track_caller]
    pub(crate) fn event(&mut self, event: &str) -> Value {
        let object: Value = serde_json::from_str(&self.0.line()).expect("an object");
        assert_eq!(object["event"], event, "{object}");
        object
    }

    /// The next object, which is about this event and has this value.
    #[track_caller]
    fn has(&mut self, event: &str, field: &str, value: impl Into<Value>) -> Value {
        let object = self.event(event);
        assert_eq!(object.pointer(field), Some(&value.into()), "{object}");
        object
    }
}

#[test]
fn each_change_of_a_lock_is_a_line() {
    let server = Server::start();
    let (ours, theirs) = (labelled(&server, "ours"), labelled(&server, "theirs"));
    let label = "/party/label";
    let mut following = Following::of(&server, "n");
    following.has("first_look", "/at", Value::Null);
    let guard = ours.lock("n").unwrap();
    let granted = following.has("granted", label, "ours");
    assert_eq!(granted["party"]["fence"], guard.fence());
    let waiter = theirs.enqueue("n").unwrap();
    following.has("queue_grew", "/waiters", 1);
    guard.unlock().unwrap();
    let next = waiter.wait().unwrap();
    following.has("released", label, "ours");
    following.has("granted", label, "theirs");
    following.has("queue_shrank", "/waiters", 0);
    let waiter = ours.enqueue("n").unwrap();
    following.has("queue_grew", "/state", "held");
    assert!(theirs.force_release("n", next.fence()).unwrap());
    let last = waiter.wait().unwrap();
    following.has("forced", label, "theirs");
    following.has("granted", "/previous_holder", "forced");
    following.has("queue_shrank", "/name", "n");
    let lock = last.detach(Duration::from_secs(60)).unwrap();
    following.has("detached", label, "ours");
    let last = theirs.attach(&lock).unwrap();
    following.has("granted", label, "theirs");
    last.unlock().unwrap();
    let freed = following.has("freed", "/state", "free");
    assert_eq!(freed["waiters"], 0);
    assert!(freed["at"].as_f64() > granted["at"].as_f64());
    let cooling = ours.with(LockOptions::new().hold_at_least(Duration::from_secs(3600)));
    let guard = cooling.lock("n").unwrap();
    following.has("granted", "/previous_holder", "released");
    guard.unlock().unwrap();
    following.has("cooling", "/state", "cooling");
    let mut following = Following::of(&server, "lapses");
    following.has("first_look", "/state", "free");
    lapse(&server, "lapses");
    following.has("granted", "/state", "held");
    following.has("lapsed", "/state", "lapsed");
}

#[test]
fn readers_and_permits_have_lines_of_their_own() {
    let server = Server::start();
    let (one, two) = (labelled(&server, "one"), labelled(&server, "two"));
    let mut following = Following::of(&server, "r");
    following.event("first_look");
    let first = one.rw_lock("r").read().unwrap();
    following.has("granted", "/party/shared", true);
    let second = two.rw_lock("r").read().unwrap();
    following.has("granted", "/party/label", "two");
    drop(first);
    following.has("freed", "/party/label", "one");
    drop(second);
    following.event("freed");
    let writer = one.rw_lock("r").write().unwrap();
    following.has("granted", "/party/shared", false);
    let _reader = RwLock::downgrade(writer).unwrap();
    following.has("changed", "/party/shared", true);
    let mut following = Following::of(&server, "s");
    following.event("first_look");
    let mut permits = one.semaphore("s", 3).acquire(2).unwrap();
    following.has("granted", "/party/permits", 2);
    permits.release_permits(1).unwrap();
    following.has("changed", "/party/permits", 1);
    drop(permits);
    following.has("freed", "/party/label", "one");
}

#[test]
fn outage_is_survived_and_said() {
    let server = Server::start();
    let manager = manager(&server);
    let long = manager.with(LockOptions::new().fixed_lease(Duration::from_secs(3600)));
    let _guard = long.lock("n").unwrap();
    let mut for_people = Run::start(fairlock(&server, "show n --follow"));
    let first = for_people.line();
    assert!(first.contains("Z  first_look "), "{first}");
    let mut following = Following::of(&server, "n");
    following.event("first_look");
    server.kill();
    let lost = following.has("unreachable", "/state", Value::Null);
    assert!(lost["error"].is_string(), "{lost}");
    server.restart();
    following.event("reachable");
    // The server came back without data.
    following.event("freed");
    assert!(following.0.is_running());
}

#[test]
fn int_and_term_end_it_even_in_an_outage() {
    let server = Server::start();
    for signal in [Signal::INT, Signal::TERM] {
        let mut following = Following::of(&server, "n");
        following.event("first_look");
        server.stop();
        following.0.signal(signal);
        following.0.ended();
        let ended = following.0.process.wait().expect("it has ended");
        assert_eq!(ended.signal(), Some(signal.as_raw()));
        server.cont();
    }
}
