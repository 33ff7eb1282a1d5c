//! The errors of TLS in plain words. The crate `rustls` shows many of them as its own Rust names.

use std::error::Error as StdError;
use std::fmt::Debug;

use rustls::pki_types::pem;
use rustls::{AlertDescription, CertificateError, Error, OtherError};

/// Any error of `rustls`.
pub(super) fn words_of(error: &Error) -> String {
    match error {
        Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
            "the server sent a message that does not belong here".to_owned()
        }
        Error::InvalidMessage(why) => {
            format!(
                "the server sent a message that cannot be read ({})",
                words(why)
            )
        }
        Error::PeerIncompatible(why) => {
            format!(
                "the server and this client have nothing in common ({})",
                words(why)
            )
        }
        Error::PeerMisbehaved(why) => {
            format!("the server does not keep to the protocol ({})", words(why))
        }
        Error::AlertReceived(alert) => {
            format!("the server ended the connection ({})", alert_words(*alert))
        }
        Error::InvalidCertificate(why) => certificate_words(why),
        Error::InvalidCertRevocationList(why) => {
            format!(
                "the list of revoked certificates cannot be used ({})",
                words(why)
            )
        }
        Error::NoCertificatesPresented => "the server sent no certificate".to_owned(),
        Error::InconsistentKeys(_) => "the key does not belong to the certificate".to_owned(),
        Error::General(why) => why.clone(),
        Error::Other(why) => other_words(why),
        // The rest has plain words already, or none at all.
        other => other.to_string(),
    }
}

/// Why the client's certificate and its key cannot be used, and what to do.
pub(super) fn unusable(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(CertificateError::Other(why))
            if other_words(why) == OLD_VERSION =>
        {
            "a certificate of X.509 version 3; this one is of version 1, as `openssl x509 -req` makes \
             it without an extension: issue it anew with -extfile, and an extension in that file"
                .to_owned()
        }
        Error::InconsistentKeys(_) => {
            "a certificate and the key that belongs to it; this key belongs to another".to_owned()
        }
        other => format!("a certificate that can be used; {}", words_of(other)),
    }
}

/// Why a server's certificate cannot be used, and what to do. `san` is the name by which the server is
/// reached, as a subject alternative name.
pub(super) fn unusable_server(error: &CertificateError, san: &str) -> String {
    match certificate_words(error).as_str() {
        // Plain `openssl req -x509` makes one.
        "ca used as end entity" => format!(
            "it is an authority's own (CA:TRUE); issue one for the server: `openssl req -x509` needs \
             -addext basicConstraints=critical,CA:FALSE -addext subjectAltName={san}"
        ),
        OLD_VERSION => format!(
            "it is of X.509 version 1, and has no subject alternative name; issue one of version 3: \
             `openssl x509 -req` needs -extfile with subjectAltName={san}"
        ),
        why => format!("{why}; issue another for the server"),
    }
}

/// How `webpki` calls a certificate of X.509 version 1.
const OLD_VERSION: &str = "unsupported cert version";

/// A name out of the certificate. The crate shows it as its own Rust value.
pub(super) fn name_in(shown: &str) -> &str {
    let inner = shown.split_once('(').map_or(shown, |(_, inner)| inner);
    inner.trim_end_matches(')').trim_matches('"')
}

/// Why a certificate cannot be used.
pub(super) fn certificate_words(error: &CertificateError) -> String {
    match error {
        CertificateError::BadEncoding => "it cannot be read".to_owned(),
        CertificateError::Revoked => "it was revoked".to_owned(),
        CertificateError::UnhandledCriticalExtension => {
            "it demands an extension that is not known".to_owned()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it is not for a server, or not for a client".to_owned()
        }
        CertificateError::Other(why) => other_words(why),
        other => words(other),
    }
}

/// `HandshakeFailure` becomes `handshake failure`.
pub(super) fn alert_words(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::UnknownCA => "unknown authority".to_owned(),
        AlertDescription::Unknown(number) => format!("alert {number}"),
        known => words(&known),
    }
}

/// Why a file in PEM cannot be read.
pub(super) fn pem_words(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no end".to_owned(),
        pem::Error::IllegalSectionStart { .. } => {
            "a section does not begin as it should".to_owned()
        }
        pem::Error::NoItemsFound => "it has none".to_owned(),
        other => other.to_string(),
    }
}

/// The innermost error, which knows most. It may be a Rust name as well.
fn other_words(error: &OtherError) -> String {
    let mut innermost: &(dyn StdError + 'static) = &*error.0;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let text = innermost.to_string();
    if is_name(&text) {
        words_in(&text)
    } else {
        text
    }
}

/// The words of a Rust name. A part in brackets is left out.
fn words(name: &impl Debug) -> String {
    words_in(&format!("{name:?}"))
}

fn words_in(debug: &str) -> String {
    let name = debug.split(|letter: char| !letter.is_alphanumeric()).next();
    let mut words = String::new();
    let mut was_small = false;
    for letter in name.unwrap_or_default().chars() {
        if letter.is_uppercase() && was_small {
            words.push(' ');
        }
        was_small = !letter.is_uppercase();
        words.extend(letter.to_lowercase());
    }
    words
}

/// Whether it looks like `CaUsedAsEndEntity` or `Name(…)`, and not like a sentence.
fn is_name(text: &str) -> bool {
    let first = text.split(|letter: char| !letter.is_alphanumeric()).next();
    let first = first.unwrap_or_default();
    let inner = first.chars().skip(1).any(char::is_uppercase);
    let rest = &text[first.len()..];
    inner && (rest.is_empty() || rest.starts_with(['(', '{']) || rest.starts_with(" {"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::{InconsistentKeys, InvalidMessage, PeerIncompatible};

    use super::*;

    #[derive(Debug)]
    struct Named(&'static str);

    impl std::fmt::Display for Named {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl StdError for Named {}

    fn other(text: &'static str) -> Error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(Named(text)))))
    }

    #[test]
    fn name_of_a_certificate_is_shown_bare() {
        for (shown, name) in [
            ("DnsName(\"redis.internal\")", "redis.internal"),
            ("IpAddress(10.0.0.7)", "10.0.0.7"),
            ("IpAddress(fe80::7)", "fe80::7"),
            ("UniformResourceIdentifier(\"redis://a\")", "redis://a"),
            ("DirectoryName", "DirectoryName"),
        ] {
            assert_eq!(name_in(shown), name);
        }
    }

    #[test]
    fn no_error_of_tls_shows_a_rust_name() {
        for (error, expected) in [
            (
                Error::AlertReceived(AlertDescription::HandshakeFailure),
                "the server ended the connection (handshake failure)",
            ),
            (
                Error::AlertReceived(AlertDescription::UnknownCA),
                "the server ended the connection (unknown authority)",
            ),
            (
                Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon),
                "the server and this client have nothing in common (no cipher suites in common)",
            ),
            (
                Error::InvalidMessage(InvalidMessage::MessageTooLarge),
                "the server sent a message that cannot be read (message too large)",
            ),
            (
                Error::InvalidCertificate(CertificateError::BadEncoding),
                "it cannot be read",
            ),
            (
                Error::InvalidCertificate(CertificateError::UnknownRevocationStatus),
                "unknown revocation status",
            ),
            (
                Error::InconsistentKeys(InconsistentKeys::KeyMismatch),
                "the key does not belong to the certificate",
            ),
            (other("CaUsedAsEndEntity"), "ca used as end entity"),
            (
                other("UnsupportedSignatureAlgorithm { id: [1, 2] }"),
                "unsupported signature algorithm",
            ),
            (
                other("No such file or directory"),
                "No such file or directory",
            ),
        ] {
            assert_eq!(words_of(&error), expected, "{error:?}");
        }
    }
}
