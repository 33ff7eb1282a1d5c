//! A lock on a quorum of three servers beside a lock on one of them, all on this host.
//!
//!     cargo bench --bench quorum
//!
//! The servers and the client share the processors of the host, so three servers cost three times
//! the processor time. Where each has a host of its own, that time runs in parallel.

#[path = "support/mod.rs"]
mod support;

use std::env;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use fairlock::{LockManager, endpoint::Endpoint};
use rustix::event::{PollFd, PollFlags, poll};
use support::{Redis, now, rounds, server};

/// Cycles in a round.
const CYCLES: usize = 2000;

fn main() {
    // Safe: no other thread runs yet, and one server for all would be no quorum.
    assert!(
        env::var_os("FAIRLOCK_BENCH_URL").is_none(),
        "this bench starts its own servers"
    );
    let servers = [server(), server(), server()];
    let single = LockManager::connect(&servers[0].url).expect("a Redis that answers");
    let quorum = LockManager::builder(Endpoint::quorum(servers.iter().map(|server| &server.url)))
        .uptime_check(false)
        .build()
        .expect("three that answer");
    let mut bare = Bare::connect(&servers);
    println!("quorum: three servers against one: {}", servers[0].about);
    for (what, unlock) in [("lock + drop", false), ("lock + unlock", true)] {
        let mut ratios = Vec::new();
        for _ in 0..rounds(15) {
            let alone = median(|| cycle(&single, unlock));
            let of_three = median(|| cycle(&quorum, unlock));
            let floor = median(|| bare.cycle(unlock));
            ratios.push((of_three / alone, alone, of_three, floor));
        }
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (ratio, alone, of_three, floor) = ratios[ratios.len() / 2];
        let (least, most) = (ratios[0].0, ratios[ratios.len() - 1].0);
        println!(
            "{what}: {alone:.1} µs on one, {of_three:.1} µs on three: {ratio:.2} \
             ({least:.2}..{most:.2}); a bare client takes {floor:.1} µs on three"
        );
    }
}

/// The median time of a cycle, in µs.
fn median(mut cycle: impl FnMut()) -> f64 {
    let mut times: Vec<u64> = (0..CYCLES)
        .map(|_| {
            let started = now();
            cycle();
            now() - started
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2] as f64 / 1000.0
}

fn cycle(manager: &LockManager, unlock: bool) {
    let guard = manager.lock("bench").expect("it is free");
    if unlock {
        guard.unlock().expect("it is held");
    } else {
        drop(guard);
    }
}

/// The least that a client of three servers can do: one request to each, and a wait for two replies.
/// Its requests are plain commands, whose replies have one line.
struct Bare {
    streams: Vec<TcpStream>,
    /// How many replies each of them owes.
    due: Vec<usize>,
}

impl Bare {
    fn connect(servers: &[Redis]) -> Bare {
        let connect = |server: &Redis| {
            let address = server.url.trim_start_matches("redis://");
            let address = address.trim_end_matches('/');
            let stream = TcpStream::connect(address).expect("a Redis that answers");
            stream.set_nodelay(true).expect("a socket");
            stream.set_nonblocking(true).expect("a socket");
            stream
        };
        Bare {
            streams: servers.iter().map(connect).collect(),
            due: vec![0; servers.len()],
        }
    }

    fn cycle(&mut self, unlock: bool) {
        self.send(b"SET bare token NX PX 30000\r\n");
        self.await_majority();
        self.send(b"DEL bare\r\n");
        if unlock {
            self.await_majority();
        }
    }

    fn send(&mut self, request: &[u8]) {
        for (mut stream, due) in self.streams.iter().zip(&mut self.due) {
            stream.write_all(request).expect("it is open");
            *due += 1;
        }
    }

    fn await_majority(&mut self) {
        while self.due.iter().filter(|due| **due == 0).count() < 2 {
            let mut polled: Vec<PollFd<'_>> = self
                .streams
                .iter()
                .map(|stream| PollFd::new(stream, PollFlags::IN))
                .collect();
            poll(&mut polled, None).expect("no signal");
            let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
            for (at, _) in ready.iter().enumerate().filter(|(_, ready)| **ready) {
                let mut bytes = [0; 256];
                let read = (&self.streams[at]).read(&mut bytes).expect("it is ready");
                let lines = bytes[..read].iter().filter(|byte| **byte == b'\n');
                self.due[at] -= lines.count();
            }
        }
    }
}
