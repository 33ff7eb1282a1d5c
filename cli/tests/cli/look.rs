//! Locks to look at.

use std::fs;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use fairlock::{
    LockGuard, LockManager, LockOptions,
    inspect::{LockInfo, LockState},
};

use crate::process;
use crate::run::LONG;
use crate::support::{Proxy, SLACK, Server, until};

/// How long a server on a busy machine may take to answer.
const LONG_TIMEOUT: Duration = Duration::from_secs(5);

/// A manager whose locks have this label.
pub(crate) fn labelled(server: &Server, label: &str) -> LockManager {
    patient(&server.url(), LockOptions::new().label(label))
}

/// A manager with a long command timeout.
pub(crate) fn patient(url: &str, options: LockOptions) -> LockManager {
    let ttl = LockOptions::new().ttl(LONG_TIMEOUT * 10);
    let builder = LockManager::builder(url).options(ttl);
    let builder = builder
        .command_timeout(LONG_TIMEOUT)
        .horizon(LONG_TIMEOUT * 4);
    builder.build().expect("a manager").with(options)
}

/// The binary, on this server and with a long timeout.
pub(crate) fn fairlock(server: &Server, args: &[&str]) -> Command {
    let mut command = process::fairlock(server, args);
    set_long_timeout(&mut command);
    command
}

/// Sets the time that the servers have, for a command without an option for it.
pub(crate) fn set_long_timeout(command: &mut Command) {
    command.env(
        "FAIRLOCK_COMMAND_TIMEOUT",
        format!("{}s", LONG_TIMEOUT.as_secs()),
    );
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
    let text = text.replace("child_process", "main");
    let text = text.replace(&format!(" on {host},"), " on HOST,");
    let text = text.replace(&format!("\"host\": \"{host}\""), "\"host\": \"HOST\"");
    let text = text.replace(&format!(" {host}:"), " HOST:");
    let is_end = |c: char| !c.is_alphanumeric() && c != '.';
    let mut masked = String::new();
    for line in text.lines().filter(|line| !line.contains("\"manager\"")) {
        let indented = line.len() - line.trim_start().len();
        masked += &line[..indented];
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

/// The first column of each row below the titles.
pub(crate) fn first_column<C: FromIterator<String>>(table: &str) -> C {
    let rows = table.lines().skip(1);
    rows.map(|row| row.split(' ').next().expect("a name").to_owned())
        .collect()
}

/// Has a server run a script that somebody must kill. Until then it answers nothing else.
pub(crate) fn keep_busy(server: &Server) -> JoinHandle<()> {
    server.query::<()>(&["CONFIG", "SET", "lua-time-limit", "10"]);
    let mut busy = server.connection();
    let endless = std::thread::spawn(move || {
        let mut script = redis::cmd("EVAL");
        let _ = script
            .arg("while true do end")
            .arg(0)
            .query::<()>(&mut busy);
    });
    until(LONG, "the server is busy", || {
        let refused = server.try_query::<String>(&["GET", "x"]);
        refused.is_err_and(|error| error.code() == Some("BUSY"))
    });
    endless
}

/// Makes a server a replica of another.
pub(crate) fn follow(replica: &Server, master: &Server) {
    let (host, port) = (master.addr().ip(), master.addr().port());
    replica.query::<()>(&["REPLICAOF", &host.to_string(), &port.to_string()]);
}

/// Takes the lock away from its holder.
#[track_caller]
pub(crate) fn release_by_force(server: &Server, name: &str) {
    let manager = labelled(server, "");
    let info = manager.inspect(name).expect("Redis answers").expect("held");
    assert!(manager.force_release(name, info.fence).expect("answers"));
}

/// One object per line.
pub(crate) fn objects(stdout: &str) -> Vec<LockInfo> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    stdout.lines().map(parse).collect()
}

/// Waits until this many wait for the name.
#[track_caller]
pub(crate) fn until_awaited(manager: &LockManager, name: &str, waiters: u64) {
    until(SLACK * 4, "they wait", || {
        let info = manager.inspect(name).expect("Redis answers");
        info.map_or(0, |info| info.waiters) == waiters
    });
}

/// A lock whose lease ended while its holder could not reach Redis.
pub(crate) struct Lapsed {
    _guard: LockGuard,
    proxy: Proxy,
}

impl Drop for Lapsed {
    /// The guard is dropped after this. Its release would wait for a connection in vain.
    fn drop(&mut self) {
        self.proxy.accept();
    }
}

impl Lapsed {
    /// The server has a TCP address.
    pub(crate) fn of(server: &Server, name: &str) -> Lapsed {
        let proxy = Proxy::to(server.addr());
        let cut_off = patient(&proxy.url(), LockOptions::new());
        let brief = LockOptions::new().fixed_lease(Duration::from_millis(500));
        let cut_off = cut_off.with(brief);
        let guard = cut_off
            .try_lock(name)
            .expect("it answers")
            .expect("it is free");
        proxy.refuse();
        proxy.reset_all();
        let manager = labelled(server, "");
        until(SLACK * 4, "it lapses", || {
            let info = manager.inspect(name).expect("Redis answers");
            info.is_some_and(|info| info.state == LockState::Lapsed)
        });
        Lapsed {
            _guard: guard,
            proxy,
        }
    }
}
