//! The roles of the worker processes, by the names that `Child::spawn` is given.

use crate::support::child::{Role, receive, report};
use crate::{ends, exclusion, footprint, fork, process, worker};

pub(crate) const ROLES: &[(&str, Role)] = &[
    ("believers", exclusion::believers),
    ("crowd", footprint::crowd),
    ("cycles", footprint::cycles),
    ("echo", echo),
    ("forks", fork::forks),
    ("forks_with_permits", fork::forks_with_permits),
    ("hailed", process::hailed),
    ("last_handle", footprint::last_handle),
    ("panicky", process::panicky),
    ("short_of_files", process::short_of_files),
    ("starved", process::starved),
    ("thread_local", ends::thread_local),
    ("turns", exclusion::turns),
    ("worker", worker::worker),
    crate::bad_input::SPILL,
];

/// Says its arguments, then whatever it hears.
fn echo(args: &[String]) {
    report(format_args!("args {}", args.join(",")));
    while let Some(line) = receive() {
        report(format_args!("heard {line}"));
    }
}
