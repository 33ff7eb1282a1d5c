//! Connections that do not come about: nobody answers, and nobody refuses. On Redis alone, since in memory there is
//! nothing to connect to.

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

use fairlock::Error;
use redis::io::tcp::socket2::{Domain, SockAddr, Socket, Type};

use crate::{
    scene::{P, T, build, builder, manager},
    support::{Proxy, SLACK, Server, until},
};

/// Carries bytes between a socket of its own and a server's, until it hangs: then what is connected is closed, and who
/// connects anew is neither accepted nor refused.
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
        let (hung, streams) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let server_socket = server_socket.to_owned();
        thread::spawn({
            let (hung, streams) = (Arc::clone(&hung), Arc::clone(&streams));
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
        Relay { path, hung, streams, queued: Mutex::new(Vec::new()) }
    }

    fn url(&self) -> String {
        format!("redis+unix://{}", self.path.display())
    }

    fn hang(&self) {
        self.hung.store(true, Ordering::SeqCst);
        let mut queued = self.queued.lock().unwrap();
        let mut full = 0;
        while full < 20 {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            match socket.connect(&SockAddr::unix(&self.path).unwrap()) {
                Ok(()) => queued.push(socket),
                Err(_) => full += 1,
            }
            thread::sleep(Duration::from_millis(2));
        }
        for stream in self.streams.lock().unwrap().iter() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn socket_of(server: &Server) -> PathBuf {
    server.url().trim_start_matches("redis+unix://").into()
}

/// P8: `lock` ends at the outage limit, whatever it is that does not come.
#[test]
fn a_wait_ends_at_the_outage_limit_though_connecting_never_ends() {
    let limit = Duration::from_secs(2);
    let server = Server::start();
    let relay = Relay::to(&server, &socket_of(&server));
    let holder = manager(server.url());
    let _guard = holder.lock("k").unwrap();
    let waiting = build(builder(relay.url()).outage_limit(limit));
    thread::scope(|scope| {
        let lock = scope.spawn(|| waiting.lock("k").map(drop));
        let attempt = scope.spawn(|| waiting.try_lock_for("k", 2 * limit).map(drop));
        until(SLACK, "they wait", || holder.inspect("k").unwrap().unwrap().waiters == 2);
        // A connection that has just been opened is not reopened at once.
        thread::sleep(2 * P);
        relay.hang();
        let since = Instant::now();
        let late = 2 * limit + T + SLACK;
        while since.elapsed() < late && !(lock.is_finished() && attempt.is_finished()) {
            thread::sleep(Duration::from_millis(10));
        }
        let (lock_over, attempt_over) = (lock.is_finished(), attempt.is_finished());
        // So that the scope ends.
        waiting.shutdown(Duration::ZERO).ok();
        let ended = (lock.join().unwrap(), attempt.join().unwrap());
        assert!(lock_over && attempt_over, "still waiting after {late:?}: {lock_over} {attempt_over}, {ended:?}");
        assert!(matches!(ended.0, Err(Error::Unavailable { .. })), "{ended:?}");
    });
}

/// P8 again, with a legal setting and a network that swallows what is sent.
#[test]
fn a_wait_ends_at_the_outage_limit_while_a_connection_is_being_opened() {
    let (limit, patience) = (Duration::from_secs(2), Duration::from_secs(8));
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let holder = manager(server.url());
    let _guard = holder.lock("k").unwrap();
    let waiting = build(builder(proxy.url()).outage_limit(limit).connect_timeout(patience));
    thread::scope(|scope| {
        let lock = scope.spawn(|| waiting.lock("k").map(drop));
        let attempt = scope.spawn(|| waiting.try_lock_for("k", limit).map(drop));
        until(SLACK, "they wait", || holder.inspect("k").unwrap().unwrap().waiters == 2);
        thread::sleep(2 * P);
        let since = Instant::now();
        proxy.pause_requests();
        proxy.pause_replies();
        proxy.close_all();
        let attempt = attempt.join().unwrap();
        let attempt_took = since.elapsed();
        let lock = lock.join().unwrap();
        let took = since.elapsed();
        drop((lock, attempt));
        assert!(took < limit + P + T + SLACK, "lock took {took:?}, its outage limit was {limit:?}");
        assert!(attempt_took < limit + 2 * T + SLACK, "try_lock_for({limit:?}) took {attempt_took:?}");
    });
}
