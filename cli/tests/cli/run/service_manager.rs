//! A run as the main process of a systemd service. The tests play systemd.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::{env, fs, io, process};

use tempfile::TempDir;

use super::{LONG, run, run_script};
use crate::process::{end, give_environment};
use crate::support::Server;
use crate::support::child::{Child, Role, report};

/// The first socket that systemd gives to a service.
const FIRST: RawFd = 3;

/// A service that takes its socket as `sd_listen_fds` does, and answers one client.
pub(crate) const SERVES_A_SOCKET: (&str, Role) = ("serves_a_socket", |_| {
    let own = process::id().to_string();
    let variables = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID"];
    let [meant_for, count, names, watched] = variables.map(|name| env::var(name).expect(name));
    assert_eq!((&*meant_for, &*watched), (&*own, &*own));
    assert_eq!((&*count, &*names), ("1", "web"));
    // SAFETY: nobody else in this process owns the descriptor.
    let listener = unsafe { TcpListener::from_raw_fd(FIRST) };
    report("ready");
    let (mut client, _) = listener.accept().expect("the socket of the test");
    io::Write::write_all(&mut client, own.as_bytes()).expect("the client reads");
});

/// The same command, started as systemd starts the main process of a service.
fn by_systemd(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    let variables =
        "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web LISTEN_PIDFDID=7 WATCHDOG_PID=$$";
    shell.args(["-c", &format!("export {variables}; exec \"$@\""), "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    give_environment(&mut shell, command);
    shell
}

/// Gives this socket to a command as its first one.
fn give(command: &mut Command, listener: &TcpListener) -> [TcpListener; 2] {
    // At least one of two has another number, so that the copy is inherited.
    let owned = [(); 2].map(|()| listener.try_clone().expect("cloned"));
    let numbers = [owned[0].as_raw_fd(), owned[1].as_raw_fd()];
    let number = if numbers[0] == FIRST {
        numbers[1]
    } else {
        numbers[0]
    };
    let copy = move || {
        // SAFETY: it is called in a child, which owns no other descriptor of this number.
        match unsafe { libc::dup2(number, FIRST) } {
            FIRST => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: after the fork, the closure makes one system call.
    unsafe { command.pre_exec(copy) };
    owned
}

#[test]
fn command_serves_the_socket_that_systemd_gave_to_fairlock() {
    let server = Server::start();
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let mut command = by_systemd(&run(&server, &["a"]));
    let _owned = give(&mut command, &listener);
    command.arg(env::current_exe().expect("this test"));
    let mut service = Child::spawn_by(command, SERVES_A_SOCKET.0, &[]);
    service.expect("ready", LONG);
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).expect("connected");
    let answer = io::read_to_string(&mut client).expect("an answer");
    assert_ne!(
        answer,
        service.pid().to_string(),
        "fairlock has that number"
    );
    service.join();
}

/// What a command prints that compares the variables with its own number.
const SHOW: &str = "ids=$LISTEN_PID,$WATCHDOG_PID,$LISTEN_PIDFDID
[ $ids = $$,$$, ] && echo mine || echo $ids, in $$";

#[test]
fn every_form_of_a_run_names_its_command_to_systemd() {
    let server = Server::start();
    let binary = env!("CARGO_BIN_EXE_fairlock");
    let inner = |options: &str| format!("exec {binary} run {options} -- sh -c '{SHOW}'");
    let dir = TempDir::new().unwrap();
    let script = dir.path().join("without-interpreter");
    fs::write(&script, SHOW).expect("written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("executable");
    let mut by_path = run(&server, &["a"]);
    by_path.arg(&script);
    for command in [
        run_script(&server, &["a"], SHOW),
        run_script(&server, &["--detach", "1m", "b"], SHOW),
        run_script(&server, &["a"], &inner("other")),
        run_script(&server, &["a"], &inner("--reenter a")),
        by_path,
    ] {
        let ended = end(&mut by_systemd(&command));
        let found = (ended.code, &*ended.stdout);
        assert_eq!(found, (Some(0), "mine\n"), "{ended:?} of {command:?}");
    }
}

#[test]
fn numbers_of_other_processes_are_left_alone() {
    let server = Server::start();
    let show = "echo $LISTEN_PID,$LISTEN_PIDFDID,$WATCHDOG_PID";
    for given in ["1,7,1", "x,7,", ",,", "99999999999,7,-1"] {
        let mut command = run_script(&server, &["a"], show);
        let names = ["LISTEN_PID", "LISTEN_PIDFDID", "WATCHDOG_PID"];
        for (name, value) in names.into_iter().zip(given.split(',')) {
            command.env(name, value);
        }
        let ended = end(&mut command);
        assert_eq!(ended.stdout, format!("{given}\n"), "{ended:?}");
    }
}
