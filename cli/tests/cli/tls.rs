//! The options of TLS, with certificates that `openssl` makes.

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::certificates::{Authority, Certificate, argument, start};
use crate::connection::listed;
use crate::sentinel_set::SERVICE;
use crate::usage::wrong;
use crate::*;

/// A command, with time for a busy machine to read the system's certificates.
fn patient(line: &str) -> Command {
    bare(&format!("FAIRLOCK_COMMAND_TIMEOUT=10s {line}"))
}

/// The options for this authority and this certificate of the client.
fn options(authority: &Authority, client: &Certificate) -> String {
    let (ca, of_client, key) = (&authority.file(), &client.certificate, &client.key);
    let [ca, of_client, key] = [ca, of_client, key].map(|path| argument(path));
    format!("--tls-ca {ca} --tls-cert {of_client} --tls-key {key}")
}

#[test]
fn options_or_variables_encrypt_the_connections() {
    let authority = Authority::new();
    let (server, addr) = start(&authority, &authority.server(), &[]);
    let manager = manager(&server);
    let _guard = manager.lock("encrypted").unwrap();
    let options = options(&authority, &authority.client());
    let line = format!("ls --url rediss://{addr}/ {options}");
    assert!(listed(patient(&line)).contains("encrypted"));
    let words: Vec<&str> = line.split(' ').skip(1).collect();
    let mut variables = patient("ls");
    for option in words.chunks(2) {
        let name = option[0].trim_start_matches("--").replace('-', "_");
        variables.env(format!("FAIRLOCK_{}", name.to_uppercase()), option[1]);
    }
    assert!(listed(variables).contains("encrypted"));
    let url = format!("--url rediss://{addr}/");
    for (line, notes) in [("bench --duration 20ms", 1), ("doctor", 0)] {
        let ended = exits(patient(&format!("{line} {url} {options}")), 0);
        assert_eq!(ended.stderr.lines().count(), notes, "no warning: {ended:?}");
        assert!(!ended.stdout.contains("not known"), "{ended:?}");
    }
    wrong(patient(&line.replace("rediss://", "redis://")), "rediss://");
    for (options, named) in [
        ("--tls-cert /c", "--tls-key"),
        ("--tls-key /k", "--tls-cert"),
        ("--tls-ca /etc/passwd", "--tls-ca"),
        ("--tls-cert /k --tls-key /k", "--tls-cert and --tls-key"),
    ] {
        wrong(patient(&format!("ls {url} {options}")), named);
    }
    // The server demands a certificate.
    let ca = authority.file();
    for command in ["ls", "doctor"] {
        let line = format!("{command} {url} --tls-ca {}", argument(&ca));
        let refused = exits(patient(&line), 69);
        let output = refused.stdout + &refused.stderr;
        assert!(output.contains("certificate"), "{output}");
    }
}

#[test]
fn doctor_names_the_sentinel_that_expects_tls() {
    let authority = Authority::new();
    let (_server, addr) = start(&authority, &authority.server(), &[]);
    let set = SentinelSet::start();
    let url = format!("redis-sentinel://{},{addr}/{SERVICE}", set.hosts());
    let ended = end(patient(&format!("doctor --url {url}")));
    ended.shows(&format!("no TLS connection to redis: {addr} expects TLS"));
    ended.shows("-> use rediss://");
}

#[test]
fn doctor_names_the_remedy_of_a_self_signed_certificate() {
    let authority = Authority::new();
    let own = authority.self_signed("");
    let (_server, addr) = start(&authority, &own, &[]);
    let ca = argument(&own.certificate);
    let line = format!("doctor --url rediss://{addr}/ --tls-ca {ca}");
    let ended = exits(patient(&line), 69);
    has_parts(
        &ended.stdout,
        "an authority's own (CA:TRUE)\n|-> issue one for the server: `openssl req -x509` needs|\
         subjectAltName=IP:127.0.0.1",
    );
}

/// As on a file system that is gone.
#[test]
fn files_whose_read_does_not_end_are_named() {
    let directory = tempdir().unwrap();
    let endless = directory.path().join("endless");
    mknodat(CWD, &endless, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    let path = argument(&endless);
    for (scheme, variable, named) in [
        ("rediss", "SSL_CERT_FILE", "system's certificates"),
        ("rediss", "FAIRLOCK_TLS_CA", path),
        ("redis", "FAIRLOCK_PASSWORD_FILE", path),
    ] {
        let mut command = bare(&format!("ls --url {scheme}://127.0.0.1:1/"));
        exits(command.env(variable, path), 69).says(named);
    }
}
