//! The one that is paused between its last look at the lock and its write.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;
use std::{env, error::Error};
#[cfg(feature = "memory")]
use std::{sync::mpsc, thread};

#[cfg(feature = "memory")]
use fairlock::memory::Memory;
use fairlock::{Endpoint, LockManager, LockOptions};
use rustix::process::{Pid, Signal, getpid, kill_process};

#[cfg(feature = "memory")]
use crate::support::ended;
use crate::support::{Outcome, Store, private_redis::Redis};

/// The total that it writes.
pub(crate) const LATE: u32 = 100;

/// The shortest there is, so that the others need not wait for long.
const TTL: Duration = Duration::from_secs(1);

/// Processes that share a name share a ttl. To connect may take longer than the tenth of it that is the default.
pub(crate) fn manager(to: impl Into<Endpoint>) -> fairlock::Result<LockManager> {
    LockManager::builder(to)
        .options(LockOptions::new().ttl(TTL))
        .connect_timeout(2 * TTL)
        .build()
}

/// What it does. Its writes go to whoever has the resource, as those to a database would.
fn write_late(
    mgr: &LockManager,
    name: &str,
    mut say: impl Write,
    pause: impl FnOnce() -> Outcome,
) -> Outcome {
    let guard = mgr.lock(name)?;
    writeln!(say, "holds {}", guard.fence())?;

    guard.check()?; // it is ours …
    pause()?; // … and was, until a moment ago
    let held = guard.is_held();

    writeln!(say, "writes {LATE}")?;
    writeln!(say, "under {}", guard.fence())?;
    writeln!(say, "is_held {held}")?;
    Ok(())
}

/// Ended with this program.
pub(crate) struct Holder {
    said: BufReader<Box<dyn Read>>,
    at: Place,
}

enum Place {
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

    /// Waits for what it says next, which has to be this.
    pub(crate) fn says<T: FromStr<Err: Error + Send + Sync + 'static>>(
        &mut self,
        what: &str,
    ) -> Outcome<T> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        let value = line
            .strip_prefix(what)
            .ok_or_else(|| format!("the one that was paused said {line:?}, not {what:?}"))?;
        Ok(value.trim().parse()?)
    }

    /// Ends its pause.
    pub(crate) fn go_on(&self) -> Outcome {
        match &self.at {
            Place::Process(process) => kill_process(Pid::from_child(process), Signal::CONT)?,
            #[cfg(feature = "memory")]
            Place::Thread(go_on) => go_on.send(())?,
        }
        Ok(())
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Outcome {
        self.said.read_to_end(&mut Vec::new())?;
        match &mut self.at {
            Place::Process(process) => match process.wait()? {
                status if status.success() => Ok(()),
                status => Err(format!("the one that was paused ended with {status}").into()),
            },
            #[cfg(feature = "memory")]
            Place::Thread(_) => Ok(()),
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Threads end with this program; a process that is stopped would stay.
        #[cfg_attr(
            not(feature = "memory"),
            expect(irrefutable_let_patterns, reason = "there are only processes")
        )]
        if let Place::Process(process) = &mut self.at {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn start_process(redis: &Redis, name: &str) -> Outcome<Holder> {
    let mut process = Command::new(env::current_exe()?)
        .args(["holder", name])
        // Not an argument: those can be read by every user of this host, and it may have a password.
        .env("REDIS_URL", &redis.url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let said: Box<dyn Read> = Box::new(process.stdout.take().expect("stdout is piped"));
    Ok(Holder {
        said: BufReader::new(said),
        at: Place::Process(process),
    })
}

/// What the program does when it is started as the holder.
pub(crate) fn be_a_process(name: &str) -> Outcome {
    // Whoever is stopped does not notice that the program which started it was killed, and would stay.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let mgr = manager(env::var("REDIS_URL")?)?;
    // Stops all of its threads, the one that renews its locks too, until it is sent SIGCONT.
    write_late(&mgr, name, io::stdout(), || {
        Ok(kill_process(getpid(), Signal::STOP)?)
    })
}

#[cfg(feature = "memory")]
fn start_thread(memory: &Memory, name: &str) -> Outcome<Holder> {
    let (said, say) = io::pipe()?;
    let (go_on, told) = mpsc::channel();
    let (memory, mgr, name) = (memory.clone(), manager(memory)?, name.to_owned());
    thread::spawn(move || {
        let pause = || {
            memory.lapse(&name);
            // The renewal that is due by then finds that the lease has ended.
            memory.advance(TTL / 3);
            Ok(told.recv()?)
        };
        ended(write_late(&mgr, &name, say, pause))
    });
    let said: Box<dyn Read> = Box::new(said);
    Ok(Holder {
        said: BufReader::new(said),
        at: Place::Thread(go_on),
    })
}
