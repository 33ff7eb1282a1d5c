//! The settings of TLS: which certificates count, and the client's own.

use std::fmt;
#[cfg(feature = "tls")]
use std::fs::{self, File};
#[cfg(feature = "tls")]
use std::io::Read as _;
#[cfg(feature = "tls")]
use std::path::Path;
use std::path::PathBuf;
#[cfg(feature = "tls")]
use std::sync::Arc;
#[cfg(feature = "tls")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[cfg(feature = "tls")]
use parking_lot::Mutex;
#[cfg(feature = "tls")]
use rustls::client::Resumption;
#[cfg(feature = "tls")]
use rustls::pki_types::pem::PemObject;
#[cfg(feature = "tls")]
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
#[cfg(feature = "tls")]
use rustls::{ClientConfig, RootCertStore};

#[cfg(feature = "tls")]
use super::clock::{Clock, Time};
#[cfg(feature = "tls")]
use super::foreign::ForeignCalls;
#[cfg(feature = "tls")]
use super::tls_words::{pem_words, unusable, words_of};
use crate::error::{Error, Result as ApiResult};
#[cfg(feature = "tls")]
use crate::{error::Step, logging::Logger};

/// More than any file of certificates has.
#[cfg(feature = "tls")]
const MOST_BYTES: u64 = 1 << 20;

/// The certificates that count, and the client's own. All of them are in PEM.
///
/// All servers of a topology share one, so the system's certificates are read once.
#[derive(Clone, Default)]
pub(crate) struct TlsSettings {
    /// The certificates of authorities, in place of the system's.
    pub(crate) ca: Option<Pem>,
    /// The client's certificates and its key.
    pub(crate) identity: Option<(Pem, Pem)>,
    /// The form that rustls uses, and what it was built from.
    #[cfg(feature = "tls")]
    built: Arc<Mutex<Option<Built>>>,
    #[cfg(feature = "tls")]
    reads: ForeignCalls,
    /// The files have something that cannot be used now. The log says so once.
    #[cfg(feature = "tls")]
    is_failing: Arc<AtomicBool>,
}

/// Certificates or a key.
#[derive(Clone)]
#[cfg_attr(
    not(feature = "tls"),
    expect(dead_code, reason = "without the feature there is no TLS")
)]
pub(crate) enum Pem {
    Given(Vec<u8>),
    /// Read again for each new connection.
    File(PathBuf),
}

/// The form that rustls uses, behind what it was built from.
#[cfg(feature = "tls")]
type Built = (Contents, Arc<ClientConfig>);

/// The settings at some moment.
#[cfg(feature = "tls")]
#[derive(Clone, Default, PartialEq)]
struct Contents {
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

#[cfg(feature = "tls")]
impl Pem {
    /// What is in it now. `before`: what was in it when it was last used.
    fn read(
        &self,
        what: &'static str,
        before: Option<Vec<u8>>,
        reading: &Reading<'_>,
    ) -> ApiResult<Vec<u8>> {
        let path = match self {
            Pem::Given(bytes) => return Ok(bytes.clone()),
            Pem::File(path) => path.clone(),
        };
        let name = format!("the read of {}", path.display());
        reading.run(&name, move || read_file(&path, what, before))?
    }
}

/// Reads a file of certificates, or a key. A pipe has them once, and its next read might not end.
#[cfg(feature = "tls")]
fn read_file(path: &Path, what: &'static str, before: Option<Vec<u8>>) -> ApiResult<Vec<u8>> {
    let is_special = || fs::metadata(path).is_ok_and(|found| !found.is_file());
    if let Some(before) = before
        && is_special()
    {
        return Ok(before);
    }
    let refuse = |why: String| Error::setting(what, format!("{}: {why}", path.display()));
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| refuse(error.to_string()))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(refuse(format!("it has more than {MOST_BYTES} bytes")));
    }
    Ok(bytes)
}

/// Reads of files, which must all be over in time. A file system that is gone answers no read.
#[cfg(feature = "tls")]
struct Reading<'a> {
    reads: &'a ForeignCalls,
    clock: Clock,
    started: Time,
    until: Time,
}

#[cfg(feature = "tls")]
impl Reading<'_> {
    fn run<T: Send + 'static>(
        &self,
        name: &str,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> ApiResult<T> {
        let done = self.reads.run(name, &self.clock, self.until, read);
        done.map_err(|why| Error::Unavailable {
            lock: None,
            server: None,
            step: Step::Certificates,
            waited: self.clock.now() - self.started,
            cause: Arc::new(why),
        })
    }
}

#[cfg(feature = "tls")]
impl TlsSettings {
    /// For tests: these authorities count.
    #[cfg(test)]
    pub(crate) fn trusting(authorities: &[u8]) -> TlsSettings {
        TlsSettings {
            ca: Some(Pem::Given(authorities.to_vec())),
            ..TlsSettings::default()
        }
    }

    /// Refuses certificates and keys that cannot be used. Blocks for `timeout` at most.
    pub(crate) fn check(&self, timeout: Duration) -> ApiResult<()> {
        self.rebuilt(timeout).map(drop)
    }

    /// The settings in the form that rustls uses. Files are read again, within `timeout`. While they
    /// cannot be used, what they had before counts: another program may be writing them, and a new
    /// certificate may be there before its key.
    pub(crate) fn client_config(&self, timeout: Duration) -> ApiResult<Arc<ClientConfig>> {
        let Some((_, built)) = self.built.lock().clone() else {
            return self.rebuilt(timeout);
        };
        if !self.has_files() {
            return Ok(built);
        }
        let read = self.rebuilt(timeout);
        let was_failing = self.is_failing.swap(read.is_err(), Ordering::Relaxed);
        Ok(read.unwrap_or_else(|why| {
            if was_failing {
                log::debug!(logger: Logger, "the last certificates are still used: {why}");
            } else {
                log::warn!(logger: Logger, "the last certificates are used again: {why}");
            }
            built
        }))
    }

    fn has_files(&self) -> bool {
        let identity = self
            .identity
            .iter()
            .flat_map(|(certificates, key)| [certificates, key]);
        let mut all = self.ca.iter().chain(identity);
        all.any(|pem| matches!(pem, Pem::File(_)))
    }

    /// Reads what is in files, within `timeout`, and builds it anew if it has changed.
    fn rebuilt(&self, timeout: Duration) -> ApiResult<Arc<ClientConfig>> {
        let clock = Clock::default();
        let started = clock.now();
        let reading = Reading {
            reads: &self.reads,
            clock,
            started,
            until: started + timeout,
        };
        let known = self.built.lock().clone();
        let before = known.as_ref().map(|(contents, _)| contents.clone());
        let Contents { ca, identity } = before.unwrap_or_default();
        let read_ca = |pem: &Pem| pem.read("tls_ca", ca, &reading);
        let (certificates, key) = identity.unzip();
        let read_both = |(of_certificates, of_key): &(Pem, Pem)| -> ApiResult<_> {
            let certificates = of_certificates.read("tls_identity", certificates, &reading)?;
            Ok((certificates, of_key.read("tls_identity", key, &reading)?))
        };
        let contents = Contents {
            ca: self.ca.as_ref().map(read_ca).transpose()?,
            identity: self.identity.as_ref().map(read_both).transpose()?,
        };
        if let Some((of, built)) = known
            && of == contents
        {
            return Ok(built);
        }
        let built = Arc::new(contents.build(&reading)?);
        *self.built.lock() = Some((contents, Arc::clone(&built)));
        Ok(built)
    }
}

#[cfg(feature = "tls")]
impl Contents {
    fn build(&self, reading: &Reading<'_>) -> ApiResult<ClientConfig> {
        // The process-wide default would be none, or another library's choice.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::setting("tls", e.to_string()))?
            .with_root_certificates(self.authorities(reading)?);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificates, key)) => {
                let certificates = certificates_of("tls_identity", certificates)?;
                builder
                    .with_client_auth_cert(certificates, key_of(key)?)
                    .map_err(|e| Error::setting("tls_identity", unusable(&e)))?
            }
        };
        // Few connections are opened, and a resumed session looks at no certificate again. Some
        // servers hand out tickets and then refuse each of them.
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    fn authorities(&self, reading: &Reading<'_>) -> ApiResult<RootCertStore> {
        let mut authorities = RootCertStore::empty();
        let Some(pem) = &self.ca else {
            // The file that SSL_CERT_FILE names may hang, too.
            let found = reading.run(
                "the read of the system's certificates",
                rustls_native_certs::load_native_certs,
            )?;
            let (added, _) = authorities.add_parsable_certificates(found.certs);
            if added == 0 {
                let why = found.errors.first().map(|e| format!(" ({e})"));
                return Err(Error::setting(
                    "tls_ca",
                    format!(
                        "needed here, since the system has no certificates of authorities{}",
                        why.unwrap_or_default()
                    ),
                ));
            }
            return Ok(authorities);
        };
        for certificate in certificates_of("tls_ca", pem)? {
            let added = authorities.add(certificate);
            added.map_err(|e| {
                let why = words_of(&e);
                Error::setting("tls_ca", format!("certificates; one cannot be used: {why}"))
            })?;
        }
        Ok(authorities)
    }
}

#[cfg(feature = "tls")]
fn certificates_of(what: &'static str, pem: &[u8]) -> ApiResult<Vec<CertificateDer<'static>>> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = read.map_err(|e| pem_words(&e)).and_then(|found| {
        let any = (!found.is_empty()).then_some(found);
        any.ok_or_else(|| "no certificate was found".to_owned())
    });
    found.map_err(|why| {
        let expected = "certificates in PEM, each of which begins with -----BEGIN CERTIFICATE-----";
        let why = not_pem(pem, "x509").unwrap_or(why);
        Error::setting(what, format!("{expected}; {why}"))
    })
}

#[cfg(feature = "tls")]
fn key_of(pem: &[u8]) -> ApiResult<PrivateKeyDer<'static>> {
    // The parser's error may repeat a part of the key.
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| {
        let expected =
            "an unencrypted private key in PEM, which begins with -----BEGIN PRIVATE KEY-----";
        let is_encrypted = pem.windows(9).any(|word| word == b"ENCRYPTED");
        let why = match not_pem(pem, "pkey") {
            Some(why) => why,
            None if is_encrypted => {
                "this one is encrypted: `openssl pkey -in FILE -out NEW` takes its password away"
                    .to_owned()
            }
            None => "no such key was found".to_owned(),
        };
        Error::setting("tls_identity", format!("{expected}; {why}"))
    })
}

/// What it is in place of PEM, if that can be told. `openssl` with this command converts it.
#[cfg(feature = "tls")]
fn not_pem(bytes: &[u8], command: &str) -> Option<String> {
    match bytes {
        [] => Some("it is empty".to_owned()),
        // A sequence in DER, and no text that begins with a zero.
        [b'0', ..] if str::from_utf8(bytes).is_err() => Some(format!(
            "it is in DER: `openssl {command} -inform DER -in FILE -out NEW` converts it"
        )),
        _ => None,
    }
}

#[cfg(not(feature = "tls"))]
impl TlsSettings {
    /// Without the feature there is no TLS.
    pub(crate) fn check(&self, _timeout: Duration) -> ApiResult<()> {
        Err(Error::setting(
            "url",
            "plain text, such as redis://; TLS needs the feature `tls` of this crate",
        ))
    }
}

/// Shows neither certificates nor the key.
impl fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSettings")
            .field("ca", &self.ca.is_some())
            .field("identity", &self.identity.is_some())
            .finish()
    }
}
