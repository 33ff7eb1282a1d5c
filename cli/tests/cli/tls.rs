//! The options of TLS, with certificates that `openssl` makes.

use std::process::Command;

use fairlock::LockManager;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::certificates::{Authority, Certificate, argument};
use crate::connection::listed;
use crate::process::{end, without_server};
use crate::sentinel_set::{SERVICE, SentinelSet};
use crate::support::Server;
use crate::support::server::free_address;

/// A server that demands a certificate of its clients, and the host and port of its TLS.
fn start(authority: &Authority) -> (Server, String) {
    start_with(authority, &authority.server())
}

fn start_with(authority: &Authority, own: &Certificate) -> (Server, String) {
    let ca = authority.file();
    let mut why = String::new();
    // Another process may take a port between our check and the server's bind.
    for _ in 0..20 {
        let addr = free_address();
        let port = addr.port().to_string();
        let arguments = [
            "--tls-port",
            &port,
            "--tls-cert-file",
            argument(&own.certificate),
            "--tls-key-file",
            argument(&own.key),
            "--tls-ca-cert-file",
            argument(&ca),
        ];
        match Server::tcp_at(free_address(), &arguments) {
            Ok(server) => return (server, addr.to_string()),
            Err(e) if e.contains("in use") => why = e,
            Err(e) => panic!("the tests of TLS need a server with TLS: {e}"),
        }
    }
    panic!("twenty times a port was taken; the last server said: {why}");
}

/// A command, with time for a busy machine to read the system's certificates.
fn patient(args: &[&str]) -> Command {
    let mut command = without_server(args);
    command.args(["--command-timeout", "10s"]);
    command
}

/// The same with a certificate for this server.
fn with_certificate(args: &[&str], authority: &Authority, client: &Certificate) -> Command {
    let mut command = patient(args);
    command.args(["--tls-ca", argument(&authority.file())]);
    command.args(["--tls-cert", argument(&client.certificate)]);
    command.args(["--tls-key", argument(&client.key)]);
    command
}

#[test]
fn options_or_variables_encrypt_the_connections() {
    let authority = Authority::new();
    let (server, host) = start(&authority);
    let _guard = LockManager::connect(server.url())
        .and_then(|manager| manager.lock("encrypted"))
        .expect("the lock");
    let (ca, client) = (authority.file(), authority.client());
    let (plain, encrypted) = (format!("redis://{host}/"), format!("rediss://{host}/"));
    let ls = ["ls", "--json", "--url", &encrypted];
    let mut options = with_certificate(&ls, &authority, &client);
    assert!(listed(&mut options).contains("encrypted"));
    let mut variables = patient(&["ls", "--json"]);
    variables.env("FAIRLOCK_URL", &encrypted);
    variables.env("FAIRLOCK_TLS_CA", argument(&ca));
    variables.env("FAIRLOCK_TLS_CERT", argument(&client.certificate));
    variables.env("FAIRLOCK_TLS_KEY", argument(&client.key));
    assert!(listed(&mut variables).contains("encrypted"));
    let ls = ["ls", "--url", &plain];
    let unused = end(&mut with_certificate(&ls, &authority, &client));
    assert_eq!(unused.code, Some(64), "{unused:?}");
    for command in ["ls", "doctor"] {
        let args = [command, "--url", &encrypted, "--tls-ca", argument(&ca)];
        let refused = end(&mut patient(&args));
        assert_eq!(refused.code, Some(69), "{refused:?}");
        let output = refused.stdout + &refused.stderr;
        assert!(output.contains("certificate"), "{output}");
    }
}

#[test]
fn wrong_options_of_tls_exit_64() {
    let authority = Authority::new();
    let (ca, client) = (authority.file(), authority.client());
    let (certificate, key) = (argument(&client.certificate), argument(&client.key));
    let (plain, encrypted) = ("redis://127.0.0.1:1/", "rediss://127.0.0.1:1/");
    for (url, args, message) in [
        (encrypted, &["--tls-cert", certificate][..], "--tls-key"),
        (encrypted, &["--tls-key", key], "--tls-cert"),
        (encrypted, &["--tls-ca", "/no/file"], "/no/file"),
        (encrypted, &["--tls-ca", key], "--tls-ca"),
        (
            encrypted,
            &["--tls-cert", certificate, "--tls-key", certificate],
            "--tls-key",
        ),
        (
            encrypted,
            &["--tls-cert", argument(&ca), "--tls-key", key],
            "--tls-cert",
        ),
        (plain, &["--tls-ca", argument(&ca)], "rediss://"),
        (
            plain,
            &["--tls-cert", certificate, "--tls-key", key],
            "rediss://",
        ),
    ] {
        let ended = end(patient(&["ls", "--url", url]).args(args));
        assert_eq!(ended.code, Some(64), "{args:?}: {ended:?}");
        assert!(ended.stderr.contains(message), "{message}: {ended:?}");
    }
}

#[test]
fn bench_and_doctor_ask_the_servers_over_tls() {
    let authority = Authority::new();
    let (server, host) = start(&authority);
    server.query::<()>(&["CONFIG", "SET", "appendonly", "yes"]);
    let (client, url) = (authority.client(), format!("rediss://{host}/"));
    let bench = ["bench", "--duration", "20ms", "--url", &url];
    let ended = end(&mut with_certificate(&bench, &authority, &client));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "no warning: {ended:?}");
    assert_eq!(server.query::<Vec<String>>(&["KEYS", "*"]), [""; 0]);
    let doctor = ["doctor", "--url", &url];
    let ended = end(&mut with_certificate(&doctor, &authority, &client));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("13 ok, 0 warnings"), "{ended:?}");
}

#[test]
fn doctor_names_the_sentinel_that_expects_tls() {
    let authority = Authority::new();
    let (_server, host) = start(&authority);
    let set = SentinelSet::start();
    let url = format!("redis-sentinel://{},{host}/{SERVICE}", set.hosts());
    let mut doctor = without_server(&["doctor", "--url", &url, "--command-timeout", "5s"]);
    let ended = end(&mut doctor);
    let found = format!("{host}  sentinels: no TLS connection to redis: {host} expects TLS");
    assert!(ended.stdout.contains(&found), "{ended:?}");
    assert!(ended.stdout.contains("-> use rediss://"), "{ended:?}");
}

#[test]
fn doctor_names_the_remedy_of_a_self_signed_certificate() {
    let authority = Authority::new();
    let own = authority.self_signed("");
    let (_server, host) = start_with(&authority, &own);
    let url = format!("rediss://{host}/");
    let mut doctor = without_server(&["doctor", "--url", &url, "--command-timeout", "10s"]);
    let ended = end(doctor.args(["--tls-ca", argument(&own.certificate)]));
    assert_eq!(ended.code, Some(69), "{ended:?}");
    for part in [
        "an authority's own (CA:TRUE)\n",
        "-> issue one for the server: `openssl req -x509` needs",
        "subjectAltName=IP:127.0.0.1",
    ] {
        assert!(ended.stdout.contains(part), "{part}: {ended:?}");
    }
}

/// As on a file system that is gone.
#[test]
fn files_whose_read_does_not_end_are_named() {
    let directory = tempfile::tempdir().expect("a writable directory");
    let endless = directory.path().join("endless");
    mknodat(CWD, &endless, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    let path = argument(&endless);
    let to = |url: &str| without_server(&["ls", "--url", url]);
    let mut of_system = to("rediss://127.0.0.1:1/");
    of_system.env("SSL_CERT_FILE", path);
    let mut password = to("redis://127.0.0.1:1/");
    password.args(["--password-file", path]);
    let mut ca = to("rediss://127.0.0.1:1/");
    ca.args(["--tls-ca", path]);
    for (mut command, named) in [
        (of_system, "the read of the system's certificates"),
        (ca, path),
        (password, path),
    ] {
        let ended = end(&mut command);
        assert_eq!(ended.code, Some(69), "{ended:?}");
        assert!(ended.stderr.contains(named), "{named}: {ended:?}");
    }
}
