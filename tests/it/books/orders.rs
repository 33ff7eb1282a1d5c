//! All orders in which the statements of two turns can run.
//!
//! Each turn runs in a thread. It stops before each of its statements, until it is chosen to run the
//! next one. When both have stopped, the search chooses one of them. The older one may also crash,
//! right after any of its statements. The search goes through all choices, depth first.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use fairlock::LockManager;
use parking_lot::{Condvar, Mutex};

use super::Locks;

const OLDER: usize = 0;
const NEWER: usize = 1;

thread_local! {
    static TURN: RefCell<Option<(usize, Arc<Stage>)>> = const { RefCell::new(None) };
}

/// The next step of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum State {
    #[default]
    Absent,
    Runs,
    Stopped,
    Crashes,
    Ended,
}

#[derive(Default)]
struct Stage {
    turns: Mutex<[State; 2]>,
    changed: Condvar,
}

impl Stage {
    fn set(&self, turn: usize, state: State) {
        self.turns.lock()[turn] = state;
        self.changed.notify_all();
    }

    fn wait(&self, turn: usize, until: impl Fn(State) -> bool) -> State {
        let mut turns = self.turns.lock();
        while !until(turns[turn]) {
            self.changed.wait(&mut turns);
        }
        turns[turn]
    }

    /// Lets a turn run, or crash, until it stops again or ends.
    fn go(&self, turn: usize, state: State) {
        self.set(turn, state);
        self.wait(turn, |state| matches!(state, State::Stopped | State::Ended));
    }
}

/// The value with which a crash unwinds.
struct Crash;

/// Before a statement of a turn: waits until it is chosen to run. Elsewhere it does nothing.
pub(super) fn step() {
    let Some((turn, stage)) = TURN.with_borrow(Clone::clone) else {
        return;
    };
    stage.set(turn, State::Stopped);
    if stage.wait(turn, |state| state != State::Stopped) == State::Crashes {
        resume_unwind(Box::new(Crash));
    }
}

/// The way in which a turn uses the manager of its process.
pub(super) type Turn<T> = Box<dyn FnOnce(&LockManager) -> T + Send>;

/// The error in the books, if there is one. The older result is `None` after a crash.
pub(super) type Books<T> = Box<dyn FnOnce(Option<T>, T) -> Result<(), String>>;

/// The two turns of one run.
pub(super) struct Turns<T> {
    /// It has the locks when it comes to its first statement.
    pub(super) older: Turn<T>,
    /// The locks that it loses then.
    pub(super) lost: Vec<String>,
    pub(super) newer: Turn<T>,
    /// After the last statement of both.
    pub(super) books: Books<T>,
}

/// Runs the turns in all orders. Returns how many orders there are, and what was wrong in some.
pub(super) fn in_all_orders<T: Send + 'static>(
    turns: impl Fn(&Locks) -> Turns<T>,
) -> (usize, Vec<String>) {
    let locks = Locks::new();
    let mut search = Search::default();
    let (mut runs, mut wrong) = (0, Vec::new());
    loop {
        runs += 1;
        wrong.extend(in_one_order(&locks, turns(&locks), &mut search).err());
        if !search.advance() {
            return (runs, wrong);
        }
    }
}

fn in_one_order<T: Send + 'static>(
    locks: &Locks,
    turns: Turns<T>,
    search: &mut Search,
) -> Result<(), String> {
    let stage = Arc::new(Stage::default());
    let older = start(OLDER, &stage, &locks.older, turns.older);
    for name in &turns.lost {
        assert!(locks.memory.lapse(name), "{name} is held");
    }
    let newer = start(NEWER, &stage, &locks.newer, turns.newer);
    search.begin();
    let mut may_crash = true;
    loop {
        let stopped = |turn: usize| stage.turns.lock()[turn] == State::Stopped;
        let mut choices: Vec<(usize, State)> = [OLDER, NEWER]
            .into_iter()
            .filter(|turn| stopped(*turn))
            .map(|turn| (turn, State::Runs))
            .collect();
        // A crash later than this would make no difference: it does nothing in between.
        if stopped(OLDER) && may_crash {
            choices.push((OLDER, State::Crashes));
        }
        let Some((turn, state)) = search.choose(&choices) else {
            break;
        };
        may_crash = turn == OLDER;
        stage.go(turn, state);
    }
    let newer = newer.join().expect("it catches panics");
    (turns.books)(
        older.join().expect("it catches panics"),
        newer.expect("it never crashes"),
    )
}

/// Starts a turn, and waits until it comes to its first statement.
fn start<T: Send + 'static>(
    turn: usize,
    stage: &Arc<Stage>,
    mgr: &LockManager,
    run: Turn<T>,
) -> JoinHandle<Option<T>> {
    stage.set(turn, State::Runs);
    let (mgr, started) = (mgr.clone(), Arc::clone(stage));
    let thread = thread::spawn(move || {
        TURN.set(Some((turn, Arc::clone(&started))));
        let result = catch_unwind(AssertUnwindSafe(|| run(&mgr)));
        started.set(turn, State::Ended);
        match result {
            Ok(result) => Some(result),
            Err(panic) if panic.is::<Crash>() => None,
            Err(panic) => resume_unwind(panic),
        }
    });
    stage.wait(turn, |state| state != State::Runs);
    thread
}

/// Depth first: the choices of this run, each with how many there were.
#[derive(Default)]
struct Search {
    path: Vec<(usize, usize)>,
    at: usize,
}

impl Search {
    fn begin(&mut self) {
        self.at = 0;
    }

    fn choose<C: Copy>(&mut self, choices: &[C]) -> Option<C> {
        let last = choices.len().checked_sub(1)?;
        if self.at == self.path.len() {
            self.path.push((0, 0));
        }
        // A turn whose lease ends by the clock in the middle of a run may have fewer choices.
        let (chosen, of) = &mut self.path[self.at];
        *of = choices.len();
        self.at += 1;
        Some(choices[last.min(*chosen)])
    }

    /// The next path. `false` after the last one.
    fn advance(&mut self) -> bool {
        self.path.truncate(self.at);
        while let Some((chosen, of)) = self.path.pop() {
            if chosen + 1 < of {
                self.path.push((chosen + 1, of));
                return true;
            }
        }
        false
    }
}

#[test]
fn search_finds_every_order_and_every_crash() {
    let orders = Arc::new(Mutex::new(Vec::new()));
    let (runs, wrong) = in_all_orders(|_| {
        let seen = Arc::new(Mutex::new(String::new()));
        let turn = |name: char| -> Turn<()> {
            let seen = Arc::clone(&seen);
            Box::new(move |_| {
                for _ in 0..2 {
                    step();
                    seen.lock().push(name);
                }
            })
        };
        let orders = Arc::clone(&orders);
        Turns {
            older: turn('o'),
            lost: Vec::new(),
            newer: turn('n'),
            books: Box::new(move |older, ()| {
                let end = if older.is_some() { "" } else { "!" };
                orders.lock().push(format!("{}{end}", seen.lock()));
                Ok(())
            }),
        }
    });
    let mut orders = std::mem::take(&mut *orders.lock());
    orders.sort_unstable();
    let all = [
        "nn!", "nnoo", "nno!", "nono", "nono", "noon", "onn!", "onno", "onon", "oonn", "non!",
    ];
    let mut all: Vec<&str> = all.into_iter().collect();
    all.sort_unstable();
    all.dedup();
    orders.dedup();
    assert_eq!(orders, all);
    assert_eq!((runs, wrong.len()), (all.len(), 0));
}
