//! Signals that `fairlock run` receives.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Pid, Signal};

use super::{
    LONG, Run, TTL_TEXT, is_alive, is_held, manager, previous, run_script, state, until_renewed,
    waiters,
};
use crate::process::{end, give_environment, without_server};
use crate::support::{Proxy, SLACK, Server, until};

/// How often the thread that receives signals has gone back to sleep.
fn wake_ups(process: Pid) -> u64 {
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    let mut statuses = std::fs::read_dir(tasks).expect("alive").filter_map(|task| {
        let status = task.ok()?.path().join("status");
        std::fs::read_to_string(status).ok()
    });
    let status = statuses.find(|status| status.starts_with("Name:\tsignals\n"));
    let status = status.expect("the thread");
    let count = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.expect("Linux").trim().parse().expect("a number")
}

#[test]
fn signals_are_forwarded_to_the_command() {
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
    assert_eq!(run.ended().code, Some(4));
    assert!(!is_held(&server, "a"));
}

#[test]
fn signals_reach_the_whole_group() {
    let server = Server::start();
    let mut run = Run::script(&server, &["a"], "sleep 60 >&2 & echo $$; wait");
    let group = run.pid_line();
    run.signal(Signal::TERM);
    assert_eq!(run.ended().code, Some(143));
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
    assert_eq!(run.ended().code, Some(143));
}

#[test]
fn signals_end_a_wait_and_leave_the_queue() {
    let server = Server::start();
    let _guard = manager(&server).lock("a").expect("free");
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let mut run = Run::script(&server, &["a"], "echo ran");
        until(LONG, "queued", || waiters(&server, "a") == 1);
        run.signal(signal);
        let ended = run.ended();
        assert_eq!(ended.code, Some(128 + signal.as_raw()), "{ended:?}");
        assert_eq!(ended.stdout, "");
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
    until(LONG, "queued", || waiters(&server, "a") == 1);
    server.stop();
    run.signal(Signal::TERM);
    let start = std::time::Instant::now();
    assert_eq!(run.ended().code, Some(143));
    // A shutdown of the manager: the time for guards, three command timeouts, and the last handle.
    let bound = crate::defaults::DEFAULT_COMMAND_TIMEOUT * 5 + SLACK;
    assert!(start.elapsed() < bound, "{:?}", start.elapsed());
    server.cont();
}

#[test]
fn user_signals_do_not_end_a_wait() {
    let server = Server::start();
    let guard = manager(&server).lock("a").expect("free");
    let mut run = Run::script(&server, &["a"], "echo ran");
    until(LONG, "queued", || waiters(&server, "a") == 1);
    for signal in [Signal::USR1, Signal::USR2, Signal::CONT] {
        let before = wake_ups(run.pid());
        run.signal(signal);
        until(LONG, "the signal is noticed", || {
            wake_ups(run.pid()) > before
        });
    }
    guard.unlock().expect("released");
    run.ends(0, "ran\n");
}

#[test]
fn wait_can_be_stopped_and_continued() {
    let server = Server::start();
    let guard = manager(&server).lock("a").expect("free");
    let mut run = Run::script(&server, &["a"], "echo ran");
    until(LONG, "queued", || waiters(&server, "a") == 1);
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
    end(&mut run_script(&server, &["a"], "kill -KILL $$"));
    let guard = manager(&server).lock("a").expect("free");
    let mut command = without_server(&["run", "--ttl", TTL_TEXT, "a", "--", "echo", "ran"]);
    let mut run = Run::start(command.env("FAIRLOCK_URL", proxy.url()));
    until(LONG, "queued", || waiters(&server, "a") == 1);
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
fn ignored_signal_stays_ignored() {
    let server = Server::start();
    let binary = run_script(&server, &["a"], "echo up; exec sleep 60");
    let words: Vec<String> = std::iter::once(binary.get_program())
        .chain(binary.get_args())
        .map(|word| format!("'{}'", word.to_str().expect("text")))
        .collect();
    let script = format!("trap '' HUP; exec {}", words.join(" "));
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    give_environment(&mut command, &binary);
    let mut run = Run::start(&mut command);
    run.line();
    run.signal(Signal::HUP);
    run.signal(Signal::TERM);
    // Had HUP reached the command, it would have come first.
    assert_eq!(run.ended().code, Some(143));
}

/// The signals that end a process which has no handler for them, and that a program can handle.
fn fatal() -> impl Iterator<Item = i32> {
    [
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGALRM,
        libc::SIGSTKFLT,
        libc::SIGXCPU,
        libc::SIGXFSZ,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGIO,
        libc::SIGPWR,
        libc::SIGSYS,
        libc::SIGRTMIN(),
        libc::SIGRTMAX(),
    ]
    .into_iter()
}

fn send(process: Pid, number: i32) {
    // SAFETY: the call reads and writes no memory of ours.
    let sent = unsafe { libc::kill(process.as_raw_nonzero().get(), number) };
    assert_eq!(sent, 0);
}

#[test]
fn signal_that_would_end_fairlock_alone_ends_the_command_by_term() {
    let server = Server::start();
    for number in fatal() {
        let script = "trap 'echo term; sleep 0.1; exit 0' TERM; echo $$
            while :; do sleep 0.02; done";
        let mut run = Run::script(&server, &["a"], script);
        let group = run.pid_line();
        send(run.pid(), number);
        run.ends(128 + number, "term\n");
        assert!(!is_alive(group), "{number}");
        assert!(!is_held(&server, "a"), "{number}");
        assert_eq!(previous(&server, &["a"]), "lapsed", "{number}");
    }
}

#[test]
fn command_that_ignores_term_is_killed_after_such_a_signal() {
    let server = Server::start();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.02; done";
    let mut run = Run::script(&server, &["--grace", "200ms", "a"], script);
    let group = run.pid_line();
    send(run.pid(), libc::SIGALRM);
    run.ends(128 + libc::SIGALRM, "");
    assert!(!is_alive(group));
}

#[test]
fn signal_that_would_end_fairlock_ends_a_wait() {
    let server = Server::start();
    let _guard = manager(&server).lock("a").expect("free");
    for number in [libc::SIGALRM, libc::SIGXCPU, libc::SIGRTMIN()] {
        let mut run = Run::script(&server, &["a"], "echo ran");
        until(LONG, "queued", || waiters(&server, "a") == 1);
        send(run.pid(), number);
        run.ends(128 + number, "");
        assert_eq!(waiters(&server, "a"), 0);
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
fn blocked_signals_that_were_inherited_are_received() {
    let server = Server::start();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::ALARM] {
        let mut command = run_script(&server, &["a"], "echo up; exec sleep 60");
        let mut run = Run::start(block_all(&mut command));
        run.line();
        run.signal(signal);
        run.ends(128 + signal.as_raw(), "");
    }
    let guard = manager(&server).lock("a").expect("free");
    let mut waiting = Run::start(block_all(&mut run_script(&server, &["a"], "true")));
    until(LONG, "queued", || waiters(&server, "a") == 1);
    waiting.signal(Signal::TERM);
    waiting.ends(143, "");
    guard.unlock().expect("released");
}

#[test]
fn command_blocks_no_signal_that_fairlock_inherited_blocked() {
    let server = Server::start();
    let mut command = run_script(&server, &["a"], "grep SigBlk: /proc/self/status");
    let ended = end(block_all(&mut command));
    assert_eq!(ended.stdout, "SigBlk:\t0000000000000000\n");
}
