//! How the leases of a name are ended, as if their holders had been silent for too long.

use std::time::Duration;

use super::keyspace::Bytes;
use super::memory_server::{MemoryServer, deliver};
use super::server::{ScriptServer, bytes_of, words_of};
use super::server_state::PublishedMessage;
use crate::key::Key;
use crate::script::{
    self, Call, CallerId, Family, Form, LockSpec, Mode, Outcome, Token, Verb, packed,
};

/// Ends the leases of a name in all prefixes. Returns whether there was one.
pub(super) fn lapse(memory: &MemoryServer, name: &str) -> bool {
    // The key of a record is the prefix and this.
    let Ok(without_prefix) = Key::new("", name) else {
        return false;
    };
    let ending = without_prefix.record();
    let mut state = memory.state.lock();
    let now = memory.server_time(memory.clock.now());
    let mut has_ended = false;
    let mut messages = Vec::new();
    for record in records(&state.server, ending, now) {
        let Some((family, commands)) = ending_commands(&state.server, &record, now) else {
            continue;
        };
        for command in commands {
            let _ = state.server.run(now, &command);
        }
        let prefix = &record[..record.len() - ending.len()];
        if let Ok(key) = Key::new(prefix, name) {
            let caller_id = CallerId::new(prefix, Duration::ZERO, Duration::ZERO);
            has_ended |= notice(
                &mut state.server,
                now,
                &call(family, key),
                &caller_id,
                &mut messages,
            );
        }
    }
    deliver(state, messages);
    has_ended
}

/// The keys of the records that end in this.
fn records(server: &ScriptServer, ending: &str, now: u64) -> Vec<String> {
    let state = server.state();
    let keys = state.keyspace.hashes((now / 1000) as i64);
    keys.filter_map(|key| String::from_utf8(key.clone()).ok())
        .filter(|key| key.ends_with(ending))
        .collect()
}

/// The release of a token that owns nothing: it notices a lapse and does nothing else.
fn call(family: Family, key: Key) -> Call {
    Call {
        spec: LockSpec::any(family),
        key,
        verb: Verb::Release {
            token: Token::new(),
            fence: 0,
            last: None,
            mode: Mode::Unused,
        },
    }
}

/// Runs the call until the script has nothing left to do. Returns whether the record is of this
/// family.
fn notice(
    server: &mut ScriptServer,
    now: u64,
    call: &Call,
    caller_id: &CallerId,
    messages: &mut Vec<PublishedMessage>,
) -> bool {
    let command = words_of(&call.command(caller_id, Form::default(), 0));
    let mut has_ended = false;
    loop {
        let result = server.run(now, &command);
        messages.append(&mut server.published());
        let reply = result.map(|value| script::ScriptReply::parse(call, &value));
        let Ok(Ok(reply)) = reply else {
            return has_ended;
        };
        has_ended |= !matches!(reply.outcome, Outcome::Kind(_));
        if !reply.more && !is_looking(server, call) {
            return has_ended;
        }
    }
}

/// Whether scripts have begun to look for lapsed holders of permits, and have not seen all of them.
fn is_looking(server: &ScriptServer, call: &Call) -> bool {
    let state = server.state();
    state
        .keyspace
        .hash_of(&call.key.holders())
        .and_then(|(holders, _)| holders.get(&b"p"[..]))
        .is_some_and(|state| packed::is_looking(state))
}

/// The commands after which all leases of a record are over, and have had their one time of grace;
/// `None` if nothing is held.
fn ending_commands(
    server: &ScriptServer,
    record: &str,
    now: u64,
) -> Option<(Family, Vec<Vec<Bytes>>)> {
    let all = server.state();
    let (fields, _) = all.keyspace.hash_of(record)?;
    if let Some(state) = fields.get(&b"s"[..]) {
        // The field `u` with the holder's fence says that the grace is used up.
        fields.get(&b"o"[..])?;
        let held = packed::PackedState::unpack(state)?;
        let mut words = bytes_of(&["HSET", record, "u", &held.fence.to_string(), "s"]);
        words.push(
            packed::PackedState {
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
        if token == b"p" {
            continue;
        }
        if let Some(holder) = packed::end_lease(holder, now) {
            words.extend([token.clone(), holder]);
        }
    }
    if words.len() == 2 {
        return None;
    }
    words.push(b"p".to_vec());
    words.push(packed::begin_look(holders.get(&b"p"[..])?, now)?);
    Some((Family::Permit, vec![words]))
}
