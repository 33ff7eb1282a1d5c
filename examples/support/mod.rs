//! The needs of all examples: a store to connect to, and a way to report the result. Nothing here
//! is about locks, and you need not copy any of it.

#![allow(dead_code, reason = "each example uses a part of it")]

pub(crate) mod private_redis;
pub(crate) mod store;

use std::error::Error;
use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, thread};

use uuid::Uuid;

pub(crate) use store::Store;

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Chooses a store, prints which, and runs the example on it. The exit status is 0 if that
/// succeeds, 1 if not, and 2 if there is no store.
pub(crate) fn run(example: impl FnOnce(&Store) -> Outcome) -> ExitCode {
    let store = Store::choose_or_exit();
    println!("{}, {}", env!("CARGO_CRATE_NAME"), store.about());
    println!();
    exit_code(example(&store))
}

/// Prints the error, if there is one.
pub(crate) fn exit_code(outcome: Outcome) -> ExitCode {
    let Err(error) = outcome else {
        return ExitCode::SUCCESS;
    };
    eprintln!("{}: {error}", env!("CARGO_CRATE_NAME"));
    ExitCode::FAILURE
}

/// Prints whether a claim holds. Returns an error if not, which ends the example.
pub(crate) fn check(claim: impl Display, holds: bool) -> Outcome {
    println!("  {} {claim}", mark(holds));
    if holds {
        Ok(())
    } else {
        Err(format!("this should hold: {claim}").into())
    }
}

/// Polls until other threads have done something. Gives up after [`MAX_WAIT`].
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> Outcome<bool>) -> Outcome {
    let started = Instant::now();
    while !holds()? {
        if started.elapsed() > MAX_WAIT {
            return Err(format!("this did not happen within {MAX_WAIT:?}: {what}").into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Longer than anything here takes.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(10);

/// A name for this run only: others may run the same example on the same Redis.
pub(crate) fn own_name(what: &str) -> String {
    format!("{what}:{}", Uuid::new_v4())
}

pub(crate) fn mark(holds: bool) -> String {
    if holds {
        paint("32", "✓")
    } else {
        paint("31;1", "✗ WRONG:")
    }
}

/// In colour, if the output is a terminal.
pub(crate) fn paint(colour: &str, text: &str) -> String {
    if io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none() {
        format!("\x1b[{colour}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}
