//! Puts options into the text of a URL. The library reads the URL, and reports what is wrong in it.

use crate::exit::{Failure, given};

/// The URL of the service that these sentinels watch.
pub(super) fn sentinel(hosts: &str, master: &str) -> Result<String, Failure> {
    let hosts = checked(&given("--sentinel"), hosts)?;
    Ok(format!("redis-sentinel://{hosts}/{}", encoded(master)))
}

/// The URL of the cluster of these nodes.
pub(super) fn cluster(hosts: &str) -> Result<String, Failure> {
    Ok(format!(
        "redis-cluster://{}",
        checked(&given("--cluster"), hosts)?
    ))
}

/// Refuses what would become another part of the URL. Does not repeat it: it may be a password.
fn checked<'a>(option: &str, hosts: &'a str) -> Result<&'a str, Failure> {
    let is_host = |host: &str| {
        !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "/?#@".contains(c))
    };
    if hosts.split(',').all(is_host) {
        return Ok(hosts);
    }
    let message = format!("{option}: HOST:PORT, and commas between several");
    Err(Failure::usage(message))
}

/// The same URL with TLS.
pub(super) fn with_tls(url: &str) -> Result<String, Failure> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Ok(url.to_owned());
    };
    let scheme = scheme.to_ascii_lowercase();
    if scheme.ends_with("unix") {
        return Err(Failure::usage(format!(
            "a unix socket has no TLS: leave out {}",
            given("--tls")
        )));
    }
    let (base, form) = match scheme.split_once('-') {
        Some((base, form)) => (base, format!("-{form}")),
        None => (&*scheme, String::new()),
    };
    Ok(match base {
        "redis" => format!("rediss{form}://{rest}"),
        "valkey" => format!("valkeys{form}://{rest}"),
        _ => url.to_owned(),
    })
}

/// Whether the URL has a user or a password.
pub(super) fn has_login(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else {
        return false;
    };
    if is_unix(scheme) {
        let query = rest.split_once('?').map_or("", |(_, query)| query);
        return query
            .split('&')
            .any(|part| part.starts_with("user=") || part.starts_with("pass="));
    }
    // A password that is not encoded may hold any character. The library refuses such a URL.
    rest.contains('@')
}

/// The same URL with this user, which may be empty, and password. It has none yet.
pub(super) fn with_login(url: &str, user: &str, password: &str) -> String {
    let (user, password) = (encoded(user), encoded(password));
    match url.split_once("://") {
        None => url.to_owned(),
        Some((scheme, _)) if is_unix(scheme) => {
            let and = if url.contains('?') { '&' } else { '?' };
            format!("{url}{and}user={user}&pass={password}")
        }
        Some((scheme, rest)) => format!("{scheme}://{user}:{password}@{rest}"),
    }
}

fn is_unix(scheme: &str) -> bool {
    scheme.to_ascii_lowercase().ends_with("unix")
}

/// Percent-encoded, so that it is one part of a URL.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(byte.into());
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_is_encoded_into_each_form_of_url() {
        for (url, with) in [
            ("redis://h:1/2", "redis://u:p%2F%40@h:1/2"),
            ("rediss-cluster://h,i", "rediss-cluster://u:p%2F%40@h,i"),
            ("redis+unix:///s", "redis+unix:///s?user=u&pass=p%2F%40"),
            ("unix:///s?db=1", "unix:///s?db=1&user=u&pass=p%2F%40"),
        ] {
            assert!(!has_login(url), "{url}");
            assert_eq!(with_login(url, "u", "p/@"), with);
            assert!(has_login(with), "{with}");
        }
    }

    #[test]
    fn tls_changes_the_scheme_once() {
        for (url, with) in [
            ("redis://h", "rediss://h"),
            ("VALKEY://h", "valkeys://h"),
            ("redis-sentinel://h/m", "rediss-sentinel://h/m"),
            ("valkey-cluster://h", "valkeys-cluster://h"),
        ] {
            for url in [url, with] {
                let encrypted = with_tls(url).expect("no unix socket");
                assert_eq!(encrypted, with);
            }
        }
        assert!(with_tls("redis+unix:///s").is_err());
    }
}
