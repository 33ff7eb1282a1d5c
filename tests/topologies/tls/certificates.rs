//! Certificates for tests, made by `openssl`.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::Server;
use crate::support::server::free_address;

/// An authority, and the certificates that it issues.
pub(crate) struct Authority {
    dir: TempDir,
}

/// The files of a certificate and its key.
#[derive(Clone)]
pub(crate) struct Certificate {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// From the first of these dates to the second a certificate is valid.
pub(crate) type Dates = (&'static str, &'static str);

pub(crate) const VALID: Dates = ("20200101000000Z", "20991231235959Z");
pub(crate) const EXPIRED: Dates = ("20200101000000Z", "20210101000000Z");
pub(crate) const NOT_YET_VALID: Dates = ("20980101000000Z", "20991231235959Z");

/// The name and the address at which the tests' servers listen.
pub(crate) const HERE: &str = "DNS:localhost,IP:127.0.0.1";

const SETTINGS: &str = "
[ca]
default_ca = authority
[authority]
database = index
rand_serial = yes
new_certs_dir = .
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = supplied
[req]
distinguished_name = name
[name]
[v3_ca]
basicConstraints = critical,CA:TRUE
";

impl Authority {
    pub(crate) fn new() -> Authority {
        Authority::named("authority")
    }

    pub(crate) fn named(name: &str) -> Authority {
        let dir = tempfile::Builder::new()
            .prefix("fairlock-")
            .tempdir()
            .expect("tests need a writable temporary directory");
        let authority = Authority { dir };
        fs::write(authority.path("settings"), SETTINGS).unwrap();
        fs::write(authority.path("index"), "").unwrap();
        authority.make_key("ca.key");
        authority.run(&format!(
            "req -x509 -new -key ca.key -config settings -extensions v3_ca -days 30000 \
             -subj /CN={name} -out ca.crt"
        ));
        authority
    }

    /// The authority's own certificate, in PEM.
    pub(crate) fn pem(&self) -> Vec<u8> {
        fs::read(self.path("ca.crt")).unwrap()
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.path("ca.crt")
    }

    /// A certificate for a server here.
    pub(crate) fn server(&self) -> Certificate {
        self.issue("server", HERE, VALID)
    }

    /// A certificate for a client.
    pub(crate) fn client(&self) -> Certificate {
        self.issue("client", "DNS:client", VALID)
    }

    /// A certificate for these names, valid between these dates. Its files begin with `file`.
    pub(crate) fn issue(&self, file: &str, names: &str, (from, to): Dates) -> Certificate {
        self.issue_with(file, &format!("subjectAltName = {names}"), (from, to))
    }

    /// The same with this extension.
    pub(crate) fn issue_with(&self, file: &str, extension: &str, (from, to): Dates) -> Certificate {
        let key = format!("{file}.key");
        self.make_key(&key);
        fs::write(self.path("extensions"), format!("{extension}\n")).unwrap();
        self.run(&format!(
            "req -new -key {key} -config settings -subj /CN={file} -out {file}.csr"
        ));
        self.run(&format!(
            "ca -batch -notext -config settings -cert ca.crt -keyfile ca.key -in {file}.csr \
             -extfile extensions -startdate {from} -enddate {to} -out {file}.crt"
        ));
        Certificate {
            certificate: self.path(&format!("{file}.crt")),
            key: self.path(&key),
        }
    }

    /// A certificate of X.509 version 1, as OpenSSL makes it without an extension.
    pub(crate) fn of_version_1(&self, file: &str) -> Certificate {
        let key = format!("{file}.key");
        self.make_key(&key);
        self.run(&format!(
            "req -new -key {key} -config settings -subj /CN={file} -out {file}.csr"
        ));
        self.run(&format!(
            "x509 -req -days 3000 -in {file}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out {file}.crt"
        ));
        let certificate = self.path(&format!("{file}.crt"));
        let text = self.run(&format!("x509 -noout -text -in {file}.crt"));
        assert!(text.contains("Version: 1 (0x0)"), "{text}");
        Certificate {
            certificate,
            key: self.path(&key),
        }
    }

    /// A certificate that signs itself, as many guides say, with these options besides.
    pub(crate) fn self_signed(&self, options: &str) -> Certificate {
        self.run(&format!(
            "req -x509 -newkey rsa:2048 -nodes -keyout self.key -out self.crt -days 3000 \
             -subj /CN=localhost {options}"
        ));
        Certificate {
            certificate: self.path("self.crt"),
            key: self.path("self.key"),
        }
    }

    /// A file that `openssl` makes out of another one.
    pub(crate) fn converted(&self, arguments: &str, from: &Path) -> Vec<u8> {
        let from = argument(from);
        self.run(&format!("{arguments} -in {from} -out converted"));
        fs::read(self.path("converted")).unwrap()
    }

    fn make_key(&self, file: &str) {
        self.run(&format!(
            "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {file}"
        ));
    }

    /// Runs `openssl`, and returns what it prints.
    fn run(&self, arguments: &str) -> String {
        let output = Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir(self.dir.path())
            .output()
            .unwrap_or_else(|e| panic!("the tests of TLS need openssl: {e}"));
        assert!(
            output.status.success(),
            "openssl {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }
}

impl Certificate {
    /// The certificate, in PEM.
    pub(crate) fn pem(&self) -> Vec<u8> {
        fs::read(&self.certificate).unwrap()
    }

    /// The key, in PEM.
    pub(crate) fn key_pem(&self) -> Vec<u8> {
        fs::read(&self.key).unwrap()
    }
}

/// As an argument of a server.
pub(crate) fn argument(path: &Path) -> &str {
    path.to_str().expect("our own directory has a plain name")
}

/// A server with a port for TLS, and its address there. Panics if the server has no TLS: then it does
/// not know these arguments.
pub(crate) fn start(
    authority: &Authority,
    own: &Certificate,
    extra: &[&str],
) -> (Server, SocketAddr) {
    let ca = authority.file();
    let mut why = String::new();
    // Another process may take a port between our check and the server's bind.
    for _ in 0..20 {
        let addr = free_address();
        let port = addr.port().to_string();
        let mut arguments = vec![
            "--tls-port",
            &port,
            "--tls-cert-file",
            argument(&own.certificate),
            "--tls-key-file",
            argument(&own.key),
            "--tls-ca-cert-file",
            argument(&ca),
        ];
        arguments.extend(extra);
        match Server::tcp_at(free_address(), &arguments) {
            Ok(server) => return (server, addr),
            Err(e) if e.contains("in use") => why = e,
            Err(e) => panic!("the tests of TLS need a server with TLS: {e}"),
        }
    }
    panic!("twenty times a port was taken; the last server said: {why}");
}
