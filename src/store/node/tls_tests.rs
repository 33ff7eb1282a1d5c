//! Both halves of a socket over TLS, against a peer in this process.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use redis::Value;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::super::socket::{Socket, SocketReader, SocketWriter};
use super::super::stream::{ReadMode, Stream};
use crate::store::{Address, TlsSettings};

const TIMEOUT: Duration = Duration::from_secs(5);
/// For reads that must not wait at all.
const AT_ONCE: Duration = Duration::from_millis(1500);

/// The server's side of a connection.
type Peer = StreamOwned<ServerConnection, UnixStream>;

fn connect() -> (SocketWriter, SocketReader, Peer) {
    let (own, other) = UnixStream::pair().expect("a pair of sockets");
    let peer = thread::spawn(move || {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(CERTIFICATE).expect("a certificate")],
                PrivateKeyDer::from_pem_slice(KEY).expect("a key"),
            )
            .expect("they belong together");
        let mut connection = ServerConnection::new(Arc::new(config)).expect("a connection");
        let mut other = other;
        while connection.is_handshaking() {
            connection.complete_io(&mut other).expect("a handshake");
        }
        StreamOwned::new(connection, other)
    });
    let mut socket = Socket::new(Stream::Unix(own), TIMEOUT).expect("timeouts can be set");
    let settings = TlsSettings::trusting(AUTHORITY);
    let address = Address::Tcp("localhost".to_owned(), 6379);
    socket
        .start_tls(&settings, &address, TIMEOUT)
        .expect("a handshake");
    let (writer, reader) = socket.split();
    (writer, reader, peer.join().expect("no panic"))
}

fn text(value: Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).expect("text"),
        other => panic!("{other:?}"),
    }
}

fn reply(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into_bytes()
}

/// Sends bytes to the socket at once, one record for each of these.
fn send_at_once(peer: &mut Peer, records: &[&[u8]]) {
    let mut bytes = Vec::new();
    for record in records {
        peer.conn.writer().write_all(record).expect("it has room");
        while peer.conn.wants_write() {
            peer.conn.write_tls(&mut bytes).expect("it has room");
        }
    }
    peer.sock.write_all(&bytes).expect("it is open");
}

#[track_caller]
fn finds_nothing(reader: &mut SocketReader, mode: ReadMode) {
    let started = Instant::now();
    let nothing = reader.receive(mode).expect_err("nothing is there");
    assert!(nothing.is_timeout(), "{nothing}");
    assert!(started.elapsed() < AT_ONCE);
}

/// One read of the socket brings several records, and a record can hold more than the parser takes
/// at a time. All of that came along, and none of it makes the socket readable again.
#[test]
fn buffered_read_takes_all_that_came_along() {
    let (_writer, mut reader, mut peer) = connect();
    let long = "x".repeat(120);
    let many = reply(&long).repeat(60);
    send_at_once(&mut peer, &[&reply("a"), &many, &many, &reply("d")]);
    assert_eq!(text(reader.receive(ReadMode::Wait).unwrap()), "a");
    send_at_once(&mut peer, &[&reply("e")]);
    for _ in 0..120 {
        assert_eq!(text(reader.receive(ReadMode::Buffered).unwrap()), long);
    }
    assert_eq!(text(reader.receive(ReadMode::Buffered).unwrap()), "d");
    // It has arrived, and this does not ask the system.
    finds_nothing(&mut reader, ReadMode::Buffered);
    assert_eq!(text(reader.receive(ReadMode::Arrived).unwrap()), "e");
    finds_nothing(&mut reader, ReadMode::Arrived);
}

#[test]
fn arrived_read_does_not_wait_for_the_whole_record() {
    let (_writer, mut reader, mut peer) = connect();
    let mut record = Vec::new();
    peer.conn.writer().write_all(&reply("a")).unwrap();
    peer.conn.write_tls(&mut record).unwrap();
    let (header, content) = record.split_at(5);
    let (start, end) = content.split_at(content.len() - 1);
    for part in [header, start, end] {
        finds_nothing(&mut reader, ReadMode::Arrived);
        peer.sock.write_all(part).unwrap();
    }
    assert_eq!(text(reader.receive(ReadMode::Arrived).unwrap()), "a");
}

/// The peer asks for new keys again and again. The answer to that is a record, which the reader
/// causes and the writer sends.
#[test]
fn halves_on_two_threads_keep_the_order_though_keys_change() {
    const REQUESTS: usize = 2000;
    let (mut writer, mut reader, mut peer) = connect();
    let echo = thread::spawn(move || {
        let mut line = Vec::new();
        let mut buffer = [0; 4096];
        let mut seen = 0;
        while seen < REQUESTS {
            let read = peer
                .read(&mut buffer)
                .expect("records that can be decrypted");
            assert!(read > 0, "the end after {seen}");
            for &byte in &buffer[..read] {
                line.push(byte);
                if byte == b'\n' {
                    let answer = reply(std::str::from_utf8(&line).unwrap());
                    seen += 1;
                    if seen % 100 == 0 {
                        peer.conn.refresh_traffic_keys().expect("new keys");
                    }
                    peer.write_all(&answer).expect("it is open");
                    line.clear();
                }
            }
        }
        peer
    });
    let sent = |i: usize| format!("{i} {}\n", "z".repeat(i % 300));
    let write = thread::spawn(move || {
        for i in 0..REQUESTS {
            writer.send(sent(i).as_bytes()).expect("it is open");
        }
        writer
    });
    for i in 0..REQUESTS {
        let mode = if i % 3 == 0 {
            ReadMode::Arrived
        } else {
            ReadMode::Wait
        };
        let value = match reader.receive(mode) {
            Err(e) if mode == ReadMode::Arrived && e.is_timeout() => reader.receive(ReadMode::Wait),
            result => result,
        };
        assert_eq!(text(value.expect("an answer")), sent(i));
    }
    write.join().expect("no panic");
    echo.join().expect("no panic");
}

/// The records of one write are more than the session holds, and than the socket holds.
#[test]
fn long_request_and_long_reply_pass_each_other() {
    const LENGTH: usize = 4 << 20;
    let (mut writer, mut reader, mut peer) = connect();
    let answer = thread::spawn(move || {
        let mut seen = vec![0; LENGTH];
        peer.read_exact(&mut seen).expect("all of it");
        assert!(seen.iter().enumerate().all(|(i, b)| *b == i as u8));
        peer.write_all(&reply(&"y".repeat(LENGTH)))
            .expect("it is open");
        peer
    });
    let request: Vec<u8> = (0..LENGTH).map(|i| i as u8).collect();
    writer.send(&request).expect("it is taken");
    let got = text(reader.receive(ReadMode::Wait).expect("a reply"));
    assert_eq!(got.len(), LENGTH);
    answer.join().expect("no panic");
}

#[test]
fn reply_in_front_of_an_alert_is_read_first() {
    let (_writer, mut reader, mut peer) = connect();
    let mut bytes = Vec::new();
    peer.conn.writer().write_all(&reply("a")).unwrap();
    peer.conn.send_close_notify();
    while peer.conn.wants_write() {
        peer.conn.write_tls(&mut bytes).unwrap();
    }
    // After the end, something that is no record.
    bytes.extend([0; 64]);
    peer.sock.write_all(&bytes).unwrap();
    assert_eq!(text(reader.receive(ReadMode::Wait).unwrap()), "a");
    let end = reader.receive(ReadMode::Wait).expect_err("the end");
    assert!(end.is_connection_dropped(), "{end}");
}

#[test]
fn altered_record_is_an_error_behind_the_good_ones() {
    let (_writer, mut reader, mut peer) = connect();
    let mut bytes = Vec::new();
    for text in ["a", "b"] {
        peer.conn.writer().write_all(&reply(text)).unwrap();
        peer.conn.write_tls(&mut bytes).unwrap();
    }
    *bytes.last_mut().unwrap() ^= 1;
    peer.sock.write_all(&bytes).unwrap();
    assert_eq!(text(reader.receive(ReadMode::Wait).unwrap()), "a");
    for mode in [ReadMode::Wait, ReadMode::Arrived] {
        let error = reader.receive(mode).expect_err("it is altered");
        assert!(!error.is_timeout(), "{error}");
        peer.sock.shutdown(Shutdown::Write).unwrap();
    }
}

#[test]
fn closing_ends_a_read_on_another_thread() {
    let (writer, mut reader, _peer) = connect();
    let started = Instant::now();
    let read = thread::spawn(move || reader.receive(ReadMode::Wait));
    writer.stream().close();
    assert!(read.join().expect("no panic").is_err());
    assert!(started.elapsed() < TIMEOUT);
}

/// It has issued the certificate below. Both are valid until 2126.
const AUTHORITY: &[u8] = b"\
-----BEGIN CERTIFICATE-----
MIIBeDCCAR2gAwIBAgIUOVTsVp1Xk8iSaXhEj0taHTWnqeIwCgYIKoZIzj0EAwIw
EDEOMAwGA1UEAwwFdGVzdHMwIBcNMjYxMTIzMDAxMDM4WhgPMjEyNjEwMzAwMDEw
MzhaMBAxDjAMBgNVBAMMBXRlc3RzMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
EcW3ej6gG2O7z9gsjcoWq2x1Hz9y1apyuFABarQzMC36k+RCtvIDETDAQEdWYW6+
C4AMlvO6GTNv/H3UGYLUz6NTMFEwHQYDVR0OBBYEFOC3nqqjGWs4Dwl27OXmWtvQ
xSgEMB8GA1UdIwQYMBaAFOC3nqqjGWs4Dwl27OXmWtvQxSgEMA8GA1UdEwEB/wQF
MAMBAf8wCgYIKoZIzj0EAwIDSQAwRgIhAO4JisAx3YVPUEWJzGSjx/Evv5/nV50P
5UVziAw+VGPMAiEA/cP2yFj3bks/0DB+CGnOkyHpQEBxuF0PvP80/XyUA38=
-----END CERTIFICATE-----
";

/// For localhost.
const CERTIFICATE: &[u8] = b"\
-----BEGIN CERTIFICATE-----
MIIBbDCCAROgAwIBAgIBATAKBggqhkjOPQQDAjAQMQ4wDAYDVQQDDAV0ZXN0czAg
Fw0yNjExMjMwMDEwMzhaGA8yMTI2MTAzMDAwMTAzOFowFDESMBAGA1UEAwwJbG9j
YWxob3N0MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEcCCkC5xHqaRBX54x5UGM
Fqj3t1S/Zt7NFdlrm8fdoqYwWTZ7TXclUPict6a7okF53KwJSjH2l41sKFve0UPY
96NYMFYwFAYDVR0RBA0wC4IJbG9jYWxob3N0MB0GA1UdDgQWBBS7OEIcrrbIcIKu
TUqGtTl3n2WsZzAfBgNVHSMEGDAWgBTgt56qoxlrOA8Jduzl5lrb0MUoBDAKBggq
hkjOPQQDAgNHADBEAiBpgj+fQuYanf9LrDsDk4hJuSIsIpZ3ac6ru0xNNIXcVgIg
URBwT+xJQwvVgcxC1eHVfgLRzdiDtkfvPnKAqKm+QNA=
-----END CERTIFICATE-----
";

/// Nothing else uses it.
const KEY: &[u8] = b"\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg8Og81qtoCUP4vi6z
AHzT6uYoSVfiFdIknpD6XB+mA8ahRANCAARwIKQLnEeppEFfnjHlQYwWqPe3VL9m
3s0V2Wubx92ipjBZNntNdyVQ+Jy3pruiQXncrAlKMfaXjWwoW97RQ9j3
-----END PRIVATE KEY-----
";
