//! Shared by the benches: a server, the floor that is measured against, sums, and the figures for
//! the table.

#![allow(dead_code, reason = "no bench needs all of it")]

pub(crate) mod cores;
pub(crate) mod figure;
#[path = "../../examples/support/private_redis.rs"]
mod private_redis;

use std::env;
use std::fmt;

use fairlock::LockManager;
use private_redis::{Over, redis_or_exit};
use redis::IntoConnectionInfo;
use redis::io::tcp::TcpSettings;
use rustix::time::{ClockId, clock_gettime};

pub(crate) use private_redis::Redis;

/// Names a server to measure on, in place of a private one.
const SERVER_URL: &str = "FAIRLOCK_BENCH_URL";

/// A private server on TCP, unless the environment names one.
pub(crate) fn server() -> Redis {
    redis_or_exit(SERVER_URL, Over::Tcp, None)
}

/// A bare connection, without Nagle's delay, which no lock client should have.
pub(crate) fn bare_connection(url: &str) -> redis::Connection {
    let info = url
        .into_connection_info()
        .expect("a URL that names a Redis");
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    redis::Client::open(info)
        .and_then(|client| client.get_connection())
        .expect("a Redis that answers")
}

/// A manager with this many connections at most for its calls, or with the default.
pub(crate) fn manager(url: &str, connections: Option<u32>) -> LockManager {
    let builder = LockManager::builder(url);
    let builder = match connections {
        Some(connections) => builder.lanes(connections),
        None => builder,
    };
    builder.build().expect("a Redis that answers")
}

/// The time of a bare round trip just now, in ns. It depends on the cores: see `cores`.
pub(crate) fn round_trip(connection: &mut redis::Connection) -> u64 {
    let ping = redis::cmd("PING");
    median((0..20).map(|_| {
        let started = now();
        ping.exec(connection).expect("PING is answered");
        now() - started
    }))
}

/// How many rounds to measure. Only `cargo bench` measures; every other run does one round to show
/// that the bench works. `FAIRLOCK_BENCH_ROUNDS` sets fewer.
pub(crate) fn rounds(full: usize) -> usize {
    let rounds = sized(1, QUICK_ROUNDS, full).min(full);
    env::var("FAIRLOCK_BENCH_ROUNDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .map_or(rounds, |n: usize| n.clamp(1, rounds))
}

pub(crate) fn is_bench() -> bool {
    env::args().any(|arg| arg == "--bench")
}

/// Whether this is for a first look: `benches/run.sh --quick`.
pub(crate) fn is_quick() -> bool {
    env::var_os("FAIRLOCK_BENCH_QUICK").is_some()
}

const QUICK_ROUNDS: usize = 2;

/// The first shows that a bench works, the second is for a first look, and the third measures.
pub(crate) fn sized<T>(trial: T, quick: T, full: T) -> T {
    match (is_bench(), is_quick()) {
        (false, _) => trial,
        (true, true) => quick,
        (true, false) => full,
    }
}

/// ns, the same for all processes of this host.
pub(crate) fn now() -> u64 {
    read(ClockId::Monotonic)
}

pub(crate) fn read(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

pub(crate) fn median(of: impl IntoIterator<Item = u64>) -> u64 {
    let mut of: Vec<u64> = of.into_iter().collect();
    of.sort_unstable();
    of.get(of.len() / 2).copied().unwrap_or(0)
}

/// The time that this part of all times do not exceed.
pub(crate) fn quantile(times: &[u64], q: f64) -> u64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    let at = (times.len() as f64 * q) as usize;
    times.get(at).copied().unwrap_or(0)
}

pub(crate) fn micros(ns: u64) -> String {
    format!("{:.1} µs", ns as f64 / 1e3)
}

/// One number for each round; shown as the median and the spread.
#[derive(Default)]
pub(crate) struct Rounds(Vec<f64>);

impl Rounds {
    pub(crate) fn add(&mut self, value: f64) {
        self.0.push(value);
        self.0.sort_unstable_by(f64::total_cmp);
    }

    pub(crate) fn median(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// The least and the most; `None` if there was no round.
    fn spread(&self) -> Option<(f64, f64)> {
        Some((*self.0.first()?, *self.0.last()?))
    }
}

impl fmt::Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((least, most)) = self.spread() else {
            return f.write_str("–");
        };
        let digits = f.precision().unwrap_or(2);
        let shown = format!(
            "{:.digits$} ({least:.digits$}..{most:.digits$})",
            self.median()
        );
        write!(f, "{shown:<0$}", f.width().unwrap_or(0))
    }
}
