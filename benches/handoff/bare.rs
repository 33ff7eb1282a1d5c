//! The least that a lock with a queue on Redis must do. One script takes the lock or queues the
//! caller. One script compares the owner, pops the next waiter, makes it the owner and publishes
//! that. A thread per client receives the messages and wakes the waiters.
//!
//! It is no lock to use: a waiter that dies blocks all others, and so does a message that is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::thread::{self, JoinHandle, Thread};

use redis::{Connection, Script};

use crate::support::bare_connection;
use crate::turns::Caller;

/// KEYS: the owner, the queue. ARGV: the caller's token.
static ENTER: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 10000) then return 1 end
         redis.call('RPUSH', KEYS[2], ARGV[1])
         return 0",
    )
});

/// KEYS: the owner, the queue. ARGV: the caller's token. The channel ends with the client's number,
/// which is the begin of a token.
static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
         local next = redis.call('LPOP', KEYS[2])
         if next then
           redis.call('SET', KEYS[1], next, 'PX', 10000)
           redis.call('PUBLISH', KEYS[1] .. string.sub(next, 1, 2), next)
         else
           redis.call('DEL', KEYS[1])
         end
         return 1",
    )
});

/// Ends the thread that receives the messages.
const STOP: &str = "stop";

/// Stands where a manager stands.
pub(crate) struct BareClient {
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

struct Shared {
    url: String,
    key: String,
    client: usize,
    /// One for each thread.
    waiters: Vec<BareWaiter>,
}

#[derive(Default)]
struct BareWaiter {
    thread: OnceLock<Thread>,
    is_granted: AtomicBool,
}

/// One thread, with a connection of its own.
pub(crate) struct BareCaller {
    shared: Arc<Shared>,
    thread: usize,
    token: String,
    connection: Connection,
}

impl BareClient {
    pub(crate) fn new(url: &str, name: &str, client: usize, threads: usize) -> BareClient {
        let shared = Arc::new(Shared {
            url: url.to_owned(),
            key: format!("{{{name}}}:bare"),
            client,
            waiters: (0..threads).map(|_| BareWaiter::default()).collect(),
        });
        let mut connection = bare_connection(url);
        let (subscribed, is_subscribed) = std::sync::mpsc::channel();
        let listener = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let mut messages = connection.as_pubsub();
                messages
                    .subscribe(shared.channel())
                    .expect("the server takes subscriptions");
                subscribed.send(()).expect("the client waits for it");
                while shared.wake_next(&mut messages) {}
            }
        });
        is_subscribed.recv().expect("the listener subscribes");
        BareClient {
            shared,
            listener: Some(listener),
        }
    }

    /// Call it once for each thread.
    pub(crate) fn caller(&self, thread: usize) -> BareCaller {
        BareCaller {
            shared: Arc::clone(&self.shared),
            thread,
            token: format!("{:02}{thread:04}", self.shared.client),
            connection: bare_connection(&self.shared.url),
        }
    }
}

impl Drop for BareClient {
    fn drop(&mut self) {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(self.shared.channel()).arg(STOP);
        let _ = publish.exec(&mut bare_connection(&self.shared.url));
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

impl Shared {
    fn channel(&self) -> String {
        format!("{}{:02}", self.key, self.client)
    }

    /// Receives one message. False if it was the last.
    fn wake_next(&self, messages: &mut redis::PubSub<'_>) -> bool {
        let message = messages.get_message().expect("the subscription lasts");
        let token = std::str::from_utf8(message.get_payload_bytes()).expect("a token is text");
        if token == STOP {
            return false;
        }
        let waiter = &self.waiters[token[2..].parse::<usize>().expect("a thread's number")];
        waiter.is_granted.store(true, Ordering::Release);
        waiter
            .thread
            .get()
            .expect("a thread sets it before it queues")
            .unpark();
        true
    }
}

impl BareCaller {
    /// Whether the reply is 1.
    fn run(&mut self, script: &Script) -> bool {
        let done: u8 = script
            .key(&self.shared.key)
            .key(format!("{}:queue", self.shared.key))
            .arg(&self.token)
            .invoke(&mut self.connection)
            .expect("the script is answered");
        done == 1
    }
}

impl Caller for BareCaller {
    fn lock(&mut self) {
        self.shared.waiters[self.thread]
            .thread
            .get_or_init(thread::current);
        if self.run(&ENTER) {
            return;
        }
        let is_granted = &self.shared.waiters[self.thread].is_granted;
        while !is_granted.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }

    fn unlock(&mut self) {
        assert!(self.run(&RELEASE), "somebody else uses {}", self.shared.key);
    }
}
