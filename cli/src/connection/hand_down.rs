//! The connection of this process, as variables for a process that it starts.

use std::ffi::OsString;
use std::path::{Path, absolute};
use std::process::Command;
use std::time::Duration;

use humantime::format_duration;

use super::{Connection, Servers};
use crate::exit::Failure;

/// The variables that say where the locks live. Only one of them may be set.
const PLACES: [&str; 3] = ["FAIRLOCK_URL", "FAIRLOCK_SENTINEL", "FAIRLOCK_CLUSTER"];

/// The variables in which the child's environment differs from ours. `None`: the variable is
/// removed.
#[derive(Debug, Default)]
pub(crate) struct Variables(Vec<(&'static str, Option<OsString>)>);

impl Variables {
    pub(crate) fn give_to(&self, command: &mut Command) {
        for (name, value) in &self.0 {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }

    fn set(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.0.push((name, Some(value.into())));
    }

    fn remove(&mut self, name: &'static str) {
        self.0.push((name, None));
    }

    fn set_path(&mut self, name: &'static str, path: Option<&Path>) {
        // A pipe has been read by now, and standard input is the child's.
        if let Some(path) = path.filter(|path| path.is_file()) {
            // The child may have another working directory.
            let whole = absolute(path).unwrap_or_else(|_| path.to_owned());
            self.set(name, whole);
        }
    }

    fn set_duration(&mut self, name: &'static str, duration: Option<Duration>) {
        if let Some(duration) = duration {
            self.set(name, format_duration(duration).to_string());
        }
    }
}

impl Connection {
    /// The options of this process as variables, so that a fairlock below it goes to the same
    /// Redis. A password stays where it was: in its file, in its variable or in the URL.
    pub(crate) fn variables(&self) -> Result<Variables, Failure> {
        let mut variables = Variables::default();
        self.add_place(&mut variables)?;
        if let Some(user) = &self.user {
            variables.set("FAIRLOCK_USER", user);
        }
        if let Some(file) = &self.password_file {
            variables.remove("FAIRLOCK_PASSWORD");
            variables.remove("FAIRLOCK_PASSWORD_FILE");
            variables.set_path("FAIRLOCK_PASSWORD_FILE", Some(file));
        }
        if self.tls {
            variables.set("FAIRLOCK_TLS", "true");
        }
        variables.set_path("FAIRLOCK_TLS_CA", self.tls_ca.as_deref());
        variables.set_path("FAIRLOCK_TLS_CERT", self.tls_cert.as_deref());
        variables.set_path("FAIRLOCK_TLS_KEY", self.tls_key.as_deref());
        if let Some(prefix) = &self.prefix {
            variables.set("FAIRLOCK_PREFIX", prefix);
        }
        variables.set_duration("FAIRLOCK_COMMAND_TIMEOUT", self.command_timeout);
        if let Some(acks) = self.replica_acks {
            variables.set("FAIRLOCK_REPLICA_ACKS", acks.to_string());
        }
        variables.set_duration("FAIRLOCK_REPLICA_TIMEOUT", self.replica_timeout);
        Ok(variables)
    }

    fn add_place(&self, variables: &mut Variables) -> Result<(), Failure> {
        // Without an option, a variable says it, which the child has anyway, or nothing does.
        if self.url.is_empty() && self.sentinel.is_none() && self.cluster.is_none() {
            if let Some(master) = &self.master {
                variables.set("FAIRLOCK_MASTER", master);
            }
            return Ok(());
        }
        let (place, value) = match self.servers()? {
            Servers::Urls(urls) => ("FAIRLOCK_URL", urls.join(" ")),
            Servers::Cluster(hosts) => ("FAIRLOCK_CLUSTER", hosts),
            Servers::Sentinels { hosts, master } => {
                variables.set("FAIRLOCK_MASTER", master);
                ("FAIRLOCK_SENTINEL", hosts)
            }
        };
        for other in PLACES {
            variables.remove(other);
        }
        variables.set(place, value);
        Ok(())
    }
}
