//! A shell with job control in a terminal, and `fairlock run` in the shell.
//!
//! Commands that get Ctrl-C use `exec`: a shell that is just forking may miss the signal.

use super::*;

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
        give_environment(&mut bash, &at(&server.url(), ""));
        bash.env("PS1", "ready> ").env("HISTFILE", "/dev/null");
        bash.envs(variables.iter().copied());
        let mut shell = Shell {
            terminal: Terminal::start(&bash),
            server,
        };
        shell.shows("ready> ");
        shell.enter("run() { \"$BINARY\" run \"$@\"; }");
        shell.enter("bind 'set enable-bracketed-paste off'; clear");
        shell
    }

    /// In which this line runs, and has printed `up-2`.
    fn running(line: &str) -> Shell {
        let mut shell = Shell::start();
        shell.answers(line, "up-2");
        shell
    }

    /// Types a line.
    fn enter(&mut self, line: &str) {
        self.terminal.press(&format!("{line}\n"));
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

    /// The exit code of the command before.
    fn has_code(&mut self, code: &str) {
        self.answers("echo code-$?", &format!("code-{code}"));
    }

    /// Types a line for the command, and compares the exit code.
    #[track_caller]
    fn ends(&mut self) {
        self.answers("words", "got-words");
        self.has_code("0");
        assert!(!is_held(&self.server, "a"));
    }

    fn never_showed(&self, what: &str) {
        let text = self.terminal.text();
        assert!(!text.contains(what), "{text}");
    }

    /// The process whose id is on the screen between this text and a full stop.
    #[track_caller]
    fn printed_pid(&self, before: &str) -> Pid {
        until_some(LONG, "a process id", || {
            let text = self.terminal.text();
            let mut ids = text.split(before).filter_map(|rest| rest.split_once('.'));
            ids.find_map(|(id, _)| Pid::from_raw(id.parse().ok()?))
        })
    }
}

/// Waits until the process sleeps, and its group has the terminal.
fn until_asleep_with_the_terminal(pid: Pid) {
    until(LONG, "it has the terminal", || {
        stat(pid).is_some_and(|fields| fields[0] == "S" && fields[2] == fields[5])
    });
}

#[test]
fn whoever_reads_from_the_terminal_gets_the_line() {
    for line in [
        "run a -- sh -c 'echo up-$((1+1)); read x; echo got-$x'",
        "sh -c '\"$BINARY\" run a -- true; echo up-$((1+1)); read x; echo got-$x'",
        "run a -- sh -c 'echo up-$((1+1)); read x; echo got-$x' | cat",
        "run a -- seq 3 | (cat; echo up-$((1+1)); read x </dev/tty; echo got-$x)",
    ] {
        let mut shell = Shell::running(line);
        shell.ends();
    }
}

#[test]
fn ctrl_c_ends_the_command_and_what_is_around_it() {
    let script = "\"$BINARY\" run a -- sh -c \"echo up-\\$((1+1)); exec sleep 60\"; echo went-on";
    for line in [
        "run a -- sh -c 'echo up-$((1+1)); exec sleep 60'",
        "for i in 1 2; do run a -- sh -c 'echo up-$((1+1)); exec sleep 60'; done; echo went-on",
        &format!("clear; sh -c '{script}'; clear"),
        // It leaves the group of fairlock, which alone gets the signal of the kernel.
        "run a -- timeout 60 sh -c 'echo up-$((1+1)); exec sleep 60'",
        // A program may handle it, and end as it likes.
        "run a -- sh -c 'trap \"exit 3\" INT; echo up-$((1+1)); while :; do sleep 0.1; done'",
    ] {
        let mut shell = Shell::running(line);
        shell.terminal.press("\x03");
        shell.has_code(if line.contains("exit 3") { "3" } else { "130" });
        shell.never_showed("\nwent-on");
        assert!(!is_held(&shell.server, "a"));
    }
}

#[test]
fn ctrl_c_comes_once() {
    let script = "trap \"echo int-\\$((1+1))\" INT; echo up-$((1+1)); read x; read x; echo got-$x";
    let line = format!("run b -- \"$BINARY\" run a -- bash -c '{script}'");
    let mut shell = Shell::running(&line);
    shell.terminal.press("\x03");
    shell.shows("int-2");
    shell.enter("");
    shell.ends();
    assert_eq!(shell.terminal.text().matches("int-2").count(), 1);
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

/// A shell that runs the command, which reads a line, with a job elsewhere or as its own job.
struct WithJob {
    shell: Shell,
    run: Pid,
    command: Pid,
    job: Pid,
}

impl WithJob {
    fn start(way: &str, job: &str) -> WithJob {
        WithJob::of(Shell::with(&[("WAY", way), ("JOB", job)]), way)
    }

    /// With these variables.
    fn of(mut shell: Shell, way: &str) -> WithJob {
        shell.enter("run a -- sh -c 'echo run-$PPID.command-$$.; eval \"$WAY\"'");
        let job = if way.contains("JOB") {
            "job-"
        } else {
            "command-"
        };
        WithJob {
            run: shell.printed_pid("run-"),
            command: shell.printed_pid("command-"),
            job: shell.printed_pid(job),
            shell,
        }
    }

    /// Stops the run, and waits until it and the job have stopped.
    fn press_ctrl_z(&mut self) {
        until_asleep_with_the_terminal(self.command);
        self.shell.terminal.press("\x1a");
        until_stopped(&[self.run, self.job], true);
    }

    fn press_fg(&mut self) {
        self.shell.enter("fg");
        until_asleep_with_the_terminal(self.command);
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
            until_stopped(&[started.job], false);
        }
        started.shell.ends();
    }
}

#[test]
fn ctrl_z_stops_every_command_of_a_pipeline() {
    let mut shell = Shell::running(
        // Without the function `run`: its subshells would stop before our processes do.
        "\"$BINARY\" run a -- sh -c 'echo pid-a-$$.run-a-$PPID. >&2; exec sleep 60' | \
         \"$BINARY\" run b -- sh -c 'echo pid-b-$$.run-b-$PPID.; echo up-$((1+1)); \
         read x </dev/tty; echo got-$x'",
    );
    let all = ["pid-a-", "pid-b-", "run-a-", "run-b-"].map(|text| shell.printed_pid(text));
    for round in ["111", "222"] {
        shell.terminal.press("\x1a");
        until_stopped(&all, true);
        let line = format!("echo shell-$(({round}+0))");
        shell.answers(&line, &format!("shell-{round}"));
        shell.enter("fg");
        until_stopped(&all, false);
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
    until_stopped(&[started.job], true);
    started.press_ctrl_z();
    until_stopped(&[other], true);
    started.press_fg();
    until_stopped(&[other], false);
    assert_eq!(state(started.job), "T");
    kill_process(started.job, Signal::CONT).expect("sent");
    started.shell.ends();
}

#[test]
fn run_that_waits_in_another_group_starts_nothing_before_fg() {
    let waits = "trap '' TSTP; echo job-$$.; exec \"$BINARY\" run b -- echo ran-on";
    let shell = Shell::with(&[("WAY", WAYS[2]), ("JOB", waits)]);
    let guard = manager(&shell.server).lock("b").unwrap();
    let mut started = WithJob::of(shell, WAYS[2]);
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
        assert_eq!(state(command), "Z");
        shell.answers("fg", "the command was killed");
        shell.has_code("74");
        shell.never_showed("\nran-on");
    }
}

/// Started by the loader, the program that `/proc` names cannot be the guard.
#[test]
fn run_without_a_guard_cannot_be_stopped() {
    let loaders = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    let is_there = |path: &&str| fs::exists(path).is_ok_and(|is| is);
    let Some(loader) = loaders.into_iter().find(is_there) else {
        return;
    };
    let line = "\"$BINARY\" run a -- sh -c 'echo up-$((1+1)); read x; echo got-$x'";
    let mut shell = Shell::running(&format!("{loader} {line}"));
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
    until(LONG, "killed", || [command, child].map(state) == ["Z", "Z"]);
    let is_held = is_held(&shell.server, "a");
    assert!(is_held, "both are dead before the lock ends");
    shell.answers("fg", "the command was killed");
    shell.has_code("74");
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
        thread::sleep(Duration::from_millis(100));
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
    let program = run_script(&server, "a", "echo up; read x; echo got-$x");
    let mut terminal = Terminal::start(&program);
    terminal.shows("up");
    terminal.press("\x1a");
    terminal.press("words\n");
    terminal.shows("got-words");
    assert_eq!(terminal.ends(), Some(0));
    if let Some(container) = container("--mount-proc") {
        let program = run_script(&server, "a", "echo up; exec sleep 60");
        let mut terminal = Terminal::start(&wrapped(&container, &program));
        terminal.shows("up");
        terminal.press("\x1a\x03");
        // No signal ends it by itself.
        assert_eq!(terminal.ends(), Some(130));
    }
}

/// The words before a program that is the first process of a namespace. Some hosts allow none.
fn container(option: &str) -> Option<String> {
    let words = format!("unshare --user --map-root-user --pid --fork {option}");
    let works = wrapped(&words, &Command::new("true")).status();
    works.is_ok_and(|status| status.success()).then_some(words)
}

/// The `/proc` of another namespace has other processes under our numbers.
#[test]
fn command_on_a_terminal_is_ended_without_a_proc_of_its_own() {
    let server = Server::start();
    if let Some(container) = container("") {
        let script = "trap '' TERM; echo up; sleep 60; sleep 60";
        let program = run_script(&server, "--max-hold 500ms --grace 100ms a", script);
        let mut terminal = Terminal::start(&wrapped(&container, &program));
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
    shell.has_code("74");
}
