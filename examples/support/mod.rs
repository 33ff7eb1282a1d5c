//! What the examples stand on: a store to connect to, and how they tell what came of it. Nothing of this is about
//! locks, and nothing of it is to be copied.

#![allow(dead_code, reason = "each example uses a part of it")]

pub(crate) mod private_redis;
mod store;

use std::error::Error;
use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, thread};

use uuid::Uuid;

pub(crate) use store::Store;

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Chooses a store, says which, and plays the example on it. The exit status is 0 if that went well, 1 if not, and 2
/// without a store.
pub(crate) fn play(example: impl FnOnce(&Store) -> Outcome) -> ExitCode {
    let store = Store::choose_or_exit();
    println!("{}, {}", env!("CARGO_CRATE_NAME"), store.about());
    println!();
    ended(example(&store))
}

/// Tells what went wrong, if anything did.
pub(crate) fn ended(outcome: Outcome) -> ExitCode {
    let Err(error) = outcome else {
        return ExitCode::SUCCESS;
    };
    eprintln!("{}: {error}", env!("CARGO_CRATE_NAME"));
    if let Some(cause) = error.source() {
        eprintln!("  because: {cause}");
    }
    ExitCode::FAILURE
}

/// Shows whether a claim holds. If not, that is what the example ends with.
pub(crate) fn check(claim: impl Display, holds: bool) -> Outcome {
    println!("  {} {claim}", mark(holds));
    if holds {
        Ok(())
    } else {
        Err(format!("this should hold: {claim}").into())
    }
}

/// Polls for what other threads are about to do, and gives up after a time that nothing here takes.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> Outcome<bool>) -> Outcome {
    let started = Instant::now();
    while !holds()? {
        if started.elapsed() > PATIENCE {
            return Err(format!("in vain: {what}").into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Longer than anything takes that is about to happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A name of this run's own: the Redis may be shared with others who try this.
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

/// In colour where there is somebody to see it.
pub(crate) fn paint(colour: &str, text: &str) -> String {
    if io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none() {
        format!("\x1b[{colour}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}
