//! The roles of the worker processes, by the names that `Kid::spawn` is given.

use crate::support::kid::{Role, hear, say};

pub(crate) const ROLES: &[(&str, Role)] = &[("echo", echo), crate::bad_input::SPILL];

/// Says its arguments, then whatever it hears.
fn echo(args: &[String]) {
    say(format_args!("args {}", args.join(",")));
    while let Some(line) = hear() {
        say(format_args!("heard {line}"));
    }
}
