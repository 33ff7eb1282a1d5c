//! The cores that a bench and its server run on.
//!
//! A machine seems to have a fast and a slow state: a bare round trip takes 16 µs at some times and
//! 55 µs at others. The scheduler's choice of cores makes the difference. If client and server share
//! a core, the kernel switches from one to the other. On two cores, each of them has to wake the
//! other core. The scheduler can choose anew at any moment, also between two clients that are
//! compared. So a bench of single round trips pins both ends, and measures each of the two cases.

use std::sync::atomic::{AtomicU8, Ordering};
use std::{env, fmt, fs};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{SERVER_URL, bare_connection};

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Cores {
    /// The scheduler chooses.
    Any,
    /// Client and server share one.
    One,
    /// The server has one and all clients share another.
    Two,
}

/// The present choice. Figures note it.
static PINNED: AtomicU8 = AtomicU8::new(Cores::Any as u8);

impl Cores {
    const ALL: [Cores; 3] = [Cores::Any, Cores::One, Cores::Two];

    /// Calls `measure` for each case that this machine allows: with the server and these processes
    /// on one core, and then on two. Only a private server can be pinned; beside another one the
    /// scheduler chooses.
    pub(crate) fn each(url: &str, clients: &[u32], mut measure: impl FnMut(Cores)) {
        let available = available();
        let [first, second, ..] = available[..] else {
            return measure(Cores::Any);
        };
        if env::var_os(SERVER_URL).is_some() {
            return measure(Cores::Any);
        }
        let server = server_pid(url);
        for (cores, client) in [(Cores::One, first), (Cores::Two, second)] {
            pin(server, &[first]);
            clients.iter().for_each(|process| pin(*process, &[client]));
            PINNED.store(cores as u8, Ordering::Relaxed);
            measure(cores);
        }
        pin(server, &available);
        clients.iter().for_each(|process| pin(*process, &available));
        PINNED.store(Cores::Any as u8, Ordering::Relaxed);
    }

    pub(crate) fn present() -> Cores {
        Cores::ALL[usize::from(PINNED.load(Ordering::Relaxed))]
    }

    /// `None` if it is not the name of one.
    pub(crate) fn parse(text: &str) -> Option<Cores> {
        Cores::ALL
            .into_iter()
            .find(|cores| cores.to_string() == text)
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cores::Any => "any",
            Cores::One => "one",
            Cores::Two => "two",
        })
    }
}

fn available() -> Vec<usize> {
    let set = sched_getaffinity(None).expect("the system has cores");
    (0..CpuSet::MAX_CPU)
        .filter(|core| set.is_set(*core))
        .collect()
}

/// Pins all threads of the process. Threads and processes that they start later inherit it.
fn pin(pid: u32, cores: &[usize]) {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    for task in tasks.flatten() {
        let id = task.file_name().to_string_lossy().parse().ok();
        // A thread that has just ended needs no core.
        if let Some(id) = id.and_then(Pid::from_raw) {
            let _ = sched_setaffinity(Some(id), &set);
        }
    }
}

fn server_pid(url: &str) -> u32 {
    let info: String = redis::cmd("INFO")
        .arg("server")
        .query(&mut bare_connection(url))
        .expect("INFO is answered");
    info.lines()
        .find_map(|line| line.strip_prefix("process_id:")?.trim().parse().ok())
        .expect("a server knows its process id")
}
