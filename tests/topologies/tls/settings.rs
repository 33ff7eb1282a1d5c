//! Certificates, keys and URLs that do not fit: each is an error of its own.

use std::time::Instant;

use fairlock::{Builder, Error, Misuse};

use super::certificates::{Authority, EXPIRED, HERE, NOT_YET_VALID, VALID};
use super::{
    BAD_CERTIFICATE, BAD_HANDSHAKE, CLIENT_CERTIFICATE, HAS_EXPIRED, NO_NAME, NOT_VALID_YET,
    PLAIN_SERVER, Reason, T, TLS_SERVER, TTL, TlsServer, UNKNOWN_ISSUER, WRONG_HOST, build,
    builder, is_tls,
};
use crate::support::{SLACK, Server, until};

/// The message that says why no manager is built. It comes within the connect timeout.
#[track_caller]
fn refused(builder: Builder, reason: Reason) -> String {
    let started = Instant::now();
    let error = builder.build().expect_err("no manager");
    let took = started.elapsed();
    assert!(took <= T + SLACK, "{took:?}: {error}");
    assert!(is_tls(&error, reason), "{error:?}");
    error.to_string()
}

/// The error in the settings, which no server was asked about.
#[track_caller]
fn unfit(builder: Builder) -> String {
    match builder.build().expect_err("no manager") {
        error @ Error::Misused { .. } => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn server_with(names: &str, dates: super::certificates::Dates) -> TlsServer {
    let authority = Authority::new();
    let certificate = authority.issue("server", names, dates);
    TlsServer::with_certificate(authority, &certificate, &["--tls-auth-clients", "no"])
}

#[test]
fn certificate_of_an_unknown_authority_is_refused() {
    let server = TlsServer::start();
    // An authority of the same name, made anew, is another as well.
    for other in [Authority::named("other"), Authority::new()] {
        let message = refused(builder(&server.url()).tls_ca(other.pem()), UNKNOWN_ISSUER);
        assert!(message.contains("tls_ca (--tls-ca)"), "{message}");
        assert!(message.contains(&server.addr.to_string()), "{message}");
    }
}

#[test]
fn the_systems_authorities_do_not_know_a_private_one() {
    let server = TlsServer::start();
    match builder(&server.url()).build().expect_err("no manager") {
        error @ Error::Refused { .. } => assert!(is_tls(&error, UNKNOWN_ISSUER), "{error:?}"),
        // A system without any certificates.
        Error::Misused {
            misuse: Misuse::Setting { name: "tls_ca", .. },
            ..
        } => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn expired_certificate_is_refused() {
    let server = server_with(HERE, EXPIRED);
    refused(server.builder(), HAS_EXPIRED);
}

#[test]
fn certificate_that_is_not_valid_yet_is_refused() {
    let server = server_with(HERE, NOT_YET_VALID);
    refused(server.builder(), NOT_VALID_YET);
}

#[test]
fn certificate_for_another_host_is_refused() {
    let server = server_with("DNS:elsewhere.example,IP:127.0.0.2", VALID);
    let message = refused(server.builder(), WRONG_HOST);
    assert!(
        message.contains(": elsewhere.example, 127.0.0.2; "),
        "{message}"
    );
}

#[test]
fn common_name_does_not_count_and_the_message_says_so() {
    let authority = Authority::new();
    let certificate = authority.issue_with("localhost", "basicConstraints = CA:FALSE", VALID);
    let server =
        TlsServer::with_certificate(authority, &certificate, &["--tls-auth-clients", "no"]);
    let by_name = format!("rediss://localhost:{}/", server.addr.port());
    for (url, name) in [(server.url(), "IP:127.0.0.1"), (by_name, "DNS:localhost")] {
        let message = refused(builder(&url).tls_ca(server.authority.pem()), NO_NAME);
        for part in [
            "no subject alternative name",
            "(CN)",
            &format!("subjectAltName={name}"),
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}

/// The message has the command that helps.
#[test]
fn self_signed_certificate_is_refused_with_the_remedy() {
    let authority = Authority::new();
    let plain = authority.self_signed("");
    let start = |certificate| super::start(&authority, certificate, &["--tls-auth-clients", "no"]);
    let (_server, addr) = start(&plain);
    let message = refused(
        builder(&super::url_of(addr)).tls_ca(plain.pem()),
        BAD_CERTIFICATE,
    );
    assert!(
        message.contains("an authority's own (CA:TRUE)"),
        "{message}"
    );
    let (_, remedy) = message
        .split_once("`openssl req -x509` needs ")
        .expect("the command");
    let good = authority.self_signed(remedy);
    let (_server, addr) = start(&good);
    build(builder(&super::url_of(addr)).tls_ca(good.pem()));
}

#[test]
fn version_1_is_named_with_what_to_do() {
    let authority = Authority::new();
    let old = authority.of_version_1("server");
    let client = authority.of_version_1("client");
    let message = unfit(
        builder("rediss://127.0.0.1:1/")
            .tls_ca(authority.pem())
            .tls_identity(client.pem(), client.key_pem()),
    );
    assert!(message.starts_with("tls_identity: "), "{message}");
    for part in ["version 3", "version 1", "-extfile"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(!message.contains("key"), "the key is right: {message}");
    let server = TlsServer::with_certificate(authority, &old, &["--tls-auth-clients", "no"]);
    let message = refused(server.builder(), BAD_CERTIFICATE);
    for part in ["version 1", "version 3", "subjectAltName=IP:127.0.0.1"] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn each_refused_client_certificate_has_its_remedy() {
    for version in ["TLSv1.2", "TLSv1.3"] {
        let server =
            TlsServer::start_with(&["--tls-auth-clients", "yes", "--tls-protocols", version]);
        for dates in [EXPIRED, NOT_YET_VALID] {
            let client = server.authority.issue("old", "DNS:client", dates);
            let message = refused(
                server
                    .builder()
                    .tls_identity(client.pem(), client.key_pem()),
                CLIENT_CERTIFICATE,
            );
            let of_expired = ["certificate expired", "renew"];
            if dates == EXPIRED {
                assert!(
                    of_expired.iter().all(|part| message.contains(part)),
                    "{message}"
                );
            }
            assert!(message.contains("; "), "no remedy: {message}");
        }
    }
}

/// Redis hands out tickets then, and refuses each of them.
#[test]
fn server_that_resumes_no_session_costs_no_lock() {
    for version in ["TLSv1.2", "TLSv1.2 TLSv1.3"] {
        let server = TlsServer::start_with(&[
            "--tls-auth-clients",
            "yes",
            "--tls-session-caching",
            "no",
            "--tls-protocols",
            version,
        ]);
        let client = server.authority.client();
        let mgr = build(
            server
                .builder()
                .tls_identity(client.pem(), client.key_pem()),
        );
        let held = mgr.lock("held").unwrap();
        let since = Instant::now();
        until(TTL + SLACK, "more than a ttl passes", || {
            assert!(held.is_held(), "{version}: {:?}", since.elapsed());
            since.elapsed() > TTL
        });
        for _ in 0..10 {
            let _: i64 = server.server.query(&["CLIENT", "KILL", "SKIPME", "yes"]);
            mgr.lock("a").unwrap().unlock().unwrap();
        }
    }
}

#[test]
fn certificate_for_the_name_does_not_count_for_the_address() {
    let server = server_with("DNS:localhost", VALID);
    refused(server.builder(), WRONG_HOST);
    let by_name = format!("rediss://localhost:{}/", server.addr.port());
    build(builder(&by_name).tls_ca(server.authority.pem()));
}

#[test]
fn plain_server_behind_a_tls_url_is_named_as_such() {
    let server = Server::tcp_with(&["--requirepass", "secret"]);
    let authority = Authority::new();
    let url = format!("rediss://:secret@{}/", server.addr());
    let message = refused(builder(&url).tls_ca(authority.pem()), PLAIN_SERVER);
    assert!(message.contains("redis://"), "{message}");
    // The password did not go out in plain text.
    let mut own = redis::Client::open(format!("redis://:secret@{}/", server.addr()))
        .and_then(|client| client.get_connection())
        .unwrap();
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut own)
        .unwrap();
    let auths = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_auth"))
        .expect("the test's own");
    assert!(auths.contains("calls=1,"), "{auths}");
}

#[test]
fn tls_server_behind_a_plain_url_is_named_as_such() {
    let server = TlsServer::start();
    let message = refused(builder(&format!("redis://{}/", server.addr)), TLS_SERVER);
    assert!(message.contains("rediss://"), "{message}");
}

#[test]
fn missing_client_certificate_is_named_as_such() {
    for version in ["TLSv1.2", "TLSv1.3"] {
        let server =
            TlsServer::start_with(&["--tls-auth-clients", "yes", "--tls-protocols", version]);
        let message = refused(server.builder(), CLIENT_CERTIFICATE);
        assert!(
            message.contains("tls_identity (--tls-cert and --tls-key)"),
            "{message}"
        );
    }
}

#[test]
fn client_certificate_of_another_authority_is_named_as_such() {
    for version in ["TLSv1.2", "TLSv1.3"] {
        let server =
            TlsServer::start_with(&["--tls-auth-clients", "yes", "--tls-protocols", version]);
        let elsewhere = Authority::new();
        let other = elsewhere.client();
        refused(
            server.builder().tls_identity(other.pem(), other.key_pem()),
            CLIENT_CERTIFICATE,
        );
    }
}

#[test]
fn client_certificate_is_accepted() {
    for version in ["TLSv1.2", "TLSv1.3"] {
        let server =
            TlsServer::start_with(&["--tls-auth-clients", "yes", "--tls-protocols", version]);
        let client = server.authority.client();
        let mgr = build(
            server
                .builder()
                .tls_identity(client.pem(), client.key_pem()),
        );
        mgr.lock("a").unwrap().unlock().unwrap();
    }
}

#[test]
fn no_version_in_common_is_an_error_of_its_own() {
    // rustls has none of the old ciphers.
    let server = TlsServer::start_with(&[
        "--tls-auth-clients",
        "no",
        "--tls-protocols",
        "TLSv1.2",
        "--tls-ciphers",
        "AES128-SHA",
    ]);
    let message = refused(server.builder(), BAD_HANDSHAKE);
    assert!(message.contains("TLS 1.2 or 1.3"), "{message}");
}

#[test]
fn unusable_settings_are_refused_before_any_connection() {
    let authority = Authority::new();
    let (one, other) = (authority.client(), authority.server());
    // Nobody listens there.
    let to = || builder("rediss://127.0.0.1:1/");
    let trusting = || to().tls_ca(authority.pem());
    let der = authority.converted("x509 -outform DER", &one.certificate);
    let der_key = authority.converted("pkey -outform DER", &one.key);
    let encrypted = authority.converted("pkey -aes256 -passout pass:secret", &one.key);
    let traditional = authority.converted("ec -aes256 -passout pass:secret", &one.key);
    let cases = [
        (to().tls_ca("no PEM"), "tls_ca"),
        (to().tls_ca(one.key_pem()), "tls_ca"),
        (
            trusting().tls_identity("no PEM", one.key_pem()),
            "tls_identity",
        ),
        (trusting().tls_identity(one.pem(), "no PEM"), "tls_identity"),
        (
            trusting().tls_identity(one.pem(), other.key_pem()),
            "tls_identity",
        ),
        (
            trusting().tls_identity(one.pem(), other.key_pem()),
            "another",
        ),
        (to().tls_ca(""), "it is empty"),
        (trusting().tls_identity("", one.key_pem()), "it is empty"),
        (trusting().tls_identity(one.pem(), ""), "it is empty"),
        (to().tls_ca(&der), "openssl x509 -inform DER"),
        (
            trusting().tls_identity(&der, one.key_pem()),
            "openssl x509 -inform DER",
        ),
        (
            trusting().tls_identity(one.pem(), &der_key),
            "openssl pkey -inform DER",
        ),
        (
            trusting().tls_identity(one.pem(), &encrypted),
            "is encrypted",
        ),
        (
            trusting().tls_identity(one.pem(), &traditional),
            "is encrypted",
        ),
        (
            builder("redis://127.0.0.1:1/").tls_ca(authority.pem()),
            "rediss://",
        ),
    ];
    for (builder, why) in cases {
        let message = unfit(builder);
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn key_is_not_shown() {
    let authority = Authority::new();
    let client = authority.client();
    let builder = builder("rediss://127.0.0.1:1/").tls_identity(client.pem(), client.key_pem());
    let mut shown = format!("{builder:?} {builder:#?}");
    assert!(
        !shown.contains("BEGIN") && !shown.contains("45, 45"),
        "{shown}"
    );
    // A key in a wrong place, a key of another certificate, and a server that is not there.
    let (key, trusting) = (client.key_pem(), || builder.clone().tls_ca(authority.pem()));
    for wrong in [
        trusting().tls_ca(&key),
        trusting().tls_identity(&key, &key),
        trusting().tls_identity(authority.server().pem(), &key),
        trusting(),
    ] {
        let error = wrong.build().expect_err("it cannot work");
        shown.push_str(&format!("{error} {error:?}"));
    }
    assert!(!shown.contains("45, 45"), "{shown}");
    let key = String::from_utf8(key).expect("PEM is text");
    // The errors say how a key begins.
    for line in key.lines().filter(|line| !line.starts_with("--")) {
        assert!(!shown.contains(line), "{shown}");
    }
}
