//! `fairlock`: locks in Redis for the shell, and a look at those that are there.
//!
//! It is built on the public API of the library, and talks to Redis through nothing else. Only the
//! doctor asks the servers by itself, for what no lock needs to know.
//!
//! - `command/` has a file or a folder for each command.
//! - `connection.rs` has the options that say which Redis. The library judges their URL.
//! - `command/doctor/`: questions to all servers at once, and a lock on each master, become facts;
//!   one table of rules makes findings of them.
//! - `command/run/`: one loop, in `supervisor.rs`, decides all while the command runs. It reads the
//!   guard's time left, and waits for Redis only after a stop: it renews the lock then. `run` is
//!   the subreaper of its command, so it knows that each of its processes is dead before it
//!   releases the lock. On a terminal both are in one process group, which the kernel signals.
//!   While it is stopped, another process of this program, `guard.rs`, can still kill the command.
//! - `command/top/`: threads of their own read keys and look at Redis. View, order and drawing are
//!   pure.
//! - `processes.rs`: what the kernel knows of processes, and of the job of the shell.
//! - `stop.rs`: signals to a command that deletes something before it ends.
//! - `parties.rs`: the holders and the waiters of a lock, as all commands show them.
//! - `times.rs`: ages are differences of the server's times. This machine's clock may be off.

#![deny(unsafe_code)]

mod age;
mod args;
mod command;
mod connection;
mod defaults;
mod duration;
mod exit;
mod first_process;
#[cfg(test)]
mod help_tests;
mod logger;
mod note;
mod output;
mod parties;
mod printable;
mod processes;
mod signal_mask;
mod stop;
mod table;
mod times;

use std::process::ExitCode;

use clap::CommandFactory as _;

use args::Cli;
use command::run::guard;

fn main() -> ExitCode {
    signal_mask::unblock_all();
    if let Some(exit) = guard::run_if_asked() {
        return exit;
    }
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => return args::report(&error),
    };
    logger::start(cli.verbose);
    if cli.command.leaves_signals_alone() {
        first_process::end_by_signals();
    }
    let ended = cli.command.run(&cli.connection, Cli::command);
    logger::flush();
    match ended {
        Ok(exit) => exit.into(),
        Err(failure) => failure.report(),
    }
}
