//! The rights of an ACL user: a missing one is named before anything is taken, and the documented
//! ones are those that are needed. On Redis alone, since the in-memory store has no users.

mod commands;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fairlock::{Error, LockManager, LockOptions, RwLock};
use fairlock_tests::ROOT;

use crate::fixtures::{P, Record, SOON, T, TTL, Waiters, build, builder, manager, warm_up};
use crate::permits::{PermitWaiters, Permits, Want};
use crate::support::{SLACK, Server, is_redis_62, until};

/// A verb that takes or deletes something.
type Takes = (&'static str, fn(&LockManager, &str) -> Result<(), Error>);

const TAKES: [Takes; 10] = [
    ("try_lock", |m, name| m.try_lock(name).map(drop)),
    ("lock", |m, name| m.lock(name).map(drop)),
    ("try_lock_for", |m, name| m.try_lock_for(name, P).map(drop)),
    ("enqueue", |m, name| m.enqueue(name).map(drop)),
    ("lock_all", |m, name| m.lock_all([name, "z"]).map(drop)),
    ("permits", |m, name| {
        Want::Permits(2, 3).try_take(m, name).map(drop)
    }),
    ("read", |m, name| Want::Read.take(m, name).map(drop)),
    ("write", |m, name| Want::Write.take(m, name).map(drop)),
    ("force_release", |m, name| {
        m.force_release(name, 1).map(drop)
    }),
    ("delete", |m, name| m.delete(name).map(drop)),
];

fn user(server: &Server, name: &str, rules: &[&str]) -> LockManager {
    let _: () = server.query(&[&["ACL", "SETUSER", name, "reset", "on", ">p"], rules].concat());
    manager(format!("{}?user={name}&pass=p", server.url()))
}

/// The commands that the scripts run, in lower case.
fn commands_of_the_scripts() -> BTreeSet<String> {
    let mut commands = BTreeSet::new();
    let scripts = format!("{ROOT}/src/script");
    for file in std::fs::read_dir(scripts).unwrap() {
        let path = file.unwrap().path();
        let is_script = path.extension().is_some_and(|e| e == "lua");
        let is_question = path.ends_with("user_rights.lua");
        if !is_script || is_question {
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap();
        // Some scripts pass the command on to a function of theirs.
        for opening in ["call('", "many('"] {
            let names = text.split(opening).skip(1);
            commands.extend(names.map(|rest| rest.split('\'').next().unwrap().to_lowercase()));
        }
    }
    assert!(commands.len() > 10, "{commands:?}");
    commands
}

/// The commands for which a manager asks whether its user may run them, in lower case.
fn commands_asked_for() -> BTreeSet<String> {
    let script = include_str!("../../src/script/user_rights.lua");
    let tried = script.split("try('").skip(1);
    tried
        .map(|rest| rest.split('\'').next().unwrap().to_lowercase())
        .collect()
}

/// The commands that a user may run by the rule in the documentation.
fn documented_commands() -> Vec<&'static str> {
    let page = include_str!("../../docs/SERVERS.md");
    let rule = page.split('`').find(|code| code.starts_with("+select"));
    let rule = rule.expect("the page names the rights");
    rule.split_whitespace().collect()
}

/// A user with the documented rights but one.
fn documented_rules(without: &str) -> Vec<&'static str> {
    let mut rules = vec!["resetchannels", "~fairlock:*", "&fairlock:grants:*"];
    rules.extend(
        documented_commands()
            .iter()
            .filter(|right| **right != without),
    );
    rules
}

#[track_caller]
fn assert_names(end: Result<(), Error>, right: &str, what: &str) {
    let Err(Error::Refused { code, message, .. }) = end else {
        panic!("{right}, {what}: {end:?}")
    };
    assert_eq!(code, "NOPERM", "{right}, {what}: {message}");
    assert!(message.contains(right), "{right}, {what}: {message}");
}

/// All keys with their values.
fn contents(server: &Server) -> Vec<(String, Vec<u8>)> {
    let mut keys: Vec<String> = server.query(&["KEYS", "*"]);
    keys.sort();
    let dump = |key: String| (server.query(&["DUMP", &key]), key);
    keys.into_iter()
        .map(dump)
        .map(|(value, key)| (key, value))
        .collect()
}

/// Redis stops a script at the first command that the user may not run; what the script did before
/// stays.
#[test]
fn a_missing_right_is_named_before_anything_is_taken() {
    let server = Server::start();
    // Its drops are over before the keys are compared.
    let other = build(builder(server.url()).wait_on_drop(true));
    let other = other.with(LockOptions::new().fixed_lease(20 * TTL));
    warm_up(&other);
    // Records that another user has created: of locks that are free, and of one that is held.
    for (_, take) in TAKES.iter().take(5) {
        take(&other, "free").unwrap();
    }
    drop(Want::Permits(1, 3).take(&other, "free permits").unwrap());
    let held = other.lock("held").unwrap();
    let permits = Want::Permits(2, 3).take(&other, "held permits").unwrap();
    let before = contents(&server);
    let mut commands = commands_asked_for();
    // No manager connects without it: each_documented_right_is_needed.
    assert!(commands.remove("time"));
    for command in commands {
        let (taken_away, right) = (format!("-{command}"), format!("+{command}"));
        for (first, (what, take)) in TAKES.iter().enumerate() {
            // Its first call. The others follow, since the first may have made it forget something.
            let lacking = user(&server, "u", &["~*", "&*", "+@all", &taken_away]);
            assert_names(take(&lacking, "new"), &right, what);
            if first > 0 {
                continue;
            }
            for name in ["free", "free permits", "held", "held permits"] {
                for (what, take) in TAKES {
                    let end = take(&lacking, name);
                    let rule = format!("ACL SETUSER u {right}");
                    assert_names(end, &rule, &format!("{what} {name}"));
                }
            }
        }
        assert_eq!(contents(&server), before, "{right}");
        assert_eq!(server.keys_without_ttl(), [""; 0], "{right}");
    }
    held.unlock().unwrap();
    permits.unlock().unwrap();
    Record::of(&server, "held").comes_to_rest();
    Permits::of(&server, "held permits").comes_to_rest();
}

#[test]
fn every_missing_right_is_named_at_once() {
    let server = Server::start();
    let lacking = user(&server, "u", &["~*", "&*", "+@all", "-hdel", "-pexpireat"]);
    assert_names(
        lacking.lock("a").map(drop),
        "this user lacks +hdel +pexpireat; add it with ACL SETUSER u +hdel +pexpireat",
        "lock",
    );
    let lacking = user(&server, "v", &["~fairlock:{a}", "&*", "+@all"]);
    assert_names(lacking.lock("a").map(drop), "~fairlock:{a}*", "lock");
    let _: () = server.query(&["ACL", "SETUSER", "v", "~fairlock:{a}*"]);
    lacking.lock("a").unwrap().unlock().unwrap();
}

/// From 7.0 on, also those that a caller needs only to wait.
#[test]
fn all_missing_rights_are_named_at_once_with_the_channel() {
    let server = Server::start();
    let few = ["+eval", "+time", "+select"];
    let rules = |key| [&["resetchannels", key], &few[..]].concat();
    // The question itself is refused.
    let lacking = user(&server, "v", &rules("~other:*"));
    let Err(Error::Refused { message, .. }) = lacking.lock("a") else {
        panic!("nothing is missing")
    };
    let named = words(&message);
    for right in documented_commands()
        .iter()
        .chain(&["~fairlock:{a}*", "&fairlock:grants:*"])
    {
        assert!(
            few.contains(right) || named.contains(right),
            "{right}: {message}"
        );
    }
    let lacking = user(&server, "u", &rules("~fairlock:{a}"));
    let Err(Error::Refused { message, .. }) = lacking.lock("a") else {
        panic!("nothing is missing")
    };
    let named = words(&message);
    let asked_for = commands_asked_for();
    let mut missing = documented_commands();
    missing.retain(|right| !few.contains(right));
    if is_redis_62() {
        // It writes nothing that it could not delete again.
        missing.retain(|right| {
            asked_for.contains(&right[1..]) && !["+rpush", "+hset"].contains(right)
        });
    } else {
        missing.extend(["~fairlock:{a}*", "&fairlock:grants:*"]);
    }
    for right in missing {
        assert!(named.contains(&right), "{right}: {message}");
    }
    // The rule is one that Redis takes, and enough to lock that name. Whether the user lacks the
    // channel, nobody can ask without the two commands.
    let rule = message.split("ACL SETUSER u ").nth(1).expect("the rule");
    let rule = rule.split("; ").next().expect("a rule");
    let _: () = server.query(&[&["ACL", "SETUSER", "u"], &words(rule)[..]].concat());
    if !is_redis_62() {
        lacking.lock("a").unwrap().unlock().unwrap();
        let _: () = server.query(&["ACL", "SETUSER", "u", "&fairlock:grants:*"]);
        drop(lacking.enqueue("a").unwrap());
    }
    // With either command, it is asked.
    let names_channel = |rules: &[&str]| match user(&server, "w", rules).lock("a") {
        Err(Error::Refused { message, .. }) => message.contains("&fairlock:grants:*; add"),
        other => panic!("{other:?}"),
    };
    let rules = ["resetchannels", "~*", "+@all", "-publish"];
    assert!(is_redis_62() || names_channel(&rules));
    assert!(!names_channel(&["&*", "~*", "+@all", "-publish"]));
    assert!(names_channel(&["resetchannels", "~*", "+@all", "-hdel"]));
}

fn words(text: &str) -> Vec<&str> {
    text.split([' ', ';']).collect()
}

/// A user with the documented rights: no entry in the log of denials, and no count of errors but
/// that of scripts that the server did not know yet.
#[test]
fn the_question_for_rights_leaves_no_trace_and_no_key() {
    let server = Server::start();
    let documented = user(&server, "u", &documented_rules(""));
    let _: () = server.query(&["CONFIG", "RESETSTAT"]);
    documented.lock("a").unwrap().unlock().unwrap();
    documented.delete("a").unwrap();
    Want::Permits(1, 2)
        .take(&documented, "p")
        .unwrap()
        .unlock()
        .unwrap();
    documented.delete("p").unwrap();
    let log: Vec<BTreeMap<String, String>> = server.query(&["ACL", "LOG"]);
    assert_eq!(log.len(), 0, "{log:?}");
    let info: String = server.query(&["INFO", "errorstats"]);
    let errors = info.lines().filter(|line| line.starts_with("errorstat_"));
    let errors: Vec<&str> = errors.filter(|line| !line.contains("NOSCRIPT")).collect();
    assert_eq!(errors, [""; 0]);
    let keys: Vec<String> = server.query(&["KEYS", "*"]);
    assert_eq!(keys, [""; 0]);
}

/// Another right would not help.
#[test]
fn a_command_that_the_server_does_not_have_is_named() {
    let server = Server::start_with(&["--rename-command", "UNLINK", ""]);
    let mgr = manager(server.url());
    for (what, take) in TAKES {
        let Err(Error::Refused { code, message, .. }) = take(&mgr, "a") else {
            panic!("{what}: it is not missed")
        };
        assert_eq!(code, "ERR", "{what}: {message}");
        assert!(message.contains("no UNLINK"), "{what}: {message}");
    }
    assert_eq!(contents(&server), []);
}

#[test]
fn a_right_taken_away_later_is_named_from_then_on() {
    let server = Server::start();
    let ours = user(&server, "u", &["~*", "&*", "+@all"]);
    warm_up(&ours);
    let held = ours.lock("held").unwrap();
    let _: () = server.query(&["ACL", "SETUSER", "u", "-hdel"]);
    assert_names(held.unlock(), "+hdel", "unlock");
    let before = contents(&server);
    for (what, take) in TAKES {
        assert_names(take(&ours, "b"), "ACL SETUSER u +hdel", what);
    }
    assert_eq!(contents(&server), before);
    let _: () = server.query(&["ACL", "SETUSER", "u", "+hdel"]);
    ours.lock("b").unwrap().unlock().unwrap();
}

/// A server that takes the place of another may have other users.
#[test]
fn the_rights_are_asked_for_again_after_a_restart() {
    let server = Server::start();
    let ours = user(&server, "u", &["~*", "&*", "+@all"]);
    ours.lock("a").unwrap().unlock().unwrap();
    server.restart();
    let _ = user(&server, "u", &["~*", "&*", "+@all", "-pexpireat"]);
    assert_names(ours.lock("a").map(drop), "ACL SETUSER u +pexpireat", "lock");
    assert_eq!(contents(&server), []);
}

#[test]
fn rights_are_asked_for_once() {
    let server = Server::start();
    // On one lane: each connection says hello.
    let ours = build(builder(server.url()).lanes(1));
    // The server must know the scripts.
    let other = manager(server.url());
    other.lock("a").unwrap().unlock().unwrap();
    Want::Read.take(&other, "r").unwrap().unlock().unwrap();
    let requests = |call: &dyn Fn()| {
        let before = ours.stats().requests;
        call();
        ours.stats().requests - before
    };
    let lock = || ours.lock("a").unwrap().unlock().unwrap();
    let permit = || drop(Want::Read.take(&ours, "r").unwrap());
    assert_eq!(requests(&lock), 3, "one request for the rights");
    assert_eq!((requests(&lock), requests(&permit)), (2, 2));
}

/// The right is missing at the first use of its command.
#[test]
fn each_documented_right_is_needed() {
    let server = Server::start();
    let asked_for = commands_asked_for();
    let scripts = commands_of_the_scripts();
    assert!(scripts.is_subset(&asked_for), "{scripts:?} {asked_for:?}");
    let other = manager(server.url());
    let held = other.lock("held").unwrap();
    for right in documented_commands() {
        if asked_for.contains(&right[1..]) && right != "+time" {
            // a_missing_right_is_named_before_anything_is_taken
            continue;
        }
        let _ = user(&server, "v", &["~*", "&*", "+@all"]);
        let rules = [
            &["ACL", "SETUSER", "u", "reset", "on", ">p"],
            &documented_rules(right)[..],
        ];
        let _: () = server.query(&rules.concat());
        let url = |rest: &str| format!("{}?{rest}user=u&pass=p", server.url());
        let build = |rest: &str| builder(url(rest)).build();
        let end = match right {
            "+time" => build("").map(drop),
            "+select" => build("db=1&").map(drop),
            "+scan" => build("")
                .unwrap()
                .list("*")
                .next()
                .expect("an error")
                .map(drop),
            "+subscribe" => build("").unwrap().lock("held").map(drop),
            "+ping" => {
                // Without it, the subscription ends each time that no message has come for a check
                // period. A wait goes on, but would not notice a connection that is half open.
                let lacking = build("").unwrap();
                let _waiter = lacking.enqueue("held").unwrap();
                until(SOON, "the server refuses PING", || {
                    let refused: Vec<BTreeMap<String, String>> = server.query(&["ACL", "LOG"]);
                    refused.iter().any(|entry| entry["object"] == "ping")
                });
                continue;
            }
            "+eval" | "+evalsha" => build("").unwrap().lock("a").map(drop),
            other => panic!("{other} is documented, and nothing uses it"),
        };
        let named = right.trim_start_matches('+');
        assert_names(end, named, right);
    }
    held.unlock().unwrap();
    let outside = ["select", "ping", "scan", "eval", "evalsha", "subscribe"].map(str::to_owned);
    let used: BTreeSet<String> = asked_for.into_iter().chain(outside).collect();
    let documented = documented_commands();
    let documented: BTreeSet<String> = documented
        .iter()
        .map(|right| right[1..].to_owned())
        .collect();
    assert_eq!(used, documented);
}

#[test]
fn documented_rights_are_enough() {
    let server = Server::start();
    let _ = user(&server, "u", &documented_rules(""));
    let (ours, other) = [(); 2]
        .map(|()| manager(format!("{}?user=u&pass=p", server.url())))
        .into();
    let mut queue = Waiters::of("a");
    let holder = ours.lock("a").unwrap();
    holder.renew().unwrap();
    for who in [&other, &ours, &other] {
        queue.add(who);
    }
    assert!(
        other
            .try_lock_for("a", Duration::from_millis(50))
            .unwrap()
            .is_none()
    );
    drop(ours.enqueue("a").unwrap());
    assert_eq!(ours.inspect("a").unwrap().expect("it is held").waiters, 3);
    assert_eq!(other.list("*").count(), 1);
    assert!(other.force_release("a", holder.fence()).unwrap());
    for i in 0..3 {
        queue.expect_grant(i, P + T + SLACK).unlock().unwrap();
    }
    assert_eq!(server.keys_without_ttl(), Vec::<String>::new());
    assert!(ours.delete("a").unwrap());
}

#[test]
fn documented_rights_are_enough_for_permits_readers_and_writers() {
    let server = Server::start();
    let _ = user(&server, "u", &documented_rules(""));
    let [ours, other] = [(); 2].map(|()| manager(format!("{}?user=u&pass=p", server.url())));
    let writer = ours.rw_lock("r").write().unwrap();
    let mut queue = PermitWaiters::of(&server, "r");
    for (mgr, want) in [
        (&other, Want::Read),
        (&ours, Want::Read),
        (&other, Want::Write),
        (&ours, Want::Read),
    ] {
        queue.add(mgr, want);
    }
    writer.renew().unwrap();
    assert!(
        Want::Write
            .take_for(&other, "r", Duration::from_millis(50))
            .unwrap()
            .is_none()
    );
    assert_eq!(ours.inspect("r").unwrap().expect("it is held").waiters, 4);
    let reader = RwLock::downgrade(writer).unwrap();
    let both = queue.expect_grants(0..2, P + T + SLACK);
    reader.unlock().unwrap();
    // Every holder learns of the loss.
    let _: i64 = server.query(&["DEL", "fairlock:{r}:q"]);
    both.into_iter().for_each(|guard| guard.unlock().unwrap());
    let mut last = Vec::new();
    for _ in 0..2 {
        let (who, end) = queue.next_end(SOON);
        last.push(who);
        end.unwrap().unlock().unwrap();
    }
    last.sort_unstable();
    assert_eq!(last, [2, 3]);
    let held = Want::Permits(3, 3).take(&ours, "n").unwrap();
    assert!(other.force_release("n", held.fence()).unwrap());
    Want::Permits(3, 3)
        .take(&other, "n")
        .unwrap()
        .unlock()
        .unwrap();
    assert_eq!(server.keys_without_ttl(), [""; 0]);
    assert!(ours.delete("n").unwrap() && ours.delete("r").unwrap());
}
