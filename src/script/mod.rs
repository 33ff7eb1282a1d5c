//! The scripts that Redis runs, as data: which family a call belongs to, what it says, what comes back.

#[cfg(feature = "memory")]
pub(crate) mod packed;
mod registry;
mod reply;
mod spec;

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use uuid::Uuid;

use crate::key::Key;

#[cfg(any(all(test, feature = "memory"), fuzzing))]
pub(crate) use redis::Value;
pub(crate) use registry::SCRIPTS;
#[cfg(feature = "memory")]
pub(crate) use registry::sources;
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
        if let (Verb::Lookup { tokens }, Family::Mutex) = (&self.verb, self.spec.family) {
            cmd.arg("HMGET")
                .arg(self.key.record())
                .arg("o")
                .arg(format!("m:{}", caller_id.manager));
            for token in tokens {
                cmd.arg(format!("w:{}", token.0.simple()));
            }
            return cmd;
        }
        let script = self.script_id().map(registry::script);
        let script = script.expect("every verb but the lookup of a mutex has a script");
        if form.by_source {
            cmd.arg("EVAL").arg(&script.source);
        } else {
            cmd.arg("EVALSHA").arg(&script.sha);
        }
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

    /// The number of the script that the call runs; none, if it is a single command.
    pub(crate) fn script_id(&self) -> Option<usize> {
        registry::script_id(self.spec.family, &self.verb)
    }
}

fn add_token(cmd: &mut Cmd, token: Token) {
    let mut buffer = [0; 32];
    cmd.arg(&*token.0.simple().encode_lower(&mut buffer));
}

/// The rights to the commands that the scripts use.
pub(crate) const RIGHTS: &str = "+hget +hmget +hgetall +hkeys +hexists +hlen +hset +hdel +lindex +llen +lrange +lpop +rpop \
                                 +rpush +del +pexpireat +pttl +time +publish";
