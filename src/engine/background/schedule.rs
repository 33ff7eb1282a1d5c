//! What is to be done when: a heap of moments.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::store::clock::Time;

/// Items in the order of their moments; those of one moment in the order in which they were put in.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    heap: BinaryHeap<Entry<T>>,
    puts: u64,
}

#[derive(Debug)]
struct Entry<T> {
    at: Time,
    put: u64,
    item: T,
}

impl<T> Schedule<T> {
    pub(crate) fn new() -> Schedule<T> {
        Schedule {
            heap: BinaryHeap::new(),
            puts: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(crate) fn put(&mut self, at: Time, item: T) {
        self.puts += 1;
        self.heap.push(Entry {
            at,
            put: self.puts,
            item,
        });
    }

    /// When something is due next; [`Time::NEVER`] if nothing is.
    pub(crate) fn next(&self) -> Time {
        self.heap.peek().map_or(Time::NEVER, |entry| entry.at)
    }

    /// The next item that is due at `now`.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<T> {
        if self.heap.peek()?.at > now {
            return None;
        }
        self.heap.pop().map(|entry| entry.item)
    }

    pub(crate) fn take_all(&mut self) -> Vec<T> {
        self.heap.drain().map(|entry| entry.item).collect()
    }
}

/// The other way round, since the heap keeps its largest on top.
impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.put).cmp(&(self.at, self.put))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_order_and_not_before_their_time() {
        let at = Time::from_nanos;
        let mut schedule = Schedule::new();
        assert_eq!(schedule.next(), Time::NEVER);
        for (moment, item) in [(30, 'c'), (10, 'a'), (30, 'd'), (20, 'b')] {
            schedule.put(at(moment), item);
        }
        assert_eq!(schedule.next(), at(10));
        assert_eq!(schedule.take_due(at(9)), None);
        let due: String = std::iter::from_fn(|| schedule.take_due(at(30))).collect();
        assert_eq!(due, "abcd");
    }
}
