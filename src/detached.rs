//! A lock between two processes: the one that detached it, and the one that attaches it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::error::{Error, Result};
use crate::key::Key;
use crate::script::Secret;

/// A lock that is held, but by no process: its guard has [detached](crate::LockGuard::detach) it, and
/// whoever bears this value [attaches](crate::LockManager::attach) it, in this process or another.
///
/// Nobody else can have the lock meanwhile, also if the process that detached it ends. It is not
/// renewed: it lapses by itself when it was valid for as long as `detach` said.
///
/// # Text
/// [`secret_text`](DetachedLock::secret_text) gives it out as one word of letters, digits and `:/%-_.`,
/// so it is safe in an environment variable, a URL's query and JSON. [`FromStr`] reads it back. The
/// text says its version. With the feature `serde` it is serialized as that text.
///
/// **The text is a secret.** A process that has it and can reach Redis can take the lock, once. So pass
/// it on in a job, by an environment variable, a file or a pipe, and not in the arguments of a command,
/// which every user of the host can read. `Debug` hides the secret, and there is no `Display`, so a log
/// has it only if you write the text or the serialized form there. Redis has only its hash, until the
/// lock is attached.
///
/// ```no_run
/// use std::time::Duration;
/// use fairlock::{DetachedLock, LockManager};
///
/// // Here the lock is taken, so that nobody takes it until the job has run.
/// let mgr = LockManager::connect("redis://127.0.0.1/")?;
/// let guard = mgr.lock("invoices:42")?;
/// let detached = guard.detach(Duration::from_secs(600))?;
/// let job = format!("bill 42 {}", detached.secret_text());
///
/// // A worker attaches it, on another host.
/// let (_, text) = job.rsplit_once(' ').unwrap_or_default();
/// let detached: DetachedLock = text.parse()?;
/// let guard = mgr.attach(&detached)?;
/// # Ok::<(), fairlock::Error>(())
/// ```
#[must_use = "the lock stays taken until it is attached, or lapses"]
#[derive(Clone)]
pub struct DetachedLock {
    pub(crate) prefix: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) fence: u64,
    pub(crate) secret: Secret,
}

/// The text begins with this. The number is its version.
const FORM: &str = "fairlock-detached/1:";

/// All but these is percent-encoded.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

impl DetachedLock {
    /// The name of the lock.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The fence of the lock while it is detached. It is larger than that of the guard that detached
    /// it, and smaller than that of the guard that attaches it. Every fence fits an `i64`.
    ///
    /// [`force_release`](crate::LockManager::force_release) takes it, to end a detached lock whose
    /// bearer is lost.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// The text that attaches the lock, in this process or another. **It is a secret:** do not log it.
    pub fn secret_text(&self) -> String {
        let encoded = |text| utf8_percent_encode(text, ENCODED);
        let (prefix, name) = (encoded(&self.prefix), encoded(&self.name));
        let (fence, secret) = (self.fence, self.secret.reveal());
        format!("{FORM}{prefix}:{name}:{fence}:{secret}")
    }

    /// Reads the text behind [`FORM`].
    fn read(text: &str) -> Option<DetachedLock> {
        let mut parts = text.split(':');
        let decoded = |part: &str| percent_decode_str(part).decode_utf8().ok().map(Arc::from);
        let (prefix, name): (Arc<str>, Arc<str>) =
            (decoded(parts.next()?)?, decoded(parts.next()?)?);
        let fence = parts.next()?.parse().ok()?;
        let secret = Secret::parse(parts.next()?)?;
        Key::new(&prefix, &name).ok()?;
        let detached = DetachedLock {
            prefix,
            name,
            fence,
            secret,
        };
        // One lock has one text, and nothing comes behind it.
        let canonical = detached.secret_text();
        (canonical.strip_prefix(FORM) == Some(text)).then_some(detached)
    }
}

/// [`Error::Misused`] if this is not the [text](DetachedLock::secret_text) of a detached lock, or of
/// another version, with [`Misuse::Setting`](crate::Misuse::Setting). The error never has the text, which
/// may be a secret. No other try can attach it. If a client sent it, answer 400.
impl FromStr for DetachedLock {
    type Err = Error;

    fn from_str(text: &str) -> Result<DetachedLock> {
        let refused = |message| Error::setting("detached lock", message);
        match text.strip_prefix(FORM) {
            Some(rest) => DetachedLock::read(rest).ok_or_else(|| {
                refused(format!("the text after {FORM:?} is damaged or was cut off"))
            }),
            None => Err(refused(format!(
                "expected a text that begins with {FORM:?}"
            ))),
        }
    }
}

/// Without the secret.
impl fmt::Debug for DetachedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedLock")
            .field("name", &self.name)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for DetachedLock {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.secret_text())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for DetachedLock {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<DetachedLock, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detached(prefix: &str, name: &str) -> DetachedLock {
        DetachedLock {
            prefix: prefix.into(),
            name: name.into(),
            fence: 1_700_000_000_123_456,
            secret: Secret::new(),
        }
    }

    const NAMES: [&str; 10] = [
        "a",
        "a b",
        "{}%",
        "%41",
        "a:b:",
        "\0\n\t\"'\\$`",
        "🦀 é",
        " ",
        "=&?;,",
        "-_.~/",
    ];

    #[test]
    fn every_name_survives_the_text() {
        let longest = "é".repeat(256);
        for name in NAMES.into_iter().chain([&*longest]) {
            let given = detached("my app", name);
            let text = given.secret_text();
            let is_safe = |c: char| c.is_ascii_alphanumeric() || ":/%-_.".contains(c);
            assert!(text.chars().all(is_safe), "{text}");
            let parsed: DetachedLock = text.parse().unwrap();
            assert_eq!((parsed.name(), parsed.secret_text()), (name, text));
        }
    }

    #[test]
    fn forged_text_is_refused_and_not_repeated() {
        let good = detached("fairlock", "a b").secret_text();
        let secret = good.rsplit(':').next().unwrap().to_owned();
        let mut forged = vec![
            String::new(),
            FORM.to_owned(),
            format!("{good} "),
            format!("{good}:1"),
            good.replace("/1:", "/2:"),
            good.replace("a%20b", "a b"),
            good.replace("a%20b", "%61%20b"),
            good.replace("a%20b", ""),
            good.replace("a%20b", "%FF"),
            good.replace("a%20b", &"a".repeat(513)),
            good.replace(":17", ":+17"),
            good.replace(":17", ":017"),
            good.replace(&secret, &secret.to_uppercase()),
            good.replace(&secret, &format!("{{{secret}}}")),
        ];
        forged.extend((0..good.len()).map(|at| good[..at].to_owned()));
        // A secret of digits alone has no other case.
        for text in forged.iter().filter(|text| **text != good) {
            let error = text.parse::<DetachedLock>().expect_err(text).to_string();
            assert!(!error.contains(&secret[..8]), "{error}");
        }
    }

    #[test]
    fn debug_hides_the_secret() {
        let given = detached("fairlock", "a");
        let shown = format!("{given:?} {:?}", given.secret);
        assert!(!shown.contains(&given.secret.reveal()), "{shown}");
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serialized_form_is_the_text() {
        for name in NAMES {
            let given = detached("fairlock", name);
            let json = serde_json::to_string(&given).unwrap();
            assert_eq!(json, format!("\"{}\"", given.secret_text()));
            let read: DetachedLock = serde_json::from_str(&json).unwrap();
            assert_eq!(
                (read.name(), read.secret_text()),
                (name, given.secret_text())
            );
        }
        let error = serde_json::from_str::<DetachedLock>("\"secret\"").unwrap_err();
        assert!(!error.to_string().contains("secret\""), "{error}");
    }
}
