//! Locks to look at.

use fairlock::inspect::LockInfo;

use crate::*;

/// How long a server on a busy machine may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A manager with a long command timeout.
pub(crate) fn patient(url: &str, label: &str) -> LockManager {
    let builder = LockManager::builder(url).command_timeout(TIMEOUT);
    let options = LockOptions::new().ttl(TIMEOUT * 10).label(label);
    let builder = builder.horizon(TIMEOUT * 4).options(options);
    builder.build().expect("a manager")
}

/// A manager whose locks have this label.
pub(crate) fn labelled(server: &Server, label: &str) -> LockManager {
    patient(&server.url(), label)
}

pub(crate) fn manager(server: &Server) -> LockManager {
    labelled(server, "")
}

/// What the server says of a lock.
pub(crate) fn info(server: &Server, name: &str) -> Option<LockInfo> {
    manager(server).inspect(name).expect("Redis answers")
}

pub(crate) fn has_state(server: &Server, name: &str, state: LockState) -> bool {
    info(server, name).is_some_and(|info| info.state == state)
}

/// Whether somebody holds the lock.
pub(crate) fn is_held(server: &Server, name: &str) -> bool {
    has_state(server, name, LockState::Held)
}

/// Waits until this many wait for the name.
#[track_caller]
pub(crate) fn until_queued(server: &Server, name: &str, waiters: u64) {
    let manager = manager(server);
    until(LONG, "they wait", || {
        let info = manager.inspect(name).expect("Redis answers");
        info.map_or(0, |info| info.waiters) == waiters
    });
}

/// The text is as its golden file has it. If a change is meant, `FAIRLOCK_GOLDEN=1` has the test
/// write the new file.
#[track_caller]
pub(crate) fn is_golden(file: &str, text: &str) {
    let path = format!("{}/tests/cli/golden/{file}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("FAIRLOCK_GOLDEN").is_some() {
        fs::write(&path, text).expect("the repository is writable");
    }
    let golden = fs::read_to_string(&path).expect("the file is in the repository");
    assert_eq!(text, golden, "{file}");
}

/// The text without what varies: this host, managers, the width of columns, and `N` for each word
/// that begins with a digit.
pub(crate) fn masked(text: &str) -> String {
    let name = rustix::system::uname();
    let host = name.nodename().to_string_lossy().replace(' ', "-");
    // libtest runs a worker's role in a thread of this name, or in the first one.
    let mut text = text.replace("child_process", "main");
    for place in [" on {},", "\"host\": \"{}\"", " {}:"] {
        text = text.replace(&place.replace("{}", &host), &place.replace("{}", "HOST"));
    }
    let is_end = |c: char| !c.is_alphanumeric() && c != '.';
    let mut masked = String::new();
    for line in text.lines().filter(|line| !line.contains("\"manager\"")) {
        masked += &line[..line.len() - line.trim_start().len()];
        let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
        for word in words.split_inclusive(is_end) {
            match word.starts_with(|c: char| c.is_ascii_digit()) {
                true => masked.extend(["N", word.trim_start_matches(|c| !is_end(c))]),
                false => masked += word,
            }
        }
        masked.push('\n');
    }
    masked
}

/// The text has these parts, in this order.
#[track_caller]
pub(crate) fn has_parts(text: &str, parts: &str) {
    let mut rest = text;
    for part in parts.split('|') {
        let found = rest.split_once(part);
        (_, rest) = found.unwrap_or_else(|| panic!("no {part:?} in {text}"));
    }
}

/// Has a server run a script that somebody must kill. Until then it answers nothing else.
pub(crate) fn keep_busy(server: &Server) {
    server.query::<()>(&["CONFIG", "SET", "lua-time-limit", "10"]);
    let mut busy = server.connection();
    thread::spawn(move || {
        let mut script = redis::cmd("EVAL");
        script.arg("while true do end").arg(0).exec(&mut busy)
    });
    until(LONG, "the server is busy", || {
        let refused = server.try_query::<String>(&["GET", "x"]);
        refused.is_err_and(|error| error.code() == Some("BUSY"))
    });
}

/// Makes a server a replica of another.
pub(crate) fn follow(replica: &Server, master: &Server) {
    let (host, port) = (master.addr().ip(), master.addr().port());
    replica.query::<()>(&["REPLICAOF", &host.to_string(), &port.to_string()]);
}

/// Takes the lock away from its holder.
pub(crate) fn release_by_force(server: &Server, name: &str) {
    exits(fairlock(server, &format!("release {name} --yes")), 0);
}

/// A lock whose holder died, and whose lease is over.
pub(crate) fn lapse(server: &Server, name: &str) {
    let mut run = Run::asleep(server, &format!("--ttl 2s {name}"));
    run.signal(Signal::KILL);
    run.ended();
    until(LONG, "it lapses", || {
        has_state(server, name, LockState::Lapsed)
    });
}

/// The URLs of a quorum of these servers.
pub(crate) fn urls(servers: &[Server]) -> String {
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    urls.join(" ")
}
