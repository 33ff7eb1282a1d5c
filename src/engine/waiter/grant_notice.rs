//! The notice of a grant, and for how long this process may rely on it.

use std::time::Duration;

use crate::engine::lease::deadline_since;
use crate::engine::request::Request;
use crate::script::Grant;
use crate::store::Anchor;
use crate::store::clock::Time;

/// A token was granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GrantNotice {
    pub(crate) grant: Grant,
    /// A local moment no later than the grant. Without an anchor it is the arrival of the message.
    pub(crate) granted: Time,
    /// How far that moment was extrapolated. `None` if the grant may have been made before it.
    pub(crate) extrapolated: Option<Duration>,
}

impl GrantNotice {
    /// From the reply to this process's own request. The server counted the time left after `sent`.
    pub(crate) fn from_reply(grant: Grant, sent: Time) -> GrantNotice {
        GrantNotice {
            grant,
            granted: sent,
            extrapolated: Some(Duration::ZERO),
        }
    }

    /// R12 (doubtful grants): from a message, which may have been under way for any time. The
    /// newest anchor shows when the grant was made. Without an anchor the deadline is unknown.
    pub(crate) fn from_message(grant: Grant, arrived: Time, anchor: Option<Anchor>) -> GrantNotice {
        let Some(anchor) = anchor else {
            return GrantNotice {
                grant,
                granted: arrived,
                extrapolated: None,
            };
        };
        let granted = anchor.local_time_at_least(grant.granted_at).min(arrived);
        let extrapolated = if granted > anchor.sent {
            granted - anchor.sent
        } else {
            anchor.sent - granted
        };
        GrantNotice {
            grant,
            granted,
            extrapolated: Some(extrapolated),
        }
    }

    /// The same grant, without a deadline that counts: a renewal must confirm it.
    pub(crate) fn doubtful(self) -> GrantNotice {
        GrantNotice {
            extrapolated: None,
            ..self
        }
    }

    /// R12 (doubtful grants): the local deadline, if it can be known.
    pub(crate) fn deadline(&self, request: &Request) -> Option<Time> {
        let extrapolated = self.extrapolated?;
        let GrantNotice { grant, granted, .. } = self;
        Some(deadline_since(request, *granted, grant.left, extrapolated))
    }
}
