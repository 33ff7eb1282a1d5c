//! Signals that `fairlock run` receives.

use super::*;
use crate::defaults::DEFAULT_COMMAND_TIMEOUT;

#[test]
fn signals_are_forwarded_to_the_group_of_the_command() {
    let server = Server::start();
    let script = "for s in 2 15 3 10 12; do trap \"echo $s\" $s; done
        trap 'echo 1; exit 4' HUP
        echo up; while :; do sleep 0.02; done";
    let mut run = Run::script(&server, "a", script);
    run.line();
    let (first, last) = ([Signal::INT, Signal::TERM, Signal::QUIT], Signal::HUP);
    for signal in first.into_iter().chain([Signal::USR1, Signal::USR2, last]) {
        run.signal(signal);
        assert_eq!(run.line(), signal.as_raw().to_string());
    }
    run.ends(4, "");
    assert!(!is_held(&server, "a"));
    let mut run = Run::script(&server, "a", "sleep 60 >&2 & echo $$; wait");
    let group = run.pid_line();
    run.signal(Signal::TERM);
    run.ends(143, "");
    assert!(!is_alive(group));
}

#[test]
fn stop_and_continue_are_forwarded_and_the_lock_is_kept() {
    let server = Server::start();
    let mut run = Run::script(&server, "--ttl 4s a", "echo $$; exec sleep 60");
    let command = run.pid_line();
    run.signal(Signal::TSTP);
    until_stopped(&[command], true);
    // Without a terminal, fairlock goes on and renews the lock.
    until_renewed(&server, "a");
    assert_ne!(state(run.pid()), "T");
    run.signal(Signal::CONT);
    until_stopped(&[command], false);
    run.signal(Signal::TERM);
    run.ends(143, "");
}

#[test]
fn signals_end_a_wait_but_others_and_a_stop_do_not() {
    let server = Server::start();
    let guard = manager(&server).lock("a").unwrap();
    let ending = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT].map(Signal::as_raw);
    for number in ending.into_iter().chain([libc::SIGALRM, libc::SIGRTMIN()]) {
        let mut run = Run::script(&server, "a", "echo ran");
        until_queued(&server, "a", 1);
        send_number(run.pid(), number);
        run.ends(128 + number, "");
        assert_eq!(info(&server, "a").unwrap().waiters, 0);
    }
    let mut run = Run::script(&server, "a", "echo ran");
    until_queued(&server, "a", 1);
    for signal in [Signal::USR1, Signal::USR2, Signal::CONT] {
        run.signal(signal);
    }
    run.signal(Signal::STOP);
    until_stopped(&[run.pid()], true);
    run.signal(Signal::CONT);
    // A signal that is still on its way to the thread for signals would go to the command.
    let pid = run.pid().as_raw_nonzero();
    let sleeps = |task: std::io::Result<fs::DirEntry>| {
        let stat = fs::read_to_string(task.unwrap().path().join("stat"));
        stat.is_ok_and(|stat| stat.contains(") S "))
    };
    let tasks = || fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    until(LONG, "all threads sleep", || tasks().all(sleeps));
    guard.unlock().unwrap();
    run.ends(0, "ran\n");
}

#[test]
fn wait_can_be_ended_while_redis_is_silent() {
    let server = Server::start();
    let _guard = manager(&server).lock("a").unwrap();
    let timeout = DEFAULT_COMMAND_TIMEOUT.as_millis();
    let args = format!("--command-timeout {timeout}ms --wait 1h a");
    let mut run = Run::script(&server, &args, "echo ran");
    until_queued(&server, "a", 1);
    server.stop();
    run.signal(Signal::TERM);
    let start = Instant::now();
    run.ends(143, "");
    // A shutdown of the manager: the time for guards, three command timeouts, and the last handle.
    let bound = DEFAULT_COMMAND_TIMEOUT * 5 + SLACK;
    assert!(start.elapsed() < bound, "{:?}", start.elapsed());
    server.cont();
}

#[test]
fn signal_beats_a_grant_that_is_under_way() {
    let server = Server::tcp();
    let proxy = Proxy::to(server.addr());
    // The holder before left its work half done, and nobody else has done it.
    script_gives(&server, "a", "kill -KILL $$", 137, "");
    let guard = manager(&server).lock("a").unwrap();
    let mut run = Run::start(at(&proxy.url(), "run --ttl 2s a -- echo ran"));
    until_queued(&server, "a", 1);
    proxy.pause_replies();
    guard.abandon().unwrap();
    until(LONG, "granted", || {
        info(&server, "a").is_some_and(|info| info.state == LockState::Held && info.waiters == 0)
    });
    run.signal(Signal::TERM);
    run.ends(143, "");
    until(LONG, "free", || !is_held(&server, "a"));
    assert_eq!(previous(&server, "a"), "lapsed");
}

#[test]
fn ignored_signal_stays_ignored_as_under_nohup() {
    let server = Server::start();
    let binary = run_script(&server, "a", "echo up; exec sleep 60");
    for wrapper in ["nohup", "sh -c 'trap \"\" HUP; exec \"$@\"' sh"] {
        let mut run = Run::start(wrapped(wrapper, &binary));
        run.line();
        run.signal(Signal::HUP);
        run.signal(Signal::TERM);
        // Had HUP reached the command, it would have come first.
        run.ends(143, "");
    }
}

fn send_number(process: Pid, number: i32) {
    // SAFETY: the call reads and writes no memory of ours.
    let sent = unsafe { libc::kill(process.as_raw_nonzero().get(), number) };
    assert_eq!(sent, 0);
}

#[test]
fn signal_that_would_end_fairlock_alone_goes_to_the_command() {
    use libc::*;
    let server = Server::start();
    // Those that end a process which has no handler for them, and that a program can handle.
    let named = [
        SIGTRAP, SIGABRT, SIGALRM, SIGSTKFLT, SIGXCPU, SIGXFSZ, SIGVTALRM, SIGPROF, SIGIO, SIGPWR,
        SIGSYS,
    ];
    for number in named.into_iter().chain([SIGRTMIN(), SIGRTMAX()]) {
        let script = "ulimit -c 0; echo $$; exec sleep 60";
        let mut run = Run::script(&server, "a", script);
        let group = run.pid_line();
        send_number(run.pid(), number);
        run.ends(128 + number, "");
        assert!(!is_alive(group), "{number}");
        assert_eq!(previous(&server, "a"), "lapsed", "{number}");
    }
}

/// Some programs block all signals by mistake.
#[test]
fn signals_that_were_inherited_blocked_are_received() {
    let server = Server::start();
    let blocked = |script| wrapped("env --block-signal", &run_script(&server, "a", script));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::ALARM] {
        let mut run = Run::start(blocked("echo up; exec sleep 60"));
        run.line();
        run.signal(signal);
        run.ends(128 + signal.as_raw(), "");
    }
    let command = blocked("grep SigBlk: /proc/self/status");
    gives(command, 0, "SigBlk:\t0000000000000000\n");
}
