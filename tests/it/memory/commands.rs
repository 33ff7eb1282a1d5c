//! Compares each command, and what scripts do with it, with a real server: random commands, and the
//! edge cases of scripts. Any difference between the two would be a difference between a user's
//! tests and their Redis.

use std::{cell::RefCell, fs, iter, path::Path, time::SystemTime};

use fairlock::memory::Memory;
use fairlock_tests::ROOT;
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};
use redis::Value;

use crate::reply::{Commands, Reply};
use crate::support::{Server, is_redis_7, until};

#[test]
fn every_command_of_the_scripts_is_known() {
    let scripts = Path::new(ROOT).join("src/script");
    let mut commands = Vec::new();
    for file in fs::read_dir(scripts).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|e| e == "lua") {
            let text = fs::read_to_string(path).unwrap();
            for opening in ["redis.call(", "redis.pcall(", "many("] {
                let calls = text
                    .split(opening)
                    .skip(1)
                    .filter_map(|rest| rest.strip_prefix('\''));
                commands.extend(calls.map(|rest| rest.split('\'').next().unwrap().to_owned()));
            }
            // Every call must be one of those just collected. Otherwise this test would miss a
            // command.
            assert_eq!(
                text.matches("call(").count(),
                text.matches("call('").count() + text.matches("call(command").count()
            );
        }
    }
    commands.sort();
    commands.dedup();
    assert!(
        commands.len() > 10 && commands.contains(&"RPUSH".to_owned()),
        "{commands:?}"
    );
    let memory = Memory::new();
    assert!(is_unknown(&memory.command(&["SETRANGE"])));
    for command in commands {
        let in_script = memory.command(&["EVAL", "return redis.call(ARGV[1])", "0", &command]);
        assert!(
            !is_unknown(&in_script),
            "scripts use {command}, and the store does not implement it"
        );
        assert!(!is_unknown(&memory.command(&[&command])), "{command}");
    }
}

fn is_unknown(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text.to_lowercase().contains("unknown"))
}

#[test]
fn random_commands_answer_as_on_redis() {
    let server = Server::start();
    let config = Config {
        cases: 400,
        failure_persistence: None,
        ..Config::default()
    };
    let round = RefCell::new(0);
    TestRunner::new(config)
        .run(&vec(command(), 1..40), |commands| {
            // Each case has its own keys, also while proptest shrinks it.
            *round.borrow_mut() += 1;
            let round = round.borrow();
            let memory = Memory::new();
            for command in &commands {
                // These commands compare the stored state, which the reply alone does not show.
                let looks = ["PTTL", "HGETALL", "LRANGE"].map(|name| command.look(name));
                for command in iter::once(command).chain(looks.iter().flatten()) {
                    let words = command.words(&round);
                    let words: Vec<&str> = words.iter().map(String::as_str).collect();
                    let theirs = on_redis(&server, &words);
                    let ours = memory.command(&words);
                    let theirs = in_our_words(theirs, &ours);
                    prop_assert_eq!(
                        comparable(command, ours),
                        comparable(command, theirs),
                        "{:?}",
                        words
                    );
                }
            }
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
}

/// How a command is sent: by itself, or by a script.
#[derive(Debug, Clone)]
struct Command {
    by: Option<&'static str>,
    name: &'static str,
    keys: Vec<usize>,
    args: Vec<String>,
}

impl Command {
    /// Reads the first of its keys.
    fn look(&self, name: &'static str) -> Option<Command> {
        let args = if name == "LRANGE" {
            vec!["0".to_owned(), "-1".to_owned()]
        } else {
            Vec::new()
        };
        self.keys.first().map(|key| Command {
            by: None,
            name,
            keys: vec![*key],
            args,
        })
    }

    fn words(&self, round: &u64) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(by) = self.by {
            words.extend([
                "EVAL".to_owned(),
                format!("return redis.{by}(unpack(ARGV))"),
                "0".to_owned(),
            ]);
        }
        words.push(self.name.to_owned());
        words.extend(self.keys.iter().map(|key| format!("{round}:{key}")));
        words.extend(self.args.iter().cloned());
        words
    }
}

fn command() -> impl Strategy<Value = Command> {
    const NAMES: &[&str] = &[
        "HGET",
        "HMGET",
        "HGETALL",
        "HKEYS",
        "HEXISTS",
        "HLEN",
        "HSET",
        "HSET",
        "HDEL",
        "LLEN",
        "LINDEX",
        "LRANGE",
        "LPOP",
        "RPOP",
        "RPUSH",
        "RPUSH",
        "DEL",
        "UNLINK",
        "PEXPIREAT",
        "hget",
        "Publish",
    ];
    // These texts serve as fields, elements, indexes and counts alike, so every command also meets
    // invalid arguments.
    const TEXTS: &[&str] = &[
        "a",
        "b",
        "c",
        "",
        "0",
        "1",
        "2",
        "-1",
        "-2",
        "7",
        "-9",
        "01",
        "+1",
        " 1",
        "1.5",
        "9223372036854775807",
        "1e3",
    ];
    let by = select(vec![None, Some("call"), Some("pcall")]);
    // Two far futures, besides the past. The present has a test of its own.
    let texts =
        select([TEXTS, &["99999999999999", "88888888888888"]].concat()).prop_map(str::to_owned);
    (
        by,
        select(NAMES),
        vec(0..2_usize, 1..=2),
        vec(texts, 0..5),
        0..10,
    )
        .prop_map(|(by, name, mut keys, mut args, few)| {
            if !matches!(name, "DEL" | "UNLINK") {
                keys.truncate(1);
            }
            if few == 0 {
                keys = Vec::new();
                args = Vec::new();
            }
            Command {
                by,
                name,
                keys,
                args,
            }
        })
}

/// Removes what two servers may disagree on: the order of a hash's fields, and the time of the
/// request.
fn comparable(command: &Command, reply: Reply) -> Reply {
    let mut items = match reply {
        Reply::List(items) => items,
        Reply::Int(left) if command.name == "PTTL" => return Reply::Int(left / 1_000_000_000),
        other => return other,
    };
    match command.name {
        "HKEYS" => items.sort_by_key(|item| format!("{item:?}")),
        "HGETALL" => {
            let mut pairs: Vec<_> = items.chunks(2).map(<[Reply]>::to_vec).collect();
            pairs.sort_by_key(|pair| format!("{pair:?}"));
            items = pairs.concat();
        }
        _ => {}
    }
    Reply::List(items)
}

#[test]
fn scripts_answer_as_on_redis() {
    const SCRIPTS: &[&str] = &[
        "return 1",
        "return 3.99",
        "return -3.99",
        "return 9007199254740992",
        "return 'text'",
        "return true",
        "return false",
        "return nil",
        "return {1, 2.5, 'three', true, false, {4, {}}}",
        "return {1, nil, 3}",
        "return {ok = 'FINE'}",
        "return {err = 'MINE of my own'}",
        "return {n = 1}",
        "return {}",
        "return function() end",
        "return #KEYS + 10 * #ARGV",
        "return KEYS",
        "return ARGV[2]",
        "return ARGV[3]",
        "return type(redis.call('HGET', KEYS[1], 'none'))",
        "return redis.call('HGET', KEYS[1], 'none') == false",
        "return type(redis.call('LINDEX', KEYS[1] .. 'l', 9))",
        "return type(redis.call('LPOP', 'none', 3))",
        "return type(redis.call('HSET', KEYS[1], 'a', 1))",
        "return redis.call('HMGET', KEYS[1], 'a', 'none', 'a')",
        "return #redis.call('HMGET', KEYS[1], 'none', 'none')",
        "return redis.call('HSET', KEYS[1], 'n', 1763735763123456)",
        "return redis.call('HGET', KEYS[1], 'n')",
        "return redis.call('HSET', KEYS[1], 'n', -7)",
        "return redis.call('HGET', KEYS[1], 'n') + 1",
        "return 1763735763123456 .. ''",
        "return string.format('%.0f', 1763735763123456)",
        "return tostring(redis.call('TIME')[1] + 0 > 1700000000) .. type(redis.call('TIME')[2])",
        "return redis.call('RPUSH', KEYS[1], 'x')",
        "return redis.pcall('RPUSH', KEYS[1], 'x')",
        "return redis.pcall('RPUSH', KEYS[1], 'x').err",
        "return type(redis.pcall('RPUSH', KEYS[1], 'x'))",
        "\n\nlocal x = 1\nreturn redis.call('LLEN', KEYS[1])",
        "redis.call('HSET', KEYS[1], 'kept', 'yes') redis.call('LLEN', KEYS[1])",
        "return redis.call('HGET', KEYS[1], 'kept')",
        "return redis.call('NOSUCH', 'x')",
        "return redis.pcall('NOSUCH', 'x').err",
        "return redis.call('HGET', 'x')",
        "return redis.call('HSET', 'x', 'a', 'b', 'c')",
        "return redis.call('DEL')",
        "return redis.call()",
        "return redis.call({})",
        "return redis.call('HGET', KEYS[1], nil)",
        "return redis.call('HGET', KEYS[1], true)",
        "return nosuch",
        "nosuch = 1",
        "local t = nil return t.x",
        "return 1 + 'x'",
        "error('mine')",
        "this is no script",
        "return tostring(pcall(redis.call, 'LLEN', KEYS[1]))",
        "return select('#', unpack(redis.call('HMGET', KEYS[1], 'a', 'b', 'c')))",
        "return #{unpack({}, 1, 1000)}",
        "return redis.call('PUBLISH', 'nobody', 'hears')",
        "local a = {} for i = 1, 3000 do a[i] = i end return redis.call('RPUSH', KEYS[1] .. 'l', unpack(a))",
        "return redis.call('LRANGE', KEYS[1] .. 'l', -2, -1)",
        "return redis.call('LPOP', KEYS[1] .. 'l', 2)",
        "return redis.call('DEL', KEYS[1] .. 'l', KEYS[1])",
        "return redis.call('PEXPIREAT', KEYS[1], 99999999999999)",
        "return math.max(1, 2) + math.floor(2.7)",
        "return table.concat({1, 2, 3}, ',')",
        "return string.match('12 abc', '^(%d+) (.*)$')",
        "return {string.match('12 abc', '^(%d+) (.*)$')}",
    ];
    let server = Server::start();
    let memory = Memory::new();
    let mut wrong = Vec::new();
    for script in SCRIPTS {
        let words = ["EVAL", script, "1", "key", "one", "two"];
        let theirs = on_redis(&server, &words);
        let ours = memory.command(&words);
        if ours != in_our_words(theirs.clone(), &ours) {
            wrong.push(format!(
                "{script}\n    on Redis:  {theirs:?}\n    in memory: {ours:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_script_leaves_nothing_behind_but_keys() {
    let memory = Memory::new();
    let eval = |script: &str| memory.command(&["EVAL", script, "0"]);
    for leave in [
        "string.x = 1",
        "redis.x = 1",
        "x = 1",
        "tostring = 1",
        "rawset(string, 'x', 1)",
        "rawset(_G, 'x', 1)",
        "getmetatable('').__index.x = 1",
        "setfenv(1, {})",
        "math.x = 1",
        "KEYS.x = 1",
    ] {
        eval(leave);
        for look in [
            "return string.x",
            "return redis.x",
            "return math.x",
            "return x",
            "return ('').x",
            "return KEYS.x",
        ] {
            assert!(
                matches!(eval(look), Reply::Nil | Reply::Error(_)),
                "{leave} was seen by {look}"
            );
        }
        assert_eq!(
            eval("return tostring(1)"),
            Reply::Text("1".to_owned()),
            "{leave}"
        );
    }
}

#[test]
fn scripts_run_by_their_digest_once_known() {
    let server = Server::start();
    let memory = Memory::new();
    let source = "return {KEYS[1], ARGV[1]}";
    let sha = redis::Script::new(source).get_hash().to_owned();
    for words in [
        ["EVALSHA", &sha, "1", "k", "a"],
        ["EVAL", source, "1", "k", "a"],
        ["EVALSHA", &sha, "1", "k", "b"],
        ["EVALSHA", &sha, "2", "k", "b"],
        ["EVALSHA", &sha, "3", "k", "b"],
        ["EVALSHA", &sha, "x", "k", "b"],
    ] {
        let ours = memory.command(&words);
        let theirs = in_our_words(on_redis(&server, &words), &ours);
        assert_eq!(ours, theirs, "{words:?}");
    }
}

#[test]
fn a_key_is_gone_when_its_ttl_ends() {
    let server = Server::start();
    let memory = Memory::new();
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_millis();
    let soon = (now + 1000).to_string();
    let both = |words: &[&str]| {
        let ours = memory.command(words);
        let theirs = in_our_words(on_redis(&server, words), &ours);
        assert_eq!(ours, theirs, "{words:?}");
        ours
    };
    for key in ["hash", "again"] {
        both(&["HSET", key, "a", "1"]);
        both(&["PEXPIREAT", key, &soon]);
    }
    both(&["RPUSH", "list", "a"]);
    both(&["PEXPIREAT", "list", &soon]);
    // A later expiry replaces an earlier one.
    both(&["RPUSH", "later", "a"]);
    both(&["PEXPIREAT", "later", &soon]);
    both(&["PEXPIREAT", "later", "99999999999999"]);
    // Adding to a key keeps its expiry; a new key has none.
    both(&["HSET", "hash", "b", "2"]);
    both(&["DEL", "again"]);
    both(&["HSET", "again", "c", "3"]);
    // An expiry in the past.
    both(&["RPUSH", "past", "a"]);
    assert_eq!(both(&["PEXPIREAT", "past", "1"]), Reply::Int(1));
    both(&["LLEN", "past"]);
    let gone = |reply: Reply| reply == Reply::Int(0);
    until(crate::support::SLACK, "the real server's time", || {
        gone(on_redis(&server, &["HEXISTS", "hash", "a"]))
    });
    until(crate::support::SLACK, "ours", || {
        gone(memory.command(&["HEXISTS", "hash", "a"]))
    });
    for words in [
        ["HGETALL", "hash"],
        ["LLEN", "list"],
        ["HGETALL", "again"],
        ["DEL", "list"],
        ["DEL", "again"],
    ] {
        both(&words);
    }
    assert_eq!(both(&["LLEN", "later"]), Reply::Int(1));
}

fn on_redis(server: &Server, words: &[&str]) -> Reply {
    match server.try_query::<Value>(words) {
        Ok(value) => reply_of(value),
        Err(error) => {
            let code = error
                .code()
                .unwrap_or_else(|| panic!("{words:?} failed in an unexpected way: {error}"));
            Reply::Error(format!("{code} {}", error.detail().unwrap_or_default()))
        }
    }
}

/// The in-memory store words its errors as Redis 7 does. 6.2 and Valkey word some of them in other
/// ways; there it is enough that both refuse, and that a code other than ERR is in the text.
fn in_our_words(theirs: Reply, ours: &Reply) -> Reply {
    let (Reply::Error(text) | Reply::Text(text), Reply::Error(own) | Reply::Text(own)) =
        (&theirs, ours)
    else {
        return theirs;
    };
    let code = own.split(' ').next().unwrap_or_default();
    // A script may have caught the error, and returned its text.
    let both_refuse = match ours {
        Reply::Error(_) => matches!(theirs, Reply::Error(_)),
        _ => code == "ERR" && matches!(theirs, Reply::Text(_)),
    };
    if !is_redis_7() && both_refuse && (code == "ERR" || text.contains(code)) {
        ours.clone()
    } else {
        theirs
    }
}

fn reply_of(value: Value) -> Reply {
    match value {
        Value::Nil => Reply::Nil,
        Value::Int(n) => Reply::Int(n),
        Value::BulkString(bytes) => Reply::Text(String::from_utf8(bytes).unwrap()),
        Value::SimpleString(text) => Reply::Text(text),
        Value::Okay => Reply::Text("OK".to_owned()),
        Value::Array(values) => Reply::List(values.into_iter().map(reply_of).collect()),
        other => panic!("a reply of an unexpected type: {other:?}"),
    }
}
