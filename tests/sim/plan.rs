//! The actions on the virtual processes, their network and their server. They are a list that can
//! be printed, shortened and played again.

use std::fmt;

use super::model::ModelKind;
use crate::script::LockSpec;

/// A random number generator (splitmix64). The same seed makes the same run, on every machine.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A duration in ms: mostly short, sometimes as long as any time in the protocol, or longer.
    fn duration_ms(&mut self) -> u64 {
        let longest = [40, 400, 1_200, 2_500, 5_000, 9_000];
        1 + match self.below(8) {
            0..3 => self.below(longest[0]),
            3..5 => self.below(longest[1]),
            n => self.below(longest[n as usize - 3]),
        }
    }

    /// A step of a clock in ms, forward or back.
    fn clock_step_ms(&mut self) -> i64 {
        let size = self.duration_ms() as i64;
        if self.below(2) == 0 { size } else { -size }
    }
}

/// A fault of the next request of a process. All times are in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NetworkFault {
    LoseRequest,
    LoseReply,
    DelayRequest {
        by: u64,
    },
    DelayReply {
        by: u64,
    },
    /// The connection ends. The request may arrive all the same, that much later.
    Reset {
        late: Option<u64>,
    },
}

/// The options with which a caller asks for the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseKind {
    Renewed,
    Fixed,
    HoldAtLeast,
    MaxHold,
}

/// One thing that somebody does, or that goes wrong. `process` is a slot: after a crash a new
/// process takes its slot. All times are in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// A caller asks for permits, waits until its timeout, and then holds them.
    Lock {
        process: u8,
        timeout: Option<u64>,
        hold: u64,
        lease_kind: LeaseKind,
        permits: u32,
    },
    TryLock {
        process: u8,
        hold: u64,
        permits: u32,
    },
    NetworkFault {
        process: u8,
        fault: NetworkFault,
    },
    /// A caller takes the lock by force from a holder that it saw, now or earlier.
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
    /// Nothing passes between the process and the server. It arrives afterwards.
    Cut {
        process: u8,
        pause: u64,
    },
    /// The process's requests arrive. It gets neither replies nor messages.
    LoseInbound {
        process: u8,
        pause: u64,
    },
    /// The process gets no messages, and its subscription does not end by that. It gets replies.
    Deafen {
        process: u8,
        pause: u64,
    },
    /// The caller that has waited longest there drops its waiter.
    DropWaiter {
        process: u8,
    },
    /// The owner of a guard renews it.
    RenewGuard {
        process: u8,
    },
    /// A guard that has all permits releases all but one.
    DowngradeGuard {
        process: u8,
    },
    /// A caller drops its guard, and tries to take the lock again at once.
    DropAndTry {
        process: u8,
        permits: u32,
    },
    /// A caller abandons its guard, and tries to take the lock again at once.
    AbandonAndTry {
        process: u8,
    },
    /// All callers drop their guards, and the process crashes at once.
    DropAndCrash {
        process: u8,
    },
    /// The server hangs. Then it goes on with the requests that reached it in that time.
    Hang {
        pause: u64,
    },
    Restart {
        keep: bool,
        pause: u64,
    },
    /// The replica catches up.
    Replicate,
    /// The replica takes over. Its clock differs by this much.
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
    /// The key with the holders of permits is lost.
    DropHolders,
    /// The server forgets all scripts.
    ForgetScripts,
    /// When the server has run this many requests, it loses a key.
    LoseKeyAfter {
        requests: u64,
        key: NameKey,
    },
}

/// A key of the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameKey {
    Record,
    Queue,
    Holders,
}

impl Action {
    /// A caller uses the lock as it likes. Any other action is a fault.
    pub(super) fn is_use(self) -> bool {
        matches!(
            self,
            Action::Lock { .. }
                | Action::TryLock { .. }
                | Action::DropWaiter { .. }
                | Action::RenewGuard { .. }
                | Action::DowngradeGuard { .. }
                | Action::DropAndTry { .. }
                | Action::AbandonAndTry { .. }
        )
    }
}

/// An action and its time, in ms since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlannedAction {
    pub(super) at: u64,
    pub(super) action: Action,
}

impl fmt::Display for PlannedAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>6} ms  {:?}", self.at, self.action)
    }
}

/// How many slots for processes there are. One more is for the caller that comes last.
pub(super) const SLOTS: u8 = 3;
/// A run has fewer actions than this, and at least half as many.
const ACTIONS: u64 = 70;
/// How many sorts of actions a run may leave out.
const SORTS: u64 = 19;

/// In a run whose callers keep a mutex unused: they do so for this part of the ttl.
pub(super) fn keep_part(seed: u64) -> Option<u32> {
    let part = match seed % 9 {
        1 | 4 => Some(3),
        7 => Some(5),
        _ => None,
    };
    part.filter(|_| kind(seed) == ModelKind::Mutex)
}

/// How the run of a seed uses the name: every other run is of a mutex.
pub(super) fn kind(seed: u64) -> ModelKind {
    match seed % 4 {
        1 => ModelKind::Semaphore(3),
        3 => ModelKind::ReadWrite(LockSpec::write().weight),
        _ => ModelKind::Mutex,
    }
}

/// How many permits a caller asks for.
fn permits(kind: ModelKind, rng: &mut Rng) -> u32 {
    match kind {
        ModelKind::Mutex => 1,
        ModelKind::Semaphore(all) => 1 + [0, 0, 1, 2][rng.below(4) as usize] % all,
        ModelKind::ReadWrite(all) => [1, 1, all][rng.below(3) as usize],
    }
}

/// The actions of a seed's run.
pub(super) fn plan(seed: u64) -> Vec<PlannedAction> {
    let mut planner = Planner::new(seed);
    let wanted = (ACTIONS / 2 + seed % (ACTIONS / 2)) as usize;
    while planner.planned.len() < wanted {
        planner.add_next();
    }
    planner.planned
}

/// The actions of a seed's run in which nothing goes wrong. Half of the callers drop their waiters.
pub(super) fn calm_plan(seed: u64) -> Vec<PlannedAction> {
    let mut calm = Vec::new();
    for planned in plan(seed) {
        if planned.action.is_use() {
            calm.push(planned);
        }
        if let Action::Lock { process, .. } = planned.action
            && calm.len() % 2 == 0
        {
            let action = Action::DropWaiter { process };
            calm.push(PlannedAction { action, ..planned });
        }
    }
    calm
}

struct Planner {
    rng: Rng,
    /// Another generator for how many permits callers ask for: a mutex draws none, which must not
    /// shift the other draws.
    sizes: Rng,
    /// Another generator for what hits a lane, which must not shift the other draws either.
    lanes: Rng,
    /// Another generator for the callers that find a kept lock. `None`: none is kept.
    keepers: Option<Rng>,
    /// Another generator for guards that are abandoned in a row.
    abandons: Rng,
    kind: ModelKind,
    /// The sorts of faults that this run has, a bit for each. A run leaves out many: a fault that
    /// comes together with all the others hides behind them.
    enabled: u64,
    /// The longest time between two actions, in ms.
    pace: u64,
    longest_hold: u64,
    /// When the last action happens, in ms.
    at: u64,
    planned: Vec<PlannedAction>,
}

impl Planner {
    fn new(seed: u64) -> Planner {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let enabled = rng.next() & rng.next();
        let pace = [60, 150, 400][rng.below(3) as usize];
        // Sometimes so long that a lease must be renewed more than once.
        let longest_hold = [20, 300, 20, 300, 2_500, 2_500, 9_000][rng.below(7) as usize];
        let keeps = keep_part(seed).is_some();
        Planner {
            rng,
            sizes: Rng::new(seed ^ 0x517e),
            lanes: Rng::new(seed ^ 0x1a_2e5),
            keepers: keeps.then(|| Rng::new(seed ^ 0x4ee9)),
            abandons: Rng::new(seed ^ 0x000a_bad0),
            kind: kind(seed),
            enabled,
            pace,
            // Nothing is kept from those that wait all the time.
            longest_hold: if keeps {
                longest_hold.min(300)
            } else {
                longest_hold
            },
            at: 0,
            planned: Vec::new(),
        }
    }

    fn is_shared(&self) -> bool {
        matches!(self.kind, ModelKind::ReadWrite(_))
    }

    fn has(&self, sort: u64) -> bool {
        self.enabled >> sort & 1 == 1
    }

    fn push(&mut self, action: Action) {
        self.planned.push(PlannedAction {
            at: self.at,
            action,
        });
    }

    /// Draws one action, and sometimes one that hits the process while its request is in flight.
    /// The order of the draws makes the run: a change to it changes the run of every seed.
    fn add_next(&mut self) {
        self.at += self.rng.below(self.pace);
        let sort = self.rng.below(SORTS * 2);
        let process = self.rng.below(u64::from(SLOTS)) as u8;
        let hold = 1 + self.rng.below(self.longest_hold);
        let action = match sort {
            s if (2..SORTS).contains(&s) && !self.has(s) => None,
            0 | 19..27 => Some(self.lock(process, hold)),
            1 => Some(Action::TryLock {
                process,
                hold,
                permits: permits(self.kind, &mut self.sizes),
            }),
            2 | 27..31 if self.has(2) => Some(self.network_fault(process)),
            3..=8 | 17 | 31..=36 => self.on_process(sort, process),
            _ => self.on_server(sort),
        };
        let Some(action) = action else { return };
        self.push(action);
        self.add_soon_after(process);
        self.add_on_lane();
        if let Some(mut keepers) = self.keepers.take() {
            if keepers.below(3) == 0 {
                self.add_row(&mut keepers);
            }
            if self.abandons.below(12) == 0 {
                self.add_abandons();
            }
            self.keepers = Some(keepers);
        }
    }

    /// A process takes the lock several times in a row. From the third time on it keeps that. Then its
    /// subscription may die unseen, or its server may lose what it had. Mostly others want the lock in
    /// the end.
    fn add_row(&mut self, keepers: &mut Rng) {
        let process = keepers.below(u64::from(SLOTS)) as u8;
        let lock = |keepers: &mut Rng, process| Action::Lock {
            process,
            timeout: None,
            hold: 1 + keepers.below(3),
            lease_kind: LeaseKind::Renewed,
            permits: 1,
        };
        let longest = [20, 150][keepers.below(2) as usize];
        let pause = 5 + keepers.below(longest);
        let row = 3 + keepers.below(8);
        let trouble_at = keepers.below(row * 2);
        for at in 0..row {
            self.at += pause;
            let action = match keepers.below(6) {
                0 => Action::TryLock {
                    process,
                    hold: 1 + keepers.below(3),
                    permits: 1,
                },
                _ => lock(keepers, process),
            };
            self.push(action);
            if at == trouble_at && at > 1 {
                self.at += keepers.below(pause);
                self.add_trouble(keepers, process);
            }
        }
        let other = keepers.below(u64::from(SLOTS)) as u8;
        if keepers.below(4) > 0 {
            self.at += keepers.below(pause);
            let action = lock(keepers, other);
            self.push(action);
            // It comes while the lock is released.
            if keepers.below(2) == 0 {
                self.at += 1;
                self.push(Action::TryLock {
                    process,
                    hold: 1 + keepers.below(3),
                    permits: 1,
                });
            }
        }
    }

    /// P2: many grants that may be kept end in a row without a release. Then the data is lost, and others
    /// take the lock.
    fn add_abandons(&mut self) {
        let process = self.abandons.below(u64::from(SLOTS)) as u8;
        let lock = |process, hold| Action::Lock {
            process,
            timeout: None,
            hold,
            lease_kind: LeaseKind::Renewed,
            permits: 1,
        };
        for hold in [1, 1, 1, 50] {
            self.at += 5 + self.abandons.below(20);
            self.push(lock(process, hold));
        }
        for _ in 0..self.abandons.below(12) {
            self.at += 2 + self.abandons.below(4);
            self.push(Action::AbandonAndTry { process });
        }
        if self.has(14) {
            self.at += 1 + self.abandons.below(3);
            self.push(Action::FlushAll);
            self.push(lock((process + 1) % SLOTS, 1));
        }
    }

    /// What a process that keeps a lock must notice.
    fn add_trouble(&mut self, keepers: &mut Rng, process: u8) {
        let pause = keepers.duration_ms();
        let action = match keepers.below(6) {
            0 | 1 => Action::Deafen {
                process,
                pause: 400 + keepers.below(2_000),
            },
            2 if self.has(5) => Action::Unsubscribe { process, pause },
            3 => Action::Restart {
                keep: false,
                pause: 1,
            },
            4 if self.has(12) => self.fail_over(),
            5 if self.has(3) => Action::LoseMessage { process },
            _ => return,
        };
        self.push(action);
    }

    fn lock(&mut self, process: u8, hold: u64) -> Action {
        let timeout = (self.rng.below(4) == 0).then(|| self.rng.duration_ms());
        let lease_kind = match self.rng.below(12) {
            0..2 => LeaseKind::Fixed,
            2 => LeaseKind::HoldAtLeast,
            3 => LeaseKind::MaxHold,
            _ => LeaseKind::Renewed,
        };
        Action::Lock {
            process,
            timeout,
            hold,
            lease_kind,
            permits: permits(self.kind, &mut self.sizes),
        }
    }

    fn network_fault(&mut self, process: u8) -> Action {
        let by = self.rng.duration_ms();
        let fault = match self.rng.below(6) {
            0 => NetworkFault::LoseRequest,
            1 => NetworkFault::LoseReply,
            2 => NetworkFault::DelayRequest { by },
            3 => NetworkFault::DelayReply { by },
            4 => NetworkFault::Reset { late: None },
            _ => NetworkFault::Reset { late: Some(by) },
        };
        Action::NetworkFault { process, fault }
    }

    fn on_process(&mut self, sort: u64, process: u8) -> Option<Action> {
        Some(match sort {
            3 => Action::LoseMessage { process },
            4 => Action::DelayMessage {
                process,
                by: self.rng.duration_ms(),
            },
            5 => Action::Unsubscribe {
                process,
                pause: self.rng.duration_ms(),
            },
            6 => Action::Pause {
                process,
                pause: self.rng.duration_ms(),
            },
            7 => Action::Crash { process },
            8 => Action::Cut {
                process,
                pause: self.rng.duration_ms(),
            },
            17 => Action::Force {
                process,
                stale: self.rng.below(4) == 0,
            },
            31 if self.has(31) => Action::LoseInbound {
                process,
                pause: self.rng.duration_ms(),
            },
            32 | 33 if self.has(32) => Action::DropWaiter { process },
            34 | 35 if self.has(34) => Action::RenewGuard { process },
            36 if self.is_shared() => Action::DowngradeGuard { process },
            _ => return None,
        })
    }

    fn on_server(&mut self, sort: u64) -> Option<Action> {
        Some(match sort {
            9 => Action::Hang {
                pause: self.rng.duration_ms(),
            },
            10 => Action::Restart {
                keep: true,
                pause: self.rng.duration_ms(),
            },
            11 => Action::Restart {
                keep: false,
                pause: self.rng.duration_ms(),
            },
            12 => self.fail_over(),
            13 => Action::StepClock {
                by: self.rng.clock_step_ms(),
            },
            14 => Action::FlushAll,
            15 => Action::DropRecord,
            16 => Action::DropQueue,
            18 => Action::Replicate,
            37 if self.kind != ModelKind::Mutex && self.has(37) => Action::DropHolders,
            _ => return None,
        })
    }

    fn fail_over(&mut self) -> Action {
        let action = Action::FailOver {
            clock: self.rng.clock_step_ms(),
            pause: self.rng.duration_ms(),
        };
        // Otherwise the replica has what it had when it last caught up, perhaps nothing.
        if self.rng.below(2) == 0 {
            self.push(Action::Replicate);
            self.at += self.rng.below(self.pace);
        }
        action
    }

    /// A fault while a request is in flight finds more than a fault between two requests.
    fn add_soon_after(&mut self, process: u8) {
        let soon = self.at + self.rng.below(3);
        let pause = self.rng.duration_ms();
        let action = match self.rng.below(24) {
            0 if self.has(8) => Action::Cut { process, pause },
            1 if self.has(9) => Action::Hang { pause },
            2 if self.has(6) => Action::Pause { process, pause },
            3 if self.has(7) => Action::Crash { process },
            4..8 if self.has(2) => {
                self.push(Action::NetworkFault {
                    process,
                    fault: NetworkFault::LoseReply,
                });
                let by = self.rng.below(320);
                Action::NetworkFault {
                    process,
                    fault: NetworkFault::DelayRequest { by },
                }
            }
            8..11 if self.is_shared() => Action::DowngradeGuard { process },
            11..13 if self.has(13) => return self.add_repeated_grant(process, pause),
            _ => return,
        };
        self.at = soon;
        self.push(action);
    }

    /// Something happens while replies are under way on the lane of a process.
    fn add_on_lane(&mut self) {
        let process = self.lanes.below(u64::from(SLOTS)) as u8;
        let permits = permits(self.kind, &mut self.lanes);
        let fault = self.lanes.below(8);
        match self.lanes.below(40) {
            0..4 => {
                if fault == 0 && self.has(2) {
                    let fault = NetworkFault::Reset { late: None };
                    self.push(Action::NetworkFault { process, fault });
                }
                if fault == 1 && self.has(18) {
                    self.push(Action::ForgetScripts);
                }
                self.push(Action::DropAndTry { process, permits });
            }
            4..7 if self.has(7) => self.push(Action::DropAndCrash { process }),
            7 if self.has(18) => self.push(Action::ForgetScripts),
            8..10 if self.has(2) => self.add_late_grant(process, permits),
            _ => {}
        }
    }

    /// The grant of a fixed lease comes late, and the process sends another request meanwhile.
    fn add_late_grant(&mut self, process: u8, permits: u32) {
        let by = 1 + self.lanes.below(250);
        let fault = NetworkFault::DelayReply { by };
        self.push(Action::NetworkFault { process, fault });
        let hold = 500 + self.lanes.below(3_500);
        self.push(Action::Lock {
            process,
            timeout: None,
            hold,
            lease_kind: LeaseKind::Fixed,
            permits,
        });
        self.at += 1 + self.lanes.below(by);
        self.push(Action::TryLock {
            process,
            hold: 1,
            permits,
        });
    }

    /// The clock goes back between a grant and the answer that repeats it.
    fn add_repeated_grant(&mut self, process: u8, back: u64) {
        self.push(Action::NetworkFault {
            process,
            fault: NetworkFault::LoseReply,
        });
        let hold = 1 + self.rng.below(self.longest_hold);
        let lock = self.lock(process, hold);
        self.push(lock);
        self.at += 1 + self.rng.below(320);
        self.push(Action::StepClock { by: -(back as i64) });
    }
}

/// Leaves out what `fails` does not need, first by halves and then one by one. It calls `fails` at
/// most `tries` times.
pub(super) fn shorten(
    mut planned: Vec<PlannedAction>,
    mut tries: u32,
    fails: &mut dyn FnMut(&[PlannedAction]) -> bool,
) -> Vec<PlannedAction> {
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
