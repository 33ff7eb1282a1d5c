//! Each command that the crate sends or that its scripts run: away from the server, and refused to the
//! user. Whatever does not need it works, and the error of whatever does names it.

use std::collections::BTreeSet;

use fairlock::{Builder, Error, LockManager, RwLock};
use fairlock_tests::ROOT;

use super::commands_of_the_scripts;
use crate::fixtures::{P, SOON, STEADY_T, steady};
use crate::permits::Want;
use crate::support::{SLACK, Server, until_some};

/// One of the things that users do with locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Build,
    List,
    Inspect,
    Lock,
    Wait,
}

/// The uses that need a command.
struct Needs {
    /// Where the server does not have it.
    absent: &'static [Use],
    /// Where the user may not run it.
    refused: &'static [Use],
    /// They run scripts, some of which need it.
    may_fail: &'static [Use],
}

use Use::{Build, Inspect, List, Lock, Wait};

const NOTHING: &[Use] = &[];

fn needs(command: &str) -> Needs {
    let scripts: &[Use] = &[List, Inspect];
    let (absent, refused, may_fail) = match command {
        // Every user may log in.
        "auth" => (&[Build][..], NOTHING, NOTHING),
        "select" | "time" => (&[Build][..], &[Build][..], NOTHING),
        "eval" => (&[Lock, Wait][..], &[Lock, Wait][..], scripts),
        // Each script is sent with its source.
        "evalsha" => (NOTHING, &[Lock, Wait][..], scripts),
        "scan" => (&[List][..], &[List][..], NOTHING),
        "publish" => (NOTHING, &[Lock, Wait][..], NOTHING),
        "subscribe" => (NOTHING, &[Wait][..], NOTHING),
        // Each is for a set of servers, or has a substitute.
        "hello" | "client" | "info" | "ping" | "role" | "wait" | "asking" | "cluster" => {
            (NOTHING, NOTHING, NOTHING)
        }
        script if commands_of_the_scripts().contains(script) => {
            (&[Lock, Wait][..], &[Lock, Wait][..], scripts)
        }
        other => panic!("nobody has said yet what needs {other}"),
    };
    Needs {
        absent,
        refused,
        may_fail,
    }
}

/// The commands that the crate sends, and those of its scripts, in lower case.
fn all_commands() -> BTreeSet<String> {
    let mut commands = commands_of_the_scripts();
    let mut folders = vec![format!("{ROOT}/src").into()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir::<std::path::PathBuf>(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            for line in code {
                let names = line.split("redis::cmd(\"").skip(1);
                commands.extend(names.map(|rest| rest.split('"').next().unwrap().to_lowercase()));
            }
        }
    }
    // A sentinel alone has it.
    commands.remove("sentinel");
    for known in ["hello", "subscribe", "hset"] {
        assert!(commands.contains(known), "{commands:?}");
    }
    commands
}

/// How each use ended.
type Ends = Vec<(Use, Result<(), Error>)>;

/// How each use ends for the user at `url`. The lock that is awaited is another's, at `other_url`.
fn ends(url: &str, other_url: &str) -> Ends {
    let built = |url: &str| built(&steady(url));
    let mgr = match built(url) {
        Ok(mgr) => mgr,
        Err(error) => return vec![(Build, Err(error))],
    };
    vec![
        (Build, Ok(())),
        (List, mgr.list("*").try_for_each(|found| found.map(drop))),
        (Inspect, mgr.inspect("a").map(drop)),
        (Lock, lock_each_kind(&mgr)),
        (Wait, built(other_url).and_then(|other| wait(&mgr, &other))),
    ]
}

/// Another try, if the machine was too slow for the connect timeout.
fn built(builder: &Builder) -> Result<LockManager, Error> {
    until_some(SOON, "an answer", || match builder.clone().build() {
        Err(Error::Unavailable { .. }) => None,
        built => Some(built),
    })
}

fn lock_each_kind(mgr: &LockManager) -> Result<(), Error> {
    let guard = mgr.lock("a")?;
    guard.renew()?;
    guard.unlock()?;
    drop(mgr.lock("a")?);
    mgr.lock_all(["b", "c"])?.unlock()?;
    Want::Permits(2, 3).take(mgr, "p")?.unlock()?;
    RwLock::downgrade(mgr.rw_lock("r").write()?)?.unlock()?;
    mgr.delete("a").map(drop)
}

/// Waits for more than two check periods, and then is granted the lock.
fn wait(mgr: &LockManager, other: &LockManager) -> Result<(), Error> {
    for _ in 0..2 {
        let held = other.lock("awaited")?;
        let mut waiter = mgr.enqueue("awaited")?;
        assert!(waiter.wait_for(5 * P / 2)?.is_none(), "it is held");
        held.unlock()?;
        let granted = waiter.wait_for(P + STEADY_T + SLACK)?;
        granted.expect("no wait outlasts a check").unlock()?;
    }
    Ok(())
}

/// What is not as it must be without the command.
fn misfits(command: &str, needed_by: &[Use], may_fail: &[Use], ends: Ends) -> Vec<String> {
    let misfit = |(what, end): (Use, Result<(), Error>)| {
        let shown = format!("{what:?} without {command}: {end:?}");
        let Err(error) = end else {
            let is_needed = needed_by.contains(&what);
            return is_needed.then(|| format!("nothing is missed: {shown}"));
        };
        if !needed_by.contains(&what) && !may_fail.contains(&what) {
            return Some(format!("it does not need that: {shown}"));
        }
        let said = error.to_string().to_lowercase();
        let mut words = said.split(|letter: char| !letter.is_alphanumeric());
        let is_named = matches!(error, Error::Refused { .. }) && words.any(|word| word == command);
        (!is_named).then(|| format!("it is not named: {shown}"))
    };
    ends.into_iter().filter_map(misfit).collect()
}

/// A user of another database.
const LOGIN: &str = "?db=1&user=u&pass=p";
const EVERYTHING: [&str; 6] = ["u", "on", ">p", "~*", "&*", "+@all"];

#[test]
fn whatever_needs_no_absent_command_works_without_it() {
    let mut all = Vec::new();
    for command in all_commands() {
        let renamed = ["--rename-command", &command, ""];
        let server = Server::start_with(&[&["--user"], &EVERYTHING[..], &renamed].concat());
        let url = server.url() + LOGIN;
        let needs = needs(&command);
        all.extend(misfits(
            &command,
            needs.absent,
            needs.may_fail,
            ends(&url, &url),
        ));
    }
    assert!(all.is_empty(), "{all:#?}");
}

#[test]
fn whatever_needs_no_refused_command_works_without_it() {
    let server = Server::start();
    let other_url = format!("{}?db=1", server.url());
    let mut all = Vec::new();
    for command in all_commands() {
        let refused = format!("-{command}");
        let _: () = server.query(&[&["ACL", "SETUSER"], &EVERYTHING[..], &[&refused]].concat());
        let ends = ends(&(server.url() + LOGIN), &other_url);
        let needs = needs(&command);
        all.extend(misfits(&command, needs.refused, needs.may_fail, ends));
        let _: i64 = server.query(&["ACL", "DELUSER", "u"]);
    }
    assert!(all.is_empty(), "{all:#?}");
}
