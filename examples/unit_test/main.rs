//! How to test your own code that locks: without a Redis, with everything that can go wrong, in
//! milliseconds.
//!
//!     cargo run --features memory --example unit_test
//!     cargo test --features memory --example unit_test
//!
//! `billing.rs` is code that locks, as you might have it. `bills.rs` is the data that it works on.
//! `scenarios.rs` has the tests, which are the part to copy. As a program, this runs all of them,
//! prints how long each took, and exits with 1 if one fails.

mod billing;
mod bills;
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
        gives_up_while_another_process_has_the_lock
        takes_its_turn_when_the_other_process_is_done
        stops_when_the_lock_is_lost_during_the_work
        stops_when_suspended_for_longer_than_the_ttl
        writes_nothing_late
        clears_up_after_a_holder_that_crashed
        reports_that_redis_is_down_and_bills_later
        continues_through_a_short_outage_of_redis
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
