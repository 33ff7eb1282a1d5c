//! The lane alone, in every order in which threads can take their turns. The server is a list that
//! answers each byte with itself. A waiting thread looks once instead of sleeping.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use redis::{RedisError, RedisResult, Value};

use super::open::OpenLane;
use super::{Connected, Lane, LaneReply, Reader, Ticket, Unread, Writer};
use crate::store::StoreFault;
use crate::store::clock::{Clock, Time};
use crate::store::node::slot::Woken;
use crate::store::node::stream::ReadMode;
use crate::sync::Mutex;

/// The replies that are on their way.
type Wire = Arc<Mutex<Vec<u8>>>;

struct Half(Wire);

struct Open;

impl Writer for Half {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().extend_from_slice(bytes);
        Ok(())
    }
}

impl Reader for Half {
    fn receive(&mut self, _: ReadMode, _: Duration) -> RedisResult<Value> {
        let mut replies = self.0.lock();
        if replies.is_empty() {
            return Err(RedisError::from(io::Error::from(io::ErrorKind::WouldBlock)));
        }
        Ok(Value::Int(i64::from(replies.remove(0))))
    }
}

impl Connected for Open {
    type Writer = Half;
    type Reader = Half;

    fn note_closed(&self) {}

    fn round_trip(&self) -> Duration {
        Duration::ZERO
    }
}

/// A request that was left, and the replies to such requests.
struct LeftRequest {
    request: u8,
    replies: Arc<Mutex<Vec<u8>>>,
}

impl Unread for LeftRequest {
    fn is_to_resend(&mut self, _: &Value) -> bool {
        false
    }

    fn may_resend(&mut self) -> bool {
        false
    }

    fn write(&mut self, bytes: &mut Vec<u8>) {
        bytes.push(self.request);
    }

    fn finish(self: Box<Self>, outcome: Result<Value, StoreFault>) {
        let own = Value::Int(i64::from(self.request));
        assert_eq!(outcome.ok(), Some(own), "another's reply");
        self.replies.lock().push(self.request);
    }
}

fn lane() -> Arc<Lane<Open>> {
    let lane = Lane::new(Clock::default(), Duration::from_secs(3600));
    let wire = Wire::default();
    let writer = Half(Arc::clone(&wire));
    let mut state = lane.state.lock();
    state.open = Some(OpenLane::new(Open, writer, Half(wire), Time::from_nanos(0)));
    drop(state);
    Arc::new(lane)
}

fn send(lane: &Lane<Open>, request: u8) -> Ticket {
    let mut guard = lane.if_open().expect("it is open");
    let ticket = guard.append(1, Duration::MAX, |_, bytes| bytes.push(request));
    guard.write();
    ticket
}

/// The reaction of a caller whose reply has not come.
#[derive(Clone, Copy, PartialEq)]
enum OnSilence {
    /// It sleeps, and goes on if it is woken.
    Sleep,
    /// Its time is over.
    GiveUp,
    /// A mistake: its time is over, and the lane does not learn of it.
    GoAway,
    /// It waits for another lane first.
    StayAway,
}

/// Whether the caller has slept to the end of the model.
fn call(lane: &Lane<Open>, request: u8, no_reply: OnSilence) -> Option<Ticket> {
    wait(lane, send(lane, request), request, no_reply)
}

/// The same, once the request was sent.
fn wait(lane: &Lane<Open>, ticket: Ticket, request: u8, no_reply: OnSilence) -> Option<Ticket> {
    if no_reply == OnSilence::StayAway {
        return None;
    }
    ticket.slot.begin_wait();
    if let Some(reader) = lane.reader_for(&ticket) {
        lane.read(reader, &ticket, Time::from_nanos(0));
    }
    match ticket.slot.look() {
        Some(Woken::Answered(reply)) => {
            let own = Value::Int(i64::from(request));
            assert_eq!(reply.outcome.ok(), Some(own), "another's reply");
            return None;
        }
        _ if no_reply == OnSilence::Sleep => return Some(ticket),
        _ => {}
    }
    if let Woken::TimedOut = ticket.slot.sleep(&lane.clock, Time::from_nanos(0)) {
        if no_reply == OnSilence::GiveUp {
            lane.stop_waiting(&ticket);
        } else {
            ticket.slot.end();
        }
    }
    None
}

/// Two callers, and one that leaves, on one lane.
fn three_calls(second: OnSilence) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let lane = lane();
        let left = Arc::new(Mutex::new(Vec::new()));
        let leaver = {
            let (lane, replies) = (Arc::clone(&lane), Arc::clone(&left));
            thread::spawn(move || {
                let ticket = send(&lane, 3);
                let request = 3;
                let unread = LeftRequest {
                    request,
                    replies: Arc::clone(&replies),
                };
                // Another thread writes the request, or it was answered: the caller waits.
                lane.leave(&ticket, unread)?;
                let asleep = wait(&lane, ticket, request, OnSilence::Sleep);
                if asleep.is_none() {
                    replies.lock().push(request);
                }
                asleep
            })
        };
        let other = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || call(&lane, 2, second))
        };
        let own = call(&lane, 1, OnSilence::Sleep);
        let leaver = leaver.join().expect("it ends");
        let has_left = leaver.is_none();
        let other = other.join().expect("it ends");
        let asleep: Vec<Ticket> = own.into_iter().chain(other).chain(leaver).collect();
        // One that is woken to read reads for all.
        let woken = asleep.iter().filter(|ticket| ticket.slot.was_woken());
        let woken: Vec<Woken<LaneReply>> = woken.filter_map(|ticket| ticket.slot.look()).collect();
        assert!(
            asleep.is_empty() || !woken.is_empty(),
            "all sleep, and nobody reads"
        );
        lane.read_arrived();
        let read = if has_left { &[3][..] } else { &[] };
        assert_eq!(*left.lock(), read, "each reply is read once");
        let mut state = lane.state.lock();
        let open = state.open.as_mut().expect("it is open");
        assert!(open.is_at_rest(), "a role is lost, or something is due");
    });
}

#[test]
fn callers_of_a_lane_get_their_own_replies_and_sleep_only_while_one_reads() {
    three_calls(OnSilence::Sleep);
}

#[test]
fn caller_that_gives_up_leaves_no_lane_without_a_reader() {
    three_calls(OnSilence::GiveUp);
}

#[test]
fn caller_that_waits_elsewhere_is_not_the_one_to_read() {
    three_calls(OnSilence::StayAway);
}

#[test]
#[should_panic = "nobody reads"]
fn caller_that_goes_away_when_it_is_to_read_is_found() {
    three_calls(OnSilence::GoAway);
}
