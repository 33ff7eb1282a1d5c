//! Connecting hangs: the server neither answers nor refuses. On Redis alone, since the in-memory
//! store has no connections.

use std::{
    io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, unbounded};
use fairlock::{Error, LockManager, LossReason, Result};
use redis::io::tcp::socket2::{Domain, SockAddr, Socket, Type};

use crate::{
    fixtures::{P, SOON, T, build, builder, manager},
    support::{Proxy, SLACK, Server, until},
};

/// Forwards bytes between its own socket and the server's until it hangs. Then it closes all
/// connections, and neither accepts nor refuses new ones.
struct Relay {
    path: PathBuf,
    hung: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<UnixStream>>>,
    queued: Mutex<Vec<Socket>>,
}

impl Relay {
    fn to(server: &Server, server_socket: &Path) -> Relay {
        let path = server.dir().join("relay");
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        listener.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        listener.listen(4).unwrap();
        let hung = Arc::new(AtomicBool::new(false));
        let streams = Arc::new(Mutex::new(Vec::new()));
        let server_socket = server_socket.to_owned();
        thread::spawn({
            let hung = Arc::clone(&hung);
            let streams = Arc::clone(&streams);
            move || {
                while let Ok((client, _)) = listener.accept() {
                    while hung.load(Ordering::SeqCst) {
                        thread::park();
                    }
                    let client = UnixStream::from(std::os::fd::OwnedFd::from(client));
                    let server = UnixStream::connect(&server_socket).unwrap();
                    for (mut from, mut to) in [
                        (client.try_clone().unwrap(), server.try_clone().unwrap()),
                        (server.try_clone().unwrap(), client.try_clone().unwrap()),
                    ] {
                        thread::spawn(move || {
                            let _ = io::copy(&mut from, &mut to);
                            let _ = to.shutdown(std::net::Shutdown::Both);
                        });
                    }
                    streams.lock().unwrap().push(client);
                }
            }
        });
        Relay {
            path,
            hung,
            streams,
            queued: Mutex::new(Vec::new()),
        }
    }

    fn url(&self) -> String {
        format!("redis+unix://{}", self.path.display())
    }

    fn hang(&self) {
        self.hung.store(true, Ordering::SeqCst);
        let mut queued = self.queued.lock().unwrap();
        // The accepting thread may accept one more connection before it sees the flag.
        let mut full = 0;
        until(SOON, "the backlog stays full", || {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            match socket.connect(&SockAddr::unix(&self.path).unwrap()) {
                Ok(()) => queued.push(socket),
                Err(_) => full += 1,
            }
            full == 20
        });
        for stream in self.streams.lock().unwrap().iter() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn socket_of(server: &Server) -> PathBuf {
    server.url().trim_start_matches("redis+unix://").into()
}

/// P8: a wait ends at the outage limit, even if the renewal thread cannot finish connecting.
#[test]
fn p8_a_wait_ends_at_the_outage_limit_while_connecting_hangs() {
    let limit = Duration::from_secs(2);
    let server = Server::start();
    let relay = Relay::to(&server, &socket_of(&server));
    let holder = manager(server.url());
    let _guard = holder.lock("k").unwrap();
    let waiting = build(builder(relay.url()).outage_limit(limit));
    let ended = wait_both_ways(&waiting, 2 * limit);
    until(SLACK, "they wait", || {
        holder.inspect("k").unwrap().unwrap().waiters == 2
    });
    // Time itself is under test: a connection that was just opened is not reopened at once.
    thread::sleep(2 * P);
    relay.hang();
    let late = Instant::now() + 2 * limit + T + SLACK;
    for _ in 0..2 {
        let end = ended
            .recv_deadline(late)
            .expect("the wait ends though connecting hangs");
        assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}");
    }
}

#[test]
fn p6_a_loss_is_reported_on_time_while_connecting_hangs() {
    let server = Server::start();
    let relay = Relay::to(&server, &socket_of(&server));
    let manager = manager(relay.url());
    let guard = manager.lock("k").unwrap();
    until(SOON, "the renewal thread is connected", || {
        manager.stats().renewals_confirmed > 0
    });
    relay.hang();
    let deadline = Instant::now() + guard.remaining();
    let loss = guard
        .lost()
        .recv_deadline(deadline + T + SLACK)
        .expect("the loss is reported");
    assert_eq!(
        (loss.reason, loss.fence),
        (LossReason::Expired, guard.fence())
    );
    assert!(!guard.is_held());
}

#[test]
fn p8_a_wait_ends_at_the_outage_limit_despite_longer_connecting() {
    let (limit, max_wait) = (Duration::from_secs(2), Duration::from_secs(8));
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let holder = manager(server.url());
    let _guard = holder.lock("k").unwrap();
    let waiting = build(
        builder(proxy.url())
            .outage_limit(limit)
            .connect_timeout(max_wait),
    );
    let ended = wait_both_ways(&waiting, limit);
    until(SLACK, "they wait", || {
        holder.inspect("k").unwrap().unwrap().waiters == 2
    });
    // Time itself is under test, as above.
    thread::sleep(2 * P);
    let since = Instant::now();
    proxy.pause_requests();
    proxy.pause_replies();
    proxy.close_all();
    // The call with a deadline may add one timeout, the other call two.
    for late in [limit + T, limit + 2 * T] {
        let end = ended
            .recv_deadline(since + late + SLACK)
            .expect("the wait ends before the connect timeout");
        assert!(matches!(end, Err(Error::Unavailable { .. })), "{end:?}");
    }
}

/// Waits for the name with `lock` and with `try_lock_for`, each on its own thread. A failed test
/// leaves them behind.
fn wait_both_ways(manager: &LockManager, at_most: Duration) -> Receiver<Result<bool>> {
    let (sender, ended) = unbounded();
    for at_most in [None, Some(at_most)] {
        let sender = sender.clone();
        let manager = manager.clone();
        thread::spawn(move || {
            let _ = sender.send(match at_most {
                None => manager.lock("k").map(|_| true),
                Some(at_most) => manager
                    .try_lock_for("k", at_most)
                    .map(|guard| guard.is_some()),
            });
        });
    }
    ended
}
