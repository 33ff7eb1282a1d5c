//! A request as data, and as the command that Redis runs.

use std::sync::Arc;

use redis::Cmd;

use super::registry::{self, VerbName};
use super::spec::{Family, LockSpec};
use super::token::{CallerId, Secret, Token};
use crate::key::Key;

/// A request about one name.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) spec: LockSpec,
    pub(crate) key: Key,
    pub(crate) verb: Verb,
}

/// What a request asks for.
#[derive(Debug, Clone)]
pub(crate) enum Verb {
    Acquire {
        token: Token,
        wait: Wait,
        params: Arc<str>,
    },
    /// An acquire on one node of a quorum, under the fence that the client proposes.
    Propose {
        token: Token,
        fence: u64,
        params: Arc<str>,
    },
    Release {
        token: Token,
        fence: u64,
        /// The last fence of this grant that a guard had, or may have. `None`: the first, or for a
        /// grant that ends without a release, any that it has reserved.
        last: Option<u64>,
        mode: Mode,
    },
    /// A node of a quorum that has forgotten the lease takes it again, so the verb says what was
    /// taken. The other scripts extend what is there.
    Renew {
        token: Token,
        fence: u64,
        params: Arc<str>,
    },
    /// Moves the lock from its owner to the token `to`, ahead of the queue. Only a mutex can be passed.
    Pass {
        to: Token,
        from: PassedFrom,
        /// Of the owner's grant.
        fence: u64,
        /// As for a release.
        last: Option<u64>,
        params: Arc<str>,
    },
    Sync {
        newest: Token,
    },
    Inspect {
        waiters: usize,
        /// Where the page of holders begins; 0 for the first. A mutex has no pages.
        from: u64,
    },
    /// Clear the record of a name that nobody uses, so that it can become another kind of lock.
    /// Call it with the spec of the kind that the name is.
    Vacate,
    /// Delete all that Redis keeps about a name that nobody uses. Only the scripts of permits do it,
    /// so a mutex must be vacated first.
    Delete,
    /// Which of these tokens Redis knows; at most [`LOOKUP_LIMIT`].
    Lookup {
        tokens: Vec<Token>,
    },
}

/// The owner from whom a lock is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassedFrom {
    /// A guard, which detaches it.
    Guard(Token),
    /// Nobody: it is detached, and the sender has its secret.
    Bearer(Secret),
}

/// Whether an acquire may leave its token in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Yes,
    No,
    /// No. R22 (tries among the dead): the processes that wait were called by an acquire before this
    /// one, and had the time to answer.
    NoneCame,
}

impl Wait {
    fn as_str(self) -> &'static str {
        match self {
            Wait::Yes => "1",
            Wait::No => "0",
            Wait::NoneCame => "2",
        }
    }
}

/// The most tokens that one lookup asks about.
pub(crate) const LOOKUP_LIMIT: usize = 64;

/// How a token is released, and by whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A guard had it.
    Used,
    /// No guard had it: the token is abandoned.
    Unused,
    /// A guard had it and lost it.
    Lost,
    /// A guard had it and left its work half done. The scripts treat it as lost.
    Unfinished,
    /// Leave the queue, but keep a grant that came first.
    KeepIfOwner,
    /// Keep this many permits, at most those that it has, and release the others. The number is of
    /// those that stay, so a second or late copy changes nothing.
    Reduce { to: u32 },
    /// Release the owner, whatever its token is, if the fence is still this one. For permits: the
    /// holders with that fence on this page.
    Forced(Page),
}

impl Mode {
    /// Whether a guard releases a lock that it believes to hold.
    pub(crate) fn is_guards(self) -> bool {
        matches!(self, Mode::Used | Mode::Unfinished)
    }
}

impl Verb {
    /// Whether its script serves the queue, and may pass over waiters of dead processes.
    pub(crate) fn serves_queue(&self) -> bool {
        matches!(
            self,
            Verb::Acquire { .. }
                | Verb::Release { .. }
                | Verb::Sync { .. }
                | Verb::Vacate
                | Verb::Delete
        )
    }

    /// Whether it takes the holders of permits page by page.
    pub(crate) fn is_paged(&self) -> bool {
        matches!(
            self,
            Verb::Inspect { .. }
                | Verb::Release {
                    mode: Mode::Forced(_),
                    ..
                }
        )
    }
}

/// A page of the holders of permits, as HSCAN takes them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Page {
    /// Counts from 0.
    pub(crate) number: u32,
    /// Where it begins: 0, or where the page before ended.
    pub(crate) from: u64,
}

impl Mode {
    fn as_str(self) -> &'static str {
        match self {
            Mode::Used => "used",
            Mode::Unused => "unused",
            Mode::Lost | Mode::Unfinished => "lost",
            Mode::KeepIfOwner => "keep_if_owner",
            Mode::Reduce { .. } => "reduce",
            Mode::Forced(_) => "forced",
        }
    }
}

/// The form in which a call is sent to the server.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Form {
    /// EVAL with the source instead of EVALSHA, because the server forgot the script: R20 (write
    /// order).
    pub(crate) by_source: bool,
    /// With one key alone, because the slot is in migration: R11 (missing keys).
    pub(crate) single_key: bool,
}

/// The command that finds out which rights the user lacks, of those that the scripts of this call's
/// family need. A server before 7.0 has to try them on a key of their own.
pub(crate) fn rights_command(call: &Call, caller_id: &CallerId, on_own_key: bool) -> Cmd {
    let scripts = match call.spec.family {
        Family::Mutex | Family::Permit => "queue",
        Family::Quorum => "quorum",
    };
    let record = call.key.record();
    let mut cmd = redis::cmd("EVAL");
    cmd.arg(include_str!("user_rights.lua"));
    if on_own_key {
        cmd.arg(2).arg(record).arg(format!("{record}:x"));
    } else {
        cmd.arg(1).arg(record);
    }
    cmd.arg(caller_id.channel()).arg(scripts);
    cmd
}

impl Call {
    /// Another call about the same lock.
    pub(crate) fn with(&self, verb: Verb) -> Call {
        Call {
            spec: self.spec,
            key: self.key.clone(),
            verb,
        }
    }

    /// For a call that is known to be a release.
    pub(crate) fn release_mode(&self) -> Mode {
        match self.verb {
            Verb::Release { mode, .. } => mode,
            _ => unreachable!("a token is released by a release"),
        }
    }

    /// The number of the script that the call runs. `None` if it is a single command.
    pub(crate) fn script_id(&self) -> Option<usize> {
        let verb = match self.verb {
            Verb::Acquire { .. } | Verb::Propose { .. } => VerbName::Acquire,
            Verb::Release { .. } => VerbName::Release,
            Verb::Renew { .. } => VerbName::Renew,
            Verb::Pass { .. } => VerbName::Pass,
            Verb::Sync { .. } => VerbName::Sync,
            Verb::Inspect { .. } => VerbName::Inspect,
            Verb::Vacate | Verb::Delete => VerbName::Vacate,
            Verb::Lookup { .. } => VerbName::Lookup,
        };
        registry::script_id(self.spec.family, verb)
    }

    /// The command that Redis runs. R5 (dated requests): an acquire, a pass, a sync, a renewal or a release
    /// by force does nothing after `not_after`, a server time in µs; the other verbs ignore it.
    pub(crate) fn command(&self, caller_id: &CallerId, form: Form, not_after: u64) -> Cmd {
        // Room for everything but a source and a queue of tokens, so that it seldom grows.
        let mut cmd = Cmd::with_capacity(16, 512);
        if let (Verb::Lookup { tokens }, Family::Mutex) = (&self.verb, self.spec.family) {
            self.append_field_lookup(&mut cmd, tokens, caller_id);
            return cmd;
        }
        let script = self.script_id().map(registry::script);
        let script = script.expect("every verb but the lookup of a mutex has a script");
        // A server that does not know the script would show the secret to its MONITOR, and refuse the
        // call. Then the secret is not spent yet.
        if form.by_source || self.has_secret() {
            cmd.arg("EVAL").arg(&script.source);
        } else {
            cmd.arg("EVALSHA").arg(&script.sha);
        }
        self.append_keys(&mut cmd, form);
        caller_id.append_to(&mut cmd);
        self.append_arguments(&mut cmd, not_after);
        cmd
    }

    /// A mutex needs no script for a lookup: its record has a field for each token.
    fn append_field_lookup(&self, cmd: &mut Cmd, tokens: &[Token], caller_id: &CallerId) {
        cmd.arg("HMGET")
            .arg(self.key.record())
            .arg("o")
            .arg(format!("m:{}", caller_id.manager));
        for token in tokens {
            cmd.arg(format!("w:{}", token.0.simple()));
        }
    }

    /// How many keys there are, and the keys.
    fn append_keys(&self, cmd: &mut Cmd, form: Form) {
        match (self.spec.family, &self.verb) {
            (Family::Mutex, Verb::Renew { .. } | Verb::Pass { .. }) | (Family::Quorum, _) => {
                cmd.arg(1).arg(self.key.record())
            }
            (Family::Mutex, _) if form.single_key => cmd.arg(1).arg(self.key.record()),
            (Family::Mutex, _) => cmd.arg(2).arg(self.key.record()).arg(self.key.queue()),
            (Family::Permit, _) if form.single_key => cmd.arg(1).arg(self.key.holders()),
            (Family::Permit, Verb::Renew { .. }) => {
                cmd.arg(2).arg(self.key.holders()).arg(self.key.record())
            }
            (Family::Permit, _) => cmd
                .arg(3)
                .arg(self.key.record())
                .arg(self.key.queue())
                .arg(self.key.holders()),
        };
    }

    fn append_arguments(&self, cmd: &mut Cmd, not_after: u64) {
        match &self.verb {
            Verb::Acquire {
                token,
                wait,
                params,
            } => {
                token.append_to(cmd);
                cmd.arg(not_after).arg(wait.as_str()).arg(&**params);
                if self.spec.family == Family::Permit {
                    cmd.arg(self.spec.kind());
                }
            }
            Verb::Release {
                token,
                fence,
                last,
                mode,
            } => {
                token.append_to(cmd);
                cmd.arg(*fence).arg(mode.as_str());
                match mode {
                    Mode::Reduce { to } => {
                        cmd.arg(*to);
                    }
                    Mode::Forced(page) => {
                        if self.spec.family == Family::Permit {
                            cmd.arg(format!("{} {}", page.number, page.from));
                        }
                        cmd.arg(not_after);
                    }
                    _ => {
                        cmd.arg(*last);
                    }
                }
            }
            Verb::Propose {
                token,
                fence,
                params,
            } => append_dated_grant(cmd, *token, not_after, *fence, params),
            Verb::Renew {
                token,
                fence,
                params,
            } if self.spec.family == Family::Quorum => {
                append_dated_grant(cmd, *token, not_after, *fence, params);
            }
            Verb::Renew { token, .. } => {
                token.append_to(cmd);
                cmd.arg(not_after);
            }
            Verb::Pass {
                to,
                from,
                fence,
                last,
                params,
            } => {
                to.append_to(cmd);
                cmd.arg(not_after);
                match from {
                    PassedFrom::Guard(token) => token.append_to(cmd.arg("detach")),
                    PassedFrom::Bearer(secret) => {
                        cmd.arg("attach").arg(secret.reveal());
                    }
                }
                cmd.arg(*fence).arg(&**params).arg(*last);
            }
            Verb::Sync { newest } => {
                cmd.arg(not_after);
                newest.append_to(cmd);
            }
            Verb::Inspect { waiters, from } => {
                cmd.arg(*waiters);
                if self.spec.family == Family::Permit {
                    cmd.arg(*from);
                }
            }
            Verb::Delete if self.spec.family == Family::Permit => {
                cmd.arg("delete");
            }
            Verb::Vacate | Verb::Delete => {}
            Verb::Lookup { tokens } => tokens.iter().for_each(|token| token.append_to(cmd)),
        }
    }

    /// The call that vacates the same name, which is a kind of that family.
    pub(crate) fn vacate(&self, family: Family) -> Call {
        Call {
            spec: LockSpec::any(family),
            key: self.key.clone(),
            verb: Verb::Vacate,
        }
    }

    /// The renewal of a token of the same name. Only a quorum needs its fence and its parameters.
    pub(crate) fn renewal(&self, token: Token) -> Call {
        Call {
            verb: Verb::Renew {
                token,
                fence: 0,
                params: Arc::from(""),
            },
            ..self.clone()
        }
    }

    pub(crate) fn is_renewal(&self) -> bool {
        matches!(self.verb, Verb::Renew { .. })
    }

    /// Whether the call is to be sent again, with a new date, if it came too late and did nothing. The
    /// calls of a quorum are dated for each node, and its proposals do that.
    pub(crate) fn is_dated_anew(&self) -> bool {
        let is_forced = matches!(
            self.verb,
            Verb::Release {
                mode: Mode::Forced(_),
                ..
            }
        );
        self.spec.family != Family::Quorum && (self.is_renewal() || is_forced)
    }

    pub(crate) fn is_acquire(&self) -> bool {
        matches!(self.verb, Verb::Acquire { .. } | Verb::Propose { .. })
    }

    pub(crate) fn is_pass(&self) -> bool {
        matches!(self.verb, Verb::Pass { .. })
    }

    fn has_secret(&self) -> bool {
        let from = match self.verb {
            Verb::Pass { from, .. } => Some(from),
            _ => None,
        };
        matches!(from, Some(PassedFrom::Bearer(_)))
    }

    /// Whether the user needs all rights before this is sent, because the script takes or deletes
    /// something, or hands over what another user took.
    pub(crate) fn needs_rights(&self) -> bool {
        let is_forced = matches!(
            self.verb,
            Verb::Release {
                mode: Mode::Forced(_),
                ..
            }
        );
        let is_deletion = matches!(self.verb, Verb::Vacate | Verb::Delete);
        self.is_acquire() || self.is_pass() || is_deletion || is_forced
    }

    /// Whether the script may do with one key alone: R11 (missing keys).
    pub(crate) fn has_single_key_form(&self) -> bool {
        match self.spec.family {
            Family::Mutex => matches!(
                self.verb,
                Verb::Acquire { .. } | Verb::Release { .. } | Verb::Inspect { .. }
            ),
            Family::Permit => match self.verb {
                Verb::Release { mode, .. } => !matches!(mode, Mode::Forced(_)),
                _ => self.is_renewal(),
            },
            Family::Quorum => false,
        }
    }
}

/// The arguments of a script that grants something on a node of a quorum, under a fence that the
/// client chose.
fn append_dated_grant(cmd: &mut Cmd, token: Token, not_after: u64, fence: u64, params: &str) {
    token.append_to(cmd);
    cmd.arg(not_after).arg(fence).arg(params);
}
