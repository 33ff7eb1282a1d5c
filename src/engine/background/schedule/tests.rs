//! What is due, in which order, and how much of it at once.

use super::*;
use crate::engine::Engine;
use crate::key::Key;
use crate::memory::Memory;
use crate::script::{LockSpec, Verb};

#[test]
fn items_come_in_order_and_not_before_their_time() {
    let at = Time::from_nanos;
    let mut schedule = Schedule::new();
    assert_eq!(schedule.next(), Time::NEVER);
    for (time, item) in [(30, 'c'), (10, 'a'), (30, 'd'), (20, 'b')] {
        schedule.put(at(time), item);
    }
    assert_eq!(schedule.next(), at(10));
    assert_eq!(schedule.take_due(at(9)), None);
    let due: String = std::iter::from_fn(|| schedule.take_due(at(30))).collect();
    assert_eq!(due, "abcd");
}

#[test]
fn task_that_needs_no_call_takes_no_room() {
    let (engine, _thread) = Engine::without_threads(&Memory::new());
    let mut tasks = Tasks::new(&engine.base.client);
    let now = engine.now();
    (0..PIPELINE).for_each(|_| tasks.put(now, Task::Sync));
    tasks.put(now, Task::Lookup);
    let call = Call {
        spec: LockSpec::MUTEX,
        key: Key::new("fairlock", "a").expect("a good name"),
        verb: Verb::Vacate,
    };
    let is_needed = |task: &Task| matches!(task, Task::Lookup);
    let due = tasks.take_due(now, |task| is_needed(task).then(|| call.clone()));
    assert!(matches!(due[..], [(Task::Lookup, _)]), "{}", due.len());
}
