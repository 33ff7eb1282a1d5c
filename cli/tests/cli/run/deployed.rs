//! A run as the main process of a systemd service, and the unit and the manifest in examples/:
//! their commands, word for word but for paths. The tests play systemd and the kubelet.

use std::path::Path;

use super::*;

const UNIT: &str = include_str!("../../../../examples/systemd/billing.service");
const MANIFEST: &str = include_str!("../../../../examples/kubernetes/billing.yaml");

/// A command that says that it runs, and ends at TERM.
const BILLING: &str = "trap 'echo ends; exit 0' TERM; echo \"runs under $FAIRLOCK_NAME\"
while :; do sleep 0.02; done";

/// The value of the one line that begins so.
fn setting<'a>(text: &'a str, begin: &str) -> &'a str {
    let lines = text.lines().map(str::trim);
    let found: Vec<&str> = lines.filter_map(|line| line.strip_prefix(begin)).collect();
    assert_eq!(found.len(), 1, "one line begins with {begin}");
    found[0]
}

/// The words of the one command in the manifest that begins with this program.
fn command_of(program: &str) -> Vec<String> {
    let rest = setting(MANIFEST, &format!("command: [{program}, "));
    let words = rest.strip_suffix(']').expect("a list").split(", ");
    // Those with other signs are in quotes.
    let words = words.map(|word| word.trim_matches('\''));
    words.map(str::to_owned).collect()
}

/// These words behind `fairlock`, with another folder, and another program below fairlock.
fn command(words: &[String], folder: &str, here: &Path, server: &Server) -> Command {
    let below = words.iter().position(|word| word == "--");
    let words = &words[..=below.expect("a command below")];
    let here = here.to_str().expect("a plain name");
    let mut command = at(&server.url(), "");
    command.args(words.iter().map(|word| word.replace(folder, here)));
    command.args(["sh", "-c", BILLING]);
    command
}

#[test]
fn systemd_unit_runs_its_command_under_the_lock() {
    let server = Server::tcp_with(&["--requirepass", "secret"]);
    let credentials = tempdir().unwrap();
    // The credential of LoadCredential, which systemd puts into the folder.
    let credential = setting(UNIT, "LoadCredential=").split_once(':').unwrap().0;
    fs::write(credentials.path().join(credential), "secret\n").unwrap();
    let variable = setting(UNIT, "Environment=").split_once('=').unwrap().0;
    assert_eq!(variable, "FAIRLOCK_URL");
    let words = setting(UNIT, "ExecStart=/usr/bin/fairlock ").split_whitespace();
    let words: Vec<String> = words.map(str::to_owned).collect();
    let mut run = Run::start(command(&words, "%d", credentials.path(), &server));
    assert_eq!(run.line(), "runs under billing");
    // KillMode=mixed
    run.signal(Signal::TERM);
    run.ends(0, "ends\n");
}

#[test]
fn pod_keeps_its_lock_while_its_secret_rotates() {
    let server = Server::tcp();
    let volume = tempdir().unwrap();
    // Another file takes its place, as when the kubelet swaps a link.
    let write = |password: &str| {
        let new = volume.path().join("new");
        fs::write(&new, password).unwrap();
        fs::rename(&new, volume.path().join("password")).unwrap();
    };
    let (_, user) = MANIFEST.split_once("- name: FAIRLOCK_USER\n").unwrap();
    let user = setting(user.lines().next().unwrap_or(""), "value: ");
    let set_user = |rules: &[&str]| {
        server.query::<()>(&[&["ACL", "SETUSER", user], rules].concat());
    };
    set_user(&["on", ">one", "~*", "&*", "+@all"]);
    write("one");
    let folder = setting(MANIFEST, "mountPath: ");
    // With a short ttl, a renewal comes soon.
    let words = command_of("fairlock").into_iter();
    let words: Vec<String> = words.map(|word| word.replace("30s", "2s")).collect();
    let mut command = command(&words, folder, volume.path(), &server);
    let mut run = Run::start(command.env("FAIRLOCK_USER", user));
    assert_eq!(run.line(), "runs under billing");
    // Both are valid for a time, and then the new one alone.
    set_user(&[">two"]);
    write("two");
    set_user(&["<one"]);
    server.query::<()>(&["CLIENT", "KILL", "USER", user]);
    until_renewed(&server, "billing");
    run.signal(Signal::TERM);
    run.ends(0, "ends\n");
    assert!(!is_held(&server, "billing"));
}

#[test]
fn probe_of_the_pod_fails_only_for_a_command_that_hangs() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("alive");
    let path = file.to_str().unwrap();
    let words = command_of("sh");
    let words = words
        .iter()
        .map(|word| word.replace("/tmp/billing.alive", path));
    let words: Vec<String> = words.collect();
    assert!(words[1].contains(path), "{words:?}");
    // It waits for the lock, works, or hangs.
    for (touched, passes) in [
        (None, true),
        (Some("now"), true),
        (Some("10 minutes ago"), false),
    ] {
        if let Some(when) = touched {
            exits(Command::new("touch").args(["-d", when, path]), 0);
        }
        let is_well = end(Command::new("sh").args(&words)).code == Some(0);
        assert_eq!(is_well, passes, "{touched:?}");
    }
}

#[test]
fn watchdog_of_a_service_is_its_commands() {
    let server = Server::start();
    let show = run_script(&server, "a", "echo watchdog-$WATCHDOG_PID");
    for (given, shown) in [("$$", ""), ("1", "1"), ("x", "x"), ("", "")] {
        let by_systemd = format!("sh -c 'export WATCHDOG_PID={given}; exec \"$@\"' sh");
        gives(
            wrapped(&by_systemd, &show),
            0,
            &format!("watchdog-{shown}\n"),
        );
    }
}
