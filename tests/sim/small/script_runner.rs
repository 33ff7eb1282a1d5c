//! The server that runs the shipped scripts, and the translation of their answers.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::check;
use super::hearing::{Heard, ToldOwner};
use super::record_keys::{NOW, RecordKeys, TICK, TTL_MS, mark, real_token, small_token};
use super::record_state::{
    Arrival, CLIENTS, Execution, HORIZON, RecordState, STEP, SmallAnswer, SmallGrant, SmallReply,
    SmallRequest, SmallWanted,
};
use super::setting::SmallSetting;
use crate::key::Key;
use crate::script::{
    Call, CallerId, Grant, Mode, Outcome, Page, ScriptReply, Verb, Wait, wanted_behind,
};
use crate::sim::mutation::{REWRITES_EARLY, ScriptMutation, server_with};
use crate::store::memory::server::ScriptServer;

const PREFIX: &str = "f";

/// Runs scripts, each only once for the same record and request. Nothing else decides what a script
/// does, so the result can be looked up the next time.
pub(super) struct ScriptRunner {
    server: ScriptServer,
    setting: SmallSetting,
    keys: RecordKeys,
    caller_ids: Vec<CallerId>,
    known: HashMap<(RecordState, SmallRequest, Arrival), Result<Rc<Execution>, String>>,
}

impl ScriptRunner {
    pub(super) fn new(setting: SmallSetting, mutations: &[ScriptMutation]) -> ScriptRunner {
        let early = setting.rewrites_early.then_some(REWRITES_EARLY);
        let mutations: Vec<_> = mutations.iter().copied().chain(early).collect();
        let ticks = |n: u8| Duration::from_micros(TICK * u64::from(n));
        let caller_id = |client| {
            let mut caller_id = CallerId::new(PREFIX, ticks(STEP), ticks(HORIZON));
            caller_id.manager = format!("c{client}");
            caller_id
        };
        ScriptRunner {
            server: server_with(&mutations),
            setting,
            keys: RecordKeys {
                setting,
                key: Key::new(PREFIX, "n").expect("a valid name"),
            },
            caller_ids: (0..CLIENTS).map(caller_id).collect(),
            known: HashMap::new(),
        }
    }

    /// How many different script calls were run.
    pub(super) fn runs(&self) -> usize {
        self.known.len()
    }

    /// Runs the script of this request on this record. The error says what it breaks.
    pub(super) fn run(
        &mut self,
        record: &RecordState,
        request: SmallRequest,
        arrival: Arrival,
    ) -> Result<Rc<Execution>, String> {
        let key = (record.clone(), request, arrival);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let execution = self
            .execute(record, request, arrival)
            .and_then(|execution| {
                check::script(&self.setting, record, request, arrival, &execution)?;
                Ok(Rc::new(execution))
            });
        self.known.insert(key, execution.clone());
        execution
    }

    fn execute(
        &mut self,
        record: &RecordState,
        request: SmallRequest,
        arrival: Arrival,
    ) -> Result<Execution, String> {
        let call = self.call(request);
        let server = &mut self.server;
        self.keys.write(server, record);
        // R5 (dated requests): a client sends a request in this tick and gives it up before the
        // next.
        let not_after = match arrival {
            Arrival::InTime => NOW + TICK / 2,
            Arrival::Late => NOW - 1,
        };
        let caller_id = &self.caller_ids[usize::from(request.token().client)];
        let reply = if self.setting.renews_together {
            server.run_call(NOW, &call, caller_id, not_after)?
        } else {
            server.run_alone(NOW, &call, caller_id, not_after)?
        };
        let published: Vec<_> = server
            .published()
            .into_iter()
            .map(|message| (message.channel.clone(), message.text.clone()))
            .collect();
        let (record, last_ended) = self.keys.read(&server.state().keyspace)?;
        if reply.more {
            return Err("three clients are too few to pass over 64 waiters".to_owned());
        }
        let mut reports = reported_grants(&reply);
        let mut reply_grants = reply.grants.clone();
        if let Outcome::Granted(own) = &reply.outcome
            && matches!(request, SmallRequest::Acquire(_))
        {
            reply_grants.push(*own);
        }
        let answer = SmallAnswer {
            reply: self.small_reply(&call, reply.outcome)?,
            grants: self.small_grants(&reply.grants),
        };
        let (published, told) = self.published(&call, &published)?;
        reports.extend(&published);
        let wanted = self.wanted(&told)?;
        if self.setting.hears {
            let new = published.iter().chain(&reply_grants);
            let heard = Heard {
                request,
                reply: &answer.reply,
                after: &record,
                told,
                said: new
                    .map(|grant| (small_token(grant.token), grant.waiting))
                    .collect(),
            };
            heard.check()?;
        }
        Ok(Execution {
            record,
            answer,
            published: self.small_grants(&published),
            wanted,
            last_ended,
            reported: reports
                .iter()
                .map(|grant| (small_token(grant.token), grant.previous))
                .collect(),
        })
    }

    fn call(&self, request: SmallRequest) -> Call {
        let client = request.token().client;
        let token = real_token(request.token());
        let verb = match request {
            SmallRequest::Acquire(_) => Verb::Acquire {
                token,
                wait: Wait::Yes,
                params: Arc::from(self.setting.params(client, TTL_MS) + " -"),
            },
            SmallRequest::Release(_, known_fence, mode) => {
                let fence = if known_fence == 0 {
                    0
                } else {
                    self.keys.fence(known_fence)
                };
                let behind = mode.behind(self.setting.spare_of(client));
                Verb::Release {
                    token,
                    fence,
                    last: behind.map(|behind| fence + behind),
                    mode: mode.mode(),
                }
            }
            SmallRequest::Force(_, fence) => Verb::Release {
                token,
                fence: self.keys.fence(fence),
                last: None,
                mode: Mode::Forced(Page::default()),
            },
            SmallRequest::Renew(_) => Verb::Renew {
                token,
                fence: 0,
                params: "".into(),
            },
            SmallRequest::Sync(_) => Verb::Sync { newest: token },
            SmallRequest::Lookup(_) => Verb::Lookup {
                tokens: vec![token],
            },
        };
        Call {
            spec: self.setting.spec(client),
            key: self.keys.key.clone(),
            verb,
        }
    }

    /// Whom the messages tell that others wait. Only processes that keep the lock care.
    fn wanted(&self, told: &[ToldOwner]) -> Result<Vec<SmallWanted>, String> {
        let told = told.iter().filter(|_| self.setting.keepers > 0);
        let wanted = told.map(|ToldOwner { channel, fence }| {
            let client = channel.strip_prefix(&format!("{PREFIX}:grants:c"));
            let client = client.and_then(|client| client.parse().ok());
            let fence = *fence;
            client
                .map(|client| SmallWanted { client, fence })
                .ok_or_else(|| format!("{channel:?} is nobody's"))
        });
        wanted.collect()
    }

    /// The messages that the script has published: grants, each on the channel of its waiter's
    /// process, and that an owner's lock is wanted.
    fn published(
        &self,
        call: &Call,
        messages: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<(Vec<Grant>, Vec<ToldOwner>), String> {
        let (mut grants, mut told) = (Vec::new(), Vec::new());
        for (channel, text) in messages {
            let text = String::from_utf8_lossy(text).into_owned();
            if let Some((_, fence)) = wanted_behind(PREFIX, &text) {
                told.push(ToldOwner {
                    channel: String::from_utf8_lossy(channel).into_owned(),
                    fence: self.keys.fence_mark(fence),
                });
                continue;
            }
            let (grant, _, _) = Grant::from_message(PREFIX, &text)
                .filter(|(_, key, family)| key.name == call.key.name && *family == call.spec.family)
                .ok_or_else(|| format!("the message {text:?} is not a grant of this name"))?;
            let to = small_token(grant.token);
            if *channel != format!("{PREFIX}:grants:c{}", to.client).into_bytes() {
                return Err(format!("the grant to {to:?} was sent to another process"));
            }
            grants.push(grant);
        }
        Ok((grants, told))
    }
}

/// All grants in a reply, its own first.
fn reported_grants(reply: &ScriptReply) -> Vec<Grant> {
    let own = match &reply.outcome {
        Outcome::Granted(grant) => Some(*grant),
        Outcome::Synced { owner, .. } => *owner,
        _ => None,
    };
    own.into_iter()
        .chain(reply.grants.iter().copied())
        .collect()
}

impl ScriptRunner {
    fn small_grants(&self, grants: &[Grant]) -> Vec<SmallGrant> {
        grants.iter().map(|grant| self.small_grant(grant)).collect()
    }

    fn small_grant(&self, grant: &Grant) -> SmallGrant {
        let to = small_token(grant.token);
        SmallGrant {
            to,
            fence: self.keys.fence_mark(grant.fence),
            left: ticks(grant.left),
            waits: self.setting.keeps(to.client) && grant.waiting == Some(true),
        }
    }

    fn small_reply(&self, call: &Call, outcome: Outcome) -> Result<SmallReply, String> {
        Ok(match outcome {
            Outcome::Granted(grant) => SmallReply::Granted(self.small_grant(&grant)),
            Outcome::Waiting { since, .. } => SmallReply::Waiting { since: mark(since) },
            Outcome::Late => SmallReply::Late,
            Outcome::Released => SmallReply::Released,
            Outcome::Already => SmallReply::Already,
            Outcome::Refused => SmallReply::Refused,
            Outcome::Lapsed | Outcome::Forced | Outcome::Lost | Outcome::Unknown => {
                SmallReply::NotOwner
            }
            Outcome::Renewed { left, waiting, .. } => SmallReply::Renewed {
                left: ticks(left),
                waits: self.setting.keepers > 0 && waiting,
            },
            Outcome::Gone { .. } => SmallReply::Gone,
            Outcome::Synced {
                owner,
                owner_waited_here,
                left,
                since,
                newest_known,
                ..
            } => SmallReply::Synced {
                owner: owner.as_ref().map(|owner| self.small_grant(owner)),
                ours: owner_waited_here,
                since: mark(since),
                known: newest_known,
                left: ticks(left),
            },
            Outcome::Absent => SmallReply::Absent,
            Outcome::Present {
                owner,
                since,
                waiting,
            } => match &call.verb {
                // A holder of permits has no `owner` here. Its grant is in the rest of the answer.
                Verb::Lookup { tokens } => SmallReply::Present {
                    waits: waiting == [true],
                    owns: owner.is_some_and(|owner| tokens.contains(&owner)),
                    since: mark(since),
                },
                _ => {
                    return Err("a request that is no lookup was answered like a lookup".to_owned());
                }
            },
            other => return Err(format!("no request here can be answered {other:?}")),
        })
    }
}

fn ticks(left: Duration) -> u8 {
    (left.as_micros() as u64 / TICK) as u8
}
