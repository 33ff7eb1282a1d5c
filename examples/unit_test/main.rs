//! How to test your own code that locks: without a Redis, with all that can go wrong, in milliseconds.
//!
//!     cargo run --features memory --example unit_test
//!     cargo test --features memory --example unit_test
//!
//! `billing.rs` is code that locks, as you might have it, and `books.rs` what it works on. `scenarios.rs` has
//! the tests, which are what to copy. Run as a program, this runs them all, says how long each took, and ends
//! with 1 if one fails.

mod billing;
mod books;
mod scenarios;

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::Instant;

macro_rules! all {
    ($($name:ident)*) => { [$((stringify!($name), scenarios::$name as fn())),*] };
}

fn main() -> ExitCode {
    let all = all![
        bills_everybody_once
        gives_up_while_another_process_is_at_it
        takes_its_turn_when_the_other_is_done
        stops_when_the_lock_is_lost_in_mid_work
        stops_when_it_was_suspended_for_longer_than_the_ttl
        writes_nothing_late
        clears_up_after_a_holder_that_crashed
        comes_back_later_while_redis_is_down
        works_on_while_redis_is_away_for_a_moment
        does_not_notice_a_connection_that_closes
        is_not_blocked_by_its_own_lost_reply
    ];
    println!("The code in billing.rs, on an in-memory store:");
    println!();
    let mut failed = 0;
    for (name, run) in all {
        let started = Instant::now();
        let held = catch_unwind(run).is_ok();
        let took = started.elapsed().as_secs_f64() * 1e3;
        let mark = if held { "✓" } else { "✗ WRONG:" };
        println!("  {mark} {:54}{took:6.1} ms", name.replace('_', " "));
        failed += usize::from(!held);
    }
    println!();
    match failed {
        0 => println!("All {} hold.", all.len()),
        n => println!("{n} of {} do not hold.", all.len()),
    }
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
