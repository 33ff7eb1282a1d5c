//! How this process comes to know of a grant, and for how long it may believe in it.

use crate::config::margin;
use crate::engine::lease::deadline_from_reply;
use crate::script::Grant;
use crate::store::Anchor;
use crate::store::clock::Time;

/// The news that a token was granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GrantNotice {
    pub(crate) grant: Grant,
    /// The local deadline, if it can be told (R12).
    pub(crate) deadline: Option<Time>,
    /// A local moment no later than the grant, as far as it can be told.
    pub(crate) granted: Time,
}

impl GrantNotice {
    /// From the reply to a request of this process: the time left was counted after `sent`.
    pub(crate) fn from_reply(grant: Grant, sent: Time) -> GrantNotice {
        GrantNotice {
            grant,
            deadline: Some(deadline_from_reply(sent, grant.left)),
            granted: sent,
        }
    }

    /// R12: from a message, which may have been under way for any time. The newest anchor says when the
    /// grant was made; without one nothing is known.
    pub(crate) fn from_message(grant: Grant, arrived: Time, anchor: Option<Anchor>) -> GrantNotice {
        let granted =
            anchor.map(|anchor| anchor.local_time_at_least(grant.granted_at).min(arrived));
        let deadline = anchor.zip(granted).map(|(anchor, granted)| {
            let extrapolated = if granted > anchor.sent {
                granted - anchor.sent
            } else {
                anchor.sent - granted
            };
            granted + grant.left.saturating_sub(margin(grant.left, extrapolated))
        });
        GrantNotice {
            grant,
            deadline,
            granted: granted.unwrap_or(arrived),
        }
    }
}
