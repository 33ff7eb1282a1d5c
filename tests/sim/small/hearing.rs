//! What owners hear: each script that leaves somebody waiting behind an owner tells it, by its grant or
//! by a message, and no script tells anything that is not so.

use super::record_state::{RecordState, SmallReply, SmallRequest, SmallToken};

/// The message that a lock is wanted.
#[derive(Debug)]
pub(super) struct ToldOwner {
    pub(super) channel: String,
    pub(super) fence: u32,
}

/// What one run of a script let owners know.
pub(super) struct Heard<'a> {
    pub(super) request: SmallRequest,
    pub(super) reply: &'a SmallReply,
    pub(super) after: &'a RecordState,
    pub(super) told: Vec<ToldOwner>,
    /// The grants of this run, and whether they say that others wait.
    pub(super) said: Vec<(SmallToken, Option<bool>)>,
}

impl Heard<'_> {
    pub(super) fn check(&self) -> Result<(), String> {
        let Heard {
            request,
            reply,
            after,
            told,
            said,
        } = self;
        let others_wait = !after.waiters.is_empty();
        let owner = after.holders.first().filter(|owner| owner.left > 0);
        let fails = |what: &str| {
            Err(format!(
                "hearing: {what}: {request:?} was answered {reply:?} and left {after:?}; \
                 told {told:?}, granted {said:?}"
            ))
        };
        for (_, waiting) in said {
            // An acquire queues its token behind the grant.
            let is_true = match waiting {
                Some(true) => others_wait,
                Some(false) => !others_wait || matches!(reply, SmallReply::Waiting { .. }),
                None => false,
            };
            if !is_true {
                return fails("a grant says something else");
            }
        }
        for message in told {
            let channel = owner.map(|owner| format!("f:grants:c{}", owner.token.client));
            if channel.as_ref() != Some(&message.channel) || message.fence != after.fence {
                return fails("another owner is told");
            }
            // A sync names a waiter, which may be the owner by now.
            let is_own = matches!(request, SmallRequest::Acquire(token)
                if owner.is_some_and(|owner| owner.token == *token));
            if !others_wait || is_own {
                return fails("an owner is told that nobody waits for");
            }
        }
        let asks = match reply {
            SmallReply::Waiting { .. } => true,
            SmallReply::Synced { .. } => others_wait,
            _ => false,
        };
        let hears = |owner: SmallToken| {
            !told.is_empty()
                || said
                    .iter()
                    .any(|(to, waiting)| *to == owner && *waiting == Some(true))
        };
        match owner {
            Some(owner) if asks && !hears(owner.token) => fails("the owner does not hear"),
            _ => Ok(()),
        }
    }
}
