//! The tests that drive fairlock from outside, through its public API.

mod crash;
mod ends;
mod exclusion;
mod fairness;
mod footprint;
mod fork;
mod grant_or_timeout;
mod kids;
mod leftovers;
mod long_waits;
mod managers;
mod paused;
mod small_pool;
mod connections;
mod data_loss;
mod kids;
mod lost_replies;
mod outage;
mod rules;
mod scene;
mod server_faults;
mod subscription;
mod support;
mod support_works;
mod tidy;
mod worker;

/// Not a test: where the worker processes begin, see [`support::Kid`].
#[test]
fn kid() {
    support::kid::play(kids::ROLES);
}
