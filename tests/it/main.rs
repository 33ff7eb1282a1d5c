//! The tests that drive fairlock from outside, through its public API.

mod api;
mod bad_input;
mod guard;
mod inspect;
mod kids;
mod options;
mod shutdown;
mod support;
mod support_works;
mod tidy;
mod waiter;

/// Not a test: where the worker processes begin, see [`support::Kid`].
#[test]
fn kid() {
    support::kid::play(kids::ROLES);
}
