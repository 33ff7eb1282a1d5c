//! What the renewal thread has scheduled: items and the times when they are due.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::client::Client;
use crate::engine::upkeep::{Task, TokenRelease};
use crate::script::Call;
use crate::store::clock::Time;
use crate::store::{Answer, StoreFault};

/// How many calls one pipeline has. They fit into a socket's buffer, so writing never blocks.
pub(super) const PIPELINE: usize = 256;
/// How soon a call is sent again while the thread's connection is being opened.
pub(super) const CONNECTING: Duration = Duration::from_millis(5);

/// The answer to a task's call.
pub(super) type Answered = Result<Answer, StoreFault>;

/// Items in the order of their times. Items of the same time come in the order in which they were
/// put in.
#[derive(Debug)]
pub(super) struct Schedule<T> {
    items: BTreeMap<(Time, u64), T>,
    puts: u64,
}

impl<T> Schedule<T> {
    pub(super) fn new() -> Schedule<T> {
        Schedule {
            items: BTreeMap::new(),
            puts: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn put(&mut self, at: Time, item: T) {
        self.puts += 1;
        self.items.insert((at, self.puts), item);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.values()
    }

    /// When the next item is due; [`Time::NEVER`] if there is none.
    pub(super) fn next(&self) -> Time {
        let first = self.items.first_key_value();
        first.map_or(Time::NEVER, |((at, _), _)| *at)
    }

    /// The next item that is due at `now`.
    pub(super) fn take_due(&mut self, now: Time) -> Option<T> {
        let first = self.items.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.items).into_values()
    }
}

/// What is scheduled besides renewals. Each task is done once, or until it succeeds.
pub(super) struct Tasks {
    client: Arc<Client>,
    schedule: Schedule<Task>,
}

impl Tasks {
    pub(super) fn new(client: &Arc<Client>) -> Tasks {
        Tasks {
            client: Arc::clone(client),
            schedule: Schedule::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.schedule.len()
    }

    /// When the next task is due; [`Time::NEVER`] if there is none.
    pub(super) fn next_due(&self) -> Time {
        self.schedule.next()
    }

    pub(super) fn put(&mut self, at: Time, task: Task) {
        self.schedule.put(at, task);
    }

    pub(super) fn put_now(&mut self, task: Task) {
        self.put(self.client.now(), task);
    }

    /// Puts in a task again whose call failed.
    pub(super) fn retry(&mut self, task: Task, fault: &StoreFault) {
        self.put(self.retry_at(fault), task);
    }

    /// When to send a call again that failed.
    pub(super) fn retry_at(&self, fault: &StoreFault) -> Time {
        let pause = match fault {
            StoreFault::NotReplicated { .. } => self.client.config().back_off,
            // After a failed exchange another connection is opened, which makes its own pauses.
            StoreFault::NotReady => CONNECTING,
            // A server's reply, even a malformed one, does not end the connection.
            fault if fault.is_ambiguous() && fault.code().is_none() => CONNECTING,
            // R22 (tries among the dead): a live process is back within one command timeout.
            _ => self.client.config().back_off / 4,
        };
        self.client.now() + pause
    }

    /// Has all tasks due at once, those included that wait for a retry.
    pub(super) fn all_due(&mut self, now: Time) {
        for task in self.schedule.take_all() {
            self.put(now, task);
        }
    }

    /// The tasks that are due with their calls, at most a quarter of a pipeline. A task that needs no
    /// call any more takes no room.
    pub(super) fn take_due(
        &mut self,
        now: Time,
        prepare_call: impl Fn(&Task) -> Option<Call>,
    ) -> Vec<(Task, Call)> {
        let mut requeues = Vec::new();
        let mut others = Vec::new();
        while requeues.len() + others.len() < PIPELINE / 4
            && let Some(task) = self.schedule.take_due(now)
        {
            let Some(call) = prepare_call(&task) else {
                continue;
            };
            match task {
                Task::Requeue(waiter) => requeues.push((waiter, call)),
                task => others.push((task, call)),
            }
        }
        // R4 (lost places): waiters are enqueued again in the order in which they came.
        requeues.sort_by_key(|(waiter, _)| waiter.order());
        // They go before releases: an owner queues its next waiter in front of the release of its
        // lease. If the acquire is refused for now, the release does not wait for it, and the waiter
        // loses its order. If the lease has lapsed in Redis by now, the acquire takes the lock from
        // it, as any waiter's may, and the release reports that.
        let requeues = requeues.into_iter();
        let requeues = requeues.map(|(waiter, call)| (Task::Requeue(waiter), call));
        requeues.chain(others).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Task> {
        self.schedule.iter()
    }

    /// Takes out all releases, and drops the other tasks.
    pub(super) fn take_releases(&mut self) -> Vec<TokenRelease> {
        let tasks = self.schedule.take_all();
        tasks.filter_map(Task::into_release).collect()
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests;
