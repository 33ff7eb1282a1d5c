//! Which Redis, and how: the options that all commands share. Each has a variable, which clap
//! reads.

use crate::defaults::{DEFAULT_OUTAGE_LIMIT, DEFAULT_TTL, MAX_TTL};
use std::env::{self, VarError};
use std::ffi::OsString;
use std::path::{Path, absolute};
use std::process::Command;
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use clap::{Arg, Args};
use fairlock::{
    Builder, LockManager, LockOptions,
    credentials::{Credentials, PasswordFile},
    endpoint::Endpoint,
};
use humantime::format_duration;

use crate::duration;
use crate::exit::{Exit, Failure, given};

/// How long replicas may take to acknowledge a lock. It fits every command timeout from 200 ms.
const DEFAULT_REPLICA_TIMEOUT: Duration = Duration::from_millis(100);

/// The longest command timeout that fits the library's default horizon: 5 s, less a check period,
/// for three commands.
const LONGEST_TIMEOUT_OF_DEFAULTS: Duration = Duration::from_millis(1333);

/// A ttl of this many timeouts fits them, however long they are.
pub(crate) const TTL_PER_TIMEOUT: u32 = 8;

/// No ttl fits a longer timeout.
const MAX_TIMEOUT: Duration = Duration::from_secs(MAX_TTL.as_secs() / TTL_PER_TIMEOUT as u64);

/// How long the first read of the password's file may take. A file system that is gone
/// answers none, and a program that writes into a pipe may ask its user first.
const LONGEST_READ: Duration = Duration::from_secs(10);

const HEADING: &str = "Connection";

#[derive(Args)]
#[command(next_help_heading = HEADING, mut_args = with_variable)]
pub(crate) struct Connection {
    /// Where the locks live: redis://, rediss:// (TLS), redis+unix://,
    /// redis-sentinel://HOST,HOST/MASTER or redis-cluster://HOST,HOST. Repeat it for a quorum, or
    /// put spaces between its URLs
    #[arg(long, default_value = "redis://127.0.0.1/", value_parser = line)]
    url: Vec<String>,
    /// The user to log in as. Needs a password
    #[arg(long, value_name = "NAME", value_parser = line)]
    user: Option<String>,
    /// A file with the password. There is no option for the password itself, since every user of
    /// this host could read it. FAIRLOCK_PASSWORD can have it
    #[arg(long, value_name = "FILE", value_parser = line)]
    password_file: Option<String>,
    /// The authorities whose certificates count, in PEM, in place of the system's
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "FILE", value_parser = line)]
    tls_ca: Option<String>,
    /// The client's own certificate, in PEM
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "FILE", value_parser = line)]
    tls_cert: Option<String>,
    /// The key of the client's certificate, in PEM and not encrypted
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "FILE", value_parser = line)]
    tls_key: Option<String>,
    /// How the names of keys begin. Programs that share locks share it [default: fairlock]
    #[arg(long, value_parser = line)]
    pub(crate) prefix: Option<String>,
    /// How long Redis may take to connect and to answer a request, such as 2s
    /// [default: 500ms, or a tenth of the TTL if that is less]
    #[arg(long, value_name = "DURATION", value_parser = timeout)]
    pub(crate) command_timeout: Option<Duration>,
    /// Take a lock only when N replicas have acknowledged it
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) replica_acks: Option<u32>,
    /// How long the replicas may take, at most half of --command-timeout [default: 100ms]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    replica_timeout: Option<Duration>,
    /// The file of the password, once it is read. It may be a pipe, which has it once.
    #[arg(skip)]
    read: OnceLock<PasswordFile>,
}

/// Each option stands before or behind the command, and has a variable of its name. The short help
/// has only the URL.
fn with_variable(option: Arg) -> Arg {
    if option.get_help_heading() != Some(HEADING) {
        return option;
    }
    let name = option.get_id().to_string();
    let variable: &'static str = format!("FAIRLOCK_{}", name.to_ascii_uppercase()).leak();
    let option = option.global(true).hide_short_help(name != "url");
    option.env(variable).hide_env_values(true)
}

impl Connection {
    /// A manager with the defaults of these options. Blocks for at most the connect timeout,
    /// and for one command timeout more if replicas must acknowledge locks.
    pub(crate) fn manager(&self) -> Result<LockManager, Failure> {
        Ok(self.builder()?.build()?)
    }

    /// A builder for a manager with further settings. Does not connect. Its ttl fits the command
    /// timeout: a command that takes locks for others sets its own.
    pub(crate) fn builder(&self) -> Result<Builder, Failure> {
        let mut builder = self.with_login(LockManager::builder(self.url.join(" ")))?;
        if let Some(prefix) = &self.prefix {
            builder = builder.prefix(prefix);
        }
        if let Some(timeout) = self.command_timeout {
            builder = builder.command_timeout(timeout);
            if timeout > LONGEST_TIMEOUT_OF_DEFAULTS {
                // The user knows nothing of the other times that the library wants to fit: take
                // some that do.
                let horizon = timeout.saturating_mul(4);
                builder = builder
                    .horizon(horizon)
                    .outage_limit(horizon.max(DEFAULT_OUTAGE_LIMIT))
                    .options(LockOptions::new().ttl(self.ttl()));
            }
        }
        if let Some(replicas) = self.replica_acks {
            let timeout = self.replica_timeout.unwrap_or(DEFAULT_REPLICA_TIMEOUT);
            builder = builder.replica_acks(replicas, timeout);
        } else if self.replica_timeout.is_some() {
            return Err(Failure::usage("--replica-timeout needs --replica-acks"));
        }
        #[cfg(feature = "tls")]
        {
            if let Some(file) = &self.tls_ca {
                builder = builder.tls_ca_file(file);
            }
            if let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) {
                builder = builder.tls_identity_files(certificate, key);
            } else if self.tls_cert.is_some() || self.tls_key.is_some() {
                let message = "--tls-cert needs --tls-key, and the reverse";
                return Err(Failure::usage(message));
            }
        }
        Ok(builder)
    }

    /// The ttl of the builder's locks.
    pub(crate) fn ttl(&self) -> Duration {
        match self.command_timeout {
            Some(timeout) if timeout > LONGEST_TIMEOUT_OF_DEFAULTS => {
                timeout.saturating_mul(TTL_PER_TIMEOUT).max(DEFAULT_TTL)
            }
            _ => DEFAULT_TTL,
        }
    }

    /// The addresses of the servers, for a title. Nothing of the login is in it.
    pub(crate) fn addresses(&self) -> Result<String, Failure> {
        let shown = format!("{:?}", Endpoint::from(self.url.join(" ")));
        let shown = shown.strip_prefix("Endpoint(");
        let shown = shown.and_then(|shown| shown.strip_suffix(')'));
        Ok(shown.unwrap_or("?").to_owned())
    }

    /// Gives a child the options of this process as variables, so that a fairlock below it goes to
    /// the same Redis. A password stays where it was: in its file, in its variable or in the URL.
    pub(crate) fn give_to(&self, child: &mut Command) {
        let time = |time: Option<Duration>| Some(format_duration(time?).to_string().into());
        let text = |text: &Option<String>| text.as_ref().map(OsString::from);
        let acks = self.replica_acks.map(|acks| acks.to_string().into());
        for (name, value) in [
            ("FAIRLOCK_URL", Some(self.url.join(" ").into())),
            ("FAIRLOCK_USER", text(&self.user)),
            ("FAIRLOCK_PASSWORD_FILE", file(self.password_file.as_ref())),
            #[cfg(feature = "tls")]
            ("FAIRLOCK_TLS_CA", file(self.tls_ca.as_ref())),
            #[cfg(feature = "tls")]
            ("FAIRLOCK_TLS_CERT", file(self.tls_cert.as_ref())),
            #[cfg(feature = "tls")]
            ("FAIRLOCK_TLS_KEY", file(self.tls_key.as_ref())),
            ("FAIRLOCK_PREFIX", text(&self.prefix)),
            ("FAIRLOCK_COMMAND_TIMEOUT", time(self.command_timeout)),
            ("FAIRLOCK_REPLICA_ACKS", acks),
            ("FAIRLOCK_REPLICA_TIMEOUT", time(self.replica_timeout)),
        ] {
            match value {
                Some(value) => child.env(name, value),
                // A pipe that was read by now.
                None => child.env_remove(name),
            };
        }
        // The file counts, also where a child cannot read it again.
        if self.password_file.is_some() {
            child.env_remove("FAIRLOCK_PASSWORD");
        }
    }

    /// The builder with the login that is not in the URL. A file goes before the variable.
    fn with_login(&self, builder: Builder) -> Result<Builder, Failure> {
        if let Some(path) = &self.password_file {
            let file = match self.read.get() {
                Some(file) => file.clone(),
                None => read_password(path)?,
            };
            let file = self.read.get_or_init(|| file).clone();
            let file = match &self.user {
                Some(user) => file.user(user),
                None => file,
            };
            return Ok(builder.credentials(move |_| file.credentials()));
        }
        let credentials = match (&self.user, variable("FAIRLOCK_PASSWORD")?) {
            (Some(user), Some(password)) => Credentials::new(user, password),
            (None, Some(password)) => Credentials::password(password),
            (None, None) => return Ok(builder),
            (Some(_), None) => {
                let message = "a user needs a password: --password-file or FAIRLOCK_PASSWORD";
                return Err(Failure::usage(message));
            }
        };
        Ok(builder.credentials(move |_| Ok(credentials.clone())))
    }
}

/// The path for a child, which may have another working directory.
fn file(path: Option<&String>) -> Option<OsString> {
    // A pipe has been read by now, and standard input is the child's.
    let path = path.map(Path::new).filter(|path| path.is_file())?;
    Some(absolute(path).unwrap_or_else(|_| path.to_owned()).into())
}

/// Reads the file once, so that a wrong one is reported before anything connects. It is read again
/// for each connection.
fn read_password(path: &str) -> Result<PasswordFile, Failure> {
    let option = given("--password-file");
    let file = PasswordFile::new(path);
    let (sender, ended) = mpsc::channel();
    let read = file.clone();
    // Without a thread nothing is read, either.
    let _ = thread::Builder::new().spawn(move || sender.send(read.credentials().map(drop)));
    match ended.recv_timeout(LONGEST_READ) {
        Ok(Ok(())) => Ok(file),
        Ok(Err(error)) => Err(Failure::usage(format!("{option}: {error}"))),
        Err(_) => {
            let why = format!("{option}: {path}: it was not read within {LONGEST_READ:?}");
            Err(Failure::new(Exit::NO_REDIS, why))
        }
    }
}

/// The value of a variable that is no option.
pub(crate) fn variable(name: &str) -> Result<Option<String>, Failure> {
    match env::var(name) {
        Ok(value) => match line(&value) {
            Ok(value) => Ok(Some(value)),
            Err(why) => Err(Failure::usage(format!("{name} is {why}"))),
        },
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(Failure::usage(format!("{name} is no UTF-8 text"))),
    }
}

/// The text without an end of line: a file of variables with the line ends of Windows has one, and
/// a secret that was made with `echo`. An empty text was meant to have a value, and the default
/// would be another Redis.
fn line(text: &str) -> Result<String, &'static str> {
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err("empty; give it a value or leave it out"),
        line if line.contains('\n') => Err("more than one line"),
        line => Ok(line.to_owned()),
    }
}

/// For clap: reads a number of servers.
fn number(text: &str) -> Result<u32, String> {
    let number = line(text)?.parse::<u32>();
    number.map_err(|error| error.to_string())
}

/// For clap: reads the command timeout.
fn timeout(text: &str) -> Result<Duration, String> {
    let timeout = duration::parse(text)?;
    match timeout > MAX_TIMEOUT {
        true => Err(format!("at most {}", format_duration(MAX_TIMEOUT))),
        false => Ok(timeout),
    }
}
