//! What is done to the virtual processes, their network and their server, as a list that can be printed, cut short and
//! played again.

use std::fmt;

use super::model::ModelKind;
use crate::script::LockSpec;

/// A generator of numbers (splitmix64). The same seed makes the same run, on every machine.
#[derive(Debug, Clone)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Short for the most part, and now and then as long as anything in the protocol, or longer.
    fn while_ms(&mut self) -> u64 {
        let longest = [40, 400, 1_200, 2_500, 5_000, 9_000];
        1 + match self.below(8) {
            0..3 => self.below(longest[0]),
            3..5 => self.below(longest[1]),
            n => self.below(longest[n as usize - 3]),
        }
    }

    fn step_ms(&mut self) -> i64 {
        let size = self.while_ms() as i64;
        if self.below(2) == 0 { size } else { -size }
    }
}

/// What becomes of the next request of a process. All times are in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mishap {
    Lose,
    LoseReply,
    Delay {
        by: u64,
    },
    DelayReply {
        by: u64,
    },
    /// Its connection ends; the request arrives all the same, if not `None`, so late.
    Reset {
        late: Option<u64>,
    },
}

/// On what terms somebody wants the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Terms {
    Renewed,
    Fixed,
    HoldAtLeast,
    MaxHold,
}

/// One thing that is done. `process` is a slot: who crashed there is followed by a new process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    /// Somebody wants so many permits, waits for at most so long, and then holds them.
    Lock {
        process: u8,
        patience: Option<u64>,
        hold: u64,
        terms: Terms,
        permits: u32,
    },
    TryLock {
        process: u8,
        hold: u64,
        permits: u32,
    },
    Mishap {
        process: u8,
        what: Mishap,
    },
    /// Somebody takes the lock away from whoever was seen to have it, now or before.
    Force {
        process: u8,
        stale: bool,
    },
    LoseMessage {
        process: u8,
    },
    DelayMessage {
        process: u8,
        by: u64,
    },
    Unsubscribe {
        process: u8,
        pause: u64,
    },
    Pause {
        process: u8,
        pause: u64,
    },
    Crash {
        process: u8,
    },
    /// Nothing gets through to the server or from it, and arrives afterwards.
    Cut {
        process: u8,
        pause: u64,
    },
    /// Its requests arrive, and neither replies nor messages come back.
    Deaf {
        process: u8,
        pause: u64,
    },
    /// Whoever has waited there for longest drops its place.
    Drop {
        process: u8,
    },
    /// A guard there is renewed by its owner.
    Renew {
        process: u8,
    },
    /// A guard there that has all permits gives back all but one.
    Downgrade {
        process: u8,
    },
    /// The server hangs, and goes on with what was sent to it meanwhile.
    Hang {
        pause: u64,
    },
    Restart {
        keep: bool,
        pause: u64,
    },
    /// The replica catches up.
    Replicate,
    /// The replica takes over, with a clock that differs by so much.
    FailOver {
        clock: i64,
        pause: u64,
    },
    StepClock {
        by: i64,
    },
    FlushAll,
    DropRecord,
    DropQueue,
    /// The key of those who hold permits.
    DropHolders,
}

/// A deed and when it is done, in ms since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) at: u64,
    pub(super) deed: Deed,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>6} ms  {:?}", self.at, self.deed)
    }
}

/// How many slots for processes there are; one more is for the last word.
pub(super) const SLOTS: u8 = 3;
/// How many deeds a run has.
const DEEDS: u64 = 70;
const SORTS: u64 = 19;

/// What the name is used as in the run of a seed: every other one is of a mutex.
pub(super) fn kind(seed: u64) -> ModelKind {
    match seed % 4 {
        1 => ModelKind::Semaphore(3),
        3 => ModelKind::ReadWrite(LockSpec::write().weight),
        _ => ModelKind::Mutex,
    }
}

/// How many permits somebody asks for.
fn permits(kind: ModelKind, chance: &mut Chance) -> u32 {
    match kind {
        ModelKind::Mutex => 1,
        ModelKind::Semaphore(all) => 1 + [0, 0, 1, 2][chance.below(4) as usize] % all,
        ModelKind::ReadWrite(all) => [1, 1, all][chance.below(3) as usize],
    }
}

/// What a seed stands for. Each run has some sorts of faults and not others: a fault that comes with all the others
/// hides behind them.
pub(super) fn plan(seed: u64) -> Vec<Planned> {
    let mut chance = Chance::new(seed ^ 0x5eed);
    let kind = kind(seed);
    let shared = matches!(kind, ModelKind::ReadWrite(_));
    let mut sizes = Chance::new(seed ^ 0x517e);
    let enabled = chance.next() & chance.next();
    let pace = [60, 150, 400][chance.below(3) as usize];
    // Now and then so long that a lease must be renewed more than once.
    let longest_hold = [20, 300, 20, 300, 2_500, 2_500, 9_000][chance.below(7) as usize];
    let mut at = 0;
    let mut planned = Vec::new();
    while planned.len() < (DEEDS / 2 + seed % (DEEDS / 2)) as usize {
        at += chance.below(pace);
        let sort = chance.below(SORTS * 2);
        let process = chance.below(u64::from(SLOTS)) as u8;
        let hold = 1 + chance.below(longest_hold);
        let deed = match sort {
            s if (2..SORTS).contains(&s) && enabled >> s & 1 == 0 => continue,
            0 | 19..27 => {
                let patience = (chance.below(4) == 0).then(|| chance.while_ms());
                let terms = match chance.below(12) {
                    0..2 => Terms::Fixed,
                    2 => Terms::HoldAtLeast,
                    3 => Terms::MaxHold,
                    _ => Terms::Renewed,
                };
                Deed::Lock {
                    process,
                    patience,
                    hold,
                    terms,
                    permits: permits(kind, &mut sizes),
                }
            }
            1 => Deed::TryLock {
                process,
                hold,
                permits: permits(kind, &mut sizes),
            },
            2 | 27..31 if enabled & 4 != 0 => {
                let by = chance.while_ms();
                let what = match chance.below(6) {
                    0 => Mishap::Lose,
                    1 => Mishap::LoseReply,
                    2 => Mishap::Delay { by },
                    3 => Mishap::DelayReply { by },
                    4 => Mishap::Reset { late: None },
                    _ => Mishap::Reset { late: Some(by) },
                };
                Deed::Mishap { process, what }
            }
            3 => Deed::LoseMessage { process },
            4 => Deed::DelayMessage {
                process,
                by: chance.while_ms(),
            },
            5 => Deed::Unsubscribe {
                process,
                pause: chance.while_ms(),
            },
            6 => Deed::Pause {
                process,
                pause: chance.while_ms(),
            },
            7 => Deed::Crash { process },
            8 => Deed::Cut {
                process,
                pause: chance.while_ms(),
            },
            9 => Deed::Hang {
                pause: chance.while_ms(),
            },
            10 => Deed::Restart {
                keep: true,
                pause: chance.while_ms(),
            },
            11 => Deed::Restart {
                keep: false,
                pause: chance.while_ms(),
            },
            12 => {
                let deed = Deed::FailOver {
                    clock: chance.step_ms(),
                    pause: chance.while_ms(),
                };
                // Else it has what it had when it caught up last, which may be nothing.
                if chance.below(2) == 0 {
                    planned.push(Planned {
                        at,
                        deed: Deed::Replicate,
                    });
                    at += chance.below(pace);
                }
                deed
            }
            13 => Deed::StepClock {
                by: chance.step_ms(),
            },
            14 => Deed::FlushAll,
            15 => Deed::DropRecord,
            16 => Deed::DropQueue,
            17 => Deed::Force {
                process,
                stale: chance.below(4) == 0,
            },
            18 => Deed::Replicate,
            31 if enabled >> 31 & 1 == 1 => Deed::Deaf {
                process,
                pause: chance.while_ms(),
            },
            32 | 33 if enabled >> 32 & 1 == 1 => Deed::Drop { process },
            34 | 35 if enabled >> 34 & 1 == 1 => Deed::Renew { process },
            36 if shared => Deed::Downgrade { process },
            37 if kind != ModelKind::Mutex && enabled >> 37 & 1 == 1 => Deed::DropHolders,
            _ => continue,
        };
        planned.push(Planned { at, deed });
        // What goes wrong while a request is under way is worth more than what goes wrong in between.
        let soon = at + chance.below(3);
        let pause = chance.while_ms();
        let after = match chance.below(24) {
            0 if enabled >> 8 & 1 == 1 => Deed::Cut { process, pause },
            1 if enabled >> 9 & 1 == 1 => Deed::Hang { pause },
            2 if enabled >> 6 & 1 == 1 => Deed::Pause { process, pause },
            3 if enabled >> 7 & 1 == 1 => Deed::Crash { process },
            4..8 if enabled >> 2 & 1 == 1 => {
                planned.push(Planned {
                    at,
                    deed: Deed::Mishap {
                        process,
                        what: Mishap::LoseReply,
                    },
                });
                Deed::Mishap {
                    process,
                    what: Mishap::Delay {
                        by: chance.below(320),
                    },
                }
            }
            8..11 if shared => Deed::Downgrade { process },
            _ => continue,
        };
        planned.push(Planned {
            at: soon,
            deed: after,
        });
        at = soon;
    }
    planned
}

/// Leaves out what is not needed for `fails` to hold, first by halves and then one by one; plays at most `tries` times.
pub(super) fn shorten(
    mut planned: Vec<Planned>,
    mut tries: u32,
    fails: &mut dyn FnMut(&[Planned]) -> bool,
) -> Vec<Planned> {
    let mut size = planned.len().div_ceil(2);
    loop {
        let mut from = 0;
        let before = planned.len();
        while from < planned.len() && tries > 0 {
            let to = (from + size).min(planned.len());
            let rest = [&planned[..from], &planned[to..]].concat();
            tries -= 1;
            if fails(&rest) {
                planned = rest
            } else {
                from = to
            }
        }
        if tries == 0 || size == 1 && planned.len() == before {
            return planned;
        }
        size = size.div_ceil(2);
    }
}
