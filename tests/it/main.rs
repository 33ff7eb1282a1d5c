//! The tests that drive fairlock from outside, through its public API.

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

/// Not a test: where the worker processes begin, see [`support::Kid`].
#[test]
fn kid() {
    support::kid::play(kids::ROLES);
}
