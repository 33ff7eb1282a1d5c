//! Which Redis, and how: the options that all commands share.
//!
//! An option goes before its variable. The variables are read here and not by clap: to clap,
//! `--cluster` and a FAIRLOCK_URL of the environment would be a conflict, and a variable would have
//! to be right although an option behind the command overrides it.

mod hand_down;
mod login;
mod url;

use crate::defaults::{DEFAULT_OUTAGE_LIMIT, DEFAULT_TTL};
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use clap::{Args, Command};
use fairlock::{
    Builder, LockManager, LockOptions, MAX_TTL, credentials::PasswordFile, endpoint::Endpoint,
};
use humantime::format_duration;

use crate::duration;
use crate::exit::{Failure, given, without_urls};
use crate::printable::printable;
pub(crate) use hand_down::Variables;
pub(crate) use login::variable;
use login::{Login, path_variable};

/// The Redis to use when neither an option nor a variable names one.
const DEFAULT_URL: &str = "redis://127.0.0.1/";

/// How long replicas may take to acknowledge a lock. It fits every command timeout from 200 ms.
const DEFAULT_REPLICA_TIMEOUT: Duration = Duration::from_millis(100);

/// Under this the help shows the options.
const HEADING: &str = "Connection";

/// The longest command timeout that fits the library's default horizon: 5 s, less a check period,
/// for three commands.
const LONGEST_TIMEOUT_OF_DEFAULTS: Duration = Duration::from_millis(1333);

/// A ttl of this many timeouts fits them, however long they are.
pub(crate) const TTL_PER_TIMEOUT: u32 = 8;

/// No ttl fits a longer timeout.
const MAX_TIMEOUT: Duration = Duration::from_secs(MAX_TTL.as_secs() / TTL_PER_TIMEOUT as u64);

#[derive(Args)]
#[command(next_help_heading = HEADING)]
pub(crate) struct Connection {
    /// Where the locks live: redis://, rediss:// (TLS), redis+unix://, redis-sentinel:// or
    /// redis-cluster://. Repeat it for a quorum, or put spaces between its URLs [env: FAIRLOCK_URL]
    /// [default: redis://127.0.0.1/]
    #[arg(long, global = true, conflicts_with_all = ["sentinel", "cluster"])]
    url: Vec<String>,
    /// Sentinels, with commas between them. Needs --master [env: FAIRLOCK_SENTINEL]
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT,...",
        hide_short_help = true
    )]
    #[arg(conflicts_with = "cluster")]
    sentinel: Option<String>,
    /// The name of the service that the sentinels watch [env: FAIRLOCK_MASTER]
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true)]
    master: Option<String>,
    /// Some nodes of a cluster, with commas between them [env: FAIRLOCK_CLUSTER]
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT,...",
        hide_short_help = true
    )]
    cluster: Option<String>,
    /// The user to log in as. Needs a password [env: FAIRLOCK_USER]
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true)]
    user: Option<String>,
    /// A file with the password. There is no option for the password itself, since every user of
    /// this host could read it
    /// [env: FAIRLOCK_PASSWORD_FILE; the password itself: FAIRLOCK_PASSWORD]
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    password_file: Option<PathBuf>,
    /// Encrypt the connections, as a URL that begins with rediss:// does [env: FAIRLOCK_TLS]
    #[arg(long, global = true)]
    #[arg(hide_short_help = true)]
    tls: bool,
    /// The authorities whose certificates count, in PEM, in place of the system's
    /// [env: FAIRLOCK_TLS_CA]
    #[arg(long, global = true)]
    #[arg(value_name = "FILE", hide_short_help = true)]
    tls_ca: Option<PathBuf>,
    /// The client's own certificate, in PEM. Needs --tls-key [env: FAIRLOCK_TLS_CERT]
    #[arg(long, global = true)]
    #[arg(value_name = "FILE", hide_short_help = true)]
    tls_cert: Option<PathBuf>,
    /// The key of the client's certificate, in PEM and not encrypted. Needs --tls-cert
    /// [env: FAIRLOCK_TLS_KEY]
    #[arg(long, global = true)]
    #[arg(value_name = "FILE", hide_short_help = true)]
    tls_key: Option<PathBuf>,
    /// How the names of keys begin. Programs that share locks share it [default: fairlock]
    /// [env: FAIRLOCK_PREFIX]
    #[arg(long, global = true)]
    #[arg(hide_short_help = true)]
    prefix: Option<String>,
    /// How long Redis may take to connect and to answer a request, such as 2s
    /// [default: 500ms, or a tenth of the TTL if that is less] [env: FAIRLOCK_COMMAND_TIMEOUT]
    #[arg(long, global = true)]
    #[arg(value_name = "DURATION", value_parser = duration::parse, hide_short_help = true)]
    command_timeout: Option<Duration>,
    /// Take a lock only when N replicas have acknowledged it [env: FAIRLOCK_REPLICA_ACKS]
    #[arg(long, global = true)]
    #[arg(value_name = "N", hide_short_help = true)]
    replica_acks: Option<u32>,
    /// How long the replicas may take, at most half of --command-timeout [default: 100ms]
    /// [env: FAIRLOCK_REPLICA_TIMEOUT]
    #[arg(long, global = true)]
    #[arg(value_name = "DURATION", value_parser = duration::parse, hide_short_help = true)]
    replica_timeout: Option<Duration>,
    /// Where the servers are, once it is known. The file of the password may be a pipe, which has
    /// it once.
    #[arg(skip)]
    known: OnceLock<Known>,
}

/// The URLs, with a login if they have one, and the file of the password.
#[derive(Clone)]
struct Known {
    urls: Vec<String>,
    password: Option<PasswordFile>,
}

/// Where the servers are, as an option or a variable says.
enum Servers {
    /// One URL, or those of a quorum.
    Urls(Vec<String>),
    /// The sentinels of a service.
    Sentinels { hosts: String, master: String },
    /// Nodes of a cluster.
    Cluster(String),
}

impl Connection {
    /// Takes from variables what no option says.
    pub(crate) fn read_variables(&mut self) -> Result<(), Failure> {
        self.tls = self.tls || parsed("FAIRLOCK_TLS", str::parse)?.unwrap_or(false);
        fill_path(&mut self.tls_ca, "FAIRLOCK_TLS_CA")?;
        fill_path(&mut self.tls_cert, "FAIRLOCK_TLS_CERT")?;
        fill_path(&mut self.tls_key, "FAIRLOCK_TLS_KEY")?;
        fill(&mut self.prefix, "FAIRLOCK_PREFIX", str::parse)?;
        fill(
            &mut self.command_timeout,
            "FAIRLOCK_COMMAND_TIMEOUT",
            duration::parse,
        )?;
        fill(&mut self.replica_acks, "FAIRLOCK_REPLICA_ACKS", str::parse)?;
        fill(
            &mut self.replica_timeout,
            "FAIRLOCK_REPLICA_TIMEOUT",
            duration::parse,
        )
    }

    /// A manager with the defaults of these options. Blocks for at most the connect timeout,
    /// and for one command timeout more if replicas must acknowledge locks.
    pub(crate) fn manager(&self) -> Result<LockManager, Failure> {
        Ok(self.builder()?.build()?)
    }

    /// A builder for a manager with further settings. Does not connect. Its ttl fits the command
    /// timeout: a command that takes locks for others sets its own.
    pub(crate) fn builder(&self) -> Result<Builder, Failure> {
        let known = self.known()?;
        let mut builder = LockManager::builder(known.urls.join(" "));
        if let Some(file) = known.password {
            builder = builder.credentials(file);
        }
        if let Some(prefix) = &self.prefix {
            builder = builder.prefix(prefix);
        }
        if let Some(timeout) = self.command_timeout {
            if timeout > MAX_TIMEOUT {
                let (option, most) = (given("--command-timeout"), format_duration(MAX_TIMEOUT));
                return Err(Failure::usage(format!("{option} can be {most} at most")));
            }
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
        match (self.replica_acks, self.replica_timeout) {
            (None, Some(_)) => {
                let timeout = given("--replica-timeout");
                return Err(Failure::usage(format!("{timeout} needs --replica-acks")));
            }
            (None, None) => {}
            (Some(replicas), timeout) => {
                let timeout = timeout.unwrap_or(DEFAULT_REPLICA_TIMEOUT);
                builder = builder.replica_acks(replicas, timeout);
            }
        }
        self.with_certificates(builder)
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

    /// How long Redis may take to connect and to answer, if an option or a variable says so.
    pub(crate) fn command_timeout(&self) -> Option<Duration> {
        self.command_timeout
    }

    /// How many replicas must acknowledge a lock.
    pub(crate) fn replica_acks(&self) -> u32 {
        self.replica_acks.unwrap_or(0)
    }

    pub(crate) fn prefix(&self) -> Option<&str> {
        self.prefix.as_deref()
    }

    /// The addresses of the servers, for a title. Nothing of the login is in it.
    pub(crate) fn addresses(&self) -> Result<String, Failure> {
        let known = self.known()?;
        let shown = known.urls.iter().map(|url| {
            let endpoint = format!("{:?}", Endpoint::from(url));
            let address = endpoint.strip_prefix("Endpoint(");
            let address = address.and_then(|address| address.strip_suffix(')'));
            address.unwrap_or("?").to_owned()
        });
        Ok(shown.collect::<Vec<_>>().join(" "))
    }

    /// The URL of the servers, or several of a quorum, with TLS, and the login.
    fn known(&self) -> Result<Known, Failure> {
        if let Some(known) = self.known.get() {
            return Ok(known.clone());
        }
        let mut urls = match self.servers()? {
            Servers::Urls(urls) => urls,
            Servers::Sentinels { hosts, master } => vec![url::sentinel(&hosts, &master)?],
            Servers::Cluster(hosts) => vec![url::cluster(&hosts)?],
        };
        if self.tls {
            for url in &mut urls {
                *url = url::with_tls(url)?;
            }
        }
        let login = Login::of(self.user.clone(), self.password_file.clone())?;
        let password = login.add_to_all(&mut urls)?;
        let known = Known { urls, password };
        Ok(self.known.get_or_init(|| known).clone())
    }

    fn servers(&self) -> Result<Servers, Failure> {
        let url = (!self.url.is_empty()).then(|| self.url.join(" "));
        let chosen = one_of([
            ("--url", url),
            ("--sentinel", self.sentinel.clone()),
            ("--cluster", self.cluster.clone()),
        ])?;
        let chosen = match chosen {
            Some(chosen) => Some(chosen),
            None => one_of([
                ("FAIRLOCK_URL", variable("FAIRLOCK_URL")?),
                ("FAIRLOCK_SENTINEL", variable("FAIRLOCK_SENTINEL")?),
                ("FAIRLOCK_CLUSTER", variable("FAIRLOCK_CLUSTER")?),
            ])?,
        };
        let (from, value) = chosen.unwrap_or(("--url", DEFAULT_URL.to_owned()));
        if from.to_ascii_lowercase().ends_with("sentinel") {
            let master = match &self.master {
                Some(master) => master.clone(),
                None => variable("FAIRLOCK_MASTER")?.ok_or_else(|| {
                    Failure::usage(format!("{from} needs --master, the name of the service"))
                })?,
            };
            return Ok(Servers::Sentinels {
                hosts: value,
                master,
            });
        }
        if self.master.is_some() {
            return Err(Failure::usage("--master needs --sentinel"));
        }
        if from.to_ascii_lowercase().ends_with("cluster") {
            return Ok(Servers::Cluster(value));
        }
        let urls: Vec<String> = value.split_whitespace().map(str::to_owned).collect();
        if urls.is_empty() {
            return Err(Failure::usage(format!("{from} is empty")));
        }
        Ok(Servers::Urls(urls))
    }

    #[cfg(feature = "tls")]
    fn with_certificates(&self, mut builder: Builder) -> Result<Builder, Failure> {
        if let Some(file) = &self.tls_ca {
            builder = builder.tls_ca_file(file);
        }
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Ok(builder.tls_identity_files(certificate, key)),
            (None, None) => Ok(builder),
            (Some(_), None) => Err(Failure::usage(format!(
                "{} needs --tls-key",
                given("--tls-cert")
            ))),
            (None, Some(_)) => Err(Failure::usage(format!(
                "{} needs --tls-cert",
                given("--tls-key")
            ))),
        }
    }

    #[cfg(not(feature = "tls"))]
    fn with_certificates(&self, builder: Builder) -> Result<Builder, Failure> {
        let files = [&self.tls_ca, &self.tls_cert, &self.tls_key];
        if self.tls || files.iter().any(|file| file.is_some()) {
            return Err(Failure::usage("this fairlock was built without TLS"));
        }
        Ok(builder)
    }
}

/// The command with a help that shows one option of the connection, and where the others are.
pub(crate) fn brief(command: Command) -> Command {
    command.mut_args(|argument| match argument.get_help_heading() {
        Some(HEADING) if argument.get_id() == "url" => argument.help(format!(
            "Where the locks live [env: FAIRLOCK_URL] [default: {DEFAULT_URL}]. `fairlock --help` \
             has the options for Sentinel, Cluster, logins, TLS and timeouts"
        )),
        Some(HEADING) => argument.hide(true),
        _ => argument,
    })
}

/// The value of a variable, as an option's value is read.
fn parsed<T, E: Display>(
    name: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, Failure> {
    let Some(text) = variable(name)? else {
        return Ok(None);
    };
    let value = parse(&text).map_err(|error| {
        // The text may be a URL in the wrong place, with a password.
        let text = without_urls(&text);
        let text = printable(&text);
        Failure::usage(format!("invalid value '{text}' for {name}: {error}"))
    })?;
    Ok(Some(value))
}

fn fill<T, E: Display>(
    option: &mut Option<T>,
    name: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<(), Failure> {
    if option.is_none() {
        *option = parsed(name, parse)?;
    }
    Ok(())
}

fn fill_path(option: &mut Option<PathBuf>, name: &str) -> Result<(), Failure> {
    if option.is_none() {
        *option = path_variable(name)?;
    }
    Ok(())
}

/// The one that is set. Two of them would be two places for the same locks.
fn one_of(
    choices: [(&'static str, Option<String>); 3],
) -> Result<Option<(&'static str, String)>, Failure> {
    let mut set = choices
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    match (set.next(), set.next()) {
        (Some((one, _)), Some((other, _))) => Err(Failure::usage(format!(
            "{one} and {other} both say where the locks live; give one of them"
        ))),
        (chosen, _) => Ok(chosen),
    }
}
