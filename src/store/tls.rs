//! The settings of TLS: which certificates count, and the client's own.

use std::fmt;
#[cfg(feature = "tls")]
use std::fs::File;
#[cfg(feature = "tls")]
use std::io::Read as _;
use std::path::PathBuf;
#[cfg(feature = "tls")]
use std::sync::Arc;
#[cfg(feature = "tls")]
use std::time::Duration;

#[cfg(feature = "tls")]
use parking_lot::Mutex;
#[cfg(feature = "tls")]
use rustls::pki_types::pem::PemObject;
#[cfg(feature = "tls")]
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
#[cfg(feature = "tls")]
use rustls::{ClientConfig, RootCertStore};

#[cfg(feature = "tls")]
use super::clock::Clock;
#[cfg(feature = "tls")]
use super::foreign::ForeignCalls;
#[cfg(feature = "tls")]
use super::tls_words::{pem_words, words_of};
use crate::error::{Error, Result as ApiResult};

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
#[derive(Clone, PartialEq)]
struct Contents {
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

#[cfg(feature = "tls")]
impl Pem {
    fn read(&self, what: &str) -> ApiResult<Vec<u8>> {
        let path = match self {
            Pem::Given(bytes) => return Ok(bytes.clone()),
            Pem::File(path) => path,
        };
        let refuse = |why: String| Error::config(what, format!("{}: {why}", path.display()));
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
            .map_err(|error| refuse(error.to_string()))?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(refuse(format!("it has more than {MOST_BYTES} bytes")));
        }
        Ok(bytes)
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

    /// Refuses certificates and keys that cannot be used.
    pub(crate) fn check(&self) -> ApiResult<()> {
        self.rebuilt().map(drop)
    }

    /// The settings in the form that rustls uses. Files are read again, within `timeout`. While they
    /// cannot be used, what they had before counts: another program may be writing them, and a new
    /// certificate may be there before its key.
    pub(crate) fn client_config(&self, timeout: Duration) -> ApiResult<Arc<ClientConfig>> {
        let built = self
            .built
            .lock()
            .as_ref()
            .map(|(_, built)| Arc::clone(built));
        let Some(built) = built else {
            return self.rebuilt();
        };
        if !self.has_files() {
            return Ok(built);
        }
        let clock = Clock::default();
        let (settings, until) = (self.clone(), clock.now() + timeout);
        let read = self
            .reads
            .run("reading the certificates", &clock, until, move || {
                settings.rebuilt()
            });
        Ok(read
            .map_err(|why| why.to_string())
            .and_then(|read| read.map_err(|e| e.to_string()))
            .unwrap_or_else(|why| {
                log::debug!("the last certificates are used again: {why}");
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

    /// Reads what is in files, and builds it anew if it has changed.
    fn rebuilt(&self) -> ApiResult<Arc<ClientConfig>> {
        let ca = self.ca.as_ref().map(|pem| pem.read("tls_ca"));
        let read_both = |(certificates, key): &(Pem, Pem)| -> ApiResult<_> {
            let certificates = certificates.read("tls_identity")?;
            Ok((certificates, key.read("tls_identity")?))
        };
        let identity = self.identity.as_ref().map(read_both);
        let contents = Contents {
            ca: ca.transpose()?,
            identity: identity.transpose()?,
        };
        let known = self.built.lock().clone();
        if let Some((of, built)) = known
            && of == contents
        {
            return Ok(built);
        }
        let built = Arc::new(contents.build()?);
        *self.built.lock() = Some((contents, Arc::clone(&built)));
        Ok(built)
    }
}

#[cfg(feature = "tls")]
impl Contents {
    fn build(&self) -> ApiResult<ClientConfig> {
        // The process-wide default would be none, or another library's choice.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::config("tls", e.to_string()))?
            .with_root_certificates(self.authorities()?);
        let Some((certificates, key)) = &self.identity else {
            return Ok(builder.with_no_client_auth());
        };
        let certificates = certificates_of("tls_identity", certificates)?;
        // The parser's error may repeat a part of the key.
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
            Error::config(
                "tls_identity",
                "an unencrypted private key in PEM, which begins with -----BEGIN PRIVATE KEY-----; \
                 no such key was found",
            )
        })?;
        builder
            .with_client_auth_cert(certificates, key)
            .map_err(|e| {
                let why = words_of(&e);
                let message = format!("a certificate and the key that belongs to it; {why}");
                Error::config("tls_identity", message)
            })
    }

    fn authorities(&self) -> ApiResult<RootCertStore> {
        let mut authorities = RootCertStore::empty();
        let Some(pem) = &self.ca else {
            let found = rustls_native_certs::load_native_certs();
            let (added, _) = authorities.add_parsable_certificates(found.certs);
            if added == 0 {
                let why = found.errors.first().map(|e| format!(" ({e})"));
                return Err(Error::config(
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
                Error::config("tls_ca", format!("certificates; one cannot be used: {why}"))
            })?;
        }
        Ok(authorities)
    }
}

#[cfg(feature = "tls")]
fn certificates_of(what: &str, pem: &[u8]) -> ApiResult<Vec<CertificateDer<'static>>> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = read.map_err(|e| pem_words(&e)).and_then(|found| {
        let any = (!found.is_empty()).then_some(found);
        any.ok_or_else(|| "no certificate was found".to_owned())
    });
    found.map_err(|why| {
        let expected = "certificates in PEM, each of which begins with -----BEGIN CERTIFICATE-----";
        Error::config(what, format!("{expected}; {why}"))
    })
}

#[cfg(not(feature = "tls"))]
impl TlsSettings {
    /// Without the feature there is no TLS.
    pub(crate) fn check(&self) -> ApiResult<()> {
        Err(Error::config(
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
