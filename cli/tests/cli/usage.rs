//! Help, versions and wrong command lines.

use crate::generated::COMMANDS;
use crate::process::{end, fairlock, without_server};
use crate::support::Server;
use crate::terminal::Terminal;

#[test]
fn unknown_option_exits_64() {
    let ended = end(&mut without_server(&["ls", "--no-such-option"]));
    assert_eq!(ended.code, Some(64), "{ended:?}");
    assert!(ended.stderr.contains("--no-such-option"), "{ended:?}");
}

#[test]
fn help_exits_0_and_names_every_command() {
    let ended = end(&mut without_server(&["--help"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for command in COMMANDS {
        assert!(ended.stdout.contains(command), "{command}: {ended:?}");
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
