//! Two addresses of one server, which must not have two votes.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use fairlock::{Error, endpoint::Endpoint};

use super::set::{TIMEOUT, TTL, builder};
use crate::support::{SLACK, Server, until};

/// An address that leads to one server, and later to another.
struct VirtualAddress {
    addr: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    target: SocketAddr,
    open: Vec<TcpStream>,
}

impl VirtualAddress {
    fn of(target: &Server) -> VirtualAddress {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let state = Arc::new(Mutex::new(State {
            target: target.addr(),
            open: Vec::new(),
        }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut state = shared.lock().unwrap();
                let Ok(server) = TcpStream::connect(state.target) else {
                    continue;
                };
                copy(&client, &server);
                copy(&server, &client);
                state.open.extend([client, server]);
            }
        });
        VirtualAddress { addr, state }
    }

    /// From now on it leads there. Its connections end.
    fn move_to(&self, target: &Server) {
        let mut state = self.state.lock().unwrap();
        state.target = target.addr();
        for stream in state.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }
}

fn copy(from: &TcpStream, to: &TcpStream) {
    let mut from = from.try_clone().expect("a descriptor");
    let mut to = to.try_clone().expect("a descriptor");
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
}

#[test]
fn one_server_at_two_addresses_is_refused() {
    let (one, other) = (Server::tcp(), Server::tcp());
    let port = one.addr().port();
    let name = format!("redis://localhost:{port}");
    for twin in [name.clone(), format!("{name}/1")] {
        for check in [true, false] {
            let urls = [one.url(), other.url(), twin.clone()];
            let refused = builder(Endpoint::quorum(urls)).uptime_check(check).build();
            let error = refused.expect_err("it would have two votes");
            assert!(matches!(error, Error::Misused { .. }), "{error}");
            let text = error.to_string();
            let names = format!("redis://127.0.0.1:{port} and {twin} are the same server");
            assert!(text.contains(&names), "{text}");
        }
    }
}

/// It was somewhere else, or nowhere, when the manager was built.
#[test]
fn address_that_moves_to_another_voter_loses_its_vote() {
    let servers = [Server::tcp(), Server::tcp(), Server::tcp()];
    let [one, other, third] = &servers;
    let moving = VirtualAddress::of(third);
    let urls = || [one.url(), other.url(), moving.url()];
    let manager = builder(Endpoint::quorum(urls()))
        .build()
        .expect("three servers");
    manager.lock("a").unwrap().unlock().unwrap();
    moving.move_to(one);
    // Its next connection shows where it leads.
    until(TTL, "calls go on", || {
        manager.try_lock("a").is_ok_and(|taken| taken.is_some())
    });
    let held = manager.lock("held").unwrap();
    other.stop();
    // One server is left, at two addresses. It is no majority.
    until(TIMEOUT * 2 + SLACK, "no lock is granted", || {
        manager.try_lock("b").is_err()
    });
    let error = manager.try_lock("b").expect_err("one server of two");
    let Error::Unavailable { cause, .. } = &error else {
        panic!("{error}");
    };
    let text = cause.to_string();
    let url = one.url();
    let same = format!(
        "refused: it is the same server as {}",
        url.trim_end_matches('/')
    );
    let is_named = text.contains(&moving.addr.to_string()) && text.contains(&same);
    assert!(is_named, "{text}");
    assert!(held.renew().is_err());
    held.lost()
        .recv_timeout(TTL + SLACK)
        .expect("one vote does not keep it");
    other.cont();
    until(TTL + SLACK, "two servers are a majority", || {
        manager.try_lock("b").is_ok_and(|taken| taken.is_some())
    });
    // It leads to a server of its own again, and has its vote.
    moving.move_to(third);
    until(TTL + SLACK, "it is asked", || {
        let _ = manager.try_lock("b");
        super::set::owner(third, "b").is_some()
            || third.query::<i64>(&["EXISTS", "fairlock:{b}"]) == 1
    });
    other.kill();
    until(TTL + SLACK, "it votes", || {
        manager.try_lock("b").is_ok_and(|taken| taken.is_some())
    });
}

/// Without the right, nobody can tell. The servers keep their votes.
#[test]
fn server_that_hides_its_id_keeps_its_vote() {
    let servers = [Server::tcp(), Server::tcp(), Server::tcp()];
    for server in &servers {
        server.query::<()>(&["ACL", "SETUSER", "default", "-info"]);
    }
    let manager = builder(Endpoint::quorum(servers.each_ref().map(Server::url))).build();
    let manager = manager.expect("the rights are enough without the uptime check");
    manager.lock("a").unwrap().unlock().unwrap();
}
