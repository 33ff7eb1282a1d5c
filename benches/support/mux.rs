//! A bare client that multiplexes: all threads share one connection, and each waits for its reply.
//! It runs the commands of the floor, and does no more than such a client must.
//!
//! A caller appends its command to a buffer. If nobody is writing, it writes the buffer until that
//! is empty. One of the callers that wait reads for all of them; when it has its own reply, it
//! passes the reading on. So a lone caller writes and reads by itself.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::mem;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, Thread};

use parking_lot::Mutex;
use redis::{Cmd, ConnectionAddr, IntoConnectionInfo};

use crate::floor::{TOKEN, load};
use crate::support::bare_connection;

pub(crate) struct Mux {
    stream: TcpStream,
    sha: String,
    state: Mutex<State>,
    /// Locked by the caller that reads.
    input: Mutex<Vec<u8>>,
}

#[derive(Default)]
struct State {
    unsent: Vec<u8>,
    /// Empty memory for the next `unsent`.
    spare: Vec<u8>,
    is_written: bool,
    is_read: bool,
    /// Those that wait for a reply, in the order of their commands.
    queue: VecDeque<Arc<Slot>>,
}

/// A caller. It has one command on its way at most.
struct Slot {
    thread: Thread,
    /// The first byte of the reply's text, or one of these.
    reply: AtomicU8,
}

const NO_REPLY: u8 = 0;
const MUST_READ: u8 = 1;

/// Its use by one thread, which must be the same for all cycles.
pub(crate) struct MuxLock<'a> {
    mux: &'a Mux,
    key: String,
    slot: Option<Arc<Slot>>,
}

impl Mux {
    pub(crate) fn new(url: &str) -> Mux {
        let info = url
            .into_connection_info()
            .expect("a URL that names a Redis");
        let ConnectionAddr::Tcp(host, port) = info.addr().clone() else {
            panic!("the bare client wants a Redis on plain TCP")
        };
        let stream = TcpStream::connect((host, port)).expect("a Redis that answers");
        stream.set_nodelay(true).expect("TCP knows it");
        Mux {
            stream,
            sha: load(&mut bare_connection(url)),
            state: Mutex::default(),
            input: Mutex::new(Vec::with_capacity(16 << 10)),
        }
    }

    pub(crate) fn lock(&self, key: impl Into<String>) -> MuxLock<'_> {
        let (key, slot) = (key.into(), None);
        MuxLock {
            mux: self,
            key,
            slot,
        }
    }

    /// The second byte of the reply: the first one says of which type it is.
    fn call(&self, command: &Cmd, slot: &Arc<Slot>) -> u8 {
        slot.reply.store(NO_REPLY, Ordering::Relaxed);
        let mut state = self.state.lock();
        command.write_packed_command(&mut state.unsent);
        state.queue.push_back(slot.clone());
        if !state.is_written {
            state.is_written = true;
            let mut bytes = mem::take(&mut state.spare);
            while !state.unsent.is_empty() {
                mem::swap(&mut bytes, &mut state.unsent);
                drop(state);
                (&self.stream).write_all(&bytes).expect("it is open");
                bytes.clear();
                state = self.state.lock();
            }
            state.spare = bytes;
            state.is_written = false;
        }
        // While this thread wrote, another one may have read its reply, or left the reading to it.
        let must_read = slot.reply.load(Ordering::Relaxed) == NO_REPLY
            && !mem::replace(&mut state.is_read, true);
        drop(state);
        if must_read {
            return self.read_until_own(slot);
        }
        loop {
            match slot.reply.load(Ordering::Acquire) {
                NO_REPLY => thread::park(),
                MUST_READ => return self.read_until_own(slot),
                reply => return reply,
            }
        }
    }

    /// Reads for all, until the own reply has come.
    fn read_until_own(&self, own: &Arc<Slot>) -> u8 {
        let mut input = self.input.lock();
        let mut woken = Vec::new();
        let mut buffer = [0; 16 << 10];
        loop {
            let length = (&self.stream).read(&mut buffer).expect("it is open");
            assert!(length > 0, "the server closed the connection");
            input.extend_from_slice(&buffer[..length]);
            let end = input.iter().rposition(|byte| *byte == b'\n');
            let whole = end.map_or(0, |end| end + 1);
            let mut own_reply = None;
            let mut state = self.state.lock();
            // None of the commands has a reply of more than one line.
            for line in input[..whole].split_inclusive(|byte| *byte == b'\n') {
                let slot = state.queue.pop_front().expect("a reply has its command");
                if Arc::ptr_eq(&slot, own) {
                    own_reply = Some(line[1]);
                } else {
                    slot.reply.store(line[1], Ordering::Release);
                    woken.push(slot);
                }
            }
            input.drain(..whole);
            if own_reply.is_some() {
                state.is_read = !state.queue.is_empty();
                if let Some(next) = state.queue.front() {
                    next.reply.store(MUST_READ, Ordering::Release);
                    woken.push(next.clone());
                }
            }
            drop(state);
            if let Some(reply) = own_reply {
                drop(input);
                woken.iter().for_each(|slot| slot.thread.unpark());
                return reply;
            }
            woken.drain(..).for_each(|slot| slot.thread.unpark());
        }
    }
}

impl MuxLock<'_> {
    pub(crate) fn cycle(&mut self) {
        let mux = self.mux;
        // Here, since another thread may have made this value.
        let slot = self.slot.get_or_insert_with(|| {
            Arc::new(Slot {
                thread: thread::current(),
                reply: AtomicU8::new(NO_REPLY),
            })
        });
        let mut set = redis::cmd("SET");
        set.arg(&self.key)
            .arg(TOKEN)
            .arg("NX")
            .arg("PX")
            .arg(10_000);
        // "+OK", or "$-1" if somebody else has it.
        let taken = mux.call(&set, slot);
        let mut evalsha = redis::cmd("EVALSHA");
        evalsha.arg(&mux.sha).arg(1).arg(&self.key).arg(TOKEN);
        // ":1", or ":0" if it is somebody else's.
        let released = mux.call(&evalsha, slot);
        assert!(
            (taken, released) == (b'O', b'1'),
            "somebody else uses {}",
            self.key
        );
    }
}
