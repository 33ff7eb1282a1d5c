//! The server that runs the scripts, and what they answer.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::check;
use super::record::{NOW, Record, TICK, TTL_MS, fence, mark, tok, token};
use super::setting::Setting;
use super::shelf::{Answer, Ask, CLIENTS, Done, HORIZON, News, STEP, Said, Shelf};
use crate::key::Key;
use crate::script::{Call, CallerId, Grant, Outcome, Verb};
use crate::sim::mutation::{ScriptMutation, server_with};
use crate::store::memory::server::Server;

const PREFIX: &str = "f";

/// Runs scripts, each once for the same record and request: nothing else decides what it does.
pub(super) struct Lab {
    server: Server,
    setting: Setting,
    record: Record,
    caller_id: Vec<CallerId>,
    memo: HashMap<(Shelf, Ask, bool), Result<Rc<Done>, String>>,
}

impl Lab {
    pub(super) fn new(setting: Setting, mutation: Option<&ScriptMutation>) -> Lab {
        let ticks = |n: u8| Duration::from_micros(TICK * u64::from(n));
        let caller_id = |client| {
            let mut caller_id = CallerId::new(PREFIX, ticks(STEP), ticks(HORIZON));
            caller_id.manager = format!("c{client}");
            caller_id
        };
        Lab {
            server: server_with(mutation.copied().as_slice()),
            setting,
            record: Record {
                setting,
                key: Key::new(PREFIX, "n").expect("a name"),
            },
            caller_id: (0..CLIENTS).map(caller_id).collect(),
            memo: HashMap::new(),
        }
    }

    /// How many script calls differed from each other.
    pub(super) fn runs(&self) -> usize {
        self.memo.len()
    }

    /// `late`: the server's time is past the request's `not_after`. The error says what the script broke.
    pub(super) fn run(&mut self, shelf: &Shelf, ask: Ask, late: bool) -> Result<Rc<Done>, String> {
        let key = (shelf.clone(), ask, late);
        if let Some(known) = self.memo.get(&key) {
            return known.clone();
        }
        let done = self.run_script(shelf, ask, late).and_then(|done| {
            check::script(&self.setting, shelf, ask, late, &done)?;
            Ok(Rc::new(done))
        });
        self.memo.insert(key, done.clone());
        done
    }

    fn run_script(&mut self, shelf: &Shelf, ask: Ask, late: bool) -> Result<Done, String> {
        self.record.lay_out(&mut self.server, shelf);
        let client = ask.tok().client;
        let token = token(ask.tok());
        let verb = match ask {
            Ask::Acquire(_) => Verb::Acquire {
                token,
                may_wait: true,
                params: Arc::from(self.setting.terms(client, TTL_MS) + " -"),
            },
            Ask::Release(_, given, way) => {
                let fence = if given == 0 { 0 } else { fence(given) };
                Verb::Release {
                    token,
                    fence,
                    mode: way.mode(),
                }
            }
            Ask::Renew(_) => Verb::Renew { token },
            Ask::Sync(_) => Verb::Sync { newest: token },
            Ask::Lookup(_) => Verb::Lookup {
                tokens: vec![token],
            },
        };
        let call = Call {
            spec: self.setting.spec(client),
            key: self.record.key.clone(),
            verb,
        };
        let caller_id = &self.caller_id[usize::from(client)];
        // R5: sent in this tick, and given up before the next.
        let reply = self.server.put(
            NOW,
            &call,
            caller_id,
            if late { NOW - 1 } else { NOW + TICK / 2 },
        )?;
        if reply.more {
            return Err("three clients are too few for more".to_owned());
        }
        let own = match &reply.outcome {
            Outcome::Granted(grant) => Some(grant),
            Outcome::Synced { owner, .. } => owner.as_ref(),
            _ => None,
        };
        let previous = |grant: &Grant| (tok(grant.token), grant.previous);
        let mut all_previous: Vec<_> = own.into_iter().chain(&reply.grants).map(previous).collect();
        let answer = Answer {
            said: said(&call, reply.outcome)?,
            grants: reply.grants.iter().map(news).collect(),
        };
        let mut told = Vec::new();
        for message in self.server.published() {
            let text = String::from_utf8_lossy(&message.text).into_owned();
            let (grant, _, _) = Grant::from_message(PREFIX, &text)
                .filter(|(_, key, family)| key.name == call.key.name && *family == call.spec.family)
                .ok_or_else(|| format!("a message {text:?}"))?;
            let news = news(&grant);
            if message.channel != format!("{PREFIX}:grants:c{}", news.to.client).into_bytes() {
                return Err(format!(
                    "the news for {:?} went to another process",
                    news.to
                ));
            }
            told.push(news);
            all_previous.push(previous(&grant));
        }
        let (shelf, ended) = self.record.read(&self.server.state().keyspace)?;
        Ok(Done {
            shelf,
            answer,
            news: told,
            ended,
            previous: all_previous,
        })
    }
}

fn news(grant: &Grant) -> News {
    News {
        to: tok(grant.token),
        fence: mark(grant.fence),
        left: ticks(grant.left),
    }
}

fn ticks(left: Duration) -> u8 {
    (left.as_micros() as u64 / TICK) as u8
}

fn said(call: &Call, outcome: Outcome) -> Result<Said, String> {
    Ok(match outcome {
        Outcome::Granted(grant) => Said::Granted(news(&grant)),
        Outcome::Waiting { since, .. } => Said::Waiting { since: mark(since) },
        Outcome::Late => Said::Late,
        Outcome::Released => Said::Released,
        Outcome::Already => Said::Already,
        Outcome::Lapsed | Outcome::Lost | Outcome::Unknown => Said::NotOwner,
        Outcome::Renewed { left, .. } => Said::Renewed { left: ticks(left) },
        Outcome::Gone { .. } => Said::Gone,
        Outcome::Synced {
            owner,
            owner_waited_here,
            left,
            since,
            newest_known,
            ..
        } => Said::Synced {
            owner: owner.as_ref().map(news),
            ours: owner_waited_here,
            since: mark(since),
            known: newest_known,
            left: ticks(left),
        },
        Outcome::Absent => Said::Absent,
        Outcome::Present {
            owner,
            since,
            waiting,
        } => match &call.verb {
            // Who has permits is not gone, and the answer has its grant besides.
            Verb::Lookup { tokens } => Said::Present {
                waits: waiting == [true],
                owns: owner.is_some_and(|owner| tokens.contains(&owner)),
                since: mark(since),
            },
            _ => return Err("the answer to a lookup that was none".to_owned()),
        },
        other => return Err(format!("an answer that cannot be: {other:?}")),
    })
}
