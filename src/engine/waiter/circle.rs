//! A deadlock among the threads of this process, as the log describes it. `nested` finds it.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::thread::Thread;

use crate::engine::lease::Lease;
use crate::engine::log_text::{Details, ThreadText, label_detail};
use crate::engine::request::Request;
use crate::engine::waiter::entry::WaiterEntry;
use crate::engine::waiter::state::CircleWarning;
use crate::logging::Logger;
use crate::script::Family;

/// The most threads of a circle that a warning names.
const MOST_NAMED: usize = 16;

/// Whether a wait ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitEnds {
    WithTheLock,
    AtADeadline,
}

/// Threads each of which waits for the next, and the last for the first.
pub(crate) struct Circle {
    /// The nested wait that it was found by. It is the first of the waiters.
    wait: u64,
    waiters: Vec<Arc<WaiterEntry>>,
    links: Vec<CircleLink>,
    unnamed: usize,
    /// Each thread waits for the next one. Otherwise a reader waits behind a writer that may give
    /// up.
    is_certain: bool,
}

/// A wait of a circle, and what the next thread took of its name.
pub(super) struct CircleLink {
    pub(super) waiter: Arc<WaiterEntry>,
    pub(super) thread: ThreadLabel,
    pub(super) ends: WaitEnds,
    pub(super) taken: Arc<Lease>,
}

#[derive(Clone)]
pub(super) struct ThreadLabel {
    pub(super) thread: Thread,
    pub(super) id: u32,
}

impl ThreadLabel {
    fn text(&self) -> ThreadText<'_> {
        ThreadText {
            thread: &self.thread,
            id: Some(self.id),
        }
    }

    /// By its name alone if it has one.
    fn short_text(&self) -> ThreadText<'_> {
        ThreadText {
            thread: &self.thread,
            id: self.thread.name().is_none().then_some(self.id),
        }
    }
}

impl CircleLink {
    /// The label of the request that waits.
    fn waiter_details(&self) -> Details<1> {
        Details([label_detail(self.waiter.request.label())])
    }

    fn taken_details(&self) -> Details<2> {
        let fence = format!("fence {}", self.taken.fence());
        Details([label_detail(self.taken.request.label()), Some(fence)])
    }
}

impl Circle {
    /// A circle of these waits. Only the first links are made, as many as a warning names. `None` if
    /// one of those is over by now.
    pub(super) fn new(
        wait: u64,
        waiters: Vec<Arc<WaiterEntry>>,
        links: impl Iterator<Item = Option<CircleLink>>,
        is_certain: bool,
    ) -> Option<Circle> {
        Some(Circle {
            wait,
            links: links.take(MOST_NAMED).collect::<Option<_>>()?,
            unnamed: waiters.len().saturating_sub(MOST_NAMED),
            waiters,
            is_certain,
        })
    }

    /// The names that its threads wait for, each once.
    pub(crate) fn names(&self) -> BTreeSet<Arc<str>> {
        let names = self.waiters.iter().map(|waiter| &waiter.request.key.name);
        names.cloned().collect()
    }

    /// One warning is enough for each of its waits.
    pub(crate) fn mark_logged(&self) {
        for waiter in &self.waiters {
            waiter.state.lock().circle_warning = CircleWarning::Logged;
        }
    }

    /// The wait that closes it looks for it again.
    pub(crate) fn postpone(&self) {
        self.waiters[0].state.lock().postpone_circle(self.wait);
    }

    /// Logs the warning. Nobody sees which thread has a guard by now. So it says what is known: the
    /// thread that took it.
    pub(crate) fn warn(&self) {
        match &self.links[..] {
            [own] if self.is_certain => warn_of_self_wait(own),
            [own] => warn_of_second_read(own),
            links if self.is_certain => log::warn!(
                logger: Logger,
                "deadlock of {} threads, unless another thread has one of these guards by now: {}: take these names in one order, or together by lock_all{}",
                links.len() + self.unnamed,
                chain(links, self.unnamed),
                Remark(links)
            ),
            links => log::warn!(
                logger: Logger,
                "deadlock of {} threads, unless a writer before a reader gives up, or another thread has one of these guards by now: {}: take these names in one order, or together by lock_all{}",
                links.len() + self.unnamed,
                chain(links, self.unnamed),
                Remark(links)
            ),
        }
    }
}

fn warn_of_second_read(own: &CircleLink) {
    log::warn!(
        logger: Logger,
        "{} waits to read {:?}{} behind a writer, and a read lock that it took itself is still held{}: drop that guard first, unless the writer gives up or another thread has that guard by now{}",
        own.thread.short_text(),
        own.waiter.request.key.name,
        own.waiter_details(),
        own.taken_details(),
        Remark(std::slice::from_ref(own))
    );
}

fn warn_of_self_wait(own: &CircleLink) {
    let requests = [&own.waiter.request, &own.taken.request];
    let has_permits = |request: &Arc<Request>| request.spec.family == Family::Permit;
    let instead = if requests.into_iter().any(has_permits) {
        ""
    } else {
        ", or use reentrant_mutex"
    };
    log::warn!(
        logger: Logger,
        "{} waits for {:?}{}, which it took itself{} and which is still held: drop that guard first{}, unless another thread has that guard by now{}",
        own.thread.short_text(),
        own.waiter.request.key.name,
        own.waiter_details(),
        own.taken_details(),
        instead,
        Remark(std::slice::from_ref(own))
    );
}

fn chain(links: &[CircleLink], unnamed: usize) -> String {
    let mut text = String::new();
    let takers = links.iter().cycle().skip(1);
    for (at, (link, taker)) in links.iter().zip(takers).enumerate() {
        let separator = if at == 0 { "" } else { "; " };
        let is_last_named = at + 1 == links.len();
        let _ = write!(
            text,
            "{separator}{} waits for {:?}{}, which ",
            link.thread.text(),
            link.waiter.request.key.name,
            link.waiter_details(),
        );
        let _ = if is_last_named && unnamed > 0 {
            write!(text, "the next of {unnamed} further threads took")
        } else {
            write!(text, "{} took", taker.thread.text())
        };
        let _ = write!(text, "{}", link.taken_details());
    }
    text
}

/// Says how a circle can end by itself.
struct Remark<'a>(&'a [CircleLink]);

impl fmt::Display for Remark<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self
            .0
            .iter()
            .find(|link| link.ends == WaitEnds::AtADeadline)
        {
            Some(link) => write!(
                f,
                "; the wait for {:?} has a deadline",
                link.waiter.request.key.name
            ),
            None => Ok(()),
        }
    }
}
