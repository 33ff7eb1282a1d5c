//! Shows that the network's cuts are cuts: datagrams between two hosts, before, during and after.

use std::{
    env,
    net::UdpSocket,
    thread,
    time::{Duration, Instant},
};

use crate::{
    network::{Host, Network},
    support::{
        Child,
        child::{receive, report},
    },
};

/// A datagram between two hosts of this machine takes far less, also on a loaded one.
const ARRIVES_WITHIN: Duration = Duration::from_secs(5);

/// Panics unless each kind of cut stops exactly what it should stop.
pub(crate) fn check() {
    let mut network = Network::new("probe", 9);
    let (a, b) = (network.add_host(), network.add_host());
    let mut pair = Pair {
        probes: [Probe::start(&network, a), Probe::start(&network, b)],
        sent: 0,
    };
    pair.expect([true, true]);
    network.cut_one_way(a, b);
    pair.expect([false, true]);
    network.heal_all();
    pair.expect([true, true]);
    network.cut_between(a, b);
    pair.expect([false, false]);
    network.heal_all();
    pair.expect([true, true]);
    network.cut(a);
    pair.expect([false, false]);
    network.heal(a);
    pair.expect([true, true]);
}

struct Pair {
    probes: [Probe; 2],
    sent: usize,
}

impl Pair {
    /// Checks whether datagrams arrive from the first at the second, and the other way.
    fn expect(&mut self, arrives: [bool; 2]) {
        let lost: Vec<_> = (0..2)
            .filter(|from| !arrives[*from])
            .map(|from| (1 - from, self.send(from)))
            .collect();
        (0..2)
            .filter(|from| arrives[*from])
            .for_each(|from| self.deliver(from));
        if !lost.is_empty() {
            // Time itself is under test: a datagram would arrive in it.
            thread::sleep(Duration::from_millis(100));
        }
        for (at, text) in &lost {
            assert!(!self.probes[*at].got(text), "{text} came through a cut");
        }
    }

    /// Sends one datagram, and returns its text.
    fn send(&mut self, from: usize) -> String {
        self.sent += 1;
        let text = format!("datagram-{}", self.sent);
        let to = self.probes[1 - from].address.clone();
        self.probes[from].process.send(&format!("{to} {text}"));
        text
    }

    /// Sends until something arrives: a network that was just healed may lose the first.
    fn deliver(&mut self, from: usize) {
        let deadline = Instant::now() + ARRIVES_WITHIN;
        loop {
            let text = self.send(from);
            let sent = Instant::now();
            while sent.elapsed() < Duration::from_millis(200) {
                if self.probes[1 - from].got(&text) {
                    return;
                }
                // A pause between two polls.
                thread::sleep(Duration::from_millis(2));
            }
            assert!(Instant::now() < deadline, "nothing arrives from {from}");
        }
    }
}

struct Probe {
    process: Child,
    address: String,
    seen: Vec<String>,
}

impl Probe {
    fn start(network: &Network, host: Host) -> Probe {
        let address = format!("{}:9000", network.address(host));
        let this = env::current_exe().expect("a running test has a binary");
        let process = Child::spawn_by(network.command(host, this), "probe", &[&address]);
        process.expect("ready", ARRIVES_WITHIN);
        Probe {
            process,
            address,
            seen: Vec::new(),
        }
    }

    fn got(&mut self, text: &str) -> bool {
        self.seen.extend(self.process.pending_lines());
        self.seen.iter().any(|line| line == text)
    }
}

/// The child role: sends what the parent wants, and reports what arrives.
pub(crate) fn probe(args: &[String]) {
    let socket = UdpSocket::bind(&args[0]).expect("the host has this address");
    let listener = socket.try_clone().expect("a socket can be shared");
    thread::spawn(move || {
        let mut buffer = [0; 200];
        while let Ok(length) = listener.recv(&mut buffer) {
            report(String::from_utf8_lossy(&buffer[..length]));
        }
    });
    report("ready");
    while let Some(line) = receive() {
        let (to, text) = line.split_once(' ').expect("an address and a text");
        // The kernel may refuse to send over a link that is down.
        let _ = socket.send_to(text.as_bytes(), to);
    }
}
