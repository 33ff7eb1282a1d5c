//! A shell with job control in a terminal, and `fairlock run` in the shell.
//!
//! Commands that get Ctrl-C use `exec`: a shell that is just forking may miss the signal.

use std::fs;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::waiting::until_a_later_waiter_shows_its_line;
use super::{LONG, is_held, run_script, state, until_renewed, waiters};
use crate::process::{fairlock, give_environment};
use crate::support::{Server, until, until_some};
use crate::terminal::Terminal;

/// An interactive shell in which `run` is `fairlock run`.
struct Shell {
    terminal: Terminal,
}

impl Shell {
    fn start(server: &Server) -> Shell {
        Shell::with(server, &[])
    }

    /// With these variables.
    fn with(server: &Server, variables: &[(&str, &str)]) -> Shell {
        let mut bash = Command::new("bash");
        bash.args(["--norc", "--noprofile", "-i"]);
        let binary = fairlock(server, &[]);
        give_environment(&mut bash, &binary);
        bash.env("PS1", "ready> ")
            .env("BINARY", binary.get_program());
        bash.env("HISTFILE", "/dev/null");
        bash.envs(variables.iter().copied());
        let mut shell = Shell {
            terminal: Terminal::start(&bash, 40, 100),
        };
        shell.terminal.shows("ready> ");
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

    /// Waits until the shell has printed this. The text must differ from the line that was typed.
    #[track_caller]
    fn shows(&self, what: &str) {
        self.terminal.shows(what);
    }
}

/// Whether the process is stopped.
fn is_stopped(pid: Pid) -> bool {
    state(pid) == 'T'
}

/// Whether the process sleeps, and its group has the terminal.
fn sleeps_with_the_terminal(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let stat = stat.unwrap_or_default();
    let fields: Vec<&str> = match stat.rsplit_once(')') {
        Some((_, fields)) => fields.split_whitespace().collect(),
        None => return false,
    };
    fields[0] == "S" && fields[2] == fields[5]
}

#[test]
fn command_reads_from_the_terminal_and_the_shell_does_after_it() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.enter("run a -- sh -c 'echo up-$((1+1)); read x; echo got-$x'");
    shell.shows("up-2");
    shell.enter("words");
    shell.shows("got-words");
    shell.enter("echo again-$((2+2))");
    shell.shows("again-4");
}

#[test]
fn script_around_the_command_reads_after_it() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    let script = "\"$BINARY\" run a -- true; echo up-$((1+1)); read x; echo got-$x";
    shell.enter(&format!("sh -c '{script}'"));
    shell.shows("up-2");
    shell.enter("words");
    shell.shows("got-words");
}

#[test]
fn ctrl_c_ends_the_command_and_gives_130() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.enter("run a -- sh -c 'echo up-$((1+1)); exec sleep 60'; echo code-$?");
    shell.shows("up-2");
    shell.terminal.press("\x03");
    shell.enter("echo code-$?");
    shell.shows("code-130");
    assert!(!is_held(&server, "a"));
}

#[test]
fn ctrl_c_ends_a_loop_around_the_command() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.enter("for i in 1 2; do run a -- sh -c 'echo up-$0$0; exec sleep 60' $i; done; echo no");
    shell.shows("up-11");
    shell.terminal.press("\x03");
    shell.enter("echo after-$((1+1))");
    shell.shows("after-2");
    assert!(!shell.terminal.text().contains("up-22"));
}

#[test]
fn ctrl_c_ends_a_script_around_the_command() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    let script = "\"$BINARY\" run a -- sh -c \"echo up-\\$((1+1)); exec sleep 60\"; echo went-on";
    shell.enter(&format!("clear; sh -c '{script}'; clear; echo code-$?"));
    shell.shows("up-2");
    shell.terminal.press("\x03");
    shell.enter("echo after-$((1+1))");
    shell.shows("after-2");
    let text = shell.terminal.text();
    assert!(!text.contains("\nwent-on"), "{text}");
}

#[test]
fn ctrl_c_ends_a_wait() {
    let server = Server::start();
    let _guard = super::manager(&server).lock("a").expect("free");
    let mut shell = Shell::start(&server);
    shell.enter("run a -- true");
    shell.shows("number 1 in line");
    shell.terminal.press("\x03");
    shell.enter("echo code-$?");
    shell.shows("code-130");
    until(LONG, "the queue is left", || waiters(&server, "a") == 0);
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.enter("run a -- sh -c 'echo up-$((1+1)); read x; echo got-$x'");
    shell.shows("up-2");
    shell.terminal.press("\x1a");
    shell.shows("stopped: the lock will be lost in 9.");
    shell.shows("Stopped");
    shell.enter("echo shell-$((1+1))");
    shell.shows("shell-2");
    assert!(is_held(&server, "a"));
    shell.enter("fg");
    shell.enter("words");
    shell.shows("got-words");
    shell.enter("echo code-$?");
    shell.shows("code-0");
    assert!(!is_held(&server, "a"));
}

#[test]
fn ctrl_z_stops_every_command_of_a_pipeline() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.enter(
        // Without the function `run`: its subshells would stop before our processes do.
        "\"$BINARY\" run a -- sh -c 'echo pid-a-$$.run-a-$PPID. >&2; exec sleep 60' | \
         \"$BINARY\" run b -- sh -c 'echo pid-b-$$.run-b-$PPID.; echo up-$((1+1)); \
         read x </dev/tty; echo got-$x'",
    );
    shell.shows("up-2");
    let producer = shell.printed_pid("pid-a-");
    let reader = shell.printed_pid("pid-b-");
    let runs = [shell.printed_pid("run-a-"), shell.printed_pid("run-b-")];
    for round in 1..=2 {
        // It was stopped for want of the terminal, and CONT takes a Ctrl-Z of that moment away.
        until(LONG, "it reads", || sleeps_with_the_terminal(reader));
        shell.terminal.press("\x1a");
        // The shell has stopped as soon as its own processes have. A CONT that comes before a
        // fairlock stops is for its command.
        until(LONG, "stopped", || {
            is_stopped(producer) && runs.iter().all(|run| is_stopped(*run))
        });
        shell.enter(&format!("echo shell-$(({round}*111))"));
        shell.shows(&format!("shell-{}", round * 111));
        shell.enter("fg");
        until(LONG, "continued", || {
            !is_stopped(producer) && !is_stopped(reader)
        });
    }
    shell.enter("words");
    shell.shows("got-words");
}

#[test]
fn ctrl_z_stops_a_process_that_ignores_it() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.enter(
        "run a -- sh -c '(trap \"\" TSTP; exec sleep 60) & echo pid-$!.; read x; echo got-$x'",
    );
    let tough = shell.printed_pid("pid-");
    shell.terminal.press("\x1a");
    shell.shows("Stopped");
    until(LONG, "stopped", || is_stopped(tough));
    shell.enter("fg");
    until(LONG, "continued", || !is_stopped(tough));
    shell.enter("words");
    shell.shows("got-words");
}

#[test]
fn ctrl_z_stops_a_fairlock_in_a_fairlock() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.enter("run a -- \"$BINARY\" run b -- sh -c 'echo up-$((1+1)); read x; echo got-$x'");
    shell.shows("up-2");
    shell.terminal.press("\x1a");
    shell.shows("Stopped");
    shell.enter("echo shell-$((1+1))");
    shell.shows("shell-2");
    shell.enter("fg");
    shell.enter("words");
    shell.shows("got-words");
}

/// Ways from a command that reads a line to its job, which is in a group of its own.
const OTHER_GROUPS: [&str; 5] = [
    "timeout 60 sh -c \"$JOB\" & read x; echo got-$x",
    "timeout 60 sh -c \"$JOB\" | cat & read x; echo got-$x",
    "exec bash -c 'set -m; sh -c \"$JOB\" & read x; echo got-$x'",
    "timeout 60 \"$BINARY\" run b -- timeout 60 sh -c \"$JOB\" & read x; echo got-$x",
    "\"$BINARY\" run b -- sh -c \"$JOB\" | cat & read x; echo got-$x",
];
/// A job that goes on after a Ctrl-Z of its own group.
const TOUGH: &str = "trap '' TSTP; echo job-$$.; exec sleep 60";

/// A shell that runs the command, which reads a line, with a job elsewhere.
struct WithJob {
    shell: Shell,
    run: Pid,
    command: Pid,
    job: Pid,
}

impl WithJob {
    fn start(server: &Server, way: &str, job: &str) -> WithJob {
        let mut shell = Shell::with(server, &[("WAY", way), ("JOB", job)]);
        shell.enter("run a -- sh -c 'echo run-$PPID.command-$$.; eval \"$WAY\"'");
        WithJob {
            run: shell.printed_pid("run-"),
            command: shell.printed_pid("command-"),
            job: shell.printed_pid("job-"),
            shell,
        }
    }

    /// Stops the run, and waits until it has stopped.
    fn press_ctrl_z(&mut self) {
        // It was stopped for want of the terminal, and CONT takes a Ctrl-Z of that moment away.
        until(LONG, "it reads", || sleeps_with_the_terminal(self.command));
        self.shell.terminal.press("\x1a");
        until(LONG, "fairlock stops", || is_stopped(self.run));
    }

    /// Continues the run. The command is the last to go on.
    fn press_fg(&mut self) {
        self.shell.enter("fg");
        until(LONG, "continued", || sleeps_with_the_terminal(self.command));
    }

    fn ends(&mut self) {
        self.shell.enter("words");
        self.shell.shows("got-words");
        self.shell.enter("echo code-$?");
        self.shell.shows("code-0");
    }
}

#[test]
fn ctrl_z_stops_jobs_in_other_groups_and_fg_continues_them() {
    for way in OTHER_GROUPS {
        let server = Server::start();
        let mut started = WithJob::start(&server, way, TOUGH);
        for _ in 0..2 {
            started.press_ctrl_z();
            until(LONG, way, || is_stopped(started.job));
            started.press_fg();
            until(LONG, way, || !is_stopped(started.job));
        }
        started.ends();
    }
}

#[test]
fn job_that_was_stopped_before_ctrl_z_stays_stopped_after_fg() {
    let server = Server::start();
    let way = "timeout 60 sh -c \"$JOB\" & timeout 60 sh -c 'echo other-$$.; exec sleep 60' & \
               read x; echo got-$x";
    let mut started = WithJob::start(&server, way, TOUGH);
    let other = started.shell.printed_pid("other-");
    kill_process(started.job, Signal::STOP).expect("sent");
    until(LONG, "stopped", || is_stopped(started.job));
    started.press_ctrl_z();
    until(LONG, "stopped", || is_stopped(other));
    started.press_fg();
    assert!(is_stopped(started.job) && !is_stopped(other));
    kill_process(started.job, Signal::CONT).expect("sent");
    started.ends();
}

#[test]
fn run_in_another_group_whose_lock_lapsed_does_not_run_after_fg() {
    let server = Server::start();
    let way = "timeout 60 \"$BINARY\" run --ttl 2s b -- sh -c \"$JOB\" & read x; echo got-$x";
    let job = "trap 'echo ran-on' CONT TERM; sleep 60 & echo job-$$.; wait";
    let mut started = WithJob::start(&server, way, job);
    started.press_ctrl_z();
    until(LONG, "stopped", || is_stopped(started.job));
    started.shell.shows("b: stopped: the lock will be lost");
    until(LONG, "the lock lapses", || !is_held(&server, "b"));
    started.press_fg();
    started
        .shell
        .shows("b: the lock is lost, and the command was killed");
    started.ends();
    let text = started.shell.terminal.text();
    assert!(!text.contains("ran-on"), "{text}");
}

#[test]
fn lock_of_an_inner_command_that_ignores_ctrl_z_is_renewed() {
    let server = Server::start();
    let way = "timeout 60 \"$BINARY\" run b -- sh -c \"$JOB\" & read x; echo got-$x";
    let mut started = WithJob::start(&server, way, TOUGH);
    started.press_ctrl_z();
    until(LONG, "stopped", || is_stopped(started.job));
    until_renewed(&server, "b");
    until(LONG, "stopped", || is_stopped(started.job));
    started.press_fg();
    until(LONG, "continued", || !is_stopped(started.job));
    started.ends();
}

#[test]
fn run_that_waits_in_another_group_starts_nothing_before_fg() {
    let server = Server::start();
    let guard = super::manager(&server).lock("b").expect("free");
    let waits = "trap '' TSTP; echo job-$$.; exec \"$BINARY\" run b -- echo ran-on";
    let mut started = WithJob::start(&server, OTHER_GROUPS[0], waits);
    until(LONG, "queued", || waiters(&server, "b") == 1);
    started.press_ctrl_z();
    until(LONG, "stopped", || is_stopped(started.job));
    drop(guard);
    assert!(!started.shell.terminal.text().contains("ran-on"));
    started.press_fg();
    started.shell.shows("ran-on");
    started.ends();
}

#[test]
fn command_that_stops_itself_with_stop_leaves_the_terminal() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.enter("run a -- sh -c 'read x; kill -STOP $$; read x; echo got-$x'");
    shell.enter("first");
    shell.shows("Stopped");
    shell.enter("fg");
    shell.enter("words");
    shell.shows("got-words");
}

#[test]
fn command_that_can_never_have_the_terminal_is_ended() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    // The parent of this fairlock ends, so no shell would continue its group. The command reads
    // once the shell has the terminal again.
    shell.enter("export SHELL_PID=$$");
    shell.enter(
        "(\"$BINARY\" run a -- sh -c 'echo up-$((1+1)); \
         until [ $(ps -o tpgid= -p $$) = $SHELL_PID ]; do sleep 0.02; done; read x </dev/tty' &)",
    );
    shell.shows("up-2");
    shell.shows("cannot have it");
    until(LONG, "released", || !is_held(&server, "a"));
}

#[test]
fn job_that_was_stopped_for_too_long_is_killed() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    // The first line is read before the trap is set: at its start, a command may be stopped and
    // continued until it has the terminal.
    shell.enter(
        "run --ttl 2s a -- sh -c 'read x; trap \"echo ran-on\" CONT TERM; \
         echo up-$((1+1)); read x'",
    );
    shell.enter("words");
    shell.shows("up-2");
    shell.terminal.press("\x1a");
    shell.shows("Stopped");
    until(LONG, "the lock lapses", || !is_held(&server, "a"));
    shell.enter("fg");
    shell.shows("the command was killed");
    shell.enter("echo code-$?");
    shell.shows("code-74");
    let text = shell.terminal.text();
    assert!(!text.contains("\nran-on"), "{text}");
}

#[test]
fn background_job_that_reads_stops_and_fg_gives_it_the_terminal() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.enter("run a -- sh -c 'read x; echo got-$x' &");
    shell.enter("echo shell-$((1+1))");
    shell.shows("shell-2");
    until(LONG, "the job stops", || {
        shell.enter("jobs");
        // A pause between two polls: each of them fills a line of the screen.
        std::thread::sleep(Duration::from_millis(100));
        shell.terminal.text().contains("Stopped")
    });
    shell.enter("fg");
    shell.shows("run a -- sh -c");
    shell.enter("words");
    shell.shows("got-words");
    shell.enter("echo after-$((1+1))");
    shell.shows("after-2");
}

#[test]
fn other_part_of_a_pipeline_can_read_from_the_terminal() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.enter("run a -- seq 3 | (cat; echo up-$((1+1)); read x </dev/tty; echo got-$x)");
    shell.shows("up-2");
    shell.enter("words");
    shell.shows("got-words");
}

#[test]
fn command_in_a_pipeline_gets_the_terminal_when_it_reads() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.enter("run a -- sh -c 'echo up-$((1+1)); read x; echo got-$x' | cat");
    shell.shows("up-2");
    shell.enter("words");
    shell.shows("got-words");
    shell.enter("echo after-$((1+1))");
    shell.shows("after-2");
}

#[test]
fn modes_of_the_terminal_are_restored_after_a_kill() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    // sh does not mend the terminal as bash does.
    shell.enter("exec sh");
    shell.enter("PS1='sh-$((1+1))> '");
    shell.shows("sh-2> ");
    shell.enter("\"$BINARY\" run a -- sh -c 'stty raw -echo; kill -KILL $$'; echo code-$?");
    shell.shows("code-137");
    shell.enter("stty -a | grep -o '[-]*icanon'; echo after-$((1+1))");
    shell.shows("after-2");
    let text = shell.terminal.text();
    assert!(text.contains("\nicanon"), "{text}");
}

#[test]
fn first_process_of_a_terminal_cannot_be_stopped_with_ctrl_z() {
    let server = Server::start();
    // As in a container: no shell is there to continue it.
    let program = run_script(&server, &["a"], "echo up; read x; echo got-$x");
    let mut terminal = Terminal::start(&program, 24, 80);
    terminal.shows("up");
    terminal.press("\x1a");
    terminal.press("words\n");
    terminal.shows("got-words");
    assert!(terminal.program.wait().expect("ends").success());
}

#[test]
fn log_lines_do_not_stop_it_behind_a_command_with_the_terminal() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.enter("stty tostop");
    shell.enter(
        "run -v --ttl 1s a -- sh -c 'trap \"echo term-\\$((2+2)); exit\" TERM; \
         echo up-$((1+1)); while :; do sleep 0.02; done'",
    );
    shell.shows("up-2");
    server.query::<()>(&["FLUSHALL"]);
    shell.shows("term-4");
    shell.enter("echo code-$?");
    shell.shows("code-74");
}

#[test]
fn background_job_shows_its_wait_only_after_fg() {
    let server = Server::start();
    let _guard = super::manager(&server).lock("a").expect("free");
    let mut shell = Shell::start(&server);
    shell.enter("run a -- true &");
    until(LONG, "queued", || waiters(&server, "a") == 1);
    until_a_later_waiter_shows_its_line(&server);
    let text = shell.terminal.text();
    assert!(!text.contains("number 1 in line"), "{text}");
    shell.enter("fg");
    shell.shows("number 1 in line");
    shell.terminal.press("\x03");
    until(LONG, "the queue is left", || waiters(&server, "a") == 0);
}
