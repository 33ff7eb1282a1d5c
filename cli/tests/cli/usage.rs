//! Help, versions and wrong command lines.

use std::fs::{self, File};
use std::time::Duration;

use fairlock::LockManager;

use crate::process::{end, fairlock, without_server};
use crate::support::Server;
use crate::terminal::Terminal;

#[test]
fn unknown_option_exits_64() {
    let ended = end(&mut without_server(&["ls", "--no-such-option"]));
    assert_eq!(ended.code, Some(64), "{ended:?}");
    assert!(ended.stderr.contains("--no-such-option"), "{ended:?}");
}

/// If a change is meant, `fairlock COMMAND -h > golden/COMMAND.txt` has the new file.
#[track_caller]
pub(crate) fn assert_golden(file: &str, text: &str) {
    let path = format!("{}/tests/cli/golden/{file}", env!("CARGO_MANIFEST_DIR"));
    let golden = fs::read_to_string(&path).expect("the file is in the repository");
    assert_eq!(text, golden, "{path}");
}

#[test]
fn help_of_a_command_is_as_its_golden_file_has_it() {
    for command in "run ls show release top why-waiting doctor bench completions man".split(' ') {
        let ended = end(&mut without_server(&[command, "-h"]));
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{ended:?}");
        assert_golden(&format!("{command}.txt"), &ended.stdout);
    }
    // All options, those of the connection with their variables.
    if cfg!(feature = "tls") {
        let ended = end(&mut without_server(&["--help"]));
        assert_golden("fairlock.txt", &ended.stdout);
    }
}

#[test]
fn help_fits_a_terminal() {
    let server = Server::start();
    let mut terminal = Terminal::start(&fairlock(&server, &["ls", "-h"]), 100, 60);
    terminal.shows("Usage: fairlock ls");
    terminal.program.wait().expect("ends");
}

#[test]
fn unreachable_server_exits_69() {
    let mut command = without_server(&["ls"]);
    let ended = end(command.env("FAIRLOCK_URL", "redis+unix:///no/such/socket"));
    assert_eq!(ended.code, Some(69), "{ended:?}");
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
        let ended = end(fairlock(&server, args).stdout(full()));
        assert_eq!(ended.code, Some(70), "{args:?}: {ended:?}");
        assert!(
            ended.stderr.contains("No space left"),
            "{args:?}: {ended:?}"
        );
    }
    manager.shutdown(Duration::ZERO).unwrap();
}
