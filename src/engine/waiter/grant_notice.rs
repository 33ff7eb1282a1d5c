//! The notice of a grant, and for how long this process may rely on it.

use crate::config::margin;
use crate::engine::lease::deadline_from_reply;
use crate::script::Grant;
use crate::store::Anchor;
use crate::store::clock::Time;

/// A token was granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GrantNotice {
    pub(crate) grant: Grant,
    /// R12 (doubtful grants): the local deadline, if it can be known.
    pub(crate) deadline: Option<Time>,
    /// A local moment no later than the grant. Without an anchor it is the arrival of the message.
    pub(crate) granted: Time,
}

impl GrantNotice {
    /// From the reply to this process's own request. The server counted the time left after `sent`.
    pub(crate) fn from_reply(grant: Grant, sent: Time) -> GrantNotice {
        GrantNotice {
            grant,
            deadline: Some(deadline_from_reply(sent, grant.left)),
            granted: sent,
        }
    }

    /// R12 (doubtful grants): from a message, which may have been under way for any time. The
    /// newest anchor shows when the grant was made. Without an anchor the deadline is unknown.
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
