//! The settings of TLS: which certificates count, and the client's own.

use std::fmt;
#[cfg(feature = "tls")]
use std::sync::{Arc, OnceLock};

#[cfg(feature = "tls")]
use rustls::pki_types::pem::PemObject;
#[cfg(feature = "tls")]
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
#[cfg(feature = "tls")]
use rustls::{ClientConfig, RootCertStore};

#[cfg(feature = "tls")]
use super::tls_words::{pem_words, words_of};
use crate::error::{Error, Result as ApiResult};

/// The certificates that count, and the client's own. All of them are in PEM.
///
/// All servers of a topology share one, so the system's certificates are read once.
#[derive(Clone, Default)]
pub(crate) struct TlsSettings {
    /// The certificates of authorities, in place of the system's.
    pub(crate) ca: Option<Vec<u8>>,
    /// The client's certificates and its key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
    #[cfg(feature = "tls")]
    pub(crate) built: OnceLock<Arc<ClientConfig>>,
}

#[cfg(feature = "tls")]
impl TlsSettings {
    /// Refuses certificates and keys that cannot be used.
    pub(crate) fn check(&self) -> ApiResult<()> {
        self.client_config().map(drop)
    }

    /// The settings in the form that rustls uses, built once.
    pub(crate) fn client_config(&self) -> ApiResult<&Arc<ClientConfig>> {
        if let Some(built) = self.built.get() {
            return Ok(built);
        }
        let built = Arc::new(self.build()?);
        Ok(self.built.get_or_init(|| built))
    }

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
