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

/// `fairlock ls`, with time for a busy machine to read the system's certificates.
fn patient_ls(args: &[&str]) -> Command {
    let mut command = without_server(&["ls", "--command-timeout", "10s"]);
    command.args(args);
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
    let files = [
        ("ca", argument(&ca)),
        ("cert", argument(&client.certificate)),
        ("key", argument(&client.key)),
    ];
    let options = files.map(|(name, file)| [format!("--tls-{name}"), file.to_owned()]);
    let variables = files.map(|(name, file)| {
        let name = format!("FAIRLOCK_TLS_{}", name.to_ascii_uppercase());
        (name, file)
    });
    let by_options = |args: &[&str]| {
        let mut command = patient_ls(&["--json"]);
        command.args(options.as_flattened()).args(args);
        command
    };
    for args in [&["--url", &encrypted][..], &["--url", &plain, "--tls"]] {
        assert!(listed(&mut by_options(args)).contains("encrypted"));
    }
    let mut by_variables = patient_ls(&["--json"]);
    by_variables.envs(variables.clone());
    by_variables.env("FAIRLOCK_URL", &plain);
    by_variables.env("FAIRLOCK_TLS", "true");
    assert!(listed(&mut by_variables).contains("encrypted"));

    let unused = end(&mut by_options(&["--url", &plain]));
    assert_eq!(unused.code, Some(64), "{unused:?}");
    assert!(unused.stderr.contains("--tls"), "{unused:?}");
    let mut stranger = patient_ls(&["--url", &encrypted, "--tls-ca", argument(&ca)]);
    let refused = end(&mut stranger);
    assert_eq!(refused.code, Some(69), "{refused:?}");
    assert!(refused.stderr.contains("certificate"), "{refused:?}");
}

#[test]
fn wrong_options_of_tls_exit_64() {
    let authority = Authority::new();
    let (ca, client) = (authority.file(), authority.client());
    let (certificate, key) = (argument(&client.certificate), argument(&client.key));
    for (args, message) in [
        (&["--tls-cert", certificate][..], "--tls-key"),
        (&["--tls-key", key], "--tls-cert"),
        (&["--tls-ca", "/no/file"], "/no/file"),
        (&["--tls-ca", key], "--tls-ca"),
        (
            &["--tls-cert", certificate, "--tls-key", certificate],
            "--tls-key",
        ),
        (
            &["--tls-cert", argument(&ca), "--tls-key", key],
            "--tls-cert",
        ),
    ] {
        let mut command = patient_ls(&["--url", "rediss://127.0.0.1:1/"]);
        let ended = end(command.args(args));
        assert_eq!(ended.code, Some(64), "{args:?}: {ended:?}");
        assert!(ended.stderr.contains(message), "{message}: {ended:?}");
    }
    for args in [
        &["--tls-ca", argument(&ca)][..],
        &["--tls-cert", certificate, "--tls-key", key],
    ] {
        let mut command = without_server(&["ls", "--url", "redis://127.0.0.1:1/"]);
        let ended = end(command.args(args));
        assert_eq!(ended.code, Some(64), "{args:?}: {ended:?}");
        let begin = format!("fairlock: {}", args[0]);
        assert!(ended.stderr.starts_with(&begin), "{ended:?}");
        assert!(ended.stderr.contains("rediss://"), "{ended:?}");
    }
    let socket = ["ls", "--tls", "--url", "redis+unix:///s"];
    let ended = end(&mut without_server(&socket));
    assert_eq!(ended.code, Some(64), "{ended:?}");
}

#[test]
fn bench_leaves_no_key_behind_over_tls() {
    let authority = Authority::new();
    let (server, host) = start(&authority);
    let (ca, client) = (authority.file(), authority.client());
    let url = format!("rediss://{host}/");
    let mut bench = without_server(&["bench", "--duration", "20ms", "--url", &url]);
    bench.args(["--command-timeout", "10s", "--tls-ca", argument(&ca)]);
    bench.args(["--tls-cert", argument(&client.certificate)]);
    let ended = end(bench.args(["--tls-key", argument(&client.key)]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "no warning: {ended:?}");
    assert_eq!(server.query::<Vec<String>>(&["KEYS", "*"]), [""; 0]);
}

#[test]
fn doctor_asks_the_servers_over_tls() {
    let authority = Authority::new();
    let (server, host) = start(&authority);
    server.query::<()>(&["CONFIG", "SET", "appendonly", "yes"]);
    let (ca, client) = (authority.file(), authority.client());
    let url = format!("rediss://{host}/");
    let mut doctor = without_server(&["doctor", "--url", &url, "--command-timeout", "10s"]);
    doctor.args(["--tls-ca", argument(&ca)]);
    doctor.args(["--tls-cert", argument(&client.certificate)]);
    let ended = end(doctor.args(["--tls-key", argument(&client.key)]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("13 ok, 0 warnings"), "{ended:?}");
    let without = ["doctor", "--url", &url, "--tls-ca", argument(&ca)];
    let refused = end(&mut without_server(&without));
    assert_eq!(refused.code, Some(69), "{refused:?}");
    assert!(
        refused.stdout.contains("--tls-cert and --tls-key"),
        "{refused:?}"
    );
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
