//! The roles of the worker processes, by the names that `Child::spawn` is given.

use crate::support::child::{Role, receive, report};
use crate::{
    addresses, counts, ends, exclusion, exits, footprint, fork, idle_close, no_new_connections,
    process, shutdown, stack, unread_releases, worker,
};

pub(crate) const ROLES: &[(&str, Role)] = &[
    ("connects", addresses::connects),
    ("cannot_connect", addresses::cannot_connect),
    ("sampling_holder", exclusion::sampling_holder),
    ("crowd", footprint::crowd),
    ("cycles", footprint::cycles),
    ("echo", echo),
    ("exits", exits::exits),
    ("forks", fork::forks),
    ("forks_for_stats", fork::forks_for_stats),
    ("forks_with_unread", unread_releases::forks_with_unread),
    ("forks_with_permits", fork::forks_with_permits),
    ("shuts_down", shutdown::shuts_down),
    ("small_stack", stack::small_stack),
    ("signalled", process::signalled),
    ("idle_close", idle_close::idle_close),
    ("last_handle", footprint::last_handle),
    ("contends", counts::contended::contends),
    ("operations", counts::system_calls::operations),
    ("waits", counts::system_calls::waits),
    ("panicking_logger", process::panicking_logger),
    ("without_descriptors", process::without_descriptors),
    ("without_threads", process::without_threads),
    (
        "kept_without_threads",
        no_new_connections::kept_without_threads,
    ),
    ("starved_renewal", process::starved_renewal),
    ("thread_local", ends::thread_local),
    ("turns", exclusion::turns),
    ("worker", worker::worker),
    crate::bad_input::LOG_CAPTURE,
    crate::blocked_logger::BLOCKED_LOGGER,
    crate::kept::processes::KEEPS,
    crate::kept::processes::EXCLUDES,
    crate::long_wait_lines::LONG_WAITS,
    crate::loss_lines::LOSSES,
    crate::self_waits::SELF_WAITS,
];

/// Reports its arguments, and then each line that it receives.
fn echo(args: &[String]) {
    report(format_args!("args {}", args.join(",")));
    while let Some(line) = receive() {
        report(format_args!("received {line}"));
    }
}
