//! Logins that change: what a provider is asked and gives, and a file with the password.

use std::error::Error as StdError;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::logging::Logger;

/// More than any password has. A device that never ends is not read to its end.
const MOST_BYTES: u64 = 1 << 20;

/// A user and a password, and for how long they are valid.
///
/// `Debug` shows neither the password nor its length.
#[derive(Clone)]
pub struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: String,
    pub(crate) valid_for: Option<Duration>,
}

impl Credentials {
    /// A user and a password. They are valid until the server says otherwise.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Credentials {
        Credentials {
            user: Some(user.into()),
            ..Credentials::password(password)
        }
    }

    /// The password of the server's default user.
    pub fn password(password: impl Into<String>) -> Credentials {
        Credentials {
            user: None,
            password: password.into(),
            valid_for: None,
        }
    }

    /// The same credentials, which end this long after the provider was called.
    ///
    /// Before they end, the manager asks for new ones, and sends them to the server over every
    /// connection that is open. It does so when four fifths of the time are over. If less than two
    /// connect timeouts and two command timeouts would be left then, it asks earlier, but not
    /// before half of the time is over.
    #[must_use]
    pub fn valid_for(self, validity: Duration) -> Credentials {
        Credentials {
            valid_for: Some(validity),
            ..self
        }
    }
}

/// Shows the user, and never the password.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .field("valid_for", &self.valid_for)
            .finish_non_exhaustive()
    }
}

/// The server that a provider makes credentials for.
#[derive(Debug)]
pub struct CredentialsRequest {
    pub(crate) server: Arc<str>,
    pub(crate) was_refused: bool,
}

impl CredentialsRequest {
    /// The address of the server, as errors show it: `host:port`, `[address]:port` for an IPv6
    /// address, or the path of its socket. The host is the one that the manager connects to: from the
    /// endpoint, or as a sentinel or the cluster names it.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Whether the server has just refused the last answer. A provider that keeps its answers must
    /// not give the same again.
    pub fn was_refused(&self) -> bool {
        self.was_refused
    }
}

/// The reason why a provider has no credentials. It becomes the cause of an
/// [`Error::Unavailable`](crate::Error::Unavailable) whose step is
/// [`Step::Credentials`](crate::Step::Credentials).
pub type CredentialsError = Box<dyn StdError + Send + Sync>;

/// A provider: see [`Builder::credentials`](crate::Builder::credentials).
pub(crate) type Provide =
    dyn Fn(&CredentialsRequest) -> Result<Credentials, CredentialsError> + Send + Sync;

/// A file with the password, which is read again for each new connection.
///
/// The password is the text of the file without the end of its last line. If the file cannot be read
/// or is empty, the last password that was read is used again: another program may be writing the
/// file just then. A pipe or a device is read once, since it may have the password only once.
///
/// To change the password and lose no lock: let the server accept both passwords (`ACL SETUSER user
/// >new`), replace the file by a rename, and then take the old one away (`ACL SETUSER user <old`).
///
/// ```no_run
/// use fairlock::{LockManager, credentials::PasswordFile};
///
/// let file = PasswordFile::new("/run/secrets/redis").user("billing");
/// let mgr = LockManager::builder("redis://redis.internal/")
///     .credentials(move |_| file.credentials())
///     .build()?;
/// # Ok::<(), fairlock::Error>(())
/// ```
#[derive(Clone)]
pub struct PasswordFile {
    path: PathBuf,
    user: Option<String>,
    last: Arc<Mutex<Option<String>>>,
    /// It cannot be used now. The log says so once.
    is_failing: Arc<AtomicBool>,
}

impl PasswordFile {
    /// The file at this path. The user is the server's default user.
    pub fn new(path: impl Into<PathBuf>) -> PasswordFile {
        PasswordFile {
            path: path.into(),
            user: None,
            last: Arc::default(),
            is_failing: Arc::default(),
        }
    }

    /// The user to log in as.
    #[must_use]
    pub fn user(self, user: impl Into<String>) -> PasswordFile {
        PasswordFile {
            user: Some(user.into()),
            ..self
        }
    }

    /// The user, and the password that is in the file now, or that was last there. Blocks for as long
    /// as the file system does.
    ///
    /// # Errors
    /// The file was never read, and cannot be read, is empty, has more than one line, is no UTF-8 text
    /// or has more than a mebibyte. The error names the file, and nothing of what is in it.
    pub fn credentials(&self) -> Result<Credentials, CredentialsError> {
        Ok(Credentials {
            user: self.user.clone(),
            ..Credentials::password(self.password()?)
        })
    }

    /// The password, read again if the file can have another one now.
    fn password(&self) -> Result<String, CredentialsError> {
        let last = self.last.lock().clone();
        match last {
            Some(last) if !self.path.is_file() => Ok(last),
            Some(last) => {
                let read = self.read();
                let was_failing = self.is_failing.swap(read.is_err(), Ordering::Relaxed);
                Ok(read.unwrap_or_else(|error| {
                    if was_failing {
                        log::debug!(logger: Logger, "the last password is still used: {error}");
                    } else {
                        log::warn!(logger: Logger, "the last password is used again: {error}");
                    }
                    last
                }))
            }
            None => self.read(),
        }
    }

    fn read(&self) -> Result<String, CredentialsError> {
        let password = password_in(&self.path)?;
        Ok(self.last.lock().insert(password).clone())
    }
}

/// Shows the path and the user, and nothing of what is in the file.
impl fmt::Debug for PasswordFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordFile")
            .field("path", &self.path)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// The password in a file: its text without the end of its last line, which editors and `echo` add.
fn password_in(path: &Path) -> Result<String, CredentialsError> {
    let refuse = |why: String| -> CredentialsError { format!("{}: {why}", path.display()).into() };
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| refuse(error.to_string()))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(refuse(format!("it has more than {MOST_BYTES} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| refuse("it is no UTF-8 text".to_owned()))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    match text.strip_suffix('\r').unwrap_or(text) {
        "" => Err(refuse("it is empty".to_owned())),
        password if password.contains('\n') => Err(refuse("it has more lines than one".to_owned())),
        password => Ok(password.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_has_no_password() {
        let shown = format!("{:?}", Credentials::new("u", "hunter2"));
        assert!(
            shown.contains("\"u\"") && !shown.contains("hunter2"),
            "{shown}"
        );
    }

    #[test]
    fn password_file_is_read_again_and_outlives_a_bad_moment() {
        let path = std::env::temp_dir().join(format!("fairlock-password-{}", std::process::id()));
        let file = PasswordFile::new(&path).user("u");
        assert!(file.credentials().is_err(), "it is not there");
        let read = |text: &[u8]| {
            std::fs::write(&path, text).expect("it can be written");
            file.credentials().expect("a password").password
        };
        assert_eq!(read(b"one\r\n"), "one");
        assert_eq!(read(b"two"), "two");
        for unusable in [&b""[..], b"\n", b"a\nb", b"\xff"] {
            assert_eq!(read(unusable), "two");
        }
        std::fs::remove_file(&path).expect("it is there");
        let kept = file.credentials().expect("the last one");
        assert_eq!((kept.user.as_deref(), &*kept.password), (Some("u"), "two"));
        assert!(!format!("{file:?}").contains("two"));
    }
}
