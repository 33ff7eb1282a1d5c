//! Certificates and keys that are renewed in their files while a manager runs.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use fairlock::{Error, Step};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::certificates::{Authority, argument};
use super::{SOON, TTL, TlsServer, UNKNOWN_ISSUER, build, builder, is_tls};
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
        matches!(
            &absent,
            Err(fairlock::Error::Misused {
                misuse: fairlock::Misuse::Setting { name: "tls_ca", .. },
                ..
            })
        ),
        "{absent:?}"
    );
}

/// A file of which no read ends, as on a file system that is gone.
fn make_endless(path: &Path) {
    let _ = fs::remove_file(path);
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// What `build` gives to the reads of files.
const TIME_FOR_FILES: Duration = Duration::from_secs(2);

#[test]
fn file_whose_read_does_not_end_fails_build_in_time() {
    let server = TlsServer::start_with(&["--tls-auth-clients", "yes"]);
    let client = server.authority.client();
    let directory = tempfile::tempdir().unwrap();
    let endless = directory.path().join("endless");
    make_endless(&endless);
    let ca = server.authority.file();
    for [ca, certificate, key] in [
        [&endless, &client.certificate, &client.key],
        [&ca, &endless, &client.key],
        [&ca, &client.certificate, &endless],
    ] {
        let started = Instant::now();
        let built = builder(&server.url())
            .tls_ca_file(ca)
            .tls_identity_files(certificate, key)
            .build();
        let took = started.elapsed();
        let error = built.expect_err("it was not read");
        assert!(took < TIME_FOR_FILES + SLACK, "{took:?}: {error}");
        let Error::Unavailable { step, cause, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(*step, Step::Certificates);
        let named = cause.to_string();
        assert!(named.contains(argument(&endless)), "{named}");
    }
}

/// More connections than reads may hang. A file that comes back is read again.
#[test]
fn pipe_in_the_place_of_a_file_leaves_the_last_certificates() {
    let server = TlsServer::start();
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca");
    fs::write(&ca, server.authority.pem()).unwrap();
    let ours = build(builder(&server.url()).tls_ca_file(&ca));
    let kill_all = || -> i64 { server.server.query(&["CLIENT", "KILL", "SKIPME", "yes"]) };
    make_endless(&ca);
    for _ in 0..20 {
        kill_all();
        ours.lock("a").unwrap().unlock().unwrap();
    }
    fs::remove_file(&ca).unwrap();
    fs::write(&ca, Authority::new().pem()).unwrap();
    kill_all();
    until(SOON, "the file is read again", || {
        let refused = ours.try_lock("a").err();
        refused.is_some_and(|error| is_tls(&error, UNKNOWN_ISSUER))
    });
}
