//! The user and the password: where they come from, and how they get into a URL.

use std::env::{self, VarError};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use fairlock::credentials::PasswordFile;

use super::url;
use crate::exit::{Exit, Failure};

/// How long the first read of the password's file may take. A file system that is gone
/// answers none, and a program that writes into a pipe may ask its user first.
const LONGEST_READ: Duration = Duration::from_secs(10);

/// The login that options and variables ask for. It has no `Debug`, which would show the password.
pub(super) struct Login {
    user: Option<String>,
    password: Option<Password>,
    /// Whether an option says it, and not only the environment.
    is_by_option: bool,
}

/// A password, or the file in which it is.
enum Password {
    Given(String),
    /// It was read once, and is read again for each connection.
    In(PasswordFile),
}

impl Login {
    /// Reads the variables and the file of the password. A variable counts where no option is
    /// given.
    pub(super) fn of(user: Option<String>, file: Option<PathBuf>) -> Result<Login, Failure> {
        let is_by_option = user.is_some() || file.is_some();
        let password = match file {
            Some(file) => Some(Password::in_file("--password-file", &file)?),
            None => match (
                variable("FAIRLOCK_PASSWORD")?,
                variable("FAIRLOCK_PASSWORD_FILE")?,
            ) {
                (Some(_), Some(_)) => {
                    let message =
                        "FAIRLOCK_PASSWORD and FAIRLOCK_PASSWORD_FILE are both set; unset one";
                    return Err(Failure::usage(message));
                }
                (None, Some(file)) => Some(Password::in_file(
                    "FAIRLOCK_PASSWORD_FILE",
                    Path::new(&file),
                )?),
                (Some(password), None) if password.contains('\n') => {
                    return Err(Failure::usage("FAIRLOCK_PASSWORD has more lines than one"));
                }
                (password, None) => password.map(Password::Given),
            },
        };
        let user = match user {
            Some(user) => Some(without_end_of_line(&user).to_owned()),
            None => variable("FAIRLOCK_USER")?,
        };
        Ok(Login {
            user,
            password,
            is_by_option,
        })
    }

    /// The URLs with this login, unless a file has it: then the file, which is read again.
    ///
    /// A URL's own login goes before the environment's.
    pub(super) fn add_to_all(&self, urls: &mut [String]) -> Result<Option<PasswordFile>, Failure> {
        if let Some(Password::In(file)) = &self.password
            && !urls.iter().any(|url| url::has_login(url))
        {
            let file = file.clone();
            return Ok(Some(match &self.user {
                Some(user) => file.user(user),
                None => file,
            }));
        }
        for url in urls {
            *url = self.add_to(url)?;
        }
        Ok(None)
    }

    /// The URL with this login.
    fn add_to(&self, url: &str) -> Result<String, Failure> {
        if url::has_login(url) {
            if self.is_by_option {
                let message = "the URL has a user or a password already; leave out --user and \
                               --password-file";
                return Err(Failure::usage(message));
            }
            return Ok(url.to_owned());
        }
        match (&self.user, &self.password) {
            (None, None) => Ok(url.to_owned()),
            (Some(_), None) => {
                let message = "a user needs a password: --password-file or FAIRLOCK_PASSWORD";
                Err(Failure::usage(message))
            }
            (user, Some(Password::Given(password))) => {
                let user = user.as_deref().unwrap_or_default();
                Ok(url::with_login(url, user, password))
            }
            (_, Some(Password::In(_))) => Err(Failure::usage(
                "some of the URLs have a login; the file of a password is for all of them",
            )),
        }
    }
}

impl Password {
    /// Reads the file once, so that a wrong one is reported before anything connects.
    fn in_file(option: &str, path: &Path) -> Result<Password, Failure> {
        let file = PasswordFile::new(path);
        let refuse = |error| Failure::usage(format!("{option}: {error}"));
        let (sender, ended) = mpsc::channel();
        let read = file.clone();
        let thread = thread::Builder::new().spawn(move || sender.send(read.read().map(drop)));
        thread.map_err(|error| Failure::new(Exit::NO_REDIS, format!("{option}: {error}")))?;
        match ended.recv_timeout(LONGEST_READ) {
            Ok(read) => read.map_err(refuse)?,
            Err(_) => {
                let path = path.display();
                let why = format!("{option}: {path}: it was not read within {LONGEST_READ:?}");
                return Err(Failure::new(Exit::NO_REDIS, why));
            }
        }
        Ok(Password::In(file))
    }
}

/// The text without the end of its last line. Editors and `echo` add one to a file. A variable has
/// one by a file with the line ends of Windows, or by a secret that was made with `echo`.
fn without_end_of_line(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

/// The value of a variable, without the end of its last line. An empty one is an error: it was
/// meant to have a value, and the default would be another Redis.
pub(crate) fn variable(name: &str) -> Result<Option<String>, Failure> {
    match env::var(name) {
        Ok(value) => match without_end_of_line(&value) {
            "" => Err(Failure::usage(format!(
                "{name} is empty; give it a value or unset it"
            ))),
            value => Ok(Some(value.to_owned())),
        },
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(Failure::usage(format!("{name} is no UTF-8 text"))),
    }
}

/// The path in a variable, without an end of line. It need not be UTF-8.
pub(super) fn path_variable(name: &str) -> Result<Option<PathBuf>, Failure> {
    match env::var_os(name) {
        Some(path) if path.to_str().is_none() => Ok(Some(path.into())),
        _ => Ok(variable(name)?.map(PathBuf::from)),
    }
}
