//! Where callers wait for the nodes. One of them at a time is the reader: it waits for all sockets,
//! reads what arrives, and so answers others too. The others sleep. So a lone caller reads by itself,
//! without another thread, and a node that hangs delays nobody whose other nodes have answered.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::member::Member;
use super::request::{PendingRequest, WakeReason};
use crate::store::clock::{Clock, Time};
use crate::store::node::Watched;

/// How long a reader ignores a socket that another thread reads just now.
const OTHER_READS: Duration = Duration::from_millis(1);

/// The reader's role for all lanes to all nodes.
pub(super) struct WaitList {
    clock: Clock,
    role: Mutex<Readers>,
    /// The members whose lanes have taken calls of these callers. From then on all callers watch
    /// them, too: the reader of the moment reads for the others.
    stand_ins: Mutex<Vec<Weak<Member>>>,
    /// A byte here ends the reader's wait.
    interrupt: UnixStream,
    interrupted: UnixStream,
}

struct Readers {
    is_taken: bool,
    /// Callers that sleep, the first of them first. Some may have left.
    sleepers: VecDeque<Arc<PendingRequest>>,
}

impl WaitList {
    pub(super) fn new(clock: Clock) -> io::Result<WaitList> {
        let (interrupt, interrupted) = UnixStream::pair()?;
        interrupt.set_nonblocking(true)?;
        interrupted.set_nonblocking(true)?;
        Ok(WaitList {
            clock,
            role: Mutex::new(Readers {
                is_taken: false,
                sleepers: VecDeque::new(),
            }),
            stand_ins: Mutex::default(),
            interrupt,
            interrupted,
        })
    }

    /// From now on the reader watches the lanes of these, too.
    pub(super) fn watch_also(&self, members: &[Arc<Member>]) {
        let mut stand_ins = self.stand_ins.lock();
        if stand_ins.is_empty() {
            *stand_ins = members.iter().map(Arc::downgrade).collect();
            drop(stand_ins);
            self.interrupt();
        }
    }

    /// Lets the reader look at all lanes again.
    pub(super) fn interrupt(&self) {
        // If it is full, the reader has not looked at the bytes before.
        let _ = (&self.interrupt).write(&[0]);
    }

    /// Waits until something has changed for the caller, or until `until`.
    pub(super) fn wait(&self, request: &Arc<PendingRequest>, members: &[Arc<Member>], until: Time) {
        let mut role = self.role.lock();
        if role.is_taken {
            // Before it can be found here: from now on it can be asked to read.
            if !request.begin_sleep() {
                return;
            }
            role.sleepers.push_back(Arc::clone(request));
            drop(role);
            let woken = request.sleep(&self.clock, until);
            role = self.role.lock();
            role.sleepers
                .retain(|sleeper| !Arc::ptr_eq(sleeper, request));
            if woken != WakeReason::ToRead || role.is_taken {
                return;
            }
        }
        role.is_taken = true;
        drop(role);
        self.read_until(request, members, until);
        self.pass_on();
    }

    /// Another thread reads what has come for a moment, without waiting: nobody needs to be asked.
    fn pass_on(&self) {
        let mut role = self.role.lock();
        role.is_taken = false;
        while let Some(next) = role.sleepers.pop_front() {
            if next.ask_to_read() {
                return;
            }
        }
    }

    fn read_until(&self, request: &PendingRequest, members: &[Arc<Member>], until: Time) {
        let mut ignored: Vec<(usize, usize)> = Vec::new();
        while request.begin_polling() {
            let left = until - self.clock.now();
            if left.is_zero() {
                request.end_polling();
                return;
            }
            let stand_ins: Vec<_> = self
                .stand_ins
                .lock()
                .iter()
                .filter_map(Weak::upgrade)
                .collect();
            let mut sockets: Vec<(usize, Watched)> = Vec::with_capacity(2 * members.len());
            for (member, of) in members.iter().chain(&stand_ins).enumerate() {
                of.lanes.watch(|socket| sockets.push((member, socket)));
            }
            sockets.retain(|(member, socket)| !ignored.contains(&(*member, socket.lane)));
            let limit = if ignored.is_empty() {
                left
            } else {
                left.min(OTHER_READS)
            };
            ignored.clear();
            let ready = self.poll(&sockets, limit);
            request.end_polling();
            for at in ready {
                let (member, socket) = &sockets[at];
                let of = members
                    .get(*member)
                    .unwrap_or_else(|| &stand_ins[*member - members.len()]);
                if !of.lanes.read_lane(socket.lane) {
                    ignored.push((*member, socket.lane));
                }
            }
        }
    }

    /// The sockets that can be read now, or have come to their end. Waits for one for `limit`.
    fn poll(&self, sockets: &[(usize, Watched)], limit: Duration) -> Vec<usize> {
        let mut polled = Vec::with_capacity(sockets.len() + 1);
        for (_, socket) in sockets {
            polled.push(PollFd::new(socket, PollFlags::IN));
        }
        polled.push(PollFd::new(&self.interrupted, PollFlags::IN));
        let limit = Timespec::try_from(limit).ok();
        // A signal is no reason to fail: the caller looks at its time and polls again.
        if poll(&mut polled, limit.as_ref()).is_err() {
            return Vec::new();
        }
        if !polled[sockets.len()].revents().is_empty() {
            let _ = (&self.interrupted).read(&mut [0; 64]);
        }
        let is_ready = |at: &usize| !polled[*at].revents().is_empty();
        (0..sockets.len()).filter(is_ready).collect()
    }
}
