//! The unit and the manifest in examples/: their commands, word for word but for paths.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use super::{Run, is_held, until_renewed};
use crate::process::without_server;
use crate::support::Server;

const UNIT: &str = include_str!("../../../../examples/systemd/billing.service");
const MANIFEST: &str = include_str!("../../../../examples/kubernetes/billing.yaml");

/// A command that says that it runs, and ends at TERM.
const BILLING: &str = "trap 'echo ends; exit 0' TERM; echo \"runs under $FAIRLOCK_NAME\"
while :; do sleep 0.02; done";

/// The value of the one line that begins so.
fn setting<'a>(text: &'a str, begin: &str) -> &'a str {
    let mut lines = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix(begin));
    let found = lines.next().unwrap_or_else(|| panic!("{begin} is there"));
    assert_eq!(lines.next(), None, "one line begins with {begin}");
    found
}

/// The words of the one command in the manifest that begins with this program.
fn command_of(program: &str) -> Vec<String> {
    let rest = setting(MANIFEST, &format!("command: [{program}, "));
    let words = rest.strip_suffix(']').expect("a list").split(", ");
    // Those with other signs are in quotes.
    let words = words.map(|word| word.trim_matches('\'').to_owned());
    [program.to_owned()].into_iter().chain(words).collect()
}

/// The words as a command, with another folder, and another program below fairlock.
fn command(words: &[String], folder: &str, here: &Path, server: &Server) -> Command {
    let below = words.iter().position(|word| word == "--");
    let words = &words[1..=below.expect("a command below")];
    let here = here.to_str().expect("a plain name");
    let mut command = without_server(&[]);
    command.args(words.iter().map(|word| word.replace(folder, here)));
    command.args(["sh", "-c", BILLING]);
    command.env("FAIRLOCK_URL", server.url());
    command
}

#[test]
fn systemd_unit_runs_its_command_under_the_lock() {
    let server = Server::tcp_with(&["--requirepass", "secret"]);
    let credentials = TempDir::new().unwrap();
    // The credential of LoadCredential, which systemd puts into the folder.
    let credential = setting(UNIT, "LoadCredential=").split_once(':').unwrap().0;
    fs::write(credentials.path().join(credential), "secret\n").unwrap();
    let variable = setting(UNIT, "Environment=").split_once('=').unwrap().0;
    assert_eq!(variable, "FAIRLOCK_URL");
    let words = setting(UNIT, "ExecStart=/usr/bin/").split_whitespace();
    let words: Vec<String> = words.map(str::to_owned).collect();
    let mut command = command(&words, "%d", credentials.path(), &server);
    let mut run = Run::start(&mut command);
    assert_eq!(run.line(), "runs under billing");
    // KillMode=mixed
    run.signal(Signal::TERM);
    run.ends(0, "ends\n");
}

#[test]
fn pod_keeps_its_lock_while_its_secret_rotates() {
    let server = Server::tcp_with(&[]);
    let volume = TempDir::new().unwrap();
    let write = |version: &str, password: &str| {
        let folder = volume.path().join(version);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("password"), password).unwrap();
        // As the kubelet does it.
        symlink(version, volume.path().join("new")).unwrap();
        fs::rename(volume.path().join("new"), volume.path().join("..data")).unwrap();
    };
    let (_, user) = MANIFEST
        .split_once("- name: FAIRLOCK_USER\n")
        .expect("a user");
    let user = setting(user.lines().next().unwrap_or(""), "value: ");
    let _: () = server.query(&["ACL", "SETUSER", user, "on", ">one", "~*", "&*", "+@all"]);
    write("..1", "one");
    symlink("..data/password", volume.path().join("password")).unwrap();
    let folder = setting(MANIFEST, "mountPath: ");
    let words = command_of("fairlock").into_iter();
    // With a short ttl, a renewal comes soon.
    let words = words.map(|word| if word == "30s" { "2s".to_owned() } else { word });
    let words: Vec<String> = words.collect();
    let mut command = command(&words, folder, volume.path(), &server);
    command.env("FAIRLOCK_USER", user);
    let mut run = Run::start(&mut command);
    assert_eq!(run.line(), "runs under billing");
    // Both are valid for a time, and then the new one alone.
    let _: () = server.query(&["ACL", "SETUSER", user, ">two"]);
    write("..2", "two");
    let _: () = server.query(&["ACL", "SETUSER", user, "<one"]);
    let _: i64 = server.query(&["CLIENT", "KILL", "USER", user]);
    until_renewed(&server, "billing");
    run.signal(Signal::TERM);
    run.ends(0, "ends\n");
    assert!(!is_held(&server, "billing"));
}

#[test]
fn probe_of_the_pod_fails_only_for_a_command_that_hangs() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("alive");
    let file = file.to_str().unwrap();
    let words = command_of("sh");
    let words: Vec<String> = words
        .iter()
        .map(|word| word.replace("/tmp/billing.alive", file))
        .collect();
    assert!(words[2].contains(file), "{words:?}");
    let passes = || {
        let mut probe = Command::new(&words[0]);
        probe.args(&words[1..]).stderr(std::process::Stdio::null());
        probe.status().expect("a shell").success()
    };
    assert!(passes(), "it waits for the lock");
    fs::write(file, "").unwrap();
    assert!(passes(), "it works");
    let touched = Command::new("touch")
        .args(["-d", "10 minutes ago", file])
        .status();
    assert!(touched.expect("touch").success());
    assert!(!passes(), "it hangs");
}
