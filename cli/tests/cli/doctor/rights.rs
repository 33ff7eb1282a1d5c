//! A user without all rights: missing rights that locks need are named, and missing rights that
//! only a diagnosis needs are no error.

use super::*;

/// The URL of a user who has these rights alone.
fn user(server: &Server, rules: &[&str]) -> String {
    let reset = ["ACL", "SETUSER", "u", "reset", "on", ">p", "resetchannels"];
    server.query::<()>(&[&reset, rules].concat());
    format!("{}?user=u&pass=p", server.url())
}

/// The commands that the documentation says a user needs.
fn documented() -> Vec<&'static str> {
    let page = include_str!("../../../../docs/SERVERS.md");
    let rule = page.split('`').find(|code| code.starts_with("+select"));
    let rule = rule.expect("the page names the rights");
    let keys = ["~fairlock:*", "&fairlock:grants:*"];
    keys.into_iter().chain(rule.split_whitespace()).collect()
}

fn remedy_of(diagnosis: &Diagnosis) -> Vec<&str> {
    let mut remedies = diagnosis.of("rights").map(|found| found.remedy.as_deref());
    let remedy = remedies.next().flatten();
    remedy.unwrap_or_default().split(' ').collect()
}

#[test]
fn documented_rights_are_enough_and_the_rest_is_not_known() {
    let server = Server::start();
    let url = user(&server, &documented());
    let diagnosis = diagnose(&url);
    diagnosis.assert_no_complaint();
    diagnosis.assert_finds("rights", Ok, "the user u");
    diagnosis.assert_finds("role", Ok, "no right to INFO");
    diagnosis.assert_finds("eviction", Ok, "no right to CONFIG GET");
    // Replica acks alone need the right to WAIT, as soon as the manager is built: the build's error
    // has the remedy then.
    assert!(!documented().contains(&"+wait"));
    let refused = diagnose_with(&url, "--replica-acks 1");
    assert_eq!(refused.code, Some(69), "{refused:#?}");
    refused.assert_finds("connection", Error, "wait");
}

/// Each command that locks use on one server, renamed away.
#[test]
fn each_absent_command_is_listed() {
    let login = ["--user", "u", "on", ">p", "~*", "&*", "+@all"];
    let all = documented().into_iter();
    let all = all.filter_map(|rule| rule.strip_prefix('+'));
    for command in all.chain(["hello", "auth", "info", "config"]) {
        let renamed = ["--rename-command", command, ""];
        let server = Server::start_with(&[&login[..], &renamed].concat());
        let diagnosis = diagnose(&format!("{}?db=1&user=u&pass=p", server.url()));
        let name = command.to_uppercase();
        let (check, level, text) = match command {
            "auth" | "select" | "time" => ("connection", Error, &*name),
            "info" => ("role", Ok, "INFO"),
            // As managed services do. INFO has the policy, too.
            "config" => ("eviction", Ok, "noeviction"),
            "subscribe" | "publish" | "scan" => ("rights", Warning, &*name),
            // Locks do without.
            "hello" | "evalsha" | "ping" => ("rights", Ok, ""),
            _ => ("scripts", Error, &*name),
        };
        diagnosis.assert_finds(check, level, text);
        // The append-only file is off.
        let worst = diagnosis.complaints().iter().map(|found| found.level).max();
        assert!(worst <= Some(level.max(Warning)), "{diagnosis:#?}");
    }
}

#[test]
fn each_missing_right_is_named_with_its_rule() {
    let server = Server::start();
    let all = documented();
    // No manager connects without two of them, and Redis lets every user log in.
    let needed = |right: &&&str| !matches!(**right, "+select" | "+time");
    for right in all.iter().filter(needed) {
        // 6.2 gives a user all channels, and `resetchannels` takes them away.
        let rest = all.iter().filter(|other| *other != right);
        let rest: Vec<&str> = rest.copied().collect();
        let diagnosis = diagnose(&user(&server, &rest));
        diagnosis.assert_finds("rights", Error, right);
        let named = remedy_of(&diagnosis);
        assert_eq!(named[..3], ["ACL", "SETUSER", "u"], "{right}");
        // A command that was refused hides nothing but those behind it.
        let other = named[3..].iter().find(|name| !all.contains(*name));
        assert_eq!(other, None, "{right}");
    }
}

/// One that is refused may hide another: the scripts themselves, or a command behind another.
#[test]
fn remedies_lead_to_all_rights() {
    let server = Server::start();
    let url = user(&server, &["+time", "+eval", "+select"]);
    for _ in 0..4 {
        let diagnosis = diagnose(&url);
        let remedy = remedy_of(&diagnosis);
        if remedy != [""] {
            server.query::<()>(&remedy);
        }
    }
    assert_eq!(remedy_of(&diagnose(&url)), [""]);
    let manager = LockManager::connect(url).expect("the server is there");
    let guard = manager.lock("a").expect("it has all rights");
    let queued = manager.enqueue("a").expect("to wait, too");
    drop(guard);
    drop(queued.wait().expect("and to be woken"));
}
