//! The children that run the clients, one for each language.

use std::cell::RefCell;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;

use crate::support::is_quick;

/// A lock client with one setting.
pub(crate) struct Client {
    pub(crate) name: String,
    program: Rc<RefCell<Program>>,
    number: usize,
}

/// One holding of a lock. The times are in ns of its program's clock.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) thread: u64,
    pub(crate) asked: u64,
    pub(crate) granted: u64,
    /// Before the call that unlocks.
    pub(crate) released: u64,
}

/// All clients of all programs that can run here.
pub(crate) fn clients(url: &str) -> Vec<Client> {
    let mut rust = Command::new(std::env::current_exe().expect("a running bench has a binary"));
    rust.arg("child");
    let mut all = Program::start(rust, url);
    if is_quick() {
        println!("the clients for Go and Java, and the part `held`, are left out of a first look");
        return all;
    }
    for (language, program) in [("Go", go()), ("Java", java())] {
        match program {
            Ok(program) => all.extend(Program::start(program, url)),
            Err(why) => println!("the clients for {language} are left out: {why}"),
        }
    }
    all
}

impl Client {
    pub(crate) fn is_ours(&self) -> bool {
        self.name.starts_with("fairlock")
    }

    /// Whether it only differs from another client in how soon it tries again.
    pub(crate) fn is_eager(&self) -> bool {
        self.name.contains(", retry")
    }

    /// The time of each cycle of one thread, in ns.
    pub(crate) fn one_thread(&self, key: &str, cycles: usize) -> Vec<u64> {
        self.ask("one_thread", key, &[cycles])
    }

    /// How long these threads ran, each on a key of its own, and the time of each of their cycles,
    /// in ns.
    pub(crate) fn own_names(
        &self,
        key: &str,
        threads: usize,
        run_for: Duration,
    ) -> (u64, Vec<u64>) {
        let mut times = self.ask("own_names", key, &[threads, run_for.as_millis() as usize]);
        let elapsed = times.remove(0);
        (elapsed, times)
    }

    /// The turns that these threads had of one key, each for the same time, in no order. None if it cannot
    /// wait.
    pub(crate) fn one_name(
        &self,
        key: &str,
        threads: usize,
        run_for: Duration,
        hold: Duration,
    ) -> Vec<Turn> {
        let (run_for, hold) = (run_for.as_millis() as usize, hold.as_micros() as usize);
        let numbers = self.ask("one_name", key, &[threads, run_for, hold]);
        let (turns, _) = numbers.as_chunks();
        let turn = |&[thread, asked, granted, released]: &[u64; 4]| Turn {
            thread,
            asked,
            granted,
            released,
        };
        turns.iter().map(turn).collect()
    }

    /// Takes this many keys and keeps them until `drop_all`. Takes none if it does not renew locks.
    pub(crate) fn hold(&self, key: &str, count: usize) -> u64 {
        self.ask("hold", key, &[count])[0]
    }

    pub(crate) fn drop_all(&self) {
        self.program.borrow_mut().ask("drop");
    }

    /// The processor time of its process so far, in s.
    pub(crate) fn cpu(&self) -> f64 {
        self.program.borrow().cpu()
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.program.borrow().process.id()
    }

    fn ask(&self, what: &str, key: &str, numbers: &[usize]) -> Vec<u64> {
        let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
        let order = format!("{what} {} {key} {}", self.number, numbers.join(" "));
        let answer = self.program.borrow_mut().ask(&order);
        answer
            .split_whitespace()
            .map(|number| number.parse().expect("a child answers with numbers"))
            .collect()
    }
}

/// A child, which ends when its standard input closes.
struct Program {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    fn start(mut command: Command, url: &str) -> Vec<Client> {
        let mut process = command
            .env("FAIRLOCK_BENCH_URL", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program that was built can be started");
        let stdin = process.stdin.take();
        let stdout = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut program = Program {
            process,
            stdin,
            stdout,
        };
        let names = program.ask("names");
        let program = Rc::new(RefCell::new(program));
        let client = |(number, name): (usize, &str)| Client {
            name: name.to_owned(),
            program: Rc::clone(&program),
            number,
        };
        names
            .trim_end()
            .split('\t')
            .enumerate()
            .map(client)
            .collect()
    }

    fn ask(&mut self, order: &str) -> String {
        let stdin = self.stdin.as_mut().expect("it is open until the drop");
        writeln!(stdin, "{order}").expect("the child lives");
        let mut answer = String::new();
        let length = self.stdout.read_line(&mut answer);
        assert!(length.is_ok_and(|n| n > 0), "a child ended at {order:?}");
        answer
    }

    fn cpu(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id()));
        let stat = stat.expect("the child lives");
        // The name of the program, in brackets, may have spaces. User and system time are the
        // fields 14 and 15.
        let (_, fields) = stat.rsplit_once(')').expect("a line of /proc");
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.filter_map(|n| n.parse::<u64>().ok()).sum();
        ticks as f64 / clock_ticks_per_second() as f64
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.process.wait();
    }
}

fn directory(language: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), language].iter().collect()
}

fn go() -> io::Result<Command> {
    let directory = directory("go");
    build(
        Command::new("go")
            .args(["build", "-o", "target/"])
            .current_dir(&directory),
    )?;
    Ok(Command::new(directory.join("target/fairlock-peers")))
}

fn java() -> io::Result<Command> {
    let directory = directory("java");
    let goals = [
        "-q",
        "-B",
        "-Dstyle.color=never",
        "compile",
        "dependency:copy-dependencies",
    ];
    build(Command::new("mvn").args(goals).current_dir(&directory))?;
    let mut java = Command::new("java");
    java.args(["-cp", "target/classes:target/dependency/*", "Peers"])
        .current_dir(directory);
    Ok(java)
}

fn build(command: &mut Command) -> io::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let explained = |why: String| io::Error::other(format!("{name}: {why}"));
    let output = command.output().map_err(|e| explained(e.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    Err(explained(format!("{}\n{said}", output.status)))
}
