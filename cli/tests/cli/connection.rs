//! The options that say which Redis: each topology, logins, TLS, and what is refused.

use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use fairlock::{LockGuard, LockManager, LockOptions};
use tempfile::TempDir;

use crate::cluster_set::ClusterSet;
use crate::look::{patient, release_by_force, set_long_timeout};
use crate::process::{Ended, end, exits, fairlock, without_server};
use crate::run::Run;
use crate::sentinel_set::SentinelSet;
use crate::support::{SLACK, ScriptedReply, ScriptedServer, Server};

/// A password of characters that a URL would have to encode.
const PASSWORD: &str = "p/w@d:#% 1";

/// Holds a lock there, for `ls` to find.
pub(crate) fn hold(url: &str, name: &str) -> (LockManager, LockGuard) {
    let manager = patient(url, LockOptions::new());
    let guard = manager.lock(name).expect("the lock");
    (manager, guard)
}

/// The output of `ls`, which ended well.
#[track_caller]
pub(crate) fn listed(command: &mut Command) -> String {
    set_long_timeout(command);
    exits(command, 0).stdout
}

/// The command with these variables.
fn with_variables(args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = without_server(args);
    command.envs(variables.iter().copied());
    command
}

/// The command line is wrong: exit code 64, and one message that has this.
#[track_caller]
fn refused(args: &[&str], variables: &[(&str, &str)], message: &str) -> Ended {
    let ended = exits(with_variables(args, variables), 64);
    assert!(ended.stderr.starts_with("fairlock: "), "{ended:?}");
    ended.says(message);
    ended
}

fn file(dir: &TempDir, name: &str, text: &str) -> String {
    let path = dir.path().join(name);
    fs::write(&path, text).expect("our own directory is writable");
    path.to_str().expect("a plain name").to_owned()
}

#[test]
fn option_goes_before_the_variable_on_either_side() {
    let (here, there) = (Server::start(), Server::start());
    let _held = (hold(&here.url(), "first"), hold(&there.url(), "second"));
    let url = there.url();
    for (args, is_here) in [
        (&["--url", &url, "ls"][..], false),
        (&["ls", "--url", &url], false),
        (&["ls"], true),
        (&["ls", "--prefix", "own"], false),
    ] {
        let names = listed(&mut fairlock(&here, args));
        assert_eq!(names.contains("first"), is_here, "{args:?}: {names}");
        assert_eq!(names.contains("second"), args.contains(&&*url), "{names}");
    }
    let mut command = fairlock(&here, &["ls"]);
    let names = listed(command.env("FAIRLOCK_PREFIX", "own"));
    assert!(!names.contains("first"), "{names}");
}

#[test]
fn url_of_each_topology_is_an_option_and_a_variable() {
    let (sentinels, cluster) = (SentinelSet::start(), ClusterSet::start());
    let servers = [(); 3].map(|()| Server::start());
    let urls = servers.each_ref().map(Server::url);
    let quorum = LockManager::builder(fairlock::endpoint::Endpoint::quorum(&urls));
    // The servers have just started.
    let quorum = quorum.uptime_check(false).build().expect("a manager");
    let _guard = quorum.lock("shared").expect("the lock");
    let _held = [sentinels.url(), cluster.url()].map(|url| hold(&url, "shared"));
    let (one, other) = (cluster.nodes()[0].addr(), cluster.nodes()[1].addr());
    for url in [
        format!("redis-sentinel://{}/mymaster", sentinels.hosts()),
        format!("redis-cluster://{one},{other}"),
        urls.join(" "),
    ] {
        let option = ["ls", "--url", &url];
        let other = [("FAIRLOCK_URL", "redis://127.0.0.1:1/")];
        assert!(listed(&mut with_variables(&option, &other)).contains("shared"));
        let variable = [("FAIRLOCK_URL", &*url)];
        assert!(listed(&mut with_variables(&["ls"], &variable)).contains("shared"));
    }
    let [a, b, c] = &urls;
    let apart = ["--url", a, "ls", "--url", a, "--url", b, "--url", c];
    assert!(listed(&mut with_variables(&apart, &[])).contains("shared"));
    refused(&["ls", "--url", a, "--url", b], &[], "3 or 5 servers");
}

/// A secret that was made with `echo` has an end of line, and so has a file of variables with the
/// line ends of Windows.
#[test]
fn password_comes_from_a_file_or_a_variable_without_its_end_of_line() {
    let dir = TempDir::new().expect("a directory");
    for server in [Server::start(), Server::tcp()] {
        let user = ["ACL", "SETUSER", "u", "on", "~*", "&*", "+@all"];
        let _: () = server.query(&[&user[..], &[&format!(">{PASSWORD}")]].concat());
        let _: () = server.query(&["ACL", "SETUSER", "default", &format!(">{PASSWORD}")]);
        for end_of_line in ["", "\n", "\r\n", "\r"] {
            let with_end = |text: &str| format!("{text}{end_of_line}");
            let path = file(&dir, "password", &with_end(PASSWORD));
            let [url, user, password, in_file, timeout, acks] =
                [&*server.url(), "u", PASSWORD, &path, "2s", "0"].map(with_end);
            let always = [
                ("FAIRLOCK_URL", &*url),
                ("FAIRLOCK_COMMAND_TIMEOUT", &timeout),
                ("FAIRLOCK_REPLICA_ACKS", &acks),
            ];
            let login = ("FAIRLOCK_PASSWORD", &*password);
            let login_file = ("FAIRLOCK_PASSWORD_FILE", &*in_file);
            let user_name = ("FAIRLOCK_USER", &*user);
            for login in [
                &[login][..],
                &[login_file],
                &[login, user_name],
                &[login_file, user_name],
            ] {
                listed(&mut with_variables(&["ls"], &[&always, login].concat()));
            }
            let options = ["ls", "--user", &user, "--password-file", &path];
            listed(&mut with_variables(&options, &always));
        }
        let url = server.url();
        let wrong = [("FAIRLOCK_URL", &*url), ("FAIRLOCK_PASSWORD", "secret")];
        let ended = exits(with_variables(&["ls"], &wrong), 69);
        ended.says("WRONGPASS");
        assert!(!ended.stderr.contains("secret"), "{ended:?}");
    }
}

/// Some commands need the login more than once, and a pipe has it once.
#[test]
fn password_file_may_be_a_pipe() {
    let server = Server::tcp_with(&["--requirepass", PASSWORD]);
    let url = format!("redis://{}/2", server.addr());
    for args in [&["bench", "--duration", "10ms"][..], &["doctor"]] {
        let mut command = without_server(&[args, &["--url", &url]].concat());
        command.args(["--password-file", "/dev/stdin"]);
        set_long_timeout(&mut command);
        let (read, mut write) = std::io::pipe().expect("a pipe");
        writeln!(write, "{PASSWORD}").expect("it has room");
        drop(write);
        exits(command.stdin(read), 0);
    }
}

#[test]
fn wrong_options_and_variables_exit_64_and_the_message_names_them() {
    let dir = TempDir::new().expect("a directory");
    let (empty, lines) = (file(&dir, "empty", "\n"), file(&dir, "lines", "a\nb\n"));
    for (args, message) in [
        (&["--url", "localhost:6379"][..], "--url: "),
        (&["--url=h"], "--url: "),
        (&["--url", " "], "--url: "),
        (&["--url", "redis-sentinel://h/%01"], "--url: "),
        (&["--url", "redis://[fe80::7%25]/"], "zone"),
        (&["--url", "redis://[2001::7%25lo]/"], "zone"),
        (&["--user", "u"], "needs a password"),
        (&["--password-file", &empty], "--password-file: "),
        (&["--password-file", &lines], "more lines"),
        (&["--password-file", "/no/file"], "/no/file"),
        (&["--replica-timeout", "1s"], "--replica-acks"),
        (&["--command-timeout", "5"], "--command-timeout"),
        (&["--command-timeout", "3h 1ms"], "at most 3h"),
        (&["--command-timeout", "500000000000y"], "at most 3h"),
        (&["--prefix", "{"], "--prefix: "),
        (&["--prefix", ""], "'--prefix <PREFIX>': empty"),
    ] {
        refused(&[&["ls"], args].concat(), &[], message);
    }
    let inner = ["run", "a", "--", "cmp", "--url", "--prefix"];
    for (name, value) in [
        ("FAIRLOCK_URL", "h"),
        ("FAIRLOCK_URL", "redis-sentinel://h/%01"),
        ("FAIRLOCK_PREFIX", "{"),
        ("FAIRLOCK_PASSWORD", "a\nb\n"),
        ("FAIRLOCK_COMMAND_TIMEOUT", "soon"),
        ("FAIRLOCK_COMMAND_TIMEOUT", "4h"),
        ("FAIRLOCK_REPLICA_ACKS", "-1"),
    ] {
        refused(&["ls"], &[(name, value)], name);
        refused(&inner, &[(name, value)], name);
    }
    for name in [
        "URL USER PASSWORD PASSWORD_FILE PREFIX COMMAND_TIMEOUT REPLICA_ACKS REPLICA_TIMEOUT",
        #[cfg(feature = "tls")]
        "TLS_CA TLS_CERT TLS_KEY",
    ]
    .join(" ")
    .split(' ')
    {
        let name = format!("FAIRLOCK_{name}");
        let ended = refused(&["ls"], &[(&name, "")], &name);
        ended.says("empty");
    }
    let option = ["ls", "--prefix", "{"];
    let variable = [("FAIRLOCK_PREFIX", "good")];
    refused(&option, &variable, "--prefix or FAIRLOCK_PREFIX: ");
}

#[test]
fn two_logins_exit_64() {
    let dir = TempDir::new().expect("a directory");
    let path = file(&dir, "password", "wrong");
    let url = [("FAIRLOCK_URL", "redis://:right@127.0.0.1:1/")];
    refused(&["ls", "--password-file", &path], &url, "leave one out");
    let both = [url[0], ("FAIRLOCK_PASSWORD", "wrong")];
    refused(&["ls"], &both, "leave one out");
}

/// Of a URL in the wrong place, the message has its scheme.
#[test]
fn no_message_shows_a_password() {
    let misplaced = "redis+unix:///s?pass=secret";
    let sentinel = "redis-sentinel://s/m?sentinelPassword=secret";
    let shown = "'redis+unix://...' for ";
    for (args, variable, message) in [
        (&["ls", "--url", "redis://u:secret@h:x/"][..], "", ""),
        (&["ls", "--url", "secret"], "", ""),
        (&["redis://:secret@h/", "ls"], "", ""),
        (&["redis://:s@secret@h/", "ls"], "", ""),
        (&["ls", "--password=secret"], "", ""),
        (&["ls"], "URL=redis-cluster://:secret@h:x", ""),
        (&["ls"], "URL=redis://:secret@127.0.0.1:1/", ""),
        (&["ls", "--help"], "URL=redis://:secret@h", ""),
        (&["--help"], "PASSWORD=secret", ""),
        (&["ls"], "PASSWORD_FILE=my\nsecret", ""),
        (&["ls", "*", misplaced], "", "argument 'redis+unix://...'"),
        (&["ls", "*", sentinel], "", ""),
        (&["ls", "--command-timeout", misplaced], "", shown),
        (&["ls"], "COMMAND_TIMEOUT=redis+unix://s?pass=secret", shown),
        (&["ls", "--redis://:secret/"], "", ""),
        (&["ls", "*", "redis://u:my secret@h"], "", ""),
        (&["ls", "*", "redis://u:it's\nmy 'secret"], "", ""),
        (&["redis://u", "ls", "redis://u:secret@h"], "", ""),
    ] {
        let (name, value) = variable.split_once('=').unwrap_or(("NONE", ""));
        let name = format!("FAIRLOCK_{name}");
        let ended = end(with_variables(args, &[(&name, value)]));
        let output = format!("{}{}", ended.stdout, ended.stderr);
        assert!(!output.contains("secret"), "{args:?}: {ended:?}");
        assert!(output.contains(message), "{args:?}: {ended:?}");
    }
}

#[test]
fn any_command_timeout_needs_no_other_option() {
    let silent = ScriptedServer::start(|_| ScriptedReply::Silent);
    let (url, started) = (silent.url(), Instant::now());
    let args = ["ls", "--url", &url, "--command-timeout", "100ms"];
    exits(with_variables(&args, &[]), 69);
    let most = Duration::from_millis(100) + SLACK;
    assert!(started.elapsed() < most, "{:?}", started.elapsed());
    let server = Server::start();
    for timeout in ["1333ms", "2s", "1m", "3h"] {
        let args = ["ls", "--command-timeout", timeout];
        listed(&mut fairlock(&server, &args));
    }
}

#[test]
fn lock_without_its_replicas_is_not_taken() {
    let server = Server::start();
    let args = ["run", "n", "--replica-acks", "1", "--", "echo", "it ran"];
    let ended = exits(fairlock(&server, &args), 69);
    ended.says("0 of 1 replicas");
    assert_eq!(ended.stdout, "");
}

#[test]
fn verbose_prints_the_warnings_of_the_library() {
    let server = Server::start();
    for (name, args) in [("loud", &["-v"][..]), ("quiet", &[])] {
        let run = [
            "run",
            name,
            "--ttl",
            "5s",
            "--",
            "sh",
            "-c",
            "echo up; exec sleep 60",
        ];
        let mut run = Run::start(&mut fairlock(&server, &[args, &run].concat()));
        run.line();
        release_by_force(&server, name);
        let ended = run.ends(74, "");
        let line = format!("fairlock: warning: lost {name:?}");
        assert_eq!(ended.stderr.contains(&line), name == "loud", "{ended:?}");
    }
}

#[test]
fn service_that_nobody_knows_is_blamed_on_its_place() {
    let sentinel =
        ScriptedServer::start(|words| match words[0].eq_ignore_ascii_case(b"SENTINEL") {
            true => ScriptedReply::Raw(b"*-1\r\n".to_vec()),
            false => ScriptedReply::polite(words),
        });
    let url = format!("redis-sentinel://{}/nobody", sentinel.addr());
    refused(&["ls", "--url", &url], &[], "--url: one that");
    let variable = [("FAIRLOCK_URL", &*url)];
    refused(&["ls"], &variable, "FAIRLOCK_URL: one that");
}
