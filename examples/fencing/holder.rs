//! The holder that is paused between its last check of the lock and its write.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;
use std::{env, error::Error};
#[cfg(feature = "memory")]
use std::{sync::mpsc, thread};

#[cfg(feature = "memory")]
use fairlock::memory::Memory;
use fairlock::{LockManager, LockOptions, endpoint::Endpoint};
use rustix::process::{Pid, Signal, getpid, kill_process};

#[cfg(feature = "memory")]
use crate::support::exit_code;
use crate::support::store::endpoint;
use crate::support::{Outcome, Store, private_redis::Redis};

/// The sum that this holder adds to the total.
pub(crate) const LATE: u32 = 100;

/// The shortest ttl, so that the others need not wait for long.
const TTL: Duration = Duration::from_secs(1);

/// Processes that share a name should use the same ttl. The default connect timeout, a tenth of it,
/// may be too short.
pub(crate) fn manager(to: impl Into<Endpoint>) -> fairlock::Result<LockManager> {
    LockManager::builder(to)
        .options(LockOptions::new().ttl(TTL))
        .connect_timeout(2 * TTL)
        .build()
}

/// The holder's work. It reports its statements to the main program, which has the resource, as a
/// database would.
fn write_late(
    mgr: &LockManager,
    name: &str,
    mut output: impl Write,
    pause: impl FnOnce() -> Outcome,
) -> Outcome {
    let guard = mgr.lock(name)?;
    // Claims the invoice and reads its total. The main program does that.
    writeln!(output, "claims and reads with {}", guard.fence())?;

    guard.check()?; // the lock is held …
    pause()?; // … but not any more after this
    let held = guard.is_held();

    // Writes the total that it read and LATE.
    writeln!(output, "adds {LATE}")?;
    writeln!(output, "under {}", guard.fence())?;
    writeln!(output, "is_held {held}")?;
    Ok(())
}

/// The holder, as the main program sees it. It ends with this program.
pub(crate) struct Holder {
    output: BufReader<Box<dyn Read>>,
    runs_as: RunsAs,
}

enum RunsAs {
    Process(Child),
    #[cfg(feature = "memory")]
    Thread(mpsc::Sender<()>),
}

impl Holder {
    pub(crate) fn start(store: &Store, name: &str) -> Outcome<Holder> {
        match store {
            Store::Redis(redis) => start_process(redis, name),
            #[cfg(feature = "memory")]
            Store::Memory(memory) => start_thread(memory, name),
        }
    }

    /// Waits for its next line, which must begin with `what`. Returns the rest.
    pub(crate) fn reads<T: FromStr<Err: Error + Send + Sync + 'static>>(
        &mut self,
        what: &str,
    ) -> Outcome<T> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let value = line
            .strip_prefix(what)
            .ok_or_else(|| format!("the paused holder wrote {line:?}, not {what:?}"))?;
        Ok(value.trim().parse()?)
    }

    /// Ends its pause.
    pub(crate) fn go_on(&self) -> Outcome {
        match &self.runs_as {
            RunsAs::Process(process) => kill_process(Pid::from_child(process), Signal::CONT)?,
            #[cfg(feature = "memory")]
            RunsAs::Thread(go_on) => go_on.send(())?,
        }
        Ok(())
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Outcome {
        self.output.read_to_end(&mut Vec::new())?;
        match &mut self.runs_as {
            RunsAs::Process(process) => match process.wait()? {
                status if status.success() => Ok(()),
                status => Err(format!("the paused holder ended with {status}").into()),
            },
            #[cfg(feature = "memory")]
            RunsAs::Thread(_) => Ok(()),
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // A thread ends with this program. A stopped process would stay.
        #[cfg_attr(
            not(feature = "memory"),
            expect(irrefutable_let_patterns, reason = "there are only processes")
        )]
        if let RunsAs::Process(process) = &mut self.runs_as {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn start_process(redis: &Redis, name: &str) -> Outcome<Holder> {
    let mut process = Command::new(env::current_exe()?)
        .args(["holder", name])
        // In the environment, because every user of this host can read arguments. It may have a
        // password.
        .env("REDIS_URL", &redis.url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let output: Box<dyn Read> = Box::new(process.stdout.take().expect("stdout is piped"));
    Ok(Holder {
        output: BufReader::new(output),
        runs_as: RunsAs::Process(process),
    })
}

/// The program's main function when it was started as the holder.
pub(crate) fn be_a_process(name: &str) -> Outcome {
    // A stopped process does not notice that its parent was killed, and would stay.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let mgr = manager(endpoint(&env::var("REDIS_URL")?))?;
    // Stops all threads of this process, also the renewal thread, until it receives SIGCONT.
    write_late(&mgr, name, io::stdout(), || {
        Ok(kill_process(getpid(), Signal::STOP)?)
    })
}

#[cfg(feature = "memory")]
fn start_thread(memory: &Memory, name: &str) -> Outcome<Holder> {
    let (reader, writer) = io::pipe()?;
    let (go_on, may_go_on) = mpsc::channel();
    let mgr = manager(memory)?;
    let memory = memory.clone();
    let name = name.to_owned();
    thread::spawn(move || {
        let pause = || {
            memory.lapse(&name);
            // A renewal is due by then, and finds that the lease has ended.
            memory.advance(TTL / 3);
            Ok(may_go_on.recv()?)
        };
        exit_code(write_late(&mgr, &name, writer, pause))
    });
    let output: Box<dyn Read> = Box::new(reader);
    Ok(Holder {
        output: BufReader::new(output),
        runs_as: RunsAs::Thread(go_on),
    })
}
