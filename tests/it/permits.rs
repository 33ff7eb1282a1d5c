//! Helpers of the fault tests for permits, readers and writers: callers, waiters on their own
//! threads, the record in Redis, and matchers for requests.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, Range};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use fairlock::{Lease, LockGuard, LockManager, ReadGuard, Result, SemaphoreGuard};

use crate::backend::Keyspace;
use crate::fixtures::{SOON, Verb, micros};
use crate::support::scripted_server::{is, next_command};
use crate::support::until;

/// A caller's request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Want {
    Mutex,
    Read,
    Write,
    /// The first number of permits, of a semaphore with the second number.
    Permits(u32, u32),
}

/// The guard of any of these.
pub(crate) enum AnyGuard {
    Guard(LockGuard),
    Permits(SemaphoreGuard),
    Reader(ReadGuard),
}

impl Want {
    pub(crate) fn take(self, mgr: &LockManager, name: &str) -> Result<AnyGuard> {
        match self {
            Want::Mutex => mgr.lock(name).map(AnyGuard::Guard),
            Want::Read => mgr.rw_lock(name).read().map(AnyGuard::Reader),
            Want::Write => mgr.rw_lock(name).write().map(AnyGuard::Guard),
            Want::Permits(many, of) => mgr.semaphore(name, of).acquire(many).map(AnyGuard::Permits),
        }
    }

    pub(crate) fn try_take(self, mgr: &LockManager, name: &str) -> Result<Option<AnyGuard>> {
        self.take_for(mgr, name, Duration::ZERO)
    }

    pub(crate) fn take_for(
        self,
        mgr: &LockManager,
        name: &str,
        at_most: Duration,
    ) -> Result<Option<AnyGuard>> {
        Ok(match self {
            Want::Mutex => mgr.try_lock_for(name, at_most)?.map(AnyGuard::Guard),
            Want::Read => mgr
                .rw_lock(name)
                .try_read_for(at_most)?
                .map(AnyGuard::Reader),
            Want::Write => mgr
                .rw_lock(name)
                .try_write_for(at_most)?
                .map(AnyGuard::Guard),
            Want::Permits(many, of) => mgr
                .semaphore(name, of)
                .try_acquire_for(many, at_most)?
                .map(AnyGuard::Permits),
        })
    }

    /// How many permits it counts as.
    pub(crate) fn weight(self) -> u32 {
        match self {
            Want::Mutex | Want::Read => 1,
            Want::Write => 1 << 30,
            Want::Permits(many, _) => many,
        }
    }
}

impl AnyGuard {
    pub(crate) fn unlock(self) -> Result<()> {
        match self {
            AnyGuard::Guard(guard) => guard.unlock(),
            AnyGuard::Permits(guard) => guard.unlock(),
            AnyGuard::Reader(guard) => guard.unlock(),
        }
    }
}

impl Deref for AnyGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        match self {
            AnyGuard::Guard(guard) => guard,
            AnyGuard::Permits(guard) => guard,
            AnyGuard::Reader(guard) => guard,
        }
    }
}

impl std::fmt::Debug for AnyGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

/// Waiters for permits of one name, each on its own thread, and their grants in the order of
/// arrival.
pub(crate) struct PermitWaiters<'a> {
    record: Permits<'a>,
    sender: Sender<(usize, Result<AnyGuard>)>,
    served: Receiver<(usize, Result<AnyGuard>)>,
    added: usize,
}

impl<'a> PermitWaiters<'a> {
    pub(crate) fn of(keys: &'a dyn Keyspace, name: &'a str) -> PermitWaiters<'a> {
        let (sender, served) = unbounded();
        PermitWaiters {
            record: Permits::of(keys, name),
            sender,
            served,
            added: 0,
        }
    }

    /// Adds a waiter and returns when it is queued. The waiters are numbered from 0.
    #[track_caller]
    pub(crate) fn add(&mut self, mgr: &LockManager, want: Want) {
        let before = self.record.waiting_for(want.weight());
        let mgr = mgr.clone();
        let name = self.record.name.to_owned();
        let sender = self.sender.clone();
        let who = self.added;
        thread::spawn(move || sender.send((who, want.take(&mgr, &name))));
        self.added += 1;
        until(SOON, "it is queued", || {
            self.record.waiting_for(want.weight()) > before
        });
    }

    /// The next wait that ends.
    #[track_caller]
    pub(crate) fn next_end(&self, within: Duration) -> (usize, Result<AnyGuard>) {
        self.next_end_within(within).unwrap_or_else(|| {
            panic!(
                "no waiter was served within {within:?}: {}",
                self.record.dump()
            )
        })
    }

    /// The same, or `None` if no wait ends within that time.
    pub(crate) fn next_end_within(&self, within: Duration) -> Option<(usize, Result<AnyGuard>)> {
        self.served.recv_timeout(within).ok()
    }

    /// The next waiter that is served must be this one.
    #[track_caller]
    pub(crate) fn expect_grant(&self, who: usize, within: Duration) -> AnyGuard {
        self.expect_grants(who..who + 1, within)
            .pop()
            .expect("it is one guard")
    }

    /// The next waiters that are served must be these. They are granted together, so the order in
    /// which their threads wake up does not matter.
    #[track_caller]
    pub(crate) fn expect_grants(&self, who: Range<usize>, within: Duration) -> Vec<AnyGuard> {
        let mut held = BTreeMap::new();
        for _ in who.clone() {
            let (served, end) = self.next_end(within);
            held.insert(
                served,
                end.unwrap_or_else(|e| panic!("{served} got {e} instead of permits")),
            );
        }
        assert_eq!(
            held.keys().copied().collect::<Vec<_>>(),
            who.collect::<Vec<_>>(),
            "the order in which they queued"
        );
        held.into_values().collect()
    }

    /// Whether no further wait has ended.
    pub(crate) fn none_ended(&self) -> bool {
        self.served.is_empty()
    }
}

/// The three keys of a name, which tests read and rewrite without fairlock.
pub(crate) struct Permits<'a> {
    keys: &'a dyn Keyspace,
    name: &'a str,
    pub(crate) key: String,
    pub(crate) queue: String,
    pub(crate) holders: String,
}

/// One entry of the holders' key.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) token: String,
    /// In µs of the server's time.
    pub(crate) ends: u64,
    /// 0 and 1: holds; 2: cools; 3: lapsed; 4: released by force.
    pub(crate) state: u32,
}

impl<'a> Permits<'a> {
    pub(crate) fn of(keys: &'a dyn Keyspace, name: &'a str) -> Permits<'a> {
        let key = format!("fairlock:{{{name}}}");
        let (queue, holders) = (format!("{key}:q"), format!("{key}:h"));
        Permits {
            keys,
            name,
            key,
            queue,
            holders,
        }
    }

    /// The numbers that are packed in the record, by their names in docs/PROTOCOL.md.
    pub(crate) fn state(&self) -> BTreeMap<String, String> {
        let script = "
            local seen = {}
            local function collect(names, format, packed)
              local numbers = packed and { struct.unpack(format, packed) } or {}
              for at = 1, #numbers - 1 do
                seen[#seen + 1] = names[at]
                seen[#seen + 1] = string.format('%.0f', numbers[at])
              end
            end
            local p, n = redis.call('HGET', KEYS[2], 'p'), redis.call('HGET', KEYS[1], 'n')
            collect({ 'f', 'b', 'shortest', 'longest', 'pause', 't', 'th', 'capacity', 'used', 'd' }, '<ddI4I4I4I4I4I4I4b', p)
            collect({ 'n', 'r', 's', 'v', 'q', 'h', 'tq' }, '<I4I4ddddI4', n)
            return seen";
        self.keys
            .query(&["EVAL", script, "2", &self.key, &self.holders])
    }

    #[track_caller]
    pub(crate) fn number(&self, of: &str) -> u64 {
        let state = self.state();
        let text = state
            .get(of)
            .unwrap_or_else(|| panic!("no {of}: {state:?}"));
        text.parse()
            .unwrap_or_else(|e| panic!("{of} is {text:?}: {e}"))
    }

    /// How many permits the record counts as held.
    pub(crate) fn used(&self) -> u64 {
        self.state()
            .get("used")
            .map_or(0, |used| used.parse().expect("a number"))
    }

    /// All entries, ordered by token.
    pub(crate) fn holders(&self) -> Vec<Holder> {
        let entry = |line: &String| {
            let words: Vec<&str> = line.splitn(5, ' ').collect();
            let number = |at: usize| words[at].parse::<u64>().expect("a number");
            Holder {
                token: words[0].to_owned(),
                ends: number(1),
                state: number(3) as u32,
            }
        };
        self.entries().iter().map(entry).collect()
    }

    /// The same as text: token, end, permits, state and parameters.
    pub(crate) fn entries(&self) -> Vec<String> {
        let script = "
            local all, seen = redis.call('HGETALL', KEYS[1]), {}
            for i = 1, #all, 2 do
              local packed = all[i + 1]
              if all[i] ~= 'p' then
                local lease_end, _, _, permits, state, _, text = struct.unpack('<dI4I4I4bb', packed)
                seen[#seen + 1] = string.format('%s %.0f %.0f %.0f %s', all[i], lease_end, permits,
                                                state, string.sub(packed, text))
              end
            end
            table.sort(seen)
            return seen";
        self.keys.query(&["EVAL", script, "1", &self.holders])
    }

    /// The holders' tokens.
    pub(crate) fn holding(&self) -> BTreeSet<String> {
        self.holders()
            .into_iter()
            .filter(|holder| holder.state < 2)
            .map(|holder| holder.token)
            .collect()
    }

    /// The waiters' requests, including those of dead waiters, in no order.
    pub(crate) fn waiters(&self) -> Vec<String> {
        let script = "
            local all, seen = redis.call('HGETALL', KEYS[1]), {}
            for i = 1, #all, 2 do
              if string.find(all[i], '^w:') then seen[#seen + 1] = all[i + 1] end
            end
            return seen";
        self.keys.query(&["EVAL", script, "1", &self.key])
    }

    /// How many waiters ask for this number of permits.
    pub(crate) fn waiting_for(&self, permits: u32) -> usize {
        let permits = permits.to_string();
        self.waiters()
            .iter()
            .filter(|waiter| waiter.split(' ').nth(6) == Some(&permits))
            .count()
    }

    /// How many waiters are ahead of the only one that asks for this number of permits.
    pub(crate) fn ahead_of(&self, permits: u32) -> usize {
        let permits = permits.to_string();
        let waiters = self.waiters();
        let ticket = |waiter: &String| {
            waiter
                .split(' ')
                .next()
                .and_then(|ticket| ticket.parse::<u64>().ok())
        };
        let its = waiters
            .iter()
            .find(|waiter| waiter.split(' ').nth(6) == Some(&permits))
            .and_then(ticket);
        waiters.iter().filter(|waiter| ticket(waiter) < its).count()
    }

    /// The tokens in the queue, including those of dead waiters.
    pub(crate) fn tokens(&self) -> Vec<String> {
        self.keys.query(&["LRANGE", &self.queue, "0", "-1"])
    }

    /// Everything under the three keys.
    pub(crate) fn dump(&self) -> String {
        let managers: Vec<String> = self.keys.query(&["HKEYS", &self.key]);
        let managers: BTreeSet<_> = managers
            .into_iter()
            .filter(|field| !field.starts_with("w:"))
            .collect();
        let waiters: BTreeSet<_> = self.waiters().into_iter().collect();
        format!(
            "{:?} {managers:?} {waiters:?} {:?} {:?}",
            self.state(),
            self.tokens(),
            self.entries()
        )
    }

    /// Turns this token's entry into that of an unknown holder, which neither renews nor releases
    /// it.
    pub(crate) fn is_orphaned(&self, token: &str) {
        let script = "
            local had = redis.call('HGET', KEYS[1], ARGV[1])
            redis.call('HDEL', KEYS[1], ARGV[1])
            redis.call('HSET', KEYS[1], string.reverse(ARGV[1]), had)
            return 1";
        let _: i64 = self
            .keys
            .query(&["EVAL", script, "1", &self.holders, token]);
    }

    /// Rewrites the record as if the server's clock had gone back by `by` since: every lease ends
    /// that much later.
    pub(crate) fn clock_went_back(&self, by: Duration) {
        let script = "
            local all = redis.call('HGETALL', KEYS[2])
            for i = 1, #all, 2 do
              -- In the state, next_lapse is the second number.
              local at = all[i] == 'p' and 9 or 1
              local e = struct.unpack('<d', string.sub(all[i + 1], at))
              redis.call('HSET', KEYS[2], all[i], string.sub(all[i + 1], 1, at - 1)
                .. struct.pack('<d', e + ARGV[1]) .. string.sub(all[i + 1], at + 8))
            end
            return 1";
        let _: i64 = self.keys.query(&[
            "EVAL",
            script,
            "2",
            &self.key,
            &self.holders,
            &micros(by).to_string(),
        ]);
    }

    /// Rewrites the record as an outage leaves it: every lease ended `by` ago, and no request was
    /// served since.
    pub(crate) fn was_away(&self, by: Duration) {
        let script = "
            local clock = redis.call('TIME')
            local past = struct.pack('<d', clock[1] * 1000000 + clock[2] - ARGV[1])
            local all = redis.call('HGETALL', KEYS[2])
            for i = 1, #all, 2 do
              local at = all[i] == 'p' and 9 or 1
              redis.call('HSET', KEYS[2], all[i],
                string.sub(all[i + 1], 1, at - 1) .. past .. string.sub(all[i + 1], at + 8))
            end
            local n = redis.call('HGET', KEYS[1], 'n')
            if n then redis.call('HSET', KEYS[1], 'n', string.sub(n, 1, 8) .. past .. string.sub(n, 17)) end
            return 1";
        let _: i64 = self.keys.query(&[
            "EVAL",
            script,
            "2",
            &self.key,
            &self.holders,
            &micros(by).to_string(),
        ]);
    }

    /// Waits until no permit is held and no caller waits. Then only the traces of lapsed or forced
    /// leases may be left.
    #[track_caller]
    pub(crate) fn comes_to_rest(&self) {
        until(SOON, "all permits are free and the queue is empty", || {
            let state = self.state();
            let zero = |of: &str| state.get(of).is_none_or(|n| n == "0");
            zero("used")
                && zero("n")
                && zero("r")
                && self.waiters().is_empty()
                && self.tokens().is_empty()
        });
        let left: Vec<Holder> = self
            .holders()
            .into_iter()
            .filter(|holder| holder.state < 3)
            .collect();
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(self.keys.keys_without_ttl(), [""; 0]);
    }
}

/// Matches bytes at the proxy that contain this request about permits.
pub(crate) fn request(verb: Verb, name: &str) -> impl Fn(&[u8]) -> bool + Send + 'static {
    matching(name, move |words| is_verb(words, verb))
}

/// The same for a release in this mode.
pub(crate) fn release(mode: &'static str, name: &str) -> impl Fn(&[u8]) -> bool + Send + 'static {
    matching(name, move |words| {
        is_verb(words, Verb::Release) && words[12] == mode.as_bytes()
    })
}

fn matching(
    name: &str,
    matches: impl Fn(&[Vec<u8>]) -> bool + Send + 'static,
) -> impl Fn(&[u8]) -> bool + Send + 'static {
    let (key, holders) = (
        format!("fairlock:{{{name}}}"),
        format!("fairlock:{{{name}}}:h"),
    );
    move |bytes| {
        let mut at = 0;
        while let Some((words, length)) = next_command(&bytes[at..]) {
            at += length;
            let script = is(&words, "EVALSHA") || is(&words, "EVAL");
            let about = |key: &String| words.get(3).is_some_and(|word| word == key.as_bytes());
            if script && (about(&key) || about(&holders)) && matches(&words) {
                return true;
            }
        }
        false
    }
}

/// The number of words identifies the script. A lookup of tokens can have as many words, so it is
/// excluded.
fn is_verb(words: &[Vec<u8>], verb: Verb) -> bool {
    let is_token = |word: &Vec<u8>| word.len() == 32;
    match verb {
        Verb::Acquire => words.len() == 15 && words[12].len() == 1,
        // A release by force names its page of holders and a time, one that keeps permits their number.
        Verb::Release => {
            words[2] == b"3"
                && matches!(words.len(), 13..=15)
                && words[12].len() > 1
                && !is_token(&words[12])
        }
        Verb::Renew => words.len() == 11 && words[3].ends_with(b":h"),
        Verb::Pass => false,
        Verb::Sync => words.len() == 12 && !is_token(&words[10]) && is_token(&words[11]),
        // That of a mutex, which becomes permits.
        Verb::Vacate => words.len() == 9,
    }
}
