//! Wrong command lines and variables, help, what is generated from it, and output that fails.

use std::fs::File;

use crate::*;

const COMMANDS: &str = "run ls show why-waiting top release doctor bench completions man";

/// The command line is wrong: exit code 64, and one message that has this.
#[track_caller]
pub(crate) fn wrong(command: Command, named: &str) -> Ended {
    let ended = gives(command, 64, "");
    assert!(ended.stderr.starts_with("fairlock: "), "{ended:?}");
    ended.says(named);
    ended
}

/// The URL is that of a server which would count what it is asked, unless a row has another.
#[test]
fn wrong_usage_exits_64_names_it_and_asks_no_server() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    let dir = tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        format!("ls --password-file {}", path.display())
    };
    let (empty, lines, one) = (file("e", "\n"), file("l", "a\nb\n"), file("o", "p"));
    let twice = format!("FAIRLOCK_URL=redis://:p@h/ {one}");
    let both = "FAIRLOCK_URL=redis://:p@h/ FAIRLOCK_PASSWORD=q ls";
    for (line, named) in [
        ("ls --no-such-option", "--no-such-option"),
        ("ls --totals", "--prometheus"),
        ("show n --follow --interval=99ms", "100ms to 1d"),
        ("show n --json --interval=1s", "--follow"),
        ("top", "terminal"),
        ("top --interval 86401s", "100ms to 1d"),
        ("top --interval 500000000000y", "--interval"),
        ("release n", "--yes"),
        ("doctor --ttl 1ms", "--ttl"),
        ("doctor --ttl 9s --url http://127.0.0.1/", "--url"),
        ("man /dev/null/man1", "/dev/null/man1"),
        ("run a", "<CMD>"),
        ("run a true", "Usage: "),
        ("run a --", ""),
        ("run --no-wait --wait 1s a -- true", "--wait"),
        ("run --wait 10 a -- true", "--wait"),
        ("run --ttl 10ms a -- true", "ttl"),
        ("run --ttl 10s --grace 4001ms a -- true", "--grace"),
        ("run --permits 3/2 a -- true", "--permits"),
        ("run --permits 0/2 a -- true", "--permits"),
        ("run --permits 1 a -- true", "--permits"),
        ("run --permits 1/2 --shared a -- true", "--shared"),
        ("run --shared --exclusive a -- true", "--exclusive"),
        ("run --only-after-success --shared a -- true", ""),
        ("run --label 'two\nlines' a -- true", "label"),
        ("run --attach a -- true", "FAIRLOCK_DETACHED"),
        ("FAIRLOCK_HELD=yes run a -- true", "FAIRLOCK_HELD is "),
        ("FAIRLOCK_HELD={} run a -- true", "FAIRLOCK_HELD is "),
        ("FAIRLOCK_HELD= run a -- true", "FAIRLOCK_HELD is "),
        ("ls --url=h", "--url or FAIRLOCK_URL: "),
        ("ls --url redis://a --url redis://b", "3 or 5 servers"),
        ("ls --user u", "needs a password"),
        (&empty, "--password-file: "),
        (&lines, "more lines"),
        ("ls --password-file /no/file", "/no/file"),
        (&twice, "leave one out"),
        (both, "leave one out"),
        ("ls --replica-timeout 1s", "--replica-acks"),
        ("ls --command-timeout '3h 1ms'", "at most 3h"),
        ("ls --prefix {", "--prefix: "),
        // Both are named where both may have the value.
        ("FAIRLOCK_URL=h ls", "FAIRLOCK_URL"),
        ("FAIRLOCK_PREFIX={ run a -- cmp --prefix", "FAIRLOCK_PREFIX"),
        (
            "FAIRLOCK_PREFIX=good ls --prefix {",
            "--prefix or FAIRLOCK_PREFIX: ",
        ),
        ("FAIRLOCK_PASSWORD='a\nb\n' ls", "FAIRLOCK_PASSWORD"),
        ("FAIRLOCK_COMMAND_TIMEOUT=soon ls", "COMMAND_TIMEOUT"),
    ] {
        wrong(at(&proxy.url(), line), named);
    }
    for name in "URL USER PASSWORD PASSWORD_FILE PREFIX REPLICA_ACKS".split(' ') {
        let line = format!("FAIRLOCK_{name}= ls");
        wrong(at(&proxy.url(), &line), &format!("FAIRLOCK_{name}")).says("empty");
    }
    assert_eq!(proxy.commands(), 0);
}

#[test]
fn help_of_a_command_is_as_its_golden_file_has_it() {
    for command in COMMANDS.split(' ') {
        let help = printed(bare(&format!("{command} -h")));
        is_golden(&format!("{command}.txt"), &help);
    }
    // All options, those of the connection with their variables.
    if cfg!(feature = "tls") {
        is_golden("fairlock.txt", &printed(bare("--help")));
    }
}

#[test]
fn completions_name_every_command_in_every_shell() {
    let dir = tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(bare(&format!("completions {shell}")));
        for word in COMMANDS.split(' ').chain(["url"]) {
            assert!(script.contains(word), "{shell} lacks {word}");
        }
        fs::write(dir.path().join(shell), script).unwrap();
    }
    let completes = "source ./bash; COMP_WORDS=(fairlock why); COMP_CWORD=1; _fairlock fairlock \
                     why fairlock; echo $COMPREPLY";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", completes]);
    assert_eq!(end(bash.current_dir(&dir)).stdout, "why-waiting\n");
}

#[test]
fn every_command_has_a_man_page() {
    let dir = tempdir().unwrap();
    let directory = dir.path().join("share/man/man1");
    printed(bare(&format!("man {}", directory.display())));
    let own = COMMANDS.split(' ').map(|name| format!("fairlock-{name}.1"));
    let pages: Vec<String> = own.chain(["fairlock.1".to_owned()]).collect();
    assert_eq!(fs::read_dir(&directory).unwrap().count(), pages.len());
    for page in pages {
        let text = fs::read_to_string(directory.join(&page)).unwrap();
        for part in [".SH NAME", "\\-\\-user", "Needs a password", "Examples:"] {
            assert!(text.contains(part), "{part}, {page}: {text}");
        }
    }
    let whole = fs::read_to_string(directory.join("fairlock.1")).unwrap();
    assert_eq!(printed(bare("man")).trim_end(), whole.trim_end());
}

#[test]
fn output_that_cannot_be_written_ends_with_70() {
    let server = Server::start();
    let manager = manager(&server);
    let _held = manager.lock("a").unwrap();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for line in "--help|-h|--version|run --help|completions bash|completions zsh|completions fish|\
                 man|ls|ls --json|ls --prometheus|ls --prometheus --totals|show a|show a --json|\
                 show a --follow|show a --follow --json|why-waiting a|why-waiting a --json|\
                 doctor|doctor --json|bench --duration 100ms|release a --yes"
        .split('|')
    {
        let ended = exits(fairlock(&server, line).stdout(full()), 70);
        ended.says("No space left");
    }
    manager.shutdown(Duration::ZERO).unwrap();
}
