//! The scripts that Redis runs, as data: which family a call belongs to, what it says, what comes back.

#[cfg(feature = "memory")]
pub(crate) mod packed;
mod reply;
mod spec;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::Cmd;
use uuid::Uuid;

use crate::key::Key;

#[cfg(any(all(test, feature = "memory"), fuzzing))]
pub(crate) use redis::Value;
pub(crate) use reply::{Grant, Malformed, Outcome, Reply, Seen};
pub(crate) use spec::{Family, LockSpec};

/// The first of the replies in these bytes.
#[cfg(any(all(test, feature = "memory"), fuzzing))]
pub(crate) fn parse_value(bytes: &[u8]) -> Option<Value> {
    redis::parse_redis_value(bytes).ok()
}

/// All replies in these bytes, up to what is none.
#[cfg(any(all(test, feature = "memory"), fuzzing))]
pub(crate) fn values_of(mut bytes: &[u8]) -> Vec<Value> {
    let mut parser = redis::Parser::new();
    std::iter::from_fn(|| parser.parse_value(&mut bytes).ok()).collect()
}

/// An owner's or a waiter's id: a fresh uuid for every attempt (R1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Token(Uuid);

impl Token {
    pub(crate) fn new() -> Token {
        Token(Uuid::new_v4())
    }

    /// As a record has it, and in no other of a uuid's forms.
    pub(crate) fn parse(text: &str) -> Option<Token> {
        let uuid = Uuid::try_parse(text).ok()?;
        (*uuid.simple().encode_lower(&mut [0; 32]) == *text).then_some(Token(uuid))
    }

    /// One that is told from others by its number, for those who explore what could happen.
    #[cfg(any(all(test, feature = "memory"), fuzzing))]
    pub(crate) fn numbered(number: u16) -> Token {
        Token(Uuid::from_u128(number.into()))
    }

    /// The number of a numbered one.
    #[cfg(any(all(test, feature = "memory"), fuzzing))]
    pub(crate) fn number(self) -> u16 {
        self.0.as_u128() as u16
    }

    /// As a record has it.
    #[cfg(any(all(test, feature = "memory"), fuzzing))]
    pub(crate) fn simple(self) -> String {
        self.0.simple().to_string()
    }
}

/// A request about one name.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) spec: LockSpec,
    pub(crate) key: Key,
    pub(crate) verb: Verb,
}

#[derive(Debug, Clone)]
pub(crate) enum Verb {
    Acquire {
        token: Token,
        may_wait: bool,
        params: Arc<str>,
    },
    Release {
        token: Token,
        fence: u64,
        mode: Mode,
    },
    Renew {
        token: Token,
    },
    Sync {
        newest: Token,
    },
    Inspect {
        waiters: usize,
    },
    /// Which of these tokens Redis knows; at most [`LOOKUP_LIMIT`].
    Lookup {
        tokens: Vec<Token>,
    },
}

pub(crate) const LOOKUP_LIMIT: usize = 64;

/// On what terms a token is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It was a guard.
    Used,
    /// Nobody had it: an abandon.
    Unused,
    /// It was a guard's, which lost it.
    Lost,
    /// Leave the queue, but keep a grant that came first.
    KeepIfOwner,
    /// All permits but one; the rest is kept.
    Downgrade,
    /// Whoever owns it, if the fence is still this one.
    Forced,
}

impl Mode {
    fn as_str(self) -> &'static str {
        match self {
            Mode::Used => "used",
            Mode::Unused => "unused",
            Mode::Lost => "lost",
            Mode::KeepIfOwner => "keep_if_owner",
            Mode::Downgrade => "downgrade",
            Mode::Forced => "forced",
        }
    }
}

/// What a manager says of itself in every call.
#[derive(Debug, Clone)]
pub(crate) struct CallerId {
    /// 60 random bits, so that a record's fields stay below the 64 bytes up to which Redis packs them.
    pub(crate) manager: String,
    /// P + T, the most that one script adds to served time (R2).
    step_us: String,
    horizon_us: String,
    /// Followed by a manager's id, the channel on which that manager hears of its grants.
    channels: String,
}

impl CallerId {
    pub(crate) fn new(prefix: &str, step: Duration, horizon: Duration) -> CallerId {
        let manager = Uuid::new_v4().simple().to_string()[..16].to_owned();
        CallerId {
            manager,
            step_us: step.as_micros().to_string(),
            horizon_us: horizon.as_micros().to_string(),
            channels: format!("{prefix}:grants:"),
        }
    }

    pub(crate) fn channel(&self) -> String {
        format!("{}{}", self.channels, self.manager)
    }
}

/// How a call is put to the server.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Form {
    /// EVAL with the source instead of EVALSHA: the server forgot the script (R20).
    pub(crate) by_source: bool,
    /// The record's key alone: the slot is in migration (R11).
    pub(crate) single_key: bool,
}

impl Call {
    /// Acquire and sync do nothing past `not_after`, a server time in µs; the others ignore it.
    pub(crate) fn command(&self, caller_id: &CallerId, form: Form, not_after: u64) -> Cmd {
        // Room for all but a source and a queue of tokens, so that it does not grow bit by bit.
        let mut cmd = Cmd::with_capacity(16, 512);
        cmd.arg(match (&self.verb, self.spec.family) {
            (Verb::Lookup { .. }, Family::Mutex) => "HMGET",
            _ if form.by_source => "EVAL",
            _ => "EVALSHA",
        });
        if let (Verb::Lookup { tokens }, Family::Mutex) = (&self.verb, self.spec.family) {
            cmd.arg(self.key.record())
                .arg("o")
                .arg(format!("m:{}", caller_id.manager));
            for token in tokens {
                cmd.arg(format!("w:{}", token.0.simple()));
            }
            return cmd;
        }
        let script = self.script();
        cmd.arg(if form.by_source {
            &script.source
        } else {
            &script.sha
        });
        match (self.spec.family, &self.verb) {
            (Family::Mutex, Verb::Renew { .. }) => cmd.arg(1).arg(self.key.record()),
            (Family::Mutex, _) if form.single_key => cmd.arg(1).arg(self.key.record()),
            (Family::Mutex, _) => cmd.arg(2).arg(self.key.record()).arg(self.key.queue()),
            (Family::Permit, Verb::Renew { .. }) if form.single_key => {
                cmd.arg(1).arg(self.key.holders())
            }
            (Family::Permit, Verb::Renew { .. }) => {
                cmd.arg(2).arg(self.key.holders()).arg(self.key.record())
            }
            (Family::Permit, _) => cmd
                .arg(3)
                .arg(self.key.record())
                .arg(self.key.queue())
                .arg(self.key.holders()),
        };
        cmd.arg(&caller_id.manager)
            .arg(&caller_id.step_us)
            .arg(&caller_id.horizon_us)
            .arg(&caller_id.channels);
        match &self.verb {
            Verb::Acquire {
                token,
                may_wait,
                params,
                ..
            } => {
                add_token(&mut cmd, *token);
                cmd.arg(not_after)
                    .arg(if *may_wait { "1" } else { "0" })
                    .arg(&**params);
                if self.spec.family == Family::Permit {
                    cmd.arg(self.spec.kind());
                }
            }
            Verb::Release { token, fence, mode } => {
                add_token(&mut cmd, *token);
                cmd.arg(*fence).arg(mode.as_str());
            }
            Verb::Renew { token } => add_token(&mut cmd, *token),
            Verb::Sync { newest } => {
                cmd.arg(not_after);
                add_token(&mut cmd, *newest);
            }
            Verb::Inspect { waiters } => {
                cmd.arg(*waiters);
            }
            Verb::Lookup { tokens } => tokens.iter().for_each(|token| add_token(&mut cmd, *token)),
        }
        cmd
    }

    pub(crate) fn is_acquire(&self) -> bool {
        matches!(self.verb, Verb::Acquire { .. })
    }

    /// R11: whether one key alone may do.
    pub(crate) fn has_single_key_form(&self) -> bool {
        match self.spec.family {
            Family::Mutex => matches!(self.verb, Verb::Acquire { .. } | Verb::Release { .. }),
            Family::Permit => matches!(self.verb, Verb::Renew { .. }),
        }
    }

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

fn add_token(cmd: &mut Cmd, token: Token) {
    let mut buffer = [0; 32];
    cmd.arg(&*token.0.simple().encode_lower(&mut buffer));
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
