//! Help, versions and wrong command lines.

use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use fairlock::LockManager;

use crate::look::is_golden;
use crate::process::{exits, fairlock, gives, printed, without_server};
use crate::support::Server;

#[test]
fn wrong_usage_exits_64_and_the_message_names_it() {
    let server = Server::start();
    for (line, named) in [
        ("ls --no-such-option", "--no-such-option"),
        ("ls --totals", "--prometheus"),
        ("show n --follow --interval=99ms", "100ms to 1d"),
        ("show n --follow --interval=1", "--interval"),
        ("show n --follow --interval=86401s", "100ms to 1d"),
        ("show n --json --interval=1s", "--follow"),
        ("top", "terminal"),
        ("top --interval 99ms", "100ms to 1d"),
        ("top --interval 500000000000y", "--interval"),
        ("release n", "--yes"),
        ("bench --threads 0", "--threads"),
        ("bench --duration 5", "--duration"),
        ("doctor --ttl 5", "--ttl"),
        ("doctor --ttl 1ms", "--ttl"),
        ("doctor --ttl 9s --url http://127.0.0.1/", "--url"),
        ("man /dev/null/man1", "/dev/null/man1"),
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let ended = gives(fairlock(&server, &args).stdin(Stdio::null()), 64, "");
        ended.says(named);
    }
}

#[test]
fn help_of_a_command_is_as_its_golden_file_has_it() {
    for command in "run ls show release top why-waiting doctor bench completions man".split(' ') {
        let help = printed(without_server(&[command, "-h"]));
        is_golden(&format!("{command}.txt"), &help);
    }
    // All options, those of the connection with their variables.
    if cfg!(feature = "tls") {
        is_golden("fairlock.txt", &printed(without_server(&["--help"])));
    }
}

#[test]
fn output_that_cannot_be_written_ends_with_70() {
    let server = Server::start();
    let manager = LockManager::connect(server.url()).unwrap();
    let _held = manager.lock("a").unwrap();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for args in [
        &["--help"][..],
        &["-h"],
        &["--version"],
        &["run", "--help"],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["completions", "fish"],
        &["man"],
        &["ls"],
        &["ls", "--json"],
        &["ls", "--prometheus"],
        &["ls", "--prometheus", "--totals"],
        &["show", "a"],
        &["show", "a", "--json"],
        &["show", "a", "--follow"],
        &["show", "a", "--follow", "--json"],
        &["why-waiting", "a"],
        &["why-waiting", "a", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["bench", "--duration", "100ms"],
        &["release", "a", "--yes"],
    ] {
        let ended = exits(fairlock(&server, args).stdout(full()), 70);
        ended.says("No space left");
    }
    manager.shutdown(Duration::ZERO).unwrap();
}
