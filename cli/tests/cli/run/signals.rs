//! Signals that `fairlock run` receives.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Instant;

use rustix::process::{Pid, Signal};

use super::{
    LONG, Run, TTL_TEXT, is_alive, is_held, manager, previous, run_script, script_gives, state,
    until_queued, until_renewed, waiters,
};
use crate::process::{end, without_server, wrapped};
use crate::support::{Proxy, SLACK, Server, until};

#[test]
fn signals_are_forwarded_to_the_group_of_the_command() {
    let server = Server::start();
    let script = "for s in INT TERM HUP QUIT USR1 USR2; do trap \"echo $s\" $s; done
        trap 'echo HUP; exit 4' HUP
        echo up; while :; do sleep 0.02; done";
    let mut run = Run::script(&server, &["a"], script);
    run.line();
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::TERM, "TERM"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::HUP, "HUP"),
    ] {
        run.signal(signal);
        assert_eq!(run.line(), name);
    }
    run.ends(4, "");
    assert!(!is_held(&server, "a"));
    let mut run = Run::script(&server, &["a"], "sleep 60 >&2 & echo $$; wait");
    let group = run.pid_line();
    run.signal(Signal::TERM);
    run.ends(143, "");
    assert!(!is_alive(group));
}

#[test]
fn stop_and_continue_are_forwarded_and_the_lock_is_kept() {
    let server = Server::start();
    let script = "echo $$; exec sleep 60";
    let mut run = Run::script(&server, &["--ttl", "4s", "a"], script);
    let command = run.pid_line();
    run.signal(Signal::TSTP);
    until(LONG, "the command stops", || state(command) == 'T');
    // Without a terminal, fairlock goes on and renews the lock.
    until_renewed(&server, "a");
    assert_ne!(state(run.pid()), 'T');
    run.signal(Signal::CONT);
    until(LONG, "the command continues", || state(command) != 'T');
    run.signal(Signal::TERM);
    run.ends(143, "");
}

#[test]
fn signals_end_a_wait_and_leave_the_queue() {
    let server = Server::start();
    let _guard = manager(&server).lock("a").expect("free");
    let ending = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT].map(Signal::as_raw);
    for number in ending.into_iter().chain([libc::SIGALRM, libc::SIGRTMIN()]) {
        let mut run = Run::script(&server, &["a"], "echo ran");
        until_queued(&server, "a", 1);
        send(run.pid(), number);
        run.ends(128 + number, "");
        assert_eq!(waiters(&server, "a"), 0);
    }
}

#[test]
fn wait_can_be_ended_while_redis_is_silent() {
    let server = Server::start();
    let _guard = manager(&server).lock("a").expect("free");
    let timeout = format!("{}ms", crate::defaults::DEFAULT_COMMAND_TIMEOUT.as_millis());
    let args = ["--command-timeout", &timeout, "--wait", "1h", "a"];
    let mut run = Run::script(&server, &args, "echo ran");
    until_queued(&server, "a", 1);
    server.stop();
    run.signal(Signal::TERM);
    let start = Instant::now();
    run.ends(143, "");
    // A shutdown of the manager: the time for guards, three command timeouts, and the last handle.
    let bound = crate::defaults::DEFAULT_COMMAND_TIMEOUT * 5 + SLACK;
    assert!(start.elapsed() < bound, "{:?}", start.elapsed());
    server.cont();
}

#[test]
fn other_signals_and_a_stop_do_not_end_a_wait() {
    let server = Server::start();
    let guard = manager(&server).lock("a").expect("free");
    let mut run = Run::script(&server, &["a"], "echo ran");
    until_queued(&server, "a", 1);
    for signal in [Signal::USR1, Signal::USR2, Signal::CONT] {
        run.signal(signal);
    }
    run.signal(Signal::STOP);
    until(LONG, "it stops", || state(run.pid()) == 'T');
    run.signal(Signal::CONT);
    guard.unlock().expect("released");
    run.ends(0, "ran\n");
}

#[test]
fn signal_beats_a_grant_that_is_under_way() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    // The holder before left its work half done, and nobody else has done it.
    script_gives(&server, &["a"], "kill -KILL $$", 137, "");
    let guard = manager(&server).lock("a").expect("free");
    let mut command = without_server(&["run", "--ttl", TTL_TEXT, "a", "--", "echo", "ran"]);
    let mut run = Run::start(command.env("FAIRLOCK_URL", proxy.url()));
    until_queued(&server, "a", 1);
    proxy.pause_replies();
    guard.abandon().expect("released");
    until(LONG, "granted", || {
        is_held(&server, "a") && waiters(&server, "a") == 0
    });
    run.signal(Signal::TERM);
    run.ends(143, "");
    until(LONG, "free", || !is_held(&server, "a"));
    assert_eq!(previous(&server, &["a"]), "lapsed");
}

#[test]
fn ignored_signal_stays_ignored_as_under_nohup() {
    let server = Server::start();
    let binary = run_script(&server, &["a"], "echo up; exec sleep 60");
    for wrapper in [
        &["nohup"][..],
        &["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"],
    ] {
        let mut run = Run::start(&mut wrapped(wrapper, &binary));
        run.line();
        run.signal(Signal::HUP);
        run.signal(Signal::TERM);
        // Had HUP reached the command, it would have come first.
        run.ends(143, "");
    }
}

/// The signals that end a process which has no handler for them, and that a program can handle.
fn fatal() -> impl Iterator<Item = i32> {
    use libc::{SIGABRT, SIGALRM, SIGIO, SIGPROF, SIGPWR, SIGSTKFLT, SIGSYS, SIGTRAP};
    use libc::{SIGRTMAX, SIGRTMIN, SIGVTALRM, SIGXCPU, SIGXFSZ};
    let named = [
        SIGTRAP, SIGABRT, SIGALRM, SIGSTKFLT, SIGXCPU, SIGXFSZ, SIGVTALRM, SIGPROF, SIGIO, SIGPWR,
        SIGSYS,
    ];
    named.into_iter().chain([SIGRTMIN(), SIGRTMAX()])
}

fn send(process: Pid, number: i32) {
    // SAFETY: the call reads and writes no memory of ours.
    let sent = unsafe { libc::kill(process.as_raw_nonzero().get(), number) };
    assert_eq!(sent, 0);
}

#[test]
fn signal_that_would_end_fairlock_alone_goes_to_the_command() {
    let server = Server::start();
    for number in fatal() {
        let script = "ulimit -c 0; echo $$; exec sleep 60";
        let mut run = Run::script(&server, &["a"], script);
        let group = run.pid_line();
        send(run.pid(), number);
        run.ends(128 + number, "");
        assert!(!is_alive(group), "{number}");
        assert_eq!(previous(&server, &["a"]), "lapsed", "{number}");
    }
}

/// Starts a command with all signals blocked, as some programs do by mistake.
fn block_all(command: &mut Command) -> &mut Command {
    let block = || {
        // SAFETY: the set is plain memory, which `sigfillset` initializes.
        unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: the closure only makes a system call.
    unsafe { command.pre_exec(block) }
}

#[test]
fn signals_that_were_inherited_blocked_are_received() {
    let server = Server::start();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::ALARM] {
        let mut command = run_script(&server, &["a"], "echo up; exec sleep 60");
        let mut run = Run::start(block_all(&mut command));
        run.line();
        run.signal(signal);
        run.ends(128 + signal.as_raw(), "");
    }
    let mut command = run_script(&server, &["a"], "grep SigBlk: /proc/self/status");
    let ended = end(block_all(&mut command));
    assert_eq!(ended.stdout, "SigBlk:\t0000000000000000\n");
}
