//! A user without all rights: missing rights that locks need are named, and missing rights that
//! only a diagnosis needs are no error.

use fairlock::{Check, Diagnosis, Level, LockManager};

use super::{assert_finds, assert_no_complaint, in_time, manager, of};
use crate::support::Server;

/// A manager whose user has these rights alone.
fn user(server: &Server, rules: &[&str]) -> LockManager {
    let reset = ["ACL", "SETUSER", "u", "reset", "on", ">p", "resetchannels"];
    server.query::<()>(&[&reset, rules].concat());
    manager(format!("{}?user=u&pass=p", server.url()))
}

/// The commands that the documentation says a user needs.
fn documented() -> Vec<&'static str> {
    let page = include_str!("../../../docs/CONFIGURATION.md");
    let rule = page.split('`').find(|code| code.starts_with("+select"));
    let rule = rule.expect("the page names the rights");
    let keys = ["~fairlock:*", "&fairlock:grants:*"];
    keys.into_iter().chain(rule.split_whitespace()).collect()
}

fn remedy_of(diagnosis: &Diagnosis) -> Vec<String> {
    let found = of(diagnosis, Check::Rights);
    let remedy = found[0].remedy.as_deref().unwrap_or_default();
    remedy.split(' ').map(str::to_owned).collect()
}

#[test]
fn documented_rights_are_enough_and_the_rest_is_not_known() {
    let server = Server::start();
    let diagnosis = in_time(&user(&server, &documented()));
    assert_no_complaint(&diagnosis);
    assert_finds(&diagnosis, Check::Rights, Level::Ok, "the user u");
    assert_finds(&diagnosis, Check::Role, Level::Ok, "no right to INFO");
    assert_finds(
        &diagnosis,
        Check::Eviction,
        Level::Ok,
        "no right to CONFIG GET",
    );
}

/// As managed services do.
#[test]
fn renamed_command_is_not_known() {
    let server = Server::start_with(&["--rename-command", "CONFIG", ""]);
    let diagnosis = in_time(&manager(server.url()));
    assert_finds(&diagnosis, Check::Clients, Level::Ok, "has no CONFIG GET");
    // INFO has it, too.
    assert_finds(&diagnosis, Check::Eviction, Level::Ok, "noeviction");
}

#[test]
fn each_missing_right_is_named_with_its_rule() {
    let server = Server::start();
    let all = documented();
    for right in &all {
        // No manager connects without these two, and Redis lets every user log in.
        if matches!(*right, "+select" | "+time") {
            continue;
        }
        // 6.2 gives a user all channels, and `resetchannels` takes them away.
        let rest: Vec<&str> = all
            .iter()
            .filter(|other| *other != right)
            .copied()
            .collect();
        let diagnosis = in_time(&user(&server, &rest));
        assert_finds(&diagnosis, Check::Rights, Level::Error, right);
        let named = remedy_of(&diagnosis);
        assert_eq!(named[..3], ["ACL", "SETUSER", "u"], "{right}");
        // A command that was refused hides nothing but those behind it.
        let allowed = |name: &&String| all.contains(&name.as_str());
        assert_eq!(
            named[3..].iter().find(|name| !allowed(name)),
            None,
            "{right}"
        );
    }
}

/// One that is refused may hide another: the scripts themselves, or a command behind another.
#[test]
fn remedies_lead_to_all_rights() {
    let server = Server::start();
    let manager = user(&server, &["+time", "+eval", "+select"]);
    let mut steps = 0;
    loop {
        let diagnosis = in_time(&manager);
        let remedy = remedy_of(&diagnosis);
        if remedy == [""] {
            break;
        }
        let words: Vec<&str> = remedy.iter().map(String::as_str).collect();
        server.query::<()>(&words);
        steps += 1;
        assert!(steps <= 4, "{diagnosis}");
    }
    let guard = manager.lock("a").expect("it has all rights");
    let queued = manager.enqueue("a").expect("to wait, too");
    drop(guard);
    drop(queued.wait().expect("and to be woken"));
}
