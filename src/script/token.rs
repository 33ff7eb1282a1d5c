//! The sender of a call: an attempt's token, and its manager.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Cmd;
use uuid::Uuid;

use super::registry::sha1_hex;

/// The id of an owner or a waiter: a new uuid for every attempt. R1 (tokens are registered before
/// they are sent).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Token(pub(super) Uuid);

impl Token {
    pub(crate) fn new() -> Token {
        Token(new_id())
    }

    /// A token that is never sent. It is unique in this process, which costs no system call.
    pub(crate) fn never_sent() -> Token {
        #[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
        if let Some(id) = super::seeded_ids::next() {
            return Token(id);
        }
        static LAST: AtomicU64 = AtomicU64::new(0);
        // A random uuid has a version in its upper half.
        Token(Uuid::from_u64_pair(0, LAST.fetch_add(1, Ordering::Relaxed)))
    }

    /// Reads a token in the form that records have. The other forms of a uuid are refused.
    pub(crate) fn parse(text: &str) -> Option<Token> {
        let uuid = Uuid::try_parse(text).ok()?;
        (*uuid.simple().encode_lower(&mut [0; 32]) == *text).then_some(Token(uuid))
    }

    /// Appends the token to a command, in the form that records have.
    pub(super) fn append_to(self, cmd: &mut Cmd) {
        let mut buffer = [0; 32];
        cmd.arg(&*self.0.simple().encode_lower(&mut buffer));
    }
}

/// The secret of a lock that is detached. Redis has its hash alone, as the owner, until the bearer
/// attaches the lock. So nobody learns it who reads Redis.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Secret(Uuid);

impl Secret {
    /// 122 random bits.
    pub(crate) fn new() -> Secret {
        Secret(new_id())
    }

    /// Reads a secret in the form of [`Secret::reveal`]. The other forms of a uuid are refused.
    pub(crate) fn parse(text: &str) -> Option<Secret> {
        Token::parse(text).map(|token| Secret(token.0))
    }

    /// The secret as text: 32 hexadecimal digits.
    pub(crate) fn reveal(self) -> String {
        self.0.simple().to_string()
    }

    /// The owner's token while the lock is detached: the first 32 digits of the secret's SHA-1.
    pub(crate) fn owner(self) -> Token {
        let hash = sha1_hex(&self.reveal());
        Token::parse(&hash[..32]).expect("32 hexadecimal digits are a token")
    }
}

/// Never the secret: errors and logs show calls.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A manager's data about itself in every call.
#[derive(Debug, Clone)]
pub(crate) struct CallerId {
    /// The manager's id: 60 random bits. It is that short so that a record's fields stay below 64
    /// bytes, up to which Redis packs them.
    pub(crate) manager: String,
    /// P + T, the most that one script adds to served time: R2 (served time).
    step_us: String,
    horizon_us: String,
    /// The name of a manager's channel is this and its id.
    channels: String,
    /// How the names of the manager's connections begin: `fairlock:<label>:<pid>`.
    pub(crate) connections: String,
}

impl CallerId {
    pub(crate) fn new(prefix: &str, step: Duration, horizon: Duration) -> CallerId {
        let manager = new_id().simple().to_string()[..16].to_owned();
        CallerId {
            manager,
            step_us: step.as_micros().to_string(),
            horizon_us: horizon.as_micros().to_string(),
            channels: format!("{prefix}:grants:"),
            connections: connection_names(""),
        }
    }

    /// The same manager, with this label in the names of its connections.
    pub(crate) fn labelled(self, label: &str) -> CallerId {
        CallerId {
            connections: connection_names(label),
            ..self
        }
    }

    /// The channel on which the manager learns of its grants.
    pub(crate) fn channel(&self) -> String {
        format!("{}{}", self.channels, self.manager)
    }

    /// The rule for the channels of all managers.
    pub(crate) fn channel_rule(&self) -> String {
        format!("&{}*", self.channels)
    }

    /// A key of the prefix that no lock has: a name is in braces.
    pub(crate) fn no_lock(&self) -> String {
        format!("{}no_lock", self.channels)
    }

    /// Appends the arguments that every script begins with.
    pub(super) fn append_to(&self, cmd: &mut Cmd) {
        cmd.arg(&self.manager)
            .arg(&self.step_us)
            .arg(&self.horizon_us)
            .arg(&self.channels);
    }
}

/// How many characters of a label the names of connections have.
const LABEL_IN_NAMES: usize = 64;

/// Servers refuse a name with characters other than `!` to `~`, and `:` separates the parts.
fn connection_names(label: &str) -> String {
    let plain = |letter: char| match letter {
        ':' => '_',
        '!'..='~' => letter,
        _ => '_',
    };
    let label: String = label.chars().take(LABEL_IN_NAMES).map(plain).collect();
    let label = if label.is_empty() { "-" } else { &label };
    format!("fairlock:{label}:{}", std::process::id())
}

/// 32 random bits.
pub(crate) fn random_bits() -> u32 {
    // The last 62 bits of such a uuid are random.
    new_id().as_u128() as u32
}

fn new_id() -> Uuid {
    #[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
    if let Some(id) = super::seeded_ids::next() {
        return id;
    }
    Uuid::new_v4()
}
