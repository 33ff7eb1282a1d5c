//! The scripts that Redis runs, and what goes to them and comes back, as data.
//!
//! | file | holds |
//! |---|---|
//! | `spec` | [`LockSpec`]: what a name is used as; [`Family`]: which scripts serve it |
//! | `token` | [`Token`]: an attempt's id; [`CallerId`]: what a manager says about itself |
//! | `call` | [`Call`]: a request, and the command that it becomes |
//! | `reply` | [`Reply`]: what a script answers |
//! | `packed` | the packed fields of a record, for the in-memory store |

mod call;
#[cfg(feature = "memory")]
pub(crate) mod packed;
mod reply;
#[cfg(any(all(test, feature = "memory"), fuzzing))]
#[path = "../../tests/sim/script_access.rs"]
mod script_access;
mod spec;
mod token;

use std::sync::LazyLock;

pub(crate) use call::{Call, Form, LOOKUP_LIMIT, Mode, Verb};
pub(crate) use reply::{Grant, Malformed, Outcome, Reply, Seen};
#[cfg(any(all(test, feature = "memory"), fuzzing))]
pub(crate) use script_access::{Value, parse_value, values_of};
pub(crate) use spec::{Family, LockSpec};
pub(crate) use token::{CallerId, Token};

impl Call {
    /// Which script the call runs; the same number for the same script.
    pub(crate) fn script_id(&self) -> usize {
        let verb = match self.verb {
            Verb::Acquire { .. } => 0,
            Verb::Release { .. } => 1,
            Verb::Renew { .. } => 2,
            Verb::Sync { .. } => 3,
            Verb::Inspect { .. } => 4,
            Verb::Lookup { .. } => 5,
        };
        match self.spec.family {
            // Its lookup is a command.
            Family::Mutex => verb.min(4),
            Family::Permit => 5 + verb,
        }
    }

    fn script(&self) -> &'static Script {
        &ALL_SCRIPTS[self.script_id()]
    }
}

struct Script {
    source: String,
    sha: String,
}

/// The rights to the commands that the scripts use.
pub(crate) const RIGHTS: &str = "+hget +hmget +hgetall +hkeys +hexists +hlen +hset +hdel +lindex +llen +lrange +lpop +rpop \
                                 +rpush +del +pexpireat +pttl +time +publish";

/// How many scripts there are.
pub(crate) const SCRIPTS: usize = 11;

/// All scripts, for a store that runs them itself.
#[cfg(feature = "memory")]
pub(crate) fn sources() -> impl Iterator<Item = &'static str> {
    ALL_SCRIPTS.iter().map(|script| script.source.as_str())
}

/// What the scripts share, as text. A part comes before those that it includes.
const PARTS: [(&str, &str); 14] = [
    (
        "--include mutex_record.lua\n",
        include_str!("mutex_record.lua"),
    ),
    (
        "--include mutex_lapse.lua\n",
        include_str!("mutex_lapse.lua"),
    ),
    (
        "--include mutex_promote.lua\n",
        include_str!("mutex_promote.lua"),
    ),
    (
        "--include mutex_grant.lua\n",
        include_str!("mutex_grant.lua"),
    ),
    (
        "--include mutex_delete.lua\n",
        include_str!("mutex_delete.lua"),
    ),
    (
        "--include mutex_write.lua\n",
        include_str!("mutex_write.lua"),
    ),
    (
        "--include permit_record.lua\n",
        include_str!("permit_record.lua"),
    ),
    (
        "--include permit_reclaim.lua\n",
        include_str!("permit_reclaim.lua"),
    ),
    (
        "--include permit_promote.lua\n",
        include_str!("permit_promote.lua"),
    ),
    (
        "--include permit_grant.lua\n",
        include_str!("permit_grant.lua"),
    ),
    (
        "--include permit_write.lua\n",
        include_str!("permit_write.lua"),
    ),
    (
        "--include queue_stamp.lua\n",
        include_str!("queue_stamp.lua"),
    ),
    (
        "--include queue_forget.lua\n",
        include_str!("queue_forget.lua"),
    ),
    (
        "--include queue_leave.lua\n",
        include_str!("queue_leave.lua"),
    ),
];

/// By [`Call::script_id`].
static ALL_SCRIPTS: LazyLock<[Script; SCRIPTS]> = LazyLock::new(|| {
    [
        include_str!("mutex_acquire.lua"),
        include_str!("mutex_release.lua"),
        include_str!("mutex_renew.lua"),
        include_str!("mutex_sync.lua"),
        include_str!("mutex_inspect.lua"),
        include_str!("permit_acquire.lua"),
        include_str!("permit_release.lua"),
        include_str!("permit_renew.lua"),
        include_str!("permit_sync.lua"),
        include_str!("permit_inspect.lua"),
        include_str!("permit_lookup.lua"),
    ]
    .map(|verb| {
        let source = PARTS.iter().fold(verb.to_owned(), |source, (line, part)| {
            source.replace(line, part)
        });
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Script { source, sha }
    })
});
