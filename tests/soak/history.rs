//! The observations of all processes, read from the files that each of them wrote. This module
//! knows nothing of fairlock.
//!
//! A line is `<ns> <wall ms> <who> <what> …`. The first number comes from a clock that all
//! processes of a machine share. A worker is called `<slot>.<life>`, so a killed worker and its
//! successor have different names; `-` means no worker, or all.
//!
//! | line | by | its time |
//! |---|---|---|
//! | `ask <attempt> <name> <verb> [<demand>]` | worker | before the call; `try_lock_for:<ns>` |
//! | `queued <attempt>` | worker | after `enqueue` returned |
//! | `waiting <attempt> <ns before>` | worker | after an inspection that showed it in the queue, and before that |
//! | `granted <attempt> <fence>` | worker | after the guard was returned |
//! | `held <attempt> <ns after>` | worker | before `is_held` returned true, and after it |
//! | `lost <attempt>` | worker | after `is_held` returned false |
//! | `downgrade <attempt>`, `downgraded <attempt>` | worker | before a writer becomes a reader, and after it |
//! | `cancel <attempt>` | worker | before a waiter that was not granted is dropped |
//! | `release <attempt>` | worker | before the guard is released |
//! | `ended <attempt> <how>` | worker | when the attempt is over, with a grant or without |
//! | `turns <n>` | worker | how many of its guards had a kept lock, without Redis |
//! | `gap <ns from>` | worker, coordinator | a thread that only reads the clock could not run since then |
//! | `begin <fault> <kind>`, `end <fault>` | fault injector, `who` is the victim | before the fault, after the repair |
//! | `write <attempt> <name> <fence> accepted` or `refused` | resource | in the order in which it decided |
//! | `key <key> <pttl>` | coordinator | at the end of the run |
//!
//! A demand is `read` or `write` for a reader/writer lock, or `2/3` for two of a semaphore's three
//! permits, or `line:4` for a mutex with four local hand-overs, or `kept` for one that its process
//! keeps. Without a demand, the attempt is for a mutex. A call for several mutexes has one attempt for
//! each.

use std::collections::{BTreeMap, HashMap};

/// How much of a name an attempt wants. The sum that is held at the same time never exceeds `of`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) permits: u64,
    pub(crate) of: u64,
    /// For a reader/writer lock, whose readers have the fence of the writer before them.
    pub(crate) rw: bool,
    /// How often one process may hand the lock over within itself before it serves the others. 0: it
    /// does not.
    pub(crate) local_handovers: usize,
    /// The process keeps the lock after this guard, until others want it.
    pub(crate) is_kept: bool,
}

impl Demand {
    /// A grant has fences for so many guards after the first.
    const MOST_TURNS: u64 = 65_535;

    const MUTEX: Demand = Demand {
        permits: 1,
        of: 1,
        rw: false,
        local_handovers: 0,
        is_kept: false,
    };
    const WRITE: Demand = Demand {
        permits: u32::MAX as u64,
        of: u32::MAX as u64,
        rw: true,
        ..Demand::MUTEX
    };
    const READ: Demand = Demand {
        permits: 1,
        ..Demand::WRITE
    };

    fn read(word: &str) -> Option<Demand> {
        Some(match word {
            "read" => Demand::READ,
            "write" => Demand::WRITE,
            "kept" => Demand {
                is_kept: true,
                ..Demand::MUTEX
            },
            _ => match word.strip_prefix("line:") {
                Some(handovers) => Demand {
                    local_handovers: handovers.parse().ok()?,
                    ..Demand::MUTEX
                },
                None => {
                    let (permits, of) = word.split_once('/')?;
                    Demand {
                        permits: permits.parse().ok()?,
                        of: of.parse().ok()?,
                        ..Demand::MUTEX
                    }
                }
            },
        })
    }

    /// How many guards may have had the same grant before this one.
    pub(crate) fn turns_before(&self) -> u64 {
        if self.is_kept {
            Demand::MOST_TURNS
        } else {
            self.local_handovers as u64
        }
    }

    /// Whether it is a reader's, whose fence is the last writer's.
    pub(crate) fn reads(&self) -> bool {
        self.rw && self.permits < self.of
    }
}

/// One call for a lock, from its start to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) id: String,
    pub(crate) worker: String,
    pub(crate) name: String,
    pub(crate) verb: String,
    pub(crate) demand: Demand,
    pub(crate) asked: u64,
    /// When it was first known to be queued.
    pub(crate) queued: Option<u64>,
    /// Before the last inspection that showed it in the queue.
    pub(crate) last_seen_queued: Option<u64>,
    pub(crate) granted: Option<Grant>,
    pub(crate) cancelled: Option<u64>,
    /// When and how it ended; absent if its worker died before that.
    pub(crate) ended: Option<(u64, String)>,
}

/// A worker's observations of the guard that it got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) at: u64,
    pub(crate) fence: u64,
    /// After the first call of `is_held` that returned true, and before the last: it was held all
    /// the time between. With a single such call the end is before the beginning, and it was held
    /// at some moment between them.
    pub(crate) held: Option<(u64, u64)>,
    pub(crate) lost: Option<u64>,
    /// When `is_held` returned true although it had returned false before.
    pub(crate) revived: Option<u64>,
    pub(crate) downgrade: Option<u64>,
    pub(crate) downgraded: Option<u64>,
    pub(crate) release: Option<u64>,
}

/// A fault of a worker, its link or the server, or of the whole machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: String,
    pub(crate) victim: String,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// A write that arrived at the resource which a lock protects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) attempt: String,
    pub(crate) name: String,
    pub(crate) fence: u64,
    pub(crate) accepted: bool,
    pub(crate) at: u64,
}

/// Everything that was seen.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) writes: Vec<Write>,
    /// Keys that were left, and for how many ms they stay; -1 means forever.
    pub(crate) keys: Vec<(String, i64)>,
    /// How many guards certainly had a kept lock, without Redis.
    pub(crate) kept_turns: u64,
    /// The time of the last line.
    pub(crate) end: u64,
}

impl History {
    /// Reads whole files. A line without a newline is ignored, since its writer was killed while
    /// writing it. Any other malformed line is an error.
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
            ("ask", [id, name, verb, demand @ ..]) if demand.len() < 2 => {
                let attempt = Attempt {
                    id: id.to_string(),
                    worker: who.to_owned(),
                    name: name.to_string(),
                    verb: verb.to_string(),
                    demand: demand
                        .first()
                        .map_or(Some(Demand::MUTEX), |word| Demand::read(word))?,
                    asked: at,
                    queued: None,
                    last_seen_queued: None,
                    granted: None,
                    cancelled: None,
                    ended: None,
                };
                // Each id is used once.
                if attempts.insert(id.to_string(), attempt).is_some() {
                    return None;
                }
            }
            ("queued", [id]) => attempts.get_mut(*id)?.queued = Some(at),
            ("waiting", [id, before]) => {
                let attempt = attempts.get_mut(*id)?;
                attempt.queued.get_or_insert(at);
                attempt.last_seen_queued = Some(before.parse().ok()?);
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
            ("cancel", [id]) => attempts.get_mut(*id)?.cancelled = Some(at),
            ("release", [id]) => attempts.get_mut(*id)?.granted.as_mut()?.release = Some(at),
            ("ended", [id, how]) => attempts.get_mut(*id)?.ended = Some((at, how.to_string())),
            ("turns", [turns]) => self.kept_turns += turns.parse::<u64>().ok()?,
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
