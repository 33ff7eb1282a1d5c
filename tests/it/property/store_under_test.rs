//! The stores that the sequences run on, and the faults that a test causes in them.

use std::time::Duration;

use crate::model::ModelKind;
use crate::reply::{Commands, Reply};
use fairlock::memory::{Fault, Memory};
use fairlock::{LockManager, endpoint::Endpoint};

use super::sequence_run::CLIENTS;
use crate::backend::with_parts;
use crate::fixtures::{Verb, build, request, with_ttl};
use crate::managers;
use crate::support::{Proxy, Server};

/// Long enough that no lease ends by itself within a sequence.
pub(super) const TTL: Duration = Duration::from_secs(60);
/// A process on a busy machine may be silent for this long.
const T: Duration = Duration::from_secs(2);
/// A sequence waits for syncs, so they come soon.
pub(super) const P: Duration = Duration::from_millis(20);
const H: Duration = Duration::from_secs(20);
/// How long a record outlives its last request: an hour more than the lease.
const RETENTION: Duration = Duration::from_secs(managers::RETENTION.1.as_secs() + TTL.as_secs());

/// A store with a manager for each client.
pub(super) trait StoreUnderTest {
    fn managers(&self) -> &[LockManager];

    /// Every key expires at most an hour after the last lease.
    fn assert_keys_expire(&self);

    /// Runs a script on these keys.
    fn eval(&self, script: &str, keys: &[&str], args: &[&str]) -> Reply;

    /// The reply to the client's next request of this verb is lost, so that the client sends it
    /// again.
    fn lose_reply(&self, client: u8, name: &str, verb: Verb);

    /// No more replies are lost.
    fn stop_losing_replies(&self, client: u8);

    /// A message of a grant is lost, now or soon.
    fn lose_grant_message(&self);

    /// Expires the lease of every holder, if there is one.
    fn expire(&self, name: &str, kind: ModelKind) {
        self.run_script(scripts(kind).expire, "return 1", name, &[]);
    }

    /// Expires the lease of every holder, and lets a stranger's request notice it. Returns whether
    /// there was a holder.
    fn lapse(&self, name: &str, kind: ModelKind) -> bool {
        let Scripts {
            expire, release, ..
        } = scripts(kind);
        // The stranger releases a token that nobody knows. That changes nothing else.
        self.run_script(expire, release, name, &["nobody", "0", "unused"]) != Reply::Nil
    }

    /// Sends a copy of a holder's acquire. Returns the number in its label and the fence in the
    /// answer.
    fn repeat_acquire(&self, name: &str, kind: ModelKind) -> Option<(u16, u64)> {
        let Scripts {
            holder,
            acquire,
            params,
            ..
        } = scripts(kind);
        // The label is in the last column.
        let script = format!(
            "{holder} local function repeated() {} end
             local answer = repeated()
             return {{ string.match(label, '[^\t]*$'), answer[1] == 'granted' and answer[4] or 0 }}",
            with_parts(acquire)
        );
        match self.run_script(
            "",
            &script,
            name,
            &["", "9e15", "0", params, &as_in_records(kind)],
        ) {
            Reply::Nil => None,
            Reply::List(parts) => match &parts[..] {
                [Reply::Text(number), Reply::Int(fence)] => {
                    Some((number.parse().expect("a number"), *fence as u64))
                }
                _ => panic!("{parts:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    /// The data in the keys of a name when there are no holders and no waiters.
    fn leftovers(&self, name: &str) -> Option<String> {
        let look = "local fields, left = redis.call('HGETALL', KEYS[1]), redis.call('LRANGE', KEYS[2], 0, -1)
                    for i = 1, #fields, 2 do
                      local field, value = fields[i], fields[i + 1]
                      local is_cooling = field == 's' and struct.unpack('<d', value) > 0 and struct.unpack('<I4', string.sub(value, 41)) > 0
                      if field == 'o' or string.find(field, '^w:') or is_cooling then
                        left[#left + 1] = field
                      elseif field == 'q' or field == 'n' then
                        local entries, waiters = struct.unpack('<I4I4', value)
                        if entries + waiters > 0 then left[#left + 1] = entries .. ' entries, ' .. waiters .. ' waiters' end
                      end
                    end
                    fields = redis.call('HGETALL', KEYS[3])
                    for i = 1, #fields, 2 do
                      if fields[i] == 'p' then
                        local taken = struct.unpack('<I4', string.sub(fields[i + 1], 41))
                        if taken > 0 then left[#left + 1] = taken .. ' permits' end
                      elseif string.byte(fields[i + 1], 21) < 3 then
                        left[#left + 1] = fields[i]
                      end
                    end
                    return left";
        match self.run_script("", look, name, &[]) {
            Reply::List(left) if left.is_empty() => None,
            left => Some(format!("{left:?}")),
        }
    }

    /// Runs `before` and then one of fairlock's scripts, as a manager that nobody knows.
    fn run_script(&self, before: &str, script: &str, name: &str, args: &[&str]) -> Reply {
        let script = format!("{before}{}", with_parts(script));
        let key = format!("fairlock:{{{}}}", encoded(name));
        let all = ["stranger", "2020000", "20000000", "fairlock:grants:"]
            .iter()
            .chain(args)
            .copied();
        self.eval(
            &script,
            &[&key, &format!("{key}:q"), &format!("{key}:h")],
            &all.collect::<Vec<_>>(),
        )
    }
}

/// Scripts that act on the record of one family.
struct Scripts {
    /// Expires the leases of the holders, which have had their grace. Returns nil if there are
    /// none.
    expire: &'static str,
    /// Sets the arguments to those of a holder's acquire, and `label` to its label. Returns nil if
    /// there is no holder.
    holder: &'static str,
    acquire: &'static str,
    release: &'static str,
    /// The parameters of an acquire.
    params: &'static str,
}

fn scripts(kind: ModelKind) -> Scripts {
    match kind {
        // With `u` equal to its fence, the lease has had its one step of grace.
        ModelKind::Mutex => Scripts {
            expire: "if redis.call('HEXISTS', KEYS[1], 'o') == 0 then return false end
                      do local s = redis.call('HGET', KEYS[1], 's')
                      redis.call('HSET', KEYS[1], 's', struct.pack('<d', 1) .. string.sub(s, 9),
                                 'u', string.format('%.0f', (struct.unpack('<d', string.sub(s, 17))))) end\n",
            holder: "local owner, params, label = unpack(redis.call('HMGET', KEYS[1], 'o', 'a', 'l'))
                     if not owner then return false end
                     ARGV[1], ARGV[5] = string.match(params, '^%d+ %d+ (%S+)'), owner\n",
            acquire: include_str!("../../../src/script/mutex_acquire.lua"),
            release: include_str!("../../../src/script/mutex_release.lua"),
            params: "60000 1 0 -\t0\t-#1\t",
        },
        // The first number of a holder is the end of its lease, and byte 21 is its status.
        ModelKind::Semaphore(_) | ModelKind::ReadWrite(_) => Scripts {
            expire: "do local all, held = redis.call('HGETALL', KEYS[3]), false
                      for i = 1, #all, 2 do
                        if all[i] ~= 'p' and string.byte(all[i + 1], 21) < 2 then
                          held = true
                          redis.call('HSET', KEYS[3], all[i], struct.pack('<d', 1) .. string.sub(all[i + 1], 9, 20)
                                     .. string.char(1) .. string.sub(all[i + 1], 22))
                        end
                      end
                      if not held then return false end
                      local p = redis.call('HGET', KEYS[3], 'p')
                      redis.call('HSET', KEYS[3], 'p', string.sub(p, 1, 8) .. struct.pack('<d', 1) .. string.sub(p, 17)) end\n",
            holder: "local all, label = redis.call('HGETALL', KEYS[3]), nil
                     for i = 1, #all, 2 do
                       if all[i] ~= 'p' and string.byte(all[i + 1], 21) < 2 then
                         ARGV[1], label = string.match(string.sub(all[i + 1], 23), '^%S+ %d+ %d+ %d+ %d+ (%S+) (.*)$')
                         ARGV[5] = all[i]
                       end
                     end
                     if not label then return false end\n",
            acquire: include_str!("../../../src/script/permit_acquire.lua"),
            release: include_str!("../../../src/script/permit_release.lua"),
            params: "60000 1 0 1 -\t0\t-#1\t",
        },
    }
}

/// The kind as records write it.
fn as_in_records(kind: ModelKind) -> String {
    match kind {
        ModelKind::Mutex => "mutex/1".to_owned(),
        ModelKind::Semaphore(permits) => format!("semaphore/1 {permits}"),
        ModelKind::ReadWrite(permits) => format!("rw/1 {permits}"),
    }
}

/// A real server, with a proxy in front of each client.
pub(super) struct OnRedis {
    managers: Vec<LockManager>,
    proxies: Vec<Proxy>,
    server: Server,
}

impl OnRedis {
    pub(super) fn start() -> OnRedis {
        let server = Server::tcp();
        let proxies: Vec<Proxy> = (0..CLIENTS).map(|_| Proxy::to(server.addr())).collect();
        let managers = proxies.iter().map(|proxy| client(proxy.url())).collect();
        OnRedis {
            managers,
            proxies,
            server,
        }
    }
}

impl StoreUnderTest for OnRedis {
    fn managers(&self) -> &[LockManager] {
        &self.managers
    }

    fn assert_keys_expire(&self) {
        let keys: Vec<String> = self.server.query(&["KEYS", "*"]);
        assert!(!keys.is_empty());
        for key in keys {
            let left: i64 = self.server.query(&["PTTL", &key]);
            assert!(
                (0..=RETENTION.as_millis() as i64).contains(&left),
                "{key} stays for {left} ms"
            );
        }
    }

    fn eval(&self, script: &str, keys: &[&str], args: &[&str]) -> Reply {
        let keys_are = keys.len().to_string();
        read(
            self.server
                .query(&[&["EVAL", script, &keys_are], keys, args].concat()),
        )
    }

    fn lose_reply(&self, client: u8, name: &str, verb: Verb) {
        drop(
            self.proxies[usize::from(client)].swallow_and_reset_when(request(verb, &encoded(name))),
        );
    }

    fn stop_losing_replies(&self, client: u8) {
        self.proxies[usize::from(client)].disarm();
    }

    fn lose_grant_message(&self) {
        // A message that is published before the clients subscribe again reaches nobody.
        let _: i64 = self.server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
}

/// The in-memory store.
pub(super) struct InMemory {
    managers: Vec<LockManager>,
    memory: Memory,
}

impl InMemory {
    pub(super) fn new() -> InMemory {
        let memory = Memory::new();
        InMemory {
            managers: (0..CLIENTS).map(|_| client(&memory)).collect(),
            memory,
        }
    }
}

impl StoreUnderTest for InMemory {
    fn managers(&self) -> &[LockManager] {
        &self.managers
    }

    fn assert_keys_expire(&self) {
        // Every manager has created this record.
        let warm = || self.memory.command(&["HGETALL", "fairlock:{warm}"]);
        assert_ne!(warm(), Reply::List(Vec::new()));
        self.memory.advance(RETENTION);
        assert_eq!(
            warm(),
            Reply::List(Vec::new()),
            "a record stays for longer than {RETENTION:?}"
        );
    }

    fn eval(&self, script: &str, keys: &[&str], args: &[&str]) -> Reply {
        let keys_are = keys.len().to_string();
        self.memory
            .command(&[&["EVAL", script, &keys_are], keys, args].concat())
    }

    /// The fault hits the next request of any kind. All kinds may arrive twice.
    fn lose_reply(&self, _: u8, _: &str, _: Verb) {
        self.memory.inject(Fault::Disconnect);
    }

    fn stop_losing_replies(&self, client: u8) {
        // If no request came, the fault hits this one, which changes nothing.
        let _ = self.managers[usize::from(client)].inspect("nobody's");
    }

    fn lose_grant_message(&self) {
        self.memory.inject(Fault::LoseMessage);
    }

    fn lapse(&self, name: &str, _: ModelKind) -> bool {
        self.memory.lapse(name)
    }
}

fn client(to: impl Into<Endpoint>) -> LockManager {
    let manager = build(
        with_ttl(to, TTL)
            .command_timeout(T)
            .check_period(P)
            .horizon(H),
    );
    // The first waiter opens the subscription.
    drop(manager.enqueue("warm").expect("no fault has happened yet"));
    manager
}

/// A name as keys write it.
fn encoded(name: &str) -> String {
    name.replace('%', "%25")
        .replace('{', "%7B")
        .replace('}', "%7D")
}

fn read(value: redis::Value) -> Reply {
    match value {
        redis::Value::Nil => Reply::Nil,
        redis::Value::Int(n) => Reply::Int(n),
        redis::Value::Array(items) => Reply::List(items.into_iter().map(read).collect()),
        other => Reply::Text(
            redis::from_redis_value(other)
                .expect("a script returns nil, a number, a list or a text"),
        ),
    }
}
