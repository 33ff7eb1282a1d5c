//! The server that runs the scripts, and how a record becomes keys and is read back.

use std::collections::HashMap;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::check;
use super::mutant::Mutant;
use super::shelf::{Answer, Ask, CLIENTS, Done, HORIZON, News, STEP, Said, Shelf, Stamp, TTL, Tok};
use crate::key::Key;
use crate::script::packed::{self, Queue, State};
use crate::script::{Call, Grant, Outcome, Terms, Token, Verb, Wish};
use crate::store::memory::keyspace::{Bytes, Keyspace};
use crate::store::memory::server::Server;

/// In µs.
const TICK: u64 = 1_000_000;
/// The server's time when a script runs, always the same: what the record holds is written relative to it.
const NOW: u64 = 1_000_000_000_000;
/// Fences and other marks that were made before now.
const MARKS: u64 = NOW - 1_000_000;
/// Served time before a script runs.
const SERVED: u64 = 1_000_000_000;
/// When keys end that are not to end, in s: more than a lease of any tick and the retention after.
const EXPIRES: u64 = NOW / 1_000_000 + 3_700;
const PREFIX: &str = "f";

/// Runs scripts, each once for the same record and request: nothing else decides what it does.
pub(super) struct Lab {
    server: Server,
    key: Key,
    terms: Vec<Terms>,
    memo: HashMap<(Shelf, Ask, bool), Result<Rc<Done>, String>>,
}

impl Lab {
    pub(super) fn new(mutant: Option<&Mutant>) -> Lab {
        let ticks = |n: u8| Duration::from_micros(TICK * u64::from(n));
        let terms = |client| {
            let mut terms = Terms::new(PREFIX, ticks(STEP), ticks(HORIZON));
            terms.manager = format!("c{client}");
            terms
        };
        Lab {
            server: Server::with_scripts(&|source| mutant.map_or_else(|| source.to_owned(), |m| m.alter(source))),
            key: Key::new(PREFIX, "n").expect("a name"),
            terms: (0..CLIENTS).map(terms).collect(),
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
            check::script(shelf, ask, late, &done)?;
            Ok(Rc::new(done))
        });
        self.memo.insert(key, done.clone());
        done
    }

    fn run_script(&mut self, shelf: &Shelf, ask: Ask, late: bool) -> Result<Done, String> {
        self.lay_out(shelf);
        let tok = ask.tok();
        let token = token(tok);
        let verb = match ask {
            Ask::Acquire(_) => Verb::Acquire {
                token,
                may_wait: true,
                asked: Arc::from(format!("{} 0 0 -", u64::from(TTL) * TICK / 1000)),
                sent_until: AtomicU64::new(0),
            },
            Ask::Release(_, fence, way) => {
                let fence = if fence == 0 { 0 } else { MARKS + u64::from(fence) };
                Verb::Release { token, fence, mode: way.mode() }
            }
            Ask::Renew(_) => Verb::Renew { token },
            Ask::Sync(_) => Verb::Sync { newest: token },
        };
        let call = Call { wish: Wish::MUTEX, key: self.key.clone(), verb };
        let terms = &self.terms[usize::from(tok.client)];
        // R5: sent in this tick, and given up before the next.
        let reply = self.server.put(NOW, &call, terms, if late { NOW - 1 } else { NOW + TICK / 2 })?;
        if reply.more {
            return Err("three clients are too few for more".to_owned());
        }
        let answer = Answer { said: said(reply.outcome)?, grants: reply.grants.iter().map(news).collect() };
        let mut told = Vec::new();
        for message in self.server.published() {
            let text = String::from_utf8_lossy(&message.text).into_owned();
            let (grant, _, _) = Grant::from_message(PREFIX, &text).ok_or_else(|| format!("a message {text:?}"))?;
            let news = news(&grant);
            if message.channel != format!("{PREFIX}:grants:c{}", news.to.client).into_bytes() {
                return Err(format!("the news for {:?} went to another process", news.to));
            }
            told.push(news);
        }
        let shelf = {
            let state = self.server.state();
            read(&state.keyspace, &self.key)?
        };
        Ok(Done { shelf, answer, news: told })
    }

    /// Makes the keys that hold this.
    fn lay_out(&mut self, shelf: &Shelf) {
        self.server.state().keyspace = Keyspace::default();
        if shelf.fence == 0 {
            return;
        }
        let ttl_ms = u64::from(TTL) * TICK / 1000;
        let mark = |mark: u32| MARKS + u64::from(mark);
        let mut fields: Vec<(String, Bytes)> = vec![("k".into(), "mutex/1".into())];
        let mut set = |name: &str, value: &str| fields.push((name.to_owned(), value.into()));
        let mut state = State {
            fence: mark(shelf.fence),
            ended: mark(shelf.ended),
            expires: EXPIRES as u32,
            previous: -1,
            how: 1,
            ..State::default()
        };
        if let Some(owner) = shelf.owner {
            set("o", &token(owner).simple());
            set("a", &format!("{} {NOW} c{} {ttl_ms} 0 0", u8::from(shelf.waited), owner.client));
            set("l", "-");
            (state.granted, state.end) = (NOW, NOW + u64::from(shelf.left) * TICK);
            state.ttl = ttl_ms as u32;
        }
        if shelf.graced {
            set("u", &mark(shelf.fence).to_string());
        }
        for (tok, ticket) in &shelf.waiters {
            set(
                &format!("w:{}", token(*tok).simple()),
                &format!("{} {NOW} c{} {ttl_ms} 0 0 -", 100 + u64::from(*ticket), tok.client),
            );
        }
        fields.push(("s".to_owned(), state.pack()));
        if !shelf.queue.is_empty() || !shelf.stamps.is_empty() {
            let queue = Queue {
                entries: shelf.queue.len() as u32,
                waiters: shelf.waiters.len() as u32,
                looked: NOW - u64::from(shelf.idle) * TICK,
                served: SERVED,
                given: 100 + u64::from(shelf.tickets),
                taken: 100,
                expires: EXPIRES as u32,
            };
            fields.push(("q".to_owned(), queue.pack()));
        }
        for stamp in &shelf.stamps {
            let until = (SERVED as i64 + i64::from(stamp.ahead) * TICK as i64) as u64;
            let packed = packed::Stamp { until, since: mark(stamp.since) }.pack();
            fields.push((format!("m:c{}", stamp.client), packed));
        }
        let expires = (EXPIRES * 1000).to_string();
        let record = self.key.record().to_owned();
        let queue = self.key.queue().to_owned();
        let mut words: Vec<Bytes> = vec!["HSET".into(), record.clone().into()];
        words.extend(fields.into_iter().flat_map(|(field, value)| [field.into_bytes(), value]));
        self.command(words);
        self.command(vec!["PEXPIREAT".into(), record.into(), expires.clone().into()]);
        if !shelf.queue.is_empty() {
            let mut words: Vec<Bytes> = vec!["RPUSH".into(), queue.clone().into()];
            words.extend(shelf.queue.iter().map(|tok| token(*tok).simple().into_bytes()));
            self.command(words);
            self.command(vec!["PEXPIREAT".into(), queue.into(), expires.into()]);
        }
    }

    fn command(&mut self, words: Vec<Bytes>) {
        self.server.run(NOW, &words).expect("a command that the store knows, on a key of its type");
    }
}

fn token(tok: Tok) -> Token {
    Token::numbered(u16::from(tok.client) << 8 | u16::from(tok.number))
}

fn tok(token: Token) -> Tok {
    Tok { client: (token.number() >> 8) as u8, number: token.number() as u8 }
}

fn news(grant: &Grant) -> News {
    News { to: tok(grant.token), fence: mark(grant.fence), left: ticks(grant.left) }
}

fn ticks(left: Duration) -> u8 {
    (left.as_micros() as u64 / TICK) as u8
}

fn mark(number: u64) -> u32 {
    u32::try_from(number.saturating_sub(MARKS)).unwrap_or(u32::MAX)
}

fn said(outcome: Outcome) -> Result<Said, String> {
    Ok(match outcome {
        Outcome::Granted(grant) => Said::Granted(news(&grant)),
        Outcome::Waiting { since, .. } => Said::Waiting { since: mark(since) },
        Outcome::Late => Said::Late,
        Outcome::Released => Said::Released,
        Outcome::Already => Said::Already,
        Outcome::Lapsed | Outcome::Lost | Outcome::Unknown => Said::NotOwner,
        Outcome::Renewed { left, .. } => Said::Renewed { left: ticks(left) },
        Outcome::Gone { .. } => Said::Gone,
        Outcome::Synced { owner, owner_waited_here, left, since, newest_known, .. } => Said::Synced {
            owner: owner.as_ref().map(news),
            ours: owner_waited_here,
            since: mark(since),
            known: newest_known,
            left: ticks(left),
        },
        Outcome::Absent => Said::Absent,
        other => return Err(format!("an answer that cannot be: {other:?}")),
    })
}

/// Reads what a script left. What this model has no place for is an error, so that it is kept up with the scripts.
fn read(keyspace: &Keyspace, key: &Key) -> Result<Shelf, String> {
    let mut shelf = Shelf::default();
    let Some((fields, expires)) = keyspace.hash_of(key.record()) else {
        return if keyspace.list_of(key.queue()).is_none() {
            Ok(shelf)
        } else {
            Err("a queue without a record".into())
        };
    };
    if expires.is_none() {
        return Err("a record that does not expire".to_owned());
    }
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let field = |name: &str| fields.get(name.as_bytes()).map(text);
    let state = fields.get(&b"s"[..]).map(|packed| State::unpack(packed).ok_or("a state that is too short"));
    let queue = fields.get(&b"q"[..]).map(|packed| Queue::unpack(packed).ok_or("a queue's state that is too short"));
    let (state, queue) = (state.transpose()?.unwrap_or_default(), queue.transpose()?.unwrap_or_default());
    let of_token = |text: &str| Token::parse(text).map(tok).ok_or_else(|| format!("a token {text:?}"));
    if let Some(owner) = field("o") {
        let owner = of_token(&owner)?;
        let request = field("a").unwrap_or_default();
        if request.split(' ').nth(2) != Some(&format!("c{}", owner.client)) {
            return Err(format!("the owner is {owner:?}, and the request is {request:?}"));
        }
        shelf.owner = Some(owner);
        shelf.waited = !request.starts_with("0 ");
        shelf.left = (state.end.saturating_sub(NOW) / TICK) as u8;
    } else if state.end > 0 {
        return Err("an end without an owner, and nobody asked to hold at least".to_owned());
    }
    (shelf.fence, shelf.ended) = (mark(state.fence), mark(state.ended));
    shelf.graced = field("u").is_some_and(|graced| graced == state.fence.to_string());
    let taken = queue.taken;
    shelf.tickets = queue.given.saturating_sub(taken) as u8;
    shelf.idle = ((NOW - queue.looked.clamp(NOW - u64::from(STEP + 1) * TICK, NOW)) / TICK) as u8;
    for (name, value) in fields {
        let name = text(name);
        match name.split_once(':') {
            Some(("w", token)) => {
                let ticket = parse::<u64>(text(value).split(' ').next().unwrap_or_default())?;
                shelf.waiters.push((of_token(token)?, ticket.saturating_sub(taken) as u8));
            }
            Some(("m", manager)) => {
                let client = parse(manager.trim_start_matches('c'))?;
                let stamp = packed::Stamp::unpack(value).ok_or_else(|| format!("a stamp {value:?}"))?;
                let ahead = stamp.until as i64 - queue.served as i64;
                let ahead = if ahead < 0 { -1 } else { (ahead / TICK as i64) as i8 };
                shelf.stamps.push(Stamp { client, ahead, since: mark(stamp.since) });
            }
            _ if "k o a l s q u c".split(' ').any(|known| known == name) => {}
            _ => return Err(format!("a field {name:?} that this model does not know")),
        }
    }
    shelf.waiters.sort();
    shelf.stamps.sort();
    if let Some((list, expires)) = keyspace.list_of(key.queue()) {
        if expires.is_none() {
            return Err("a queue that does not expire".to_owned());
        }
        shelf.queue = list.iter().map(|token| of_token(&text(token))).collect::<Result<_, _>>()?;
    }
    if (queue.entries as usize, queue.waiters as usize) != (shelf.queue.len(), shelf.waiters.len()) {
        return Err(format!("the record counts {} and {} in {shelf:?}", queue.entries, queue.waiters));
    }
    if let Some((lost, _)) = shelf.waiters.iter().find(|(tok, _)| !shelf.queue.contains(tok)) {
        return Err(format!("{lost:?} waits and does not stand in the queue"));
    }
    if shelf.queue.is_empty() {
        // An acquire begins with these anew.
        shelf.tickets = 0;
        if shelf.stamps.is_empty() {
            shelf.idle = 0;
        }
    }
    Ok(shelf)
}

fn parse<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} for a number"))
}
