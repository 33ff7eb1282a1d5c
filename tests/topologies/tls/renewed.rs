//! Certificates and keys that are renewed in their files while a manager runs.

use std::fs;
use std::time::Instant;

use super::certificates::{Authority, argument};
use super::{SOON, TTL, TlsServer, build, builder};
use crate::support::{SLACK, until};

#[test]
fn certificates_renewed_in_files_count_without_a_restart() {
    let server = TlsServer::start_with(&["--tls-auth-clients", "yes"]);
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (ca, certificate, key) = (path("ca"), path("certificate"), path("key"));
    let first = server.authority.client();
    fs::write(&ca, server.authority.pem()).unwrap();
    fs::write(&certificate, first.pem()).unwrap();
    fs::write(&key, first.key_pem()).unwrap();
    let ours = build(
        builder(&server.url())
            .tls_ca_file(&ca)
            .tls_identity_files(&certificate, &key),
    );
    let held = ours.lock("held").unwrap();

    // The server and its clients get certificates of another authority. For a while the key of the
    // client does not belong to its certificate.
    let next = Authority::new();
    let (of_server, of_client) = (next.server(), next.client());
    let authority = path("authority of clients");
    fs::write(&authority, next.pem()).unwrap();
    fs::write(&certificate, of_client.pem()).unwrap();
    ours.lock("a").unwrap().unlock().unwrap();
    fs::write(&key, of_client.key_pem()).unwrap();
    fs::write(&ca, next.pem()).unwrap();
    let _: String = server.server.query(&[
        "CONFIG",
        "SET",
        "tls-cert-file",
        argument(&of_server.certificate),
        "tls-key-file",
        argument(&of_server.key),
        "tls-ca-cert-file",
        argument(&authority),
    ]);
    let _: i64 = server.server.query(&["CLIENT", "KILL", "SKIPME", "yes"]);
    until(SOON, "a lock over new connections", || {
        ours.try_lock("b").is_ok_and(|taken| taken.is_some())
    });
    let killed = Instant::now();
    until(TTL + SLACK, "more than a ttl passes", || {
        assert!(held.is_held(), "{:?}", killed.elapsed());
        killed.elapsed() > TTL
    });
    held.unlock().unwrap();
}

#[test]
fn half_written_certificates_leave_those_before_in_use() {
    let server = TlsServer::start();
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca");
    let pem = server.authority.pem();
    fs::write(&ca, &pem).unwrap();
    let ours = build(builder(&server.url()).tls_ca_file(&ca));
    for unusable in [&b""[..], b"no PEM", &pem[..40]] {
        fs::write(&ca, unusable).unwrap();
        let _: i64 = server.server.query(&["CLIENT", "KILL", "SKIPME", "yes"]);
        ours.lock("a").unwrap().unlock().unwrap();
    }
    fs::remove_file(&ca).unwrap();
    let _: i64 = server.server.query(&["CLIENT", "KILL", "SKIPME", "yes"]);
    ours.lock("a").unwrap().unlock().unwrap();
    let absent = builder(&server.url()).tls_ca_file(&ca).build();
    assert!(
        matches!(&absent, Err(fairlock::Error::Config { what, .. }) if what == "tls_ca"),
        "{absent:?}"
    );
}
