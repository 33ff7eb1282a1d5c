//! The options that say which Redis: each topology, logins, TLS, and what is refused.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fairlock::{LockGuard, LockManager, LockOptions};
use tempfile::TempDir;

use crate::cluster_set::ClusterSet;
use crate::look::{labelled, patient, set_long_timeout};
use crate::process::{Ended, end, fairlock, without_server};
use crate::sentinel_set::SentinelSet;
use crate::support::{SLACK, ScriptedReply, ScriptedServer, Server, until, until_some};

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
    let ended = end(command);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.stdout
}

/// Arguments, variables, and what the message has.
type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str);

/// The command with these variables.
fn with_variables(args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = without_server(args);
    command.envs(variables.iter().copied());
    command
}

/// The command line is wrong: exit code 64, and one message that has this.
#[track_caller]
fn refused(args: &[&str], variables: &[(&str, &str)], message: &str) -> Ended {
    let ended = end(&mut with_variables(args, variables));
    assert_eq!(ended.code, Some(64), "{args:?} {variables:?}: {ended:?}");
    assert!(ended.stderr.starts_with("fairlock: "), "{ended:?}");
    assert!(ended.stderr.contains(message), "{message}: {ended:?}");
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
    let _held = (hold(&here.url(), "here"), hold(&there.url(), "there"));
    let url = there.url();
    for args in [
        ["--url", &url, "ls", "--json"],
        ["ls", "--json", "--url", &url],
    ] {
        let names = listed(&mut fairlock(&here, &args));
        assert!(names.contains(r#""name":"there""#), "{names}");
        assert!(!names.contains(r#""name":"here""#), "{names}");
    }
    assert!(listed(&mut fairlock(&here, &["ls", "--json"])).contains("here"));
}

#[test]
fn locks_behind_sentinels_are_found() {
    let set = SentinelSet::start();
    let _held = hold(&set.url(), "watched");
    let hosts = set.hosts();
    let option = ["ls", "--json", "--sentinel", &hosts, "--master", "mymaster"];
    // An option that says where the locks are replaces each variable that does.
    let other = [("FAIRLOCK_URL", "redis://127.0.0.1:1/")];
    assert!(listed(&mut with_variables(&option, &other)).contains("watched"));
    let variables = [
        ("FAIRLOCK_SENTINEL", &*hosts),
        ("FAIRLOCK_MASTER", "mymaster"),
    ];
    assert!(listed(&mut with_variables(&["ls", "--json"], &variables)).contains("watched"));
    refused(&["ls", "--master", "nobody"], &variables, "--master");
}

#[test]
fn locks_of_a_cluster_are_found() {
    let set = ClusterSet::start();
    let _held = hold(&set.url(), "sharded");
    let hosts = set.nodes()[..2]
        .iter()
        .map(|node| node.addr().to_string())
        .collect::<Vec<_>>()
        .join(",");
    let option = ["ls", "--json", "--cluster", &hosts];
    assert!(listed(&mut with_variables(&option, &[])).contains("sharded"));
    let variables = [("FAIRLOCK_CLUSTER", &*hosts)];
    assert!(listed(&mut with_variables(&["ls", "--json"], &variables)).contains("sharded"));
}

#[test]
fn several_urls_are_a_quorum() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let urls = servers.each_ref().map(Server::url);
    let manager = LockManager::builder(fairlock::endpoint::Endpoint::quorum(&urls))
        // The servers have just started.
        .uptime_check(false)
        .build()
        .expect("a manager");
    let _guard = manager.lock("voted").expect("the lock");
    let [a, b, c] = &urls;
    let option = ["ls", "--json", "--url", a, "--url", b, "--url", c];
    assert!(listed(&mut with_variables(&option, &[])).contains("voted"));
    let several = urls.join(" ");
    assert!(
        listed(&mut with_variables(
            &["ls", "--json", "--url", &several],
            &[]
        ))
        .contains("voted")
    );
    let variables = [("FAIRLOCK_URL", &*several)];
    assert!(listed(&mut with_variables(&["ls", "--json"], &variables)).contains("voted"));
    refused(&["ls", "--url", a, "--url", b], &[], "3 or 5 servers");
}

#[test]
fn error_names_the_option_or_variable_of_the_place() {
    let begins = |args: &[&str], variables: &[(&str, &str)], begin: &str| {
        let ended = refused(args, variables, begin);
        let begin = format!("fairlock: {begin}");
        assert!(ended.stderr.starts_with(&begin), "{ended:?}");
    };
    begins(&["ls", "--url", "h"], &[], "--url: ");
    begins(&["ls", "--url=h"], &[("FAIRLOCK_CLUSTER", "h")], "--url: ");
    begins(&["ls", "--cluster", "h:x"], &[], "--cluster: ");
    begins(
        &["ls", "--sentinel", "h:x", "--master", "m"],
        &[],
        "--sentinel: ",
    );
    begins(&["ls"], &[("FAIRLOCK_URL", "h")], "FAIRLOCK_URL: ");
    begins(
        &["ls"],
        &[("FAIRLOCK_CLUSTER", "h:x")],
        "FAIRLOCK_CLUSTER: ",
    );
    let sentinel = [("FAIRLOCK_SENTINEL", "h:x"), ("FAIRLOCK_MASTER", "m")];
    begins(&["ls"], &sentinel, "FAIRLOCK_SENTINEL: ");
    let inner = ["run", "a", "--", "cmp", "--url"];
    begins(&inner, &[("FAIRLOCK_URL", "h")], "FAIRLOCK_URL: ");
}

#[test]
fn password_comes_from_a_file_or_a_variable() {
    let dir = TempDir::new().expect("a directory");
    let path = file(&dir, "password", &format!("{PASSWORD}\n"));
    let user = ["ACL", "SETUSER", "u", "on", "~*", "&*", "+@all"];
    for server in [Server::start(), Server::tcp()] {
        let url = server.url();
        let _: () = server.query(&[&user[..], &[&format!(">{PASSWORD}")]].concat());
        let _: () = server.query(&["ACL", "SETUSER", "default", &format!(">{PASSWORD}")]);
        let option = ["ls", "--url", &url, "--password-file", &path];
        let named = [&option[..], &["--user", "u"]].concat();
        listed(&mut with_variables(&option, &[]));
        listed(&mut with_variables(&named, &[]));
        let url = [("FAIRLOCK_URL", &*url)];
        for login in [
            &[("FAIRLOCK_PASSWORD", PASSWORD)][..],
            &[("FAIRLOCK_PASSWORD_FILE", &path)],
            &[("FAIRLOCK_PASSWORD", PASSWORD), ("FAIRLOCK_USER", "u")],
        ] {
            listed(&mut with_variables(&["ls"], &[&url[..], login].concat()));
        }
        let wrong = [url[0], ("FAIRLOCK_PASSWORD", "secret")];
        let ended = end(&mut with_variables(&["ls"], &wrong));
        assert_eq!(ended.code, Some(69), "{ended:?}");
        assert!(ended.stderr.contains("WRONGPASS"), "{ended:?}");
        assert!(!ended.stderr.contains("secret"), "{ended:?}");
    }
}

/// A secret that was made with `echo`, or a file of variables with the line ends of Windows.
#[test]
fn an_end_of_line_in_a_setting_is_left_out() {
    let dir = TempDir::new().expect("a directory");
    let server = Server::tcp();
    let user = ["ACL", "SETUSER", "u", "on", "~*", "&*", "+@all", ">p"];
    let _: () = server.query(&[&user[..], &[&format!(">{PASSWORD}")]].concat());
    let _: () = server.query(&["ACL", "SETUSER", "default", "off"]);
    for end_of_line in ["", "\n", "\r\n", "\r"] {
        let with_end = |text: &str| format!("{text}{end_of_line}");
        let path = file(&dir, "password", &with_end(PASSWORD));
        let (url, user) = (with_end(&server.url()), with_end("u"));
        let (timeout, url) = (with_end("2s"), [("FAIRLOCK_URL", &*url)]);
        for (name, value) in [
            ("FAIRLOCK_PASSWORD", with_end(PASSWORD)),
            ("FAIRLOCK_PASSWORD_FILE", with_end(&path)),
        ] {
            let variables = [
                ("FAIRLOCK_USER", &*user),
                ("FAIRLOCK_COMMAND_TIMEOUT", &*timeout),
                (name, &*value),
            ];
            listed(&mut with_variables(
                &["ls"],
                &[&url[..], &variables].concat(),
            ));
        }
        let options = ["ls", "--user", &user, "--password-file", &path];
        listed(&mut with_variables(&options, &url));
    }
    let lines = [("FAIRLOCK_PASSWORD", "a\nb\n")];
    refused(&["ls"], &lines, "FAIRLOCK_PASSWORD has more lines than one");
    for line in ["\n", "\r\n"] {
        refused(&["ls"], &[("FAIRLOCK_PASSWORD", line)], "empty");
    }
}

/// Some commands need the login more than once, and a pipe has it once.
#[test]
fn password_file_may_be_a_pipe() {
    let server = Server::tcp_with(&["--requirepass", PASSWORD]);
    let url = server.url();
    let bench = ["bench", "--duration", "10ms", "--url", &url];
    let mut command = without_server(&[&bench[..], &["--password-file", "/dev/stdin"]].concat());
    set_long_timeout(&mut command);
    let mut process = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut pipe = process.stdin.take().expect("a pipe");
    writeln!(pipe, "{PASSWORD}").expect("written");
    drop(pipe);
    let ended = Ended::from(process.wait_with_output().expect("it ends"));
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn password_file_is_read_again_while_a_run_holds_its_lock() {
    let server = Server::tcp_with(&[]);
    let rotate = |password: &str| {
        let password = format!(">{password}");
        let user = ["ACL", "SETUSER", "u", "reset", "on", &password];
        let _: () = server.query(&[&user[..], &["~*", "&*", "+@all"]].concat());
        let _: i64 = server.query(&["CLIENT", "KILL", "USER", "u"]);
    };
    rotate("one");
    let dir = TempDir::new().expect("a directory");
    let path = file(&dir, "password", "one");
    let url = server.url();
    let started = dir.path().join("started");
    let script = format!("touch {}; sleep 4", started.display());
    let options = ["--user", "u", "--password-file", &path, "--ttl", "2s"];
    let command = ["--", "sh", "-c", &script];
    let mut run =
        without_server(&[&["run", "job", "--url", &url], &options[..], &command].concat());
    let process = run
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    until(Duration::from_secs(20), "the command runs", || {
        started.exists()
    });
    file(&dir, "password", "two");
    rotate("two");
    let ended = Ended::from(process.wait_with_output().expect("it ends"));
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn login_of_a_url_goes_before_the_variables() {
    let server = Server::tcp_with(&["--requirepass", "right"]);
    let url = server.url().replace("://", "://:right@");
    let variables = [("FAIRLOCK_URL", &*url), ("FAIRLOCK_PASSWORD", "wrong")];
    listed(&mut with_variables(&["ls"], &variables));
    let dir = TempDir::new().expect("a directory");
    let path = file(&dir, "password", "wrong");
    let twice = ["ls", "--password-file", &path];
    refused(&twice, &variables[..1], "already");
}

#[test]
fn wrong_combinations_exit_64() {
    let dir = TempDir::new().expect("a directory");
    let empty = file(&dir, "empty", "\n");
    let lines = file(&dir, "lines", "a\nb\n");
    let cases: [Case; 23] = [
        (&["ls", "--url", "x", "--cluster", "h:1"], &[], "--cluster"),
        // Apart, clap sees no conflict.
        (&["--url", "x", "ls", "--cluster", "h:1"], &[], "give one"),
        (&["ls", "--sentinel", "h:1"], &[], "needs --master"),
        (&["ls", "--master", "m"], &[], "needs --sentinel"),
        (&["ls", "--sentinel", "h:1/m", "--master", "m"], &[], "HOST"),
        (&["ls", "--cluster", "p@h:1"], &[], "HOST:PORT"),
        (&["ls", "--url", "localhost:6379"], &[], "redis://"),
        (&["ls", "--url", " "], &[], "empty"),
        (&["ls", "--user", "u"], &[], "needs a password"),
        (&["ls", "--password-file", &empty], &[], "it is empty"),
        (&["ls", "--password-file", &lines], &[], "more lines"),
        (&["ls", "--password-file", "/no/file"], &[], "/no/file"),
        (&["ls", "--replica-timeout", "1s"], &[], "--replica-acks"),
        (&["ls", "--command-timeout", "5"], &[], "--command-timeout"),
        (
            &["ls", "--command-timeout", "3h 1ms"],
            &[],
            "--command-timeout can be 3h",
        ),
        (
            &["ls", "--command-timeout", "500000000000y"],
            &[],
            "--command-timeout can",
        ),
        (&["ls", "--prefix", "{"], &[], "--prefix"),
        (&["ls"], &[("FAIRLOCK_URL", "")], "FAIRLOCK_URL is empty"),
        (&["ls"], &[("FAIRLOCK_PASSWORD", "")], "empty"),
        (
            &["ls"],
            &[("FAIRLOCK_COMMAND_TIMEOUT", "soon")],
            "FAIRLOCK_COMMAND_TIMEOUT",
        ),
        (&["ls"], &[("FAIRLOCK_TLS", "maybe")], "FAIRLOCK_TLS"),
        (
            &["ls"],
            &[("FAIRLOCK_REPLICA_ACKS", "-1")],
            "FAIRLOCK_REPLICA_ACKS",
        ),
        (
            &["ls"],
            &[("FAIRLOCK_URL", "redis://h"), ("FAIRLOCK_CLUSTER", "h:1")],
            "give one",
        ),
    ];
    for (args, variables, message) in cases {
        refused(args, variables, message);
    }
}

#[test]
fn variable_without_sense_harms_no_option_that_overrides_it() {
    let server = Server::start();
    for (variable, option) in [
        ("FAIRLOCK_COMMAND_TIMEOUT", &["--command-timeout", "2s"][..]),
        ("FAIRLOCK_REPLICA_ACKS", &["--replica-acks", "0"]),
    ] {
        let url = server.url();
        let args = [&["ls", "--url", &url], option].concat();
        let ended = end(&mut with_variables(&args, &[(variable, "no sense")]));
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let ended = end(&mut with_variables(
        &["man", "--help"],
        &[("FAIRLOCK_COMMAND_TIMEOUT", "")],
    ));
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn no_message_shows_a_password() {
    for (args, variables) in [
        (&["ls", "--url", "redis://u:secret@h:x/"][..], &[][..]),
        (&["ls", "--url", "secret"], &[]),
        (&["ls", "--cluster", "u:secret@h:1"], &[]),
        (&["redis://:secret@h/", "ls"], &[]),
        (&["redis://:s@secret@h/", "ls"], &[]),
        (&["ls", "--password=secret"], &[]),
        (&["ls"], &[("FAIRLOCK_URL", "redis-cluster://:secret@h:x")]),
        (&["ls"], &[("FAIRLOCK_URL", "redis://:secret@127.0.0.1:1/")]),
        (&["ls", "--help"], &[("FAIRLOCK_URL", "redis://:secret@h")]),
        (&["--help"], &[("FAIRLOCK_PASSWORD", "secret")]),
        (&["ls", "*", "redis+unix:///s?user=u&pass=secret"], &[]),
        (
            &["ls", "*", "redis-sentinel://s/m?sentinelPassword=secret"],
            &[],
        ),
        (
            &[
                "ls",
                "--command-timeout",
                "redis://s/m?sentinelPassword=secret",
            ],
            &[],
        ),
        (
            &["ls"],
            &[("FAIRLOCK_COMMAND_TIMEOUT", "redis://s?pass=secret")],
        ),
        (&["ls", "--redis://:secret/"], &[]),
        (&["ls", "*", "redis://u:my secret@h"], &[]),
        (&["ls", "*", "redis://u:it's\nmy 'secret"], &[]),
        (&["redis://u", "ls", "redis://u:secret@h"], &[]),
    ] {
        let ended = end(&mut with_variables(args, variables));
        let output = format!("{}{}", ended.stdout, ended.stderr);
        assert!(!output.contains("secret"), "{args:?}: {ended:?}");
    }
}

#[test]
fn message_about_a_url_in_the_wrong_place_names_that_place() {
    let url = "redis+unix:///s?pass=secret";
    let message = "invalid value 'redis+unix://...' for '--command-timeout <DURATION>'";
    refused(&["ls", "--command-timeout", url], &[], message);
    let message = "invalid value 'redis+unix://...' for FAIRLOCK_COMMAND_TIMEOUT";
    refused(&["ls"], &[("FAIRLOCK_COMMAND_TIMEOUT", url)], message);
    refused(
        &["ls", "*", url],
        &[],
        "unexpected argument 'redis+unix://...'",
    );
}

#[test]
fn silent_server_ends_a_command_within_the_timeout() {
    let server = ScriptedServer::start(|_| ScriptedReply::Silent);
    let url = server.url();
    let started = Instant::now();
    let ended = end(&mut with_variables(
        &["ls", "--url", &url, "--command-timeout", "100ms"],
        &[],
    ));
    assert_eq!(ended.code, Some(69), "{ended:?}");
    let most = Duration::from_millis(100) + SLACK;
    assert!(started.elapsed() < most, "{:?}", started.elapsed());
}

#[test]
fn long_timeout_needs_no_other_option() {
    let server = Server::start();
    for timeout in ["1333ms", "2s", "1m", "3h"] {
        listed(&mut fairlock(
            &server,
            &["ls", "--command-timeout", timeout],
        ));
    }
}

#[test]
fn prefix_separates_locks() {
    let server = Server::start();
    let _held = hold(&server.url(), "default");
    let variables = [("FAIRLOCK_URL", &*server.url()), ("FAIRLOCK_PREFIX", "own")];
    let names = listed(&mut with_variables(&["ls", "--json"], &variables));
    assert!(!names.contains("default"), "{names}");
}

#[test]
fn lock_without_its_replicas_is_not_taken() {
    let server = Server::start();
    let args = ["run", "n", "--replica-acks", "1", "--", "echo", "it ran"];
    let ended = end(&mut fairlock(&server, &args));
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(ended.stderr.contains("0 of 1 replicas"), "{ended:?}");
    assert_eq!(ended.stdout, "");
}

#[test]
fn verbose_prints_the_warnings_of_the_library() {
    let server = Server::start();
    let manager = labelled(&server, "");
    let mut running = [("loud", &["-v"][..]), ("quiet", &[])].map(|(name, args)| {
        let run = ["run", name, "--ttl", "5s", "--", "cat"];
        let mut command = fairlock(&server, &[args, &run].concat());
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        (name, command.spawn().expect("the binary starts"))
    });
    for (name, process) in &mut running {
        let info = until_some(SLACK * 4, "the lock is held", || {
            let ended = process.try_wait().expect("it is our child");
            assert_eq!(ended, None, "{name}");
            let info = manager.inspect(*name).expect("Redis answers");
            info.filter(|info| info.holder.is_some())
        });
        assert!(manager.force_release(*name, info.fence).expect("released"));
    }
    for (name, mut process) in running {
        // The command reads its standard input until the loss ends it.
        let input = process.stdin.take();
        until(Duration::from_secs(20), "it ends", || {
            process.try_wait().expect("it is our child").is_some()
        });
        let ended = Ended::from(process.wait_with_output().expect("it ended"));
        drop(input);
        assert_eq!(ended.code, Some(74), "{ended:?}");
        let line = format!("fairlock: warning: lost {name:?}");
        let is_shown = ended.stderr.contains(&line);
        assert_eq!(is_shown, name == "loud", "{ended:?}");
    }
}

#[test]
fn each_empty_variable_is_named() {
    for name in [
        "URL",
        "SENTINEL",
        "MASTER",
        "CLUSTER",
        "USER",
        "PASSWORD",
        "PASSWORD_FILE",
        "TLS",
        "TLS_CA",
        "TLS_CERT",
        "TLS_KEY",
        "PREFIX",
        "COMMAND_TIMEOUT",
        "REPLICA_ACKS",
        "REPLICA_TIMEOUT",
    ] {
        let name = format!("FAIRLOCK_{name}");
        for empty in ["", "\n"] {
            let mut variables = vec![(&*name, empty)];
            if name == "FAIRLOCK_MASTER" {
                variables.push(("FAIRLOCK_SENTINEL", "h:1"));
            }
            refused(&["ls"], &variables, &format!("{name} is empty"));
        }
    }
}

#[test]
fn message_names_the_place_that_gave_the_value() {
    for (args, variables, message) in [
        (
            &["ls", "--url", "redis-sentinel://h/%01"][..],
            &[][..],
            "fairlock: --url: ",
        ),
        (
            &["ls"],
            &[("FAIRLOCK_URL", "redis-sentinel://h/%01")],
            "fairlock: FAIRLOCK_URL: ",
        ),
        (
            &["ls"],
            &[("FAIRLOCK_PREFIX", "{")],
            "fairlock: FAIRLOCK_PREFIX: ",
        ),
        (
            &["ls", "--prefix", "{"],
            &[("FAIRLOCK_PREFIX", "good")],
            "fairlock: --prefix: ",
        ),
        (
            &["ls"],
            &[("FAIRLOCK_COMMAND_TIMEOUT", "4h")],
            "FAIRLOCK_COMMAND_TIMEOUT can be 3h",
        ),
        (
            &["ls"],
            &[("FAIRLOCK_REPLICA_TIMEOUT", "1s")],
            "FAIRLOCK_REPLICA_TIMEOUT needs --replica-acks",
        ),
        (
            &["ls"],
            &[("FAIRLOCK_CLUSTER", "p@h:1")],
            "FAIRLOCK_CLUSTER: HOST:PORT",
        ),
        (
            &["ls"],
            &[("FAIRLOCK_TLS", "true"), ("FAIRLOCK_URL", "unix:///s")],
            "leave out FAIRLOCK_TLS",
        ),
    ] {
        refused(args, variables, message);
    }
}

#[test]
fn service_that_nobody_knows_is_blamed_on_its_place() {
    let sentinel = ScriptedServer::start(|words| {
        let is_question = words[0].eq_ignore_ascii_case(b"SENTINEL");
        match is_question {
            true => ScriptedReply::Raw(b"*-1\r\n".to_vec()),
            false => ScriptedReply::polite(words),
        }
    });
    let at = sentinel.addr().to_string();
    let url = format!("redis-sentinel://{at}/nobody");
    for (args, variables, message) in [
        (
            &["ls", "--url", &url][..],
            &[][..],
            "--url: one that the sentinels watch",
        ),
        (
            &["ls"],
            &[("FAIRLOCK_URL", &*url)],
            "FAIRLOCK_URL: one that",
        ),
        (
            &["ls", "--sentinel", &at, "--master", "nobody"],
            &[],
            "--master: one that",
        ),
        (
            &["ls", "--sentinel", &at],
            &[("FAIRLOCK_MASTER", "nobody")],
            "FAIRLOCK_MASTER: one that",
        ),
    ] {
        refused(args, variables, message);
    }
}

#[test]
fn zone_of_a_link_local_address_is_understood() {
    for args in [
        &["ls", "--url", "redis://[fe80::7%25nolink]:7777/"][..],
        &["ls", "--url", "redis://[fe80::7%nolink]:7777/"],
        &["ls", "--cluster", "[fe80::7%nolink]:7777"],
        &[
            "ls",
            "--sentinel",
            "[fe80::7%25nolink]:7777",
            "--master",
            "m",
        ],
    ] {
        let ended = end(&mut with_variables(args, &[]));
        assert_eq!(ended.code, Some(69), "{ended:?}");
        let at = "[fe80::7%nolink]:7777";
        assert!(ended.stderr.contains(at), "{ended:?}");
    }
    refused(&["ls", "--url", "redis://[fe80::7%25]/"], &[], "zone");
    refused(&["ls", "--url", "redis://[2001::7%25lo]/"], &[], "zone");
}
