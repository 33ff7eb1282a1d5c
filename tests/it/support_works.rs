//! Tests of the test support: a fault that never happens would let every test that relies on it
//! pass without testing anything. On no store: nothing here knows fairlock.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use redis::Connection;

use crate::support::{
    Child, Proxy, SLACK, ScriptedReply, ScriptedServer, Server, all_of, contains,
    scripted_server::{is, next_command, next_reply},
    throughout, until,
};

const SOON: Duration = Duration::from_secs(5);

#[test]
fn server_starts_empty_and_restarts_empty() {
    let server = Server::start();
    let _: () = server.query(&["SET", "k", "v"]);
    assert_eq!(server.keys_without_ttl(), ["k"]);
    let pid = server.pid();
    let url = server.url();
    server.restart();
    assert_ne!(server.pid(), pid);
    assert_eq!(server.url(), url);
    assert_eq!(server.query::<Option<String>>(&["GET", "k"]), None);
}

#[test]
fn server_with_aof_keeps_its_data_on_the_same_port() {
    let server = Server::tcp_with(&["--appendonly", "yes"]);
    let _: () = server.query(&["SET", "k", "v", "PX", "60000"]);
    server.kill();
    assert!(server.try_query::<()>(&["PING"]).is_err());
    server.restart();
    assert_eq!(server.query::<String>(&["GET", "k"]), "v");
    assert!(server.keys_without_ttl().is_empty());
}

#[test]
fn stopped_server_answers_when_it_continues() {
    let server = Server::start();
    let mut connection = server.connection();
    connection
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    server.stop();
    assert!(ping(&mut connection).is_err());
    server.cont();
    assert_eq!(server.query::<String>(&["PING"]), "PONG");
}

#[test]
fn server_counts_the_commands_and_clients_of_others_only() {
    let server = Server::start();
    let before = server.commands_processed();
    assert_eq!(server.commands_processed(), before);
    assert_eq!(server.clients().len(), 0);
    let mut connection = server.connection();
    let opened = server.commands_processed();
    for _ in 0..3 {
        ping(&mut connection).unwrap();
    }
    assert_eq!(server.commands_processed(), opened + 3);
    assert_eq!(server.clients().len(), 1);
}

#[test]
fn proxy_swallows_a_reply_after_the_request_was_carried_out() {
    let (server, proxy) = proxied();
    let mut connection = open(&proxy);
    let fault = proxy.swallow_reply_when(contains("mine"));
    let _: i64 = redis::cmd("INCR")
        .arg("other")
        .query(&mut connection)
        .unwrap();
    assert!(!fault.has_triggered());
    let lost = redis::cmd("INCR").arg("mine").query::<i64>(&mut connection);
    assert!(lost.unwrap_err().is_connection_dropped());
    assert_eq!(fault.wait(SOON), b":1\r\n");
    assert_eq!(server.query::<i64>(&["GET", "mine"]), 1);
    let _: i64 = redis::cmd("INCR")
        .arg("mine")
        .query(&mut open(&proxy))
        .unwrap();
}

#[test]
fn proxy_swallows_silently() {
    let (server, proxy) = proxied();
    let mut connection = open(&proxy);
    let fault = proxy.swallow_silently_when(all_of(&["INCR", "mine"]));
    let lost = redis::cmd("INCR").arg("mine").query::<i64>(&mut connection);
    assert!(lost.unwrap_err().is_timeout());
    assert_eq!(fault.wait(SOON), b":1\r\n");
    assert_eq!(proxy.connections(), 1);
    assert_eq!(server.query::<i64>(&["GET", "mine"]), 1);
}

#[test]
fn proxy_sends_a_held_request_after_its_client_has_gone() {
    let (server, proxy) = proxied();
    let mut connection = open(&proxy);
    let held = proxy.hold_request_when(contains("late"));
    assert!(
        redis::cmd("INCR")
            .arg("late")
            .query::<i64>(&mut connection)
            .is_err()
    );
    drop(connection);
    held.wait(SOON);
    until(SOON, "the client has gone", || proxy.connections() == 0);
    assert_eq!(server.query::<Option<i64>>(&["GET", "late"]), None);
    assert_eq!(held.release(), b":1\r\n");
    assert_eq!(server.query::<i64>(&["GET", "late"]), 1);
}

#[test]
fn proxy_pauses_either_direction() {
    let (server, proxy) = proxied();
    let mut connection = open(&proxy);
    proxy.pause_requests();
    assert!(
        redis::cmd("INCR")
            .arg("a")
            .query::<i64>(&mut connection)
            .is_err()
    );
    assert_eq!(server.query::<Option<i64>>(&["GET", "a"]), None);
    proxy.resume_requests();
    until(SOON, "the request arrives", || {
        server.query::<i64>(&["EXISTS", "a"]) == 1
    });

    let mut connection = open(&proxy);
    proxy.pause_replies();
    assert!(
        redis::cmd("INCR")
            .arg("b")
            .query::<i64>(&mut connection)
            .is_err()
    );
    assert_eq!(server.query::<i64>(&["GET", "b"]), 1);
    let before = proxy.replies_bytes();
    proxy.resume_replies();
    until(SOON, "the reply passes", || proxy.replies_bytes() > before);
}

#[test]
fn proxy_delays_chunks_side_by_side() {
    let (_server, proxy) = proxied();
    let delay = Duration::from_millis(100);
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    stream.set_nodelay(true).unwrap();
    proxy.delay(delay);
    let start = Instant::now();
    for _ in 0..40 {
        stream.write_all(b"PING\r\n").unwrap();
        // Time itself is under test: each chunk has a delay of its own.
        thread::sleep(Duration::from_millis(1));
    }
    let mut replies = [0; 40 * b"+PONG\r\n".len()];
    stream.read_exact(&mut replies).unwrap();
    let took = start.elapsed();
    assert!(took >= 2 * delay, "{took:?}");
    // One after the other, the chunks would take 40 delays or more.
    assert!(took < 2 * delay + SLACK, "{took:?}");
}

#[test]
fn proxy_cuts_a_reply_at_a_byte() {
    let (_server, proxy) = proxied();
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    let fault = proxy.cut_reply_at(3);
    stream.write_all(b"PING\r\n").unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"+PO");
    assert_eq!(fault.wait(SOON), b"+PO");
}

#[test]
fn proxy_resets_connections_and_requests() {
    let (server, proxy) = proxied();
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    until(SOON, "the connection is made", || proxy.connections() == 1);
    proxy.reset_all();
    assert_eq!(proxy.connections(), 0);
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);

    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    let fault = proxy.reset_request_when(contains("INCR"));
    stream.write_all(b"INCR k\r\n").unwrap();
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(fault.wait(SOON), b"INCR k\r\n");
    assert_eq!(server.query::<i64>(&["EXISTS", "k"]), 0);

    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    let fault = proxy.swallow_and_reset_when(contains("INCR"));
    stream.write_all(b"INCR k\r\n").unwrap();
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(fault.wait(SOON), b":1\r\n");
}

#[test]
fn proxy_refuses_and_accepts() {
    let (server, proxy) = proxied();
    proxy.refuse();
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    proxy.accept();
    ping(&mut open(&proxy)).unwrap();
    until(SOON, "the client has gone", || proxy.connections() == 0);

    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    until(SOON, "the connection is made", || proxy.connections() == 1);
    server.kill();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn scripted_server_sends_the_scripted_replies() {
    let scripted_server = ScriptedServer::start(|words| match words {
        _ if is(words, "GET") => ScriptedReply::error("LOADING not yet"),
        _ if is(words, "LRANGE") => ScriptedReply::array([
            ScriptedReply::bulk("a\r\nb"),
            ScriptedReply::integer(7),
            ScriptedReply::nil(),
        ]),
        _ if is(words, "DEL") => ScriptedReply::Close,
        _ if is(words, "SET") => ScriptedReply::Silent,
        _ => ScriptedReply::polite(words),
    });
    let mut connection = connect(&scripted_server.url());
    let error = redis::cmd("GET")
        .arg("k")
        .query::<()>(&mut connection)
        .unwrap_err();
    assert_eq!(error.code(), Some("LOADING"));
    let list: (String, i64, Option<String>) = redis::cmd("LRANGE").query(&mut connection).unwrap();
    assert_eq!(list, ("a\r\nb".into(), 7, None));
    let two: (String, String) = redis::pipe()
        .cmd("PING")
        .cmd("ECHO")
        .arg("x")
        .query(&mut connection)
        .unwrap();
    assert_eq!(two, ("PONG".into(), "OK".into()));
    let error = redis::cmd("DEL").query::<()>(&mut connection).unwrap_err();
    assert!(error.is_connection_dropped());
    let error = redis::cmd("SET")
        .query::<()>(&mut connect(&scripted_server.url()))
        .unwrap_err();
    assert!(error.is_timeout());
    assert_eq!(scripted_server.count("get"), 1);
    assert!(
        scripted_server
            .commands()
            .contains(&vec!["ECHO".into(), "x".into()])
    );
}

#[test]
fn commands_are_parsed_wherever_a_read_ended() {
    let bytes = b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\nPING x\r\n";
    let (words, length) = next_command(bytes).unwrap();
    assert_eq!(words, [b"GET".to_vec(), b"a\r\nb".to_vec()]);
    for end in 0..length {
        assert_eq!(next_command(&bytes[..end]), None, "{end}");
    }
    let (words, rest) = next_command(&bytes[length..]).unwrap();
    assert_eq!(words, [b"PING".to_vec(), b"x".to_vec()]);
    assert_eq!(length + rest, bytes.len());
}

#[test]
fn replies_are_parsed_wherever_a_read_ended() {
    let bytes = b"*3\r\n$4\r\na\r\nb\r\n*2\r\n:7\r\n$-1\r\n-ERR no\r\n";
    for end in 0..bytes.len() {
        assert_eq!(next_reply(&bytes[..end]), None, "{end}");
    }
    let with_next = [&bytes[..], b"+OK\r\n"].concat();
    assert_eq!(next_reply(&with_next), Some(bytes.len()));
    for whole in [
        &b"*-1\r\n"[..],
        b"*0\r\n",
        b"%1\r\n+a\r\n:1\r\n",
        b"$0\r\n\r\n",
    ] {
        assert_eq!(next_reply(whole), Some(whole.len()));
    }
}

/// Many requests may be in flight on one connection.
#[test]
fn proxy_faults_strike_the_reply_of_the_request_that_matched() {
    let (server, proxy) = proxied();
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let both = b"INCR first\r\nINCRBY mine 7\r\nINCR last\r\n";
    let held = proxy.hold_request_when(contains("mine"));
    stream.write_all(both).unwrap();
    let mut reply = [0; 4];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b":1\r\n", "what comes before it passes");
    assert_eq!(server.query::<i64>(&["EXISTS", "mine", "last"]), 0);
    assert_eq!(held.release(), b":7\r\n");
    let mut replies = [0; 8];
    stream.read_exact(&mut replies).unwrap();
    assert_eq!(&replies, b":7\r\n:1\r\n");

    // The replies of the first request are under way when the second comes.
    proxy.pause_replies();
    stream.write_all(b"INCR first\r\n").unwrap();
    let fault = proxy.cut_reply_when(2, contains("mine"));
    stream.write_all(both).unwrap();
    assert_eq!(fault.wait(SOON), b":1");
    proxy.resume_replies();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    assert_eq!(received, b":2\r\n:3\r\n:1");

    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    let fault = proxy.swallow_silently_when(contains("mine"));
    stream.write_all(both).unwrap();
    assert_eq!(fault.wait(SOON), b":21\r\n");
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b":4\r\n");
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn child_talks_stops_continues_and_ends() {
    let mut child = Child::spawn("echo", &["a", "b c"]);
    assert_eq!(child.expect("args", 2 * SOON), "a,b c");
    child.stop();
    child.send("while it sleeps");
    throughout(Duration::from_millis(30), "it is stopped", || {
        child.pending_lines().is_empty()
    });
    child.cont();
    assert_eq!(child.expect("received", SOON), "while it sleeps");
    child.close_stdin();
    child.join();

    let mut child = Child::spawn("echo", &[]);
    assert_eq!(child.expect("args", 2 * SOON), "");
    child.kill();
    assert!(!child.wait(SOON).success());
}

fn proxied() -> (Server, Proxy) {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    (server, proxy)
}

fn open(proxy: &Proxy) -> Connection {
    connect(&proxy.url())
}

fn connect(url: &str) -> Connection {
    let client = redis::Client::open(url).unwrap();
    let connection = client.get_connection_with_timeout(SOON).unwrap();
    connection
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    connection
}

fn ping(connection: &mut Connection) -> redis::RedisResult<()> {
    redis::cmd("PING").query(connection)
}
