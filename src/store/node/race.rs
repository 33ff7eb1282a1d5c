//! How one of a server's addresses is chosen: by a race.
//!
//! An address may lead nowhere: a route that is dead, a pod that is gone, a balancer that accepts
//! for a server that does not answer. So the first address has only a head start; then the next is
//! tried beside it. The first connection that is ready for calls wins, so the race covers TLS and
//! Redis's handshake, too. An address that accepts and then says nothing holds up no other.
//!
//! An address that fails makes way for the next at once. So the last one that is left, as for
//! `localhost` where the server listens on one family, needs no thread, and neither does a server
//! with one address.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, unbounded};

use super::resolve::{Peer, peers_of};
use crate::error::Step;
use crate::store::{Address, StoreFault};

/// The head start of an address before the next (RFC 8305, section 5), if the timeout has room for
/// that.
const HEAD_START: Duration = Duration::from_millis(250);

/// Opens a connection to one of the server's addresses by `open`, which gets the time that it may
/// take. Blocks for `timeout` at most. All addresses are tried within the first half of it, unless
/// resolving the name takes longer.
pub(super) fn connect<C: Send + 'static>(
    address: &Address,
    timeout: Duration,
    open: impl Fn(&Peer, Duration) -> Result<C, StoreFault> + Send + Sync + 'static,
) -> Result<C, StoreFault> {
    let ends_at = Instant::now() + timeout;
    let peers = peers_of(address, timeout)?;
    race(&peers, ends_at, open)
}

fn race<C: Send + 'static>(
    peers: &[Peer],
    ends_at: Instant,
    open: impl Fn(&Peer, Duration) -> Result<C, StoreFault> + Send + Sync + 'static,
) -> Result<C, StoreFault> {
    let left = || ends_at.saturating_duration_since(Instant::now());
    let head_start = HEAD_START.min(left() / 2 / peers.len().max(1) as u32);
    let open = Arc::new(open);
    let (sender, outcomes) = unbounded();
    let mut running = 0;
    let mut failed = None;
    for (number, peer) in peers.iter().enumerate() {
        let behind = (peers.len() - number) as u32;
        let is_alone = running == 0 && behind == 1;
        if is_alone || begin(&open, peer, ends_at, &sender).is_err() {
            // Without a thread, those behind it still have their part of the time.
            match open(peer, left() / behind) {
                Ok(connection) => return Ok(connection),
                Err(fault) => note(&mut failed, fault),
            }
            continue;
        }
        running += 1;
        let next_at = ends_at.min(Instant::now() + head_start);
        // If one fails, the next need not wait for the others.
        if let Ok(outcome) = outcomes.recv_deadline(next_at) {
            running -= 1;
            match outcome {
                Ok(connection) => return Ok(connection),
                Err(fault) => note(&mut failed, fault),
            }
        }
    }
    while running > 0
        && let Ok(outcome) = outcomes.recv_deadline(ends_at)
    {
        running -= 1;
        match outcome {
            Ok(connection) => return Ok(connection),
            Err(fault) => note(&mut failed, fault),
        }
    }
    Err(failed.unwrap_or_else(|| StoreFault::timed_out(Step::Connect)))
}

/// Tries an address on a thread, which ends when its time is over. A connection that nobody wants
/// any more is closed.
fn begin<C: Send + 'static>(
    open: &Arc<impl Fn(&Peer, Duration) -> Result<C, StoreFault> + Send + Sync + 'static>,
    peer: &Peer,
    ends_at: Instant,
    outcome: &Sender<Result<C, StoreFault>>,
) -> Result<(), StoreFault> {
    let (open, peer, outcome) = (Arc::clone(open), peer.clone(), outcome.clone());
    connecting(move || {
        let left = ends_at.saturating_duration_since(Instant::now());
        let _ = outcome.send(open(&peer, left));
    })
}

/// Starts a thread that connects, and that nobody joins.
pub(in crate::store) fn connecting(work: impl FnOnce() + Send + 'static) -> Result<(), StoreFault> {
    thread::Builder::new()
        .name("fairlock-connect".to_owned())
        .spawn(work)
        .map(drop)
        .map_err(StoreFault::no_thread)
}

/// Keeps the fault that says the most: a server's words, else a refusal, else the silence.
fn note(failed: &mut Option<StoreFault>, fault: StoreFault) {
    let weight = |fault: &StoreFault| match fault {
        StoreFault::Unavailable { source, .. } => {
            let io = source.downcast_ref::<io::Error>();
            u8::from(io.is_none_or(|error| error.kind() != io::ErrorKind::TimedOut))
        }
        _ => 2,
    };
    if failed
        .as_ref()
        .is_none_or(|known| weight(known) <= weight(&fault))
    {
        *failed = Some(fault);
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use crossbeam_channel::{Receiver, bounded};

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(600);
    const SLACK: Duration = Duration::from_millis(1500);

    fn peers(count: u16) -> Vec<Peer> {
        let peer = |port| Peer::Tcp(SocketAddr::from(([127, 0, 0, 1], port)));
        (1..=count).map(peer).collect()
    }

    fn port(peer: &Peer) -> u16 {
        match peer {
            Peer::Tcp(address) => address.port(),
            Peer::Unix(_) => 0,
        }
    }

    fn refused() -> StoreFault {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        StoreFault::unavailable(Step::Connect, refused)
    }

    /// An address that swallows everything. It ends when the test does.
    fn silence() -> (Sender<()>, Receiver<()>) {
        bounded(0)
    }

    #[test]
    fn silent_addresses_leave_time_for_the_last() {
        let (_alive, silent) = silence();
        let started = Instant::now();
        // Half of it is for the last one, which a loaded machine may need.
        let timeout = TIMEOUT + SLACK;
        let won = race(&peers(9), started + timeout, move |peer, _| {
            if port(peer) < 9 {
                let _ = silent.recv();
            }
            Ok(port(peer))
        });
        assert_eq!(won.expect("the last one answers"), 9);
        assert!(started.elapsed() < timeout);
    }

    #[test]
    fn slow_address_wins_over_a_silent_one_behind_it() {
        let (_alive, silent) = silence();
        let won = race(&peers(2), Instant::now() + TIMEOUT, move |peer, left| {
            if port(peer) == 1 {
                // Time itself is under test: the address is slow.
                thread::sleep(left * 2 / 3);
            } else {
                let _ = silent.recv();
            }
            Ok(port(peer))
        });
        assert_eq!(won.expect("the first one answers"), 1);
    }

    #[test]
    fn addresses_that_refuse_make_way_on_the_same_thread() {
        let own = thread::current().id();
        let started = Instant::now();
        let won = race(&peers(2), started + SLACK * 2, move |peer, _| {
            if port(peer) == 1 {
                return Err(refused());
            }
            Ok(thread::current().id())
        });
        assert_eq!(won.expect("the second one answers"), own);
        assert!(started.elapsed() < HEAD_START + SLACK);
    }

    #[test]
    fn silence_everywhere_ends_in_time() {
        let (_alive, silent) = silence();
        let started = Instant::now();
        let lost = race(&peers(3), started + TIMEOUT, move |_, _| {
            let _ = silent.recv();
            Ok(())
        });
        let took = started.elapsed();
        assert!(lost.is_err());
        assert!(took >= TIMEOUT && took <= TIMEOUT + SLACK, "{took:?}");
    }

    #[test]
    fn servers_words_outweigh_other_failures() {
        let said = |order: [u16; 3]| {
            let lost = race(&peers(3), Instant::now() + SLACK, move |peer, _| {
                Err::<(), _>(match order[usize::from(port(peer)) - 1] {
                    0 => StoreFault::timed_out(Step::Connect),
                    1 => refused(),
                    _ => StoreFault::server("WRONGPASS", "no"),
                })
            });
            lost.expect_err("all fail").code().map(str::to_owned)
        };
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            assert_eq!(said(order).as_deref(), Some("WRONGPASS"));
        }
    }
}
