//! A shell with job control in a terminal, and `fairlock run` in the shell.
//!
//! Commands that get Ctrl-C use `exec`: a shell that is just forking may miss the signal.

use std::fs;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{LONG, is_held, run_script, state, until_queued};
use crate::process::{fairlock, give_environment, wrapped};
use crate::support::{Server, until, until_some};
use crate::terminal::Terminal;

/// An interactive shell in which `run` is `fairlock run`.
struct Shell {
    terminal: Terminal,
    server: Server,
}

impl Shell {
    fn start() -> Shell {
        Shell::with(&[])
    }

    /// With these variables.
    fn with(variables: &[(&str, &str)]) -> Shell {
        let server = Server::start();
        let mut bash = Command::new("bash");
        bash.args(["--norc", "--noprofile", "-i"]);
        let binary = fairlock(&server, &[]);
        give_environment(&mut bash, &binary);
        bash.env("PS1", "ready> ").env("HISTFILE", "/dev/null");
        bash.env("BINARY", binary.get_program());
        bash.envs(variables.iter().copied());
        let mut shell = Shell {
            terminal: Terminal::start(&bash, 40, 100),
            server,
        };
        shell.shows("ready> ");
        shell.enter(
            "run() { \"$BINARY\" run \"$@\"; }; bind 'set enable-bracketed-paste off'; clear",
        );
        shell
    }

    /// Types a line.
    fn enter(&mut self, line: &str) {
        self.terminal.press(line);
        self.terminal.press("\n");
    }

    /// Waits until the shell has printed this. The text must differ from the line that was typed.
    #[track_caller]
    fn shows(&self, what: &str) {
        self.terminal.shows(what);
    }

    /// Types a line that prints something, and waits until it does.
    #[track_caller]
    fn answers(&mut self, line: &str, what: &str) {
        self.enter(line);
        self.shows(what);
    }

    /// Types a line for the command, and compares the exit code.
    #[track_caller]
    fn ends(&mut self) {
        self.answers("words", "got-words");
        self.answers("echo code-$?", "code-0");
        assert!(!is_held(&self.server, "a"));
    }

    #[track_caller]
    fn never_showed(&self, what: &str) {
        let text = self.terminal.text();
        assert!(!text.contains(what), "{text}");
    }

    /// The process whose id is on the screen between this text and a full stop.
    #[track_caller]
    fn printed_pid(&self, before: &str) -> Pid {
        until_some(LONG, "a process id", || {
            let text = self.terminal.text();
            let ids = text.split(before).filter_map(|rest| rest.split_once('.'));
            ids.filter_map(|(id, _)| Pid::from_raw(id.parse().ok()?))
                .next()
        })
    }
}

fn is_stopped(pid: Pid) -> bool {
    state(pid) == 'T'
}

/// The state of a process, which is `Z` also once it is reaped.
fn state_or_dead(pid: Pid) -> char {
    let is_there = fs::exists(format!("/proc/{}", pid.as_raw_nonzero()));
    if is_there.expect("an answer") {
        state(pid)
    } else {
        'Z'
    }
}

/// Whether the process sleeps, and its group has the terminal.
fn sleeps_with_the_terminal(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let stat = stat.unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let fields: Vec<&str> = fields.split_whitespace().collect();
    fields.len() > 5 && fields[0] == "S" && fields[2] == fields[5]
}

#[test]
fn whoever_reads_from_the_terminal_gets_the_line() {
    for line in [
        "run a -- sh -c 'echo up-$((1+1)); read x; echo got-$x'",
        "sh -c '\"$BINARY\" run a -- true; echo up-$((1+1)); read x; echo got-$x'",
        "run a -- sh -c 'echo up-$((1+1)); read x; echo got-$x' | cat",
        "run a -- seq 3 | (cat; echo up-$((1+1)); read x </dev/tty; echo got-$x)",
    ] {
        let mut shell = Shell::start();
        shell.answers(line, "up-2");
        shell.ends();
    }
}

#[test]
fn ctrl_c_ends_the_command_and_what_is_around_it() {
    let script = "\"$BINARY\" run a -- sh -c \"echo up-\\$((1+1)); exec sleep 60\"; echo went-on";
    for (line, code) in [
        ("run a -- sh -c 'echo up-$((1+1)); exec sleep 60'", "130"),
        (
            "for i in 1 2; do run a -- sh -c 'echo up-$((1+1)); exec sleep 60'; done; echo went-on",
            "130",
        ),
        (&*format!("clear; sh -c '{script}'; clear"), "130"),
        // It leaves the group of fairlock, which alone gets the signal of the kernel.
        (
            "run a -- timeout 60 sh -c 'echo up-$((1+1)); exec sleep 60'",
            "130",
        ),
        // A program may handle it, and end as it likes.
        (
            "run a -- sh -c 'trap \"exit 3\" INT; echo up-$((1+1)); while :; do sleep 0.1; done'",
            "3",
        ),
    ] {
        let mut shell = Shell::start();
        shell.answers(line, "up-2");
        shell.terminal.press("\x03");
        shell.answers("echo code-$?", &format!("code-{code}"));
        shell.never_showed("\nwent-on");
        assert!(!is_held(&shell.server, "a"));
    }
}

#[test]
fn ctrl_c_comes_once() {
    let mut shell = Shell::start();
    let script = "trap \"echo int-\\$((1+1))\" INT; echo up-$((1+1)); read x; read x; echo got-$x";
    let line = format!("run b -- \"$BINARY\" run a -- bash -c '{script}'");
    shell.answers(&line, "up-2");
    shell.terminal.press("\x03");
    shell.shows("int-2");
    shell.enter("");
    shell.ends();
    assert_eq!(shell.terminal.text().matches("int-2").count(), 1);
}

#[test]
fn ctrl_c_ends_a_wait() {
    let mut shell = Shell::start();
    let _guard = super::manager(&shell.server).lock("a").expect("free");
    shell.answers("run a -- true", "number 1 in line");
    shell.terminal.press("\x03");
    shell.answers("echo code-$?", "code-130");
    until_queued(&shell.server, "a", 0);
}

/// Ways from a command that reads a line to its job. In most the job is in a group of its own.
const WAYS: [&str; 8] = [
    "read x; echo got-$x",
    "sh -c \"$JOB\" & read x; echo got-$x",
    "timeout 60 sh -c \"$JOB\" & read x; echo got-$x",
    "timeout 60 sh -c \"$JOB\" | cat & read x; echo got-$x",
    "exec bash -c 'set -m; sh -c \"$JOB\" & read x; echo got-$x'",
    "timeout 60 \"$BINARY\" run b -- timeout 60 sh -c \"$JOB\" & read x; echo got-$x",
    "\"$BINARY\" run b -- sh -c \"$JOB\" | cat & read x; echo got-$x",
    "exec \"$BINARY\" run b -- sh -c 'sh -c \"$JOB\" & read x; echo got-$x'",
];
/// A job that goes on after a Ctrl-Z of its own group.
const TOUGH: &str = "trap '' TSTP; echo job-$$.; exec sleep 60";

/// A shell that runs the command, which reads a line, with a job elsewhere.
struct WithJob {
    shell: Shell,
    run: Pid,
    command: Pid,
    /// The command itself, if it has none.
    job: Pid,
}

impl WithJob {
    fn start(way: &str, job: &str) -> WithJob {
        WithJob::of(
            Shell::with(&[("WAY", way), ("JOB", job)]),
            way.contains("JOB"),
        )
    }

    /// With these variables.
    fn of(mut shell: Shell, has_job: bool) -> WithJob {
        shell.enter("run a -- sh -c 'echo run-$PPID.command-$$.; eval \"$WAY\"'");
        let command = shell.printed_pid("command-");
        WithJob {
            run: shell.printed_pid("run-"),
            job: if has_job {
                shell.printed_pid("job-")
            } else {
                command
            },
            command,
            shell,
        }
    }

    /// Stops the run, and waits until it and the job have stopped.
    fn press_ctrl_z(&mut self) {
        until(LONG, "it has the terminal", || {
            sleeps_with_the_terminal(self.command)
        });
        self.shell.terminal.press("\x1a");
        until(LONG, "stopped", || {
            is_stopped(self.run) && is_stopped(self.job)
        });
    }

    fn press_fg(&mut self) {
        self.shell.enter("fg");
        until(LONG, "continued", || sleeps_with_the_terminal(self.command));
    }
}

#[test]
fn ctrl_z_stops_all_processes_and_fg_continues_them() {
    for way in WAYS {
        let mut started = WithJob::start(way, TOUGH);
        for _ in 0..2 {
            started.press_ctrl_z();
            started.shell.answers("echo shell-$((1+1))", "shell-2");
            started.shell.shows("a: stopped: the lock will be lost in ");
            assert!(is_held(&started.shell.server, "a"));
            started.press_fg();
            until(LONG, way, || !is_stopped(started.job));
        }
        started.shell.ends();
    }
}

#[test]
fn ctrl_z_stops_every_command_of_a_pipeline() {
    let mut shell = Shell::start();
    shell.answers(
        // Without the function `run`: its subshells would stop before our processes do.
        "\"$BINARY\" run a -- sh -c 'echo pid-a-$$.run-a-$PPID. >&2; exec sleep 60' | \
         \"$BINARY\" run b -- sh -c 'echo pid-b-$$.run-b-$PPID.; echo up-$((1+1)); \
         read x </dev/tty; echo got-$x'",
        "up-2",
    );
    let all = ["pid-a-", "pid-b-", "run-a-", "run-b-"].map(|text| shell.printed_pid(text));
    for round in 1..=2 {
        shell.terminal.press("\x1a");
        until(LONG, "stopped", || all.into_iter().all(is_stopped));
        shell.answers(
            &format!("echo shell-$(({round}*111))"),
            &format!("shell-{}", round * 111),
        );
        shell.enter("fg");
        until(LONG, "continued", || !all.into_iter().any(is_stopped));
    }
    shell.answers("words", "got-words");
}

#[test]
fn job_that_was_stopped_before_ctrl_z_stays_stopped_after_fg() {
    let way = "timeout 60 sh -c \"$JOB\" & timeout 60 sh -c 'echo other-$$.; exec sleep 60' & \
               read x; echo got-$x";
    let mut started = WithJob::start(way, TOUGH);
    let other = started.shell.printed_pid("other-");
    kill_process(started.job, Signal::STOP).expect("sent");
    until(LONG, "stopped", || is_stopped(started.job));
    started.press_ctrl_z();
    until(LONG, "stopped", || is_stopped(other));
    started.press_fg();
    until(LONG, "continued", || !is_stopped(other));
    assert!(is_stopped(started.job));
    kill_process(started.job, Signal::CONT).expect("sent");
    started.shell.ends();
}

#[test]
fn run_that_waits_in_another_group_starts_nothing_before_fg() {
    let waits = "trap '' TSTP; echo job-$$.; exec \"$BINARY\" run b -- echo ran-on";
    let shell = Shell::with(&[("WAY", WAYS[2]), ("JOB", waits)]);
    let guard = super::manager(&shell.server).lock("b").expect("free");
    let mut started = WithJob::of(shell, true);
    until_queued(&started.shell.server, "b", 1);
    started.press_ctrl_z();
    drop(guard);
    started.shell.never_showed("ran-on");
    started.press_fg();
    started.shell.shows("ran-on");
    started.shell.ends();
}

#[test]
fn job_that_was_stopped_for_too_long_never_runs_again() {
    // The trap is set after the first line: at its start, the command may be continued.
    let script = "read x; trap \"echo ran-on\" CONT TERM; echo pid-$$.up-$((1+1)); read x";
    for (outer, inner, name) in [
        ("--ttl 2s a", "", "a"),
        ("a", "\"$BINARY\" run --ttl 2s b --", "b"),
        // The command leads a session of its own, where no signal of the kernel reaches it.
        ("--ttl 2s a", "setsid", "a"),
    ] {
        let mut shell = Shell::start();
        shell.enter(&format!("run {outer} -- {inner} bash -c '{script}'"));
        shell.answers("words", "up-2");
        let command = shell.printed_pid("pid-");
        shell.terminal.press("\x1a");
        shell.shows("Stopped");
        until(LONG, "the lock lapses", || !is_held(&shell.server, name));
        // Not only once it would run again.
        assert_eq!(state_or_dead(command), 'Z');
        shell.answers("fg", "the command was killed");
        shell.answers("echo code-$?", "code-74");
        shell.never_showed("\nran-on");
    }
}

/// Started by the loader, the program that `/proc` names cannot be the guard.
#[test]
fn run_without_a_guard_cannot_be_stopped() {
    let loaders = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    let Some(loader) = loaders
        .into_iter()
        .find(|path| fs::exists(path).is_ok_and(|is| is))
    else {
        return;
    };
    let mut shell = Shell::start();
    shell.answers(
        &format!("{loader} \"$BINARY\" run a -- sh -c 'echo up-$((1+1)); read x; echo got-$x'"),
        "up-2",
    );
    shell.terminal.press("\x1a");
    shell.shows("a: cannot be stopped");
    shell.ends();
}

#[test]
fn command_that_is_continued_alone_is_killed_in_time_with_its_children() {
    let mut shell = Shell::start();
    // The trap is set after the first line: at its start, the command may be continued.
    let script = "read x; trap \"sleep 60 & echo child-\\$!.\" CONT; sleep 60 & \
                  echo pid-$$.up-$((1+1)); while :; do wait; done";
    shell.enter(&format!("run --ttl 4s a -- bash -c '{script}'"));
    shell.answers("words", "up-2");
    let command = shell.printed_pid("pid-");
    shell.terminal.press("\x1a");
    shell.shows("Stopped");
    kill_process(command, Signal::CONT).expect("sent");
    // It starts a process that nobody knew when the run stopped.
    let child = shell.printed_pid("child-");
    until(LONG, "killed", || {
        [command, child].map(state_or_dead) == ['Z', 'Z']
    });
    assert!(
        is_held(&shell.server, "a"),
        "both are dead before the lock ends"
    );
    shell.answers("fg", "the command was killed");
    shell.answers("echo code-$?", "code-74");
}

#[test]
fn command_that_stops_itself_with_stop_leaves_the_terminal() {
    let mut shell = Shell::start();
    shell.enter("run a -- sh -c 'read x; kill -STOP $$; read x; echo got-$x'");
    shell.answers("first", "Stopped");
    shell.enter("fg");
    shell.ends();
    // A shell has the terminal for a group of its own then.
    let mut shell = Shell::start();
    shell.enter("run a -- bash --norc -i");
    shell.answers("echo inner-$((1+1))", "inner-2");
    shell.answers("suspend", "Stopped");
    shell.answers("fg; echo code-$?", "run \"$@\"");
    shell.answers("echo inner-$((2+2))", "inner-4");
    shell.answers("exit 3", "code-3");
}

#[test]
fn command_that_can_never_have_the_terminal_gets_an_error() {
    let mut shell = Shell::start();
    // The parent of this fairlock ends, so no shell would continue its group. The command reads
    // once the shell has the terminal again.
    shell.enter("export SHELL_PID=$$");
    shell.answers(
        "(\"$BINARY\" run a -- sh -c 'until [ $(ps -o tpgid= -p $$) = $SHELL_PID ]; \
         do sleep 0.02; done; read x </dev/tty || echo refused-$((1+1))' &)",
        "refused-2",
    );
    until(LONG, "released", || !is_held(&shell.server, "a"));
}

#[test]
fn background_job_that_reads_stops_and_fg_gives_it_the_terminal() {
    let mut shell = Shell::start();
    shell.enter("run a -- sh -c 'read x; echo got-$x' &");
    shell.answers("echo shell-$((1+1))", "shell-2");
    until(LONG, "the job stops", || {
        shell.enter("jobs");
        // A pause between two polls: each of them fills a line of the screen.
        std::thread::sleep(Duration::from_millis(100));
        shell.terminal.text().contains("Stopped")
    });
    shell.answers("fg", "run a -- sh -c");
    shell.ends();
}

#[test]
fn modes_of_the_terminal_are_restored_after_a_kill() {
    let mut shell = Shell::start();
    // sh does not mend the terminal as bash does.
    shell.enter("exec sh");
    shell.answers("PS1='sh-$((1+1))> '", "sh-2> ");
    let line = "\"$BINARY\" run a -- sh -c 'stty raw -echo; kill -KILL $$'; echo code-$?";
    shell.answers(line, "code-137");
    shell.answers(
        "stty -a | grep -o '[-]*icanon'; echo after-$((1+1))",
        "after-2",
    );
    assert!(shell.terminal.text().contains("\nicanon"));
}

/// As in a container: no shell is there to continue it.
#[test]
fn first_process_of_a_terminal_cannot_be_stopped_with_ctrl_z() {
    let server = Server::start();
    let program = run_script(&server, &["a"], "echo up; read x; echo got-$x");
    let mut terminal = Terminal::start(&program, 24, 80);
    terminal.shows("up");
    terminal.press("\x1a");
    terminal.press("words\n");
    terminal.shows("got-words");
    assert_eq!(terminal.ends(), Some(0));
    let words = "unshare --user --map-root-user --pid --fork --mount-proc";
    let container: Vec<&str> = words.split(' ').collect();
    // Some hosts allow no namespaces.
    if wrapped(&container, &Command::new("true"))
        .status()
        .is_ok_and(|status| status.success())
    {
        let program = run_script(&server, &["a"], "echo up; exec sleep 60");
        let container = wrapped(&container, &program);
        let mut terminal = Terminal::start(&container, 24, 80);
        terminal.shows("up");
        terminal.press("\x1a\x03");
        // No signal ends it by itself.
        assert_eq!(terminal.ends(), Some(130));
    }
}

/// The `/proc` of another namespace has other processes under our numbers.
#[test]
fn command_on_a_terminal_is_ended_without_a_proc_of_its_own() {
    let server = Server::start();
    let mut container = Command::new("unshare");
    container.args(["--user", "--map-root-user", "--pid", "--fork"]);
    let mut probe = Command::new("unshare");
    let probe = probe.args(container.get_args()).arg("true").status();
    // Some hosts allow no namespaces.
    if probe.is_ok_and(|status| status.success()) {
        let args = ["--max-hold", "500ms", "--grace", "100ms", "a"];
        let program = run_script(&server, &args, "trap '' TERM; echo up; sleep 60; sleep 60");
        container
            .arg(program.get_program())
            .args(program.get_args());
        give_environment(&mut container, &program);
        let mut terminal = Terminal::start(&container, 24, 80);
        assert_eq!(terminal.ends(), Some(74));
        assert!(!is_held(&server, "a"));
    }
}

#[test]
fn log_lines_do_not_stop_a_job_in_the_background() {
    let mut shell = Shell::start();
    shell.enter("stty tostop");
    shell.enter(
        "run -v --ttl 1s a -- sh -c 'trap \"echo term-\\$((2+2)); exit\" TERM; \
         echo up-$((1+1)); while :; do sleep 0.02; done'",
    );
    shell.shows("up-2");
    shell.server.query::<()>(&["FLUSHALL"]);
    shell.shows("term-4");
    shell.answers("echo code-$?", "code-74");
}
