//! Items and the times when they are due, in a heap.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::store::clock::Time;

/// Items in the order of their times. Items of the same time come in the order in which they were
/// put in.
#[derive(Debug)]
pub(super) struct Schedule<T> {
    heap: BinaryHeap<ScheduleEntry<T>>,
    puts: u64,
}

#[derive(Debug)]
struct ScheduleEntry<T> {
    at: Time,
    number: u64,
    item: T,
}

impl<T> Schedule<T> {
    pub(super) fn new() -> Schedule<T> {
        Schedule {
            heap: BinaryHeap::new(),
            puts: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(super) fn put(&mut self, at: Time, item: T) {
        self.puts += 1;
        self.heap.push(ScheduleEntry {
            at,
            number: self.puts,
            item,
        });
    }

    /// All items, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.heap.iter().map(|entry| &entry.item)
    }

    /// When the next item is due; [`Time::NEVER`] if there is none.
    pub(super) fn next(&self) -> Time {
        self.heap.peek().map_or(Time::NEVER, |entry| entry.at)
    }

    /// The next item that is due at `now`.
    pub(super) fn take_due(&mut self, now: Time) -> Option<T> {
        if self.heap.peek()?.at > now {
            return None;
        }
        self.heap.pop().map(|entry| entry.item)
    }

    pub(super) fn take_all(&mut self) -> Vec<T> {
        self.heap.drain().map(|entry| entry.item).collect()
    }
}

/// Reversed, because the heap has its largest entry on top.
impl<T> Ord for ScheduleEntry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<T> PartialOrd for ScheduleEntry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for ScheduleEntry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for ScheduleEntry<T> {}

#[cfg(test)]
mod tests {
    use super::*;

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
}
