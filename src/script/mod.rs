//! The scripts that Redis runs, and what goes to them and comes back, as data.
//!
//! | file | holds |
//! |---|---|
//! | `spec` | [`LockSpec`]: what a name is used as; [`Family`]: which scripts serve it |
//! | `token` | [`Token`]: an attempt's id; [`CallerId`]: what a manager says about itself |
//! | `call` | [`Call`]: a request, and the command that it becomes |
//! | `params` | [`Params`]: what a request says about itself, as text |
//! | `registry` | the table family x verb -> script, and how a script's parts are included |
//! | `renewals` | renewals of several mutexes by one script call |
//! | `outcome` | [`ScriptReply`]: what a script answers |
//! | `reply` | how that is read, one function per verb |
//! | `value_text` | a reply in plain words, for errors |
//! | `packed` | the packed fields of a record, for the in-memory store |

mod call;
mod outcome;
#[cfg(feature = "memory")]
pub(crate) mod packed;
pub(crate) mod params;
mod registry;
mod renewals;
mod reply;
#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
#[path = "../../tests/sim/script_access.rs"]
mod script_access;
#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
#[path = "../../tests/sim/seeded_ids.rs"]
mod seeded_ids;
mod spec;
mod token;
mod value_text;

pub(crate) use call::{
    Call, Form, LOOKUP_LIMIT, Mode, Page, PassedFrom, Verb, Wait, rights_command,
};
pub(crate) use outcome::{Grant, Outcome, ScriptReply, Vote};
pub(crate) use params::{NO_NAME, Origin, Params, Requester};
pub(crate) use registry::SCRIPTS;
#[cfg(feature = "memory")]
pub(crate) use registry::{sha1_hex, sources};
pub(crate) use renewals::{RENEWALS_LIMIT, renewals_command, renewals_script_id, split_renewals};
pub(crate) use reply::{InspectedHolder, Inspection, Malformed, called_for, wanted_behind};
#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
pub(crate) use script_access::{Value, parse_value, values_of};
#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
pub(crate) use seeded_ids::seed as seed_ids;
pub(crate) use spec::{Family, LockSpec};
pub(crate) use token::{CallerId, Secret, Token, random_bits};
pub(crate) use value_text::value_text;

/// The rights to the commands that the scripts of a quorum use.
pub(crate) const QUORUM_RIGHTS: &str = "+hmget +hset +hdel +llen +pexpireat +time";

/// The rights to the commands that the other scripts use.
pub(crate) const RIGHTS: &str = "+hget +hmget +hgetall +hkeys +hexists +hlen +hscan +hset +hdel +lindex +llen +lrange +lpop \
                                 +rpop +rpush +unlink +pexpireat +pttl +time +publish";
