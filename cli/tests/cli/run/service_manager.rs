//! A run as the main process of a systemd service. The tests play systemd.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use super::{executable, gives, run, run_script};
use crate::process::wrapped;
use crate::support::Server;

/// The same command, started as systemd starts the main process of a service. Its first file, which
/// would be a socket, has the text "given".
fn by_systemd(command: &Command, folder: &TempDir) -> Command {
    let file = folder.path().join("socket");
    fs::write(&file, "given\n").expect("written");
    let variables =
        "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web LISTEN_PIDFDID=7 WATCHDOG_PID=$$";
    let script = format!("export {variables}; exec 3<\"$0\" \"$@\"");
    let file = file.to_str().expect("a plain name");
    wrapped(&["sh", "-c", &script, file], command)
}

/// The output of a command that compares the variables with its own number, and reads its file.
const SHOW: &str = "ids=$LISTEN_PID,$WATCHDOG_PID,$LISTEN_PIDFDID
[ $ids = $$,$$, ] && echo mine || echo $ids, in $$; cat <&3";

#[test]
fn every_form_of_a_run_names_its_command_to_systemd() {
    let server = Server::start();
    let inner = |options: &str| format!("exec \"$BINARY\" run {options} -- sh -c '{SHOW}'");
    let dir = TempDir::new().unwrap();
    let mut by_path = run(&server, &["a"]);
    by_path.arg(executable(&dir, SHOW));
    for command in [
        run_script(&server, &["a"], SHOW),
        run_script(&server, &["--detach", "1m", "b"], SHOW),
        run_script(&server, &["a"], &inner("other")),
        run_script(&server, &["a"], &inner("--reenter a")),
        by_path,
    ] {
        gives(by_systemd(&command, &dir), 0, "mine\ngiven\n");
    }
}

#[test]
fn numbers_of_other_processes_are_left_alone() {
    let server = Server::start();
    let show = "echo $LISTEN_PID,$LISTEN_PIDFDID,$WATCHDOG_PID";
    for given in ["1,7,1", "x,7,", ",,", "99999999999,7,-1"] {
        let mut command = run_script(&server, &["a"], show);
        let names = ["LISTEN_PID", "LISTEN_PIDFDID", "WATCHDOG_PID"];
        command.envs(names.into_iter().zip(given.split(',')));
        gives(&mut command, 0, &format!("{given}\n"));
    }
}
