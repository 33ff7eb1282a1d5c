//! The command line, each command as a process of its own against real servers.

#[path = "../../../tests/it/support/mod.rs"]
mod support;

#[allow(dead_code, reason = "the tools are kept complete, used or not")]
#[path = "../../../tests/topologies/support/cluster_set.rs"]
mod cluster_set;
#[allow(dead_code, reason = "the tools are kept complete, used or not")]
#[path = "../../../tests/topologies/support/sentinel_set.rs"]
mod sentinel_set;

mod bench;
#[cfg(feature = "tls")]
#[allow(dead_code, reason = "the tools are kept complete, used or not")]
#[path = "../../../tests/topologies/tls/certificates.rs"]
mod certificates;
mod connection;
#[allow(dead_code, reason = "the program uses all")]
#[path = "../../src/defaults.rs"]
mod defaults;
mod doctor;
mod documented;
mod look;
mod ls;
mod process;
mod release;
mod run;
mod show;
mod terminal;
#[cfg(feature = "tls")]
mod tls;
mod top;
mod usage;
mod why_waiting;

// What most files of this folder name: each of them begins with `use crate::*`.
use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::{LockGuard, LockManager, LockOptions, inspect::LockState};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::{TempDir, tempdir};

use cluster_set::ClusterSet;
use look::*;
use process::*;
use run::*;
use sentinel_set::SentinelSet;
use support::{Child, Proxy, SLACK, Server, Shifted, contains, throughout, until, until_some};
use terminal::Terminal;

/// Not a test: worker processes begin here, see [`support::Child`].
#[test]
fn child_process() {
    support::child::play(&[why_waiting::HOLDS_AND_WAITS]);
}
