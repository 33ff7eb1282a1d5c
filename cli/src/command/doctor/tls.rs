//! TLS to a server: whose certificates count, and what an error of it means.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use fairlock::{Step, TlsFailure};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::fault::Fault;
use super::place::Address;
use super::socket::Timed;

pub(super) type TlsStream = StreamOwned<ClientConnection, Timed>;

/// The certificates that count: those of the file, or the system's. And the client's own.
///
/// The library has read the same files, and reports what is wrong with them.
pub(super) fn config(
    ca: Option<&Path>,
    identity: Option<(&Path, &Path)>,
) -> Result<ClientConfig, String> {
    let mut authorities = RootCertStore::empty();
    let trusted = match ca {
        Some(file) => certificates_in(file)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    authorities.add_parsable_certificates(trusted);
    // The process-wide default would be none, or another library's choice.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(authorities);
    let Some((certificates, key)) = identity else {
        return Ok(builder.with_no_client_auth());
    };
    // The parser's error may repeat a part of the key.
    let no_key = |_| format!("{}: no private key was found", key.display());
    let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(no_key)?;
    let built = builder.with_client_auth_cert(certificates_in(certificates)?, key);
    built.map_err(|error| error.to_string())
}

fn certificates_in(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = read(file)?;
    let found: Result<_, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    found.map_err(|error| format!("{}: {error}", file.display()))
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| format!("{}: {error}", file.display()))
}

/// Shakes hands, within the time of the stream. Nothing but the server's name is sent before the
/// server is known to be the right one.
pub(super) fn begin(
    mut stream: Timed,
    config: &Arc<ClientConfig>,
    address: &Address,
) -> Result<TlsStream, Fault> {
    let Address::Tcp(host, _) = address else {
        return Err(Fault::Unfit(format!("{address} has no TLS")));
    };
    let name = ServerName::try_from(host.clone())
        .map_err(|_| Fault::Unfit(format!("no certificate can name {host:?}")))?;
    let begun = ClientConnection::new(Arc::clone(config), name);
    let mut connection = begun.map_err(|error| fault(&error).at(address))?;
    while connection.is_handshaking() {
        let passed = connection.complete_io(&mut stream);
        passed.map_err(|error| of_io(Step::Connect, &error).at(address))?;
    }
    Ok(StreamOwned::new(connection, stream))
}

/// An error of a stream, which may be one of TLS.
pub(super) fn of_io(step: Step, error: &io::Error) -> Fault {
    let inner = error.get_ref().and_then(|e| e.downcast_ref());
    inner.map_or_else(|| Fault::of_io(step, error), fault)
}

fn fault(error: &rustls::Error) -> Fault {
    use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
    let reason = match error {
        InvalidCertificate(CertificateError::UnknownIssuer) => TlsFailure::UnknownIssuer,
        InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            TlsFailure::Expired
        }
        InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => TlsFailure::NotValidYet,
        InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => TlsFailure::WrongHost,
        InvalidCertificate(_) => TlsFailure::BadCertificate,
        AlertReceived(_) => TlsFailure::ClientCertificate,
        InvalidMessage(_) => TlsFailure::PlainServer,
        _ => TlsFailure::Protocol,
    };
    Fault::Tls {
        reason,
        message: format!("{reason} ({error})"),
    }
}
