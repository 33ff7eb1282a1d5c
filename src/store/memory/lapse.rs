//! How the leases of a name are ended, as if their holders had been silent for too long.

use std::time::Duration;

use super::keyspace::Bytes;
use super::server::Server;
use super::{World, bytes_of, words_of};
use crate::key::Key;
use crate::script::{
    self, Call, CallerId, Family, Form, LockSpec, Mode, Outcome, Token, Verb, packed,
};

/// Whether there was one. In all prefixes.
pub(super) fn lapse(world: &World, name: &str) -> bool {
    // Without a prefix, what remains of a record's key is its end.
    let Ok(any) = Key::new("", name) else {
        return false;
    };
    let mut state = world.state.lock();
    let now = world.server_time(world.clock.now());
    let records: Vec<String> = {
        let all = state.server.state();
        let keys = all.keyspace.hashes((now / 1000) as i64);
        keys.filter_map(|key| String::from_utf8(key.clone()).ok())
            .filter(|key| key.ends_with(any.record()))
            .collect()
    };
    let mut ended = false;
    let mut messages = Vec::new();
    for record in records {
        let Some((family, end)) = over(&state.server, &record, now) else {
            continue;
        };
        for words in end {
            let _ = state.server.run(now, &words);
        }
        // The release of a token that is nobody's is what notices a lapse and does nothing else.
        let prefix = &record[..record.len() - any.record().len()];
        let Ok(key) = Key::new(prefix, name) else {
            continue;
        };
        let verb = Verb::Release {
            token: Token::new(),
            fence: 0,
            mode: Mode::Unused,
        };
        let call = Call {
            spec: LockSpec::any(family),
            key,
            verb,
        };
        let caller_id = CallerId::new(prefix, Duration::ZERO, Duration::ZERO);
        let command = words_of(&call.command(&caller_id, Form::default(), 0));
        loop {
            let answer = state
                .server
                .run(now, &command)
                .map(|value| script::Reply::parse(&call, &value));
            messages.append(&mut state.server.published());
            let Ok(Ok(answer)) = answer else { break };
            ended |= !matches!(answer.outcome, Outcome::Kind(_));
            if !answer.more {
                break;
            }
        }
    }
    world.deliver(state, messages);
    ended
}

/// The commands after which the time of all who hold this is over, and they have had their one time of grace; `None` if
/// nobody does.
fn over(server: &Server, record: &str, now: u64) -> Option<(Family, Vec<Vec<Bytes>>)> {
    let all = server.state();
    let (fields, _) = all.keyspace.hash_of(record)?;
    if let Some(state) = fields.get(&b"s"[..]) {
        // With `u` at its fence.
        fields.get(&b"o"[..])?;
        let held = packed::State::unpack(state)?;
        let mut words = bytes_of(&["HSET", record, "u", &held.fence.to_string(), "s"]);
        words.push(
            packed::State {
                lease_end: now,
                ..held
            }
            .pack(),
        );
        return Some((Family::Mutex, vec![words]));
    }
    let held = format!("{record}:h");
    let (holders, _) = all.keyspace.hash_of(&held)?;
    let mut words = bytes_of(&["HSET", &held]);
    for (token, holder) in holders {
        words.extend(
            packed::end_lease(holder, now)
                .map(|holder| [token.clone(), holder])
                .into_iter()
                .flatten(),
        );
    }
    if words.len() == 2 {
        return None;
    }
    let mut look = bytes_of(&["HSET", record, "p"]);
    look.push(packed::set_next_lapse(fields.get(&b"p"[..])?, now)?);
    Some((Family::Permit, vec![words, look]))
}
