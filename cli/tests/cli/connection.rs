//! The options that say which Redis: each topology, logins, and what no message shows.

use std::io::Write as _;

use crate::support::{ScriptedReply, ScriptedServer};
use crate::*;

/// A password of characters that a URL would have to encode.
const PASSWORD: &str = "p/w@d:#% 1";

/// The output of `ls`, which ended well. A busy server has time.
#[track_caller]
pub(crate) fn listed(mut command: Command) -> String {
    exits(command.env("FAIRLOCK_COMMAND_TIMEOUT", "5s"), 0).stdout
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
    for (url, servers) in [
        (sentinels.url(), &sentinels.nodes[..1]),
        (cluster.url(), &cluster.nodes()[..3]),
    ] {
        let ended = exits(at(&url, "bench --duration 20ms --command-timeout 10s"), 0);
        assert_eq!(ended.stderr.lines().count(), 1, "no warning: {ended:?}");
        for server in servers {
            assert_eq!(server.query::<Vec<String>>(&["KEYS", "fairlock*"]), [""; 0]);
        }
    }
    let managers = [sentinels.url(), cluster.url()].map(|url| patient(&url, ""));
    let hold = |manager: &LockManager| manager.lock("shared").unwrap();
    let _held: Vec<LockGuard> = managers.iter().map(hold).collect();
    let (one, other) = (cluster.node(0).addr(), cluster.node(1).addr());
    let urls_of_cluster = format!("redis-cluster://{one},{other}");
    let lists = |line: &str| listed(bare(line)).contains("shared");
    for url in [&sentinels.url(), &urls_of_cluster, &urls.join(" ")] {
        // The option goes before the variable.
        let nowhere = "FAIRLOCK_URL=redis://127.0.0.1:1/";
        assert!(lists(&format!("{nowhere} ls --url '{url}'")));
        assert!(lists(&format!("FAIRLOCK_URL='{url}' ls")));
    }
    let [a, b, c] = urls;
    // An option may stand on either side of the command.
    let place = format!("--url {a} ls --url {a} --url {b} --url {c}");
    assert!(lists(&place));
    assert!(!lists(&format!("{place} --prefix own")));
    assert!(!lists(&format!("FAIRLOCK_PREFIX=own {place}")));
}

/// A secret that was made with `echo` has an end of line, and so has a file of variables with the
/// line ends of Windows.
#[test]
fn password_comes_from_a_file_or_a_variable_without_its_end_of_line() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("password");
    for server in [Server::start(), Server::tcp()] {
        let secret = format!(">{PASSWORD}");
        let user = ["ACL", "SETUSER", "u", "on", "~*", "&*", "+@all", &secret];
        server.query::<()>(&user);
        server.query::<()>(&["ACL", "SETUSER", "default", &secret]);
        for end_of_line in ["", "\n", "\r\n", "\r"] {
            fs::write(&path, format!("{PASSWORD}{end_of_line}")).unwrap();
            for login in "PASSWORD|PASSWORD_FILE|USER PASSWORD|USER PASSWORD_FILE".split('|') {
                let mut command = bare("ls");
                for name in format!("URL COMMAND_TIMEOUT REPLICA_ACKS {login}").split(' ') {
                    let value = match name {
                        "URL" => &server.url(),
                        "COMMAND_TIMEOUT" => "2s",
                        "REPLICA_ACKS" => "0",
                        "USER" => "u",
                        "PASSWORD" => PASSWORD,
                        _ => path.to_str().unwrap(),
                    };
                    command.env(format!("FAIRLOCK_{name}"), format!("{value}{end_of_line}"));
                }
                exits(command, 0);
            }
        }
        let wrong = exits(at(&server.url(), "FAIRLOCK_PASSWORD=secret ls"), 69);
        wrong.says("WRONGPASS");
        assert!(!wrong.stderr.contains("secret"), "{wrong:?}");
    }
}

/// Some commands need the login more than once, and a pipe has it once.
#[test]
fn password_file_may_be_a_pipe() {
    let server = Server::tcp_with(&["--requirepass", PASSWORD]);
    for line in ["bench --duration 10ms", "doctor"] {
        let line = format!("{line} --url {}2 --password-file /dev/stdin", server.url());
        let (read, mut write) = std::io::pipe().expect("a pipe");
        writeln!(write, "{PASSWORD}").expect("it has room");
        drop(write);
        exits(fairlock(&server, &line).stdin(read), 0);
    }
}

/// Of a URL in the wrong place, the message has its scheme.
#[test]
fn no_message_shows_a_password() {
    for line in [
        "ls --url redis://u:secret@h:x/",
        "ls --url secret",
        "redis://:secret@h/ ls",
        "redis://:s@secret@h/ ls",
        "ls --password=secret",
        "FAIRLOCK_URL=redis-cluster://:secret@h:x ls",
        "FAIRLOCK_URL=redis://:secret@127.0.0.1:1/ ls",
        "FAIRLOCK_URL=redis://:secret@h ls --help",
        "FAIRLOCK_PASSWORD=secret --help",
        "FAIRLOCK_PASSWORD_FILE='my\nsecret' ls",
        "ls * redis+unix:///s?pass=secret",
        "ls * redis-sentinel://s/m?sentinelPassword=secret",
        "ls --command-timeout redis+unix:///s?pass=secret",
        "FAIRLOCK_COMMAND_TIMEOUT=redis+unix://s?pass=secret ls",
        "ls --redis://:secret/",
        "ls * 'redis://u:my secret@h'",
        "ls * \"redis://u:it's\nmy 'secret\"",
        "redis://u ls redis://u:secret@h",
    ] {
        let ended = end(bare(line));
        let output = format!("{}{}", ended.stdout, ended.stderr);
        assert!(!output.contains("secret"), "{line}: {ended:?}");
        let is_shown = output.contains("'redis+unix://...'");
        assert_eq!(is_shown, line.contains("redis+unix:"), "{line}: {ended:?}");
    }
}

#[test]
fn any_command_timeout_is_kept_without_another_option() {
    let silent = ScriptedServer::start(|_| ScriptedReply::Silent);
    let started = Instant::now();
    exits(at(&silent.url(), "ls --command-timeout 100ms"), 69);
    let most = Duration::from_millis(100) + SLACK;
    assert!(started.elapsed() < most, "{:?}", started.elapsed());
    let server = Server::start();
    exits(fairlock(&server, "ls --command-timeout 3h"), 0);
}
