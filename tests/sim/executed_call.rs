//! The input of every check of a request.

use crate::script::{Call, Grant, Outcome};

/// A request that the server has run.
pub(super) struct ExecutedCall<'a> {
    pub(super) call: &'a Call,
    pub(super) manager: &'a str,
    pub(super) outcome: &'a Outcome,
    /// The grants of other waiters that the reply named.
    pub(super) grants: &'a [Grant],
    /// The sender is to send it again, since there is more of the same to do.
    pub(super) more: bool,
    /// When its sender stops waiting for the reply, in µs of the run.
    pub(super) times_out_at: u64,
    /// How many steps the server's clock had made when the request was dated (R5).
    pub(super) dated_after: u32,
}
