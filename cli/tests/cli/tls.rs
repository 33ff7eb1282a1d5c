//! The options of TLS, with certificates that `openssl` makes.

use std::process::Command;

use fairlock::LockManager;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::certificates::{Authority, Certificate, argument};
use crate::connection::listed;
use crate::process::{end, exits, without_server};
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
    let manager = LockManager::connect(server.url());
    let _guard = manager
        .and_then(|manager| manager.lock("encrypted"))
        .expect("the lock");
    let (ca, client) = (authority.file(), authority.client());
    let (plain, encrypted) = (format!("redis://{host}/"), format!("rediss://{host}/"));
    let mut options = with_certificate(&["ls", "--url", &encrypted], &authority, &client);
    assert!(listed(&mut options).contains("encrypted"));
    let mut variables = patient(&["ls"]);
    for (name, value) in [
        ("FAIRLOCK_URL", &*encrypted),
        ("FAIRLOCK_TLS_CA", argument(&ca)),
        ("FAIRLOCK_TLS_CERT", argument(&client.certificate)),
        ("FAIRLOCK_TLS_KEY", argument(&client.key)),
    ] {
        variables.env(name, value);
    }
    assert!(listed(&mut variables).contains("encrypted"));
    exits(
        with_certificate(&["ls", "--url", &plain], &authority, &client),
        64,
    );
    for command in ["ls", "doctor"] {
        let args = [command, "--url", &encrypted, "--tls-ca", argument(&ca)];
        let refused = exits(patient(&args), 69);
        let output = refused.stdout + &refused.stderr;
        assert!(output.contains("certificate"), "{output}");
    }
}

#[test]
fn wrong_options_of_tls_exit_64() {
    let authority = Authority::new();
    let (ca, client) = (authority.file(), authority.client());
    for (scheme, args, message) in [
        ("rediss", "--tls-cert={cert}", "--tls-key"),
        ("rediss", "--tls-key={key}", "--tls-cert"),
        ("rediss", "--tls-ca=/no/file", "/no/file"),
        ("rediss", "--tls-ca={key}", "--tls-ca"),
        ("rediss", "--tls-cert={cert} --tls-key={cert}", "--tls-key"),
        ("rediss", "--tls-cert={ca} --tls-key={key}", "--tls-cert"),
        ("redis", "--tls-ca={ca}", "rediss://"),
        ("redis", "--tls-cert={cert} --tls-key={key}", "rediss://"),
    ] {
        let url = format!("{scheme}://127.0.0.1:1/");
        let filled = args.replace("{ca}", argument(&ca));
        let filled = filled.replace("{cert}", argument(&client.certificate));
        let filled = filled.replace("{key}", argument(&client.key));
        let mut command = patient(&["ls", "--url", &url]);
        let ended = exits(command.args(filled.split(' ')), 64);
        ended.says(message);
    }
}

#[test]
fn bench_and_doctor_ask_the_servers_over_tls() {
    let authority = Authority::new();
    let (server, host) = start(&authority);
    let (client, url) = (authority.client(), format!("rediss://{host}/"));
    for (args, notes) in [(&["bench", "--duration", "20ms"][..], 1), (&["doctor"], 0)] {
        let args = [args, &["--url", &url]].concat();
        let ended = exits(with_certificate(&args, &authority, &client), 0);
        assert_eq!(ended.stderr.lines().count(), notes, "no warning: {ended:?}");
        assert!(!ended.stdout.contains("not known"), "{ended:?}");
        assert_eq!(server.query::<Vec<String>>(&["KEYS", "*"]), [""; 0]);
    }
}

#[test]
fn doctor_names_the_sentinel_that_expects_tls() {
    let authority = Authority::new();
    let (_server, host) = start(&authority);
    let set = SentinelSet::start();
    let url = format!("redis-sentinel://{},{host}/{SERVICE}", set.hosts());
    let ended = end(patient(&["doctor", "--url", &url]));
    let found = format!("no TLS connection to redis: {host} expects TLS");
    for part in [&*found, "-> use rediss://"] {
        ended.shows(part);
    }
}

#[test]
fn doctor_names_the_remedy_of_a_self_signed_certificate() {
    let authority = Authority::new();
    let own = authority.self_signed("");
    let (_server, host) = start_with(&authority, &own);
    let url = format!("rediss://{host}/");
    let args = [
        "doctor",
        "--url",
        &url,
        "--tls-ca",
        argument(&own.certificate),
    ];
    let ended = exits(patient(&args), 69);
    for part in [
        "an authority's own (CA:TRUE)\n",
        "-> issue one for the server: `openssl req -x509` needs",
        "subjectAltName=IP:127.0.0.1",
    ] {
        ended.shows(part);
    }
}

/// As on a file system that is gone.
#[test]
fn files_whose_read_does_not_end_are_named() {
    let directory = tempfile::tempdir().expect("a writable directory");
    let endless = directory.path().join("endless");
    mknodat(CWD, &endless, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    let path = argument(&endless);
    let (plain, encrypted) = ("redis://127.0.0.1:1/", "rediss://127.0.0.1:1/");
    for (url, variable, named) in [
        (encrypted, "SSL_CERT_FILE", "system's certificates"),
        (encrypted, "FAIRLOCK_TLS_CA", path),
        (plain, "FAIRLOCK_PASSWORD_FILE", path),
    ] {
        let ended = exits(
            without_server(&["ls", "--url", url]).env(variable, path),
            69,
        );
        ended.says(named);
    }
}
