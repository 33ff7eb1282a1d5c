//! What everybody saw, read back from the files in which each process wrote it down. Knows nothing
//! of fairlock.
//!
//! A line is `<ns> <wall ms> <who> <what> …`. The first number is of a clock that all processes of
//! a machine share. A worker is called `<slot>.<life>`, so one that was killed and its successor
//! differ; `-` is nobody, or everybody.
//!
//! | line | by | its time |
//! |---|---|---|
//! | `ask <attempt> <name> <verb> [<wish>]` | worker | before the call; `try_lock_for:<ns>` |
//! | `queued <attempt>` | worker | after `enqueue` returned |
//! | `stands <attempt> <ns before>` | worker | after a look at the queue that showed it there, and before it |
//! | `granted <attempt> <fence>` | worker | after the guard was returned |
//! | `held <attempt> <ns after>` | worker | before a look that said yes, and after it |
//! | `lost <attempt>` | worker | after a look that said no |
//! | `downgrade <attempt>`, `downgraded <attempt>` | worker | before a writer becomes a reader, and after it |
//! | `leave <attempt>` | worker | before a waiter that was not granted is dropped |
//! | `release <attempt>` | worker | before the guard is given back |
//! | `ended <attempt> <how>` | worker | when the attempt is over, with a grant or without |
//! | `gap <ns from>` | worker, coordinator | a thread that only looks at the clock was kept from it since then |
//! | `begin <fault> <kind>`, `end <fault>` | fault injector, `who` is the victim | before the first blow, after the repair |
//! | `write <attempt> <name> <fence> accepted` or `refused` | resource | in the order in which it decided |
//! | `key <key> <pttl>` | coordinator | when all was over |
//!
//! A wish is `read` or `write`, of a reader/writer lock, or `2/3`, for two permits of a semaphore's
//! three; without one a mutex is wanted. Who wants several mutexes together asks for each, by an
//! attempt of its own.

use std::collections::{BTreeMap, HashMap};

/// How much of a name is wanted. All that is held at the same time is never more than there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) permits: u64,
    pub(crate) of: u64,
    /// Of a reader/writer lock, in which readers have the fence of the writer before them.
    pub(crate) rw: bool,
}

impl Wish {
    const MUTEX: Wish = Wish {
        permits: 1,
        of: 1,
        rw: false,
    };
    const WRITE: Wish = Wish {
        permits: u32::MAX as u64,
        of: u32::MAX as u64,
        rw: true,
    };
    const READ: Wish = Wish {
        permits: 1,
        ..Wish::WRITE
    };

    fn read(word: &str) -> Option<Wish> {
        Some(match word {
            "read" => Wish::READ,
            "write" => Wish::WRITE,
            _ => {
                let (permits, of) = word.split_once('/')?;
                Wish {
                    permits: permits.parse().ok()?,
                    of: of.parse().ok()?,
                    rw: false,
                }
            }
        })
    }

    /// Whether its fence is another's.
    pub(crate) fn reads(&self) -> bool {
        self.rw && self.permits < self.of
    }
}

/// One wish for a lock, from the question to the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) id: String,
    pub(crate) worker: String,
    pub(crate) name: String,
    pub(crate) verb: String,
    pub(crate) wish: Wish,
    pub(crate) asked: u64,
    /// When it was first known to stand in the queue.
    pub(crate) queued: Option<u64>,
    /// Before the last look that showed it there.
    pub(crate) stood: Option<u64>,
    pub(crate) granted: Option<Grant>,
    pub(crate) left: Option<u64>,
    /// When and how it was over; absent if its worker died before.
    pub(crate) ended: Option<(u64, String)>,
}

/// What a worker saw of the guard that it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) at: u64,
    pub(crate) fence: u64,
    /// After the first look that said it is held, and before the last: it was held for all of the
    /// time between. With a single look the end is before the beginning, and it was held at some
    /// moment between them.
    pub(crate) held: Option<(u64, u64)>,
    pub(crate) lost: Option<u64>,
    /// A look said that it is held though one before had said that it is lost.
    pub(crate) revived: Option<u64>,
    pub(crate) downgrade: Option<u64>,
    pub(crate) downgraded: Option<u64>,
    pub(crate) release: Option<u64>,
}

/// Something that was done to a worker, its link or the server, or that the machine did to all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: String,
    pub(crate) victim: String,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// A write that came to the resource which a lock protects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) attempt: String,
    pub(crate) name: String,
    pub(crate) fence: u64,
    pub(crate) accepted: bool,
    pub(crate) at: u64,
}

/// All that was seen.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) writes: Vec<Write>,
    /// Keys that were left, and for how many ms more; -1 is for ever.
    pub(crate) keys: Vec<(String, i64)>,
    /// The last moment of which there is a line.
    pub(crate) end: u64,
}

impl History {
    /// Reads whole files. The line that somebody was killed over ends without a newline, and is
    /// passed over; any other that does not fit is an error.
    pub(crate) fn read<'a>(files: impl IntoIterator<Item = &'a str>) -> Result<History, String> {
        let mut history = History::default();
        let mut attempts = BTreeMap::new();
        let mut faults = HashMap::new();
        for file in files {
            for line in file
                .split_inclusive('\n')
                .filter_map(|line| line.strip_suffix('\n'))
            {
                history
                    .add(line, &mut attempts, &mut faults)
                    .ok_or_else(|| format!("cannot be read: {line:?}"))?;
            }
        }
        history
            .faults
            .extend(faults.into_values().map(|fault| Fault {
                to: u64::MAX,
                ..fault
            }));
        history.faults.sort_by_key(|fault| fault.from);
        history.attempts = attempts.into_values().collect();
        history.attempts.sort_by_key(|attempt| attempt.asked);
        Ok(history)
    }

    fn add(
        &mut self,
        line: &str,
        attempts: &mut BTreeMap<String, Attempt>,
        faults: &mut HashMap<String, Fault>,
    ) -> Option<()> {
        let mut words = line.split(' ');
        let at: u64 = words.next()?.parse().ok()?;
        let _wall: u64 = words.next()?.parse().ok()?;
        let who = words.next()?;
        let what = words.next()?;
        let words: Vec<&str> = words.collect();
        self.end = self.end.max(at);
        match (what, &words[..]) {
            ("ask", [id, name, verb, wish @ ..]) if wish.len() < 2 => {
                let attempt = Attempt {
                    id: id.to_string(),
                    worker: who.to_owned(),
                    name: name.to_string(),
                    verb: verb.to_string(),
                    wish: wish
                        .first()
                        .map_or(Some(Wish::MUTEX), |word| Wish::read(word))?,
                    asked: at,
                    queued: None,
                    stood: None,
                    granted: None,
                    left: None,
                    ended: None,
                };
                // Nobody may use an id twice.
                if attempts.insert(id.to_string(), attempt).is_some() {
                    return None;
                }
            }
            ("queued", [id]) => attempts.get_mut(*id)?.queued = Some(at),
            ("stands", [id, before]) => {
                let attempt = attempts.get_mut(*id)?;
                attempt.queued.get_or_insert(at);
                attempt.stood = Some(before.parse().ok()?);
            }
            ("granted", [id, fence]) => {
                let fence = fence.parse().ok()?;
                attempts.get_mut(*id)?.granted = Some(Grant {
                    at,
                    fence,
                    held: None,
                    lost: None,
                    revived: None,
                    downgrade: None,
                    downgraded: None,
                    release: None,
                });
            }
            ("held", [id, after]) => {
                let grant = attempts.get_mut(*id)?.granted.as_mut()?;
                let first = grant.held.map_or(after.parse().ok()?, |(first, _)| first);
                grant.held = Some((first, at));
                if grant.lost.is_some() {
                    grant.revived = Some(at);
                }
            }
            ("lost", [id]) => {
                attempts
                    .get_mut(*id)?
                    .granted
                    .as_mut()?
                    .lost
                    .get_or_insert(at);
            }
            ("downgrade", [id]) => attempts.get_mut(*id)?.granted.as_mut()?.downgrade = Some(at),
            ("downgraded", [id]) => attempts.get_mut(*id)?.granted.as_mut()?.downgraded = Some(at),
            ("leave", [id]) => attempts.get_mut(*id)?.left = Some(at),
            ("release", [id]) => attempts.get_mut(*id)?.granted.as_mut()?.release = Some(at),
            ("ended", [id, how]) => attempts.get_mut(*id)?.ended = Some((at, how.to_string())),
            ("gap", [from]) => {
                let from = from.parse().ok()?;
                self.faults.push(Fault {
                    kind: "gap".to_owned(),
                    victim: who.to_owned(),
                    from,
                    to: at,
                });
            }
            ("begin", [id, kind]) => {
                let fault = Fault {
                    kind: kind.to_string(),
                    victim: who.to_owned(),
                    from: at,
                    to: at,
                };
                if faults.insert(id.to_string(), fault).is_some() {
                    return None;
                }
            }
            ("end", [id]) => self.faults.push(Fault {
                to: at,
                ..faults.remove(*id)?
            }),
            ("write", [attempt, name, fence, said]) => self.writes.push(Write {
                attempt: attempt.to_string(),
                name: name.to_string(),
                fence: fence.parse().ok()?,
                accepted: match *said {
                    "accepted" => true,
                    "refused" => false,
                    _ => return None,
                },
                at,
            }),
            ("key", [key, left]) => self.keys.push((key.to_string(), left.parse().ok()?)),
            _ => return None,
        }
        Some(())
    }
}
