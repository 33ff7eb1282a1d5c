//! fairlock and its peers, each as its own documentation uses it.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime;

const TTL: Duration = Duration::from_secs(10);

/// Locks, calls what is to be done while it is locked, and unlocks.
pub(crate) type Cycle = Box<dyn FnMut(&mut dyn FnMut()) + Send>;

pub(crate) trait Subject {
    fn name(&self) -> &'static str;

    fn is_ours(&self) -> bool {
        false
    }

    /// For one thread.
    fn cycle(&self, name: &str) -> Cycle;
}

pub(crate) fn subjects(url: &str) -> Vec<Box<dyn Subject>> {
    let mut all: Vec<Box<dyn Subject>> =
        vec![Box::new(Fairlock(fairlock::LockManager::connect(url).expect("a Redis that answers")))];
    let client = redis_of_redis_lock::Client::open(url).expect("a URL that names a Redis");
    match redis_lock::sync::setup(&client) {
        Ok(()) => all.push(Box::new(RedisLock(client))),
        Err(e) => eprintln!("redis-lock is left out: {e}"),
    }
    all.push(Box::new(Rslock(url.to_owned())));
    all.push(Box::new(Redlock(Arc::new(redlock::RedLock::new(vec![url])))));
    all
}

struct Fairlock(fairlock::LockManager);

impl Subject for Fairlock {
    fn name(&self) -> &'static str {
        "fairlock"
    }

    fn is_ours(&self) -> bool {
        true
    }

    fn cycle(&self, name: &str) -> Cycle {
        let lock = self.0.mutex(name);
        Box::new(move |held| {
            let guard = lock.lock().expect("Redis answers");
            held();
            drop(guard);
        })
    }
}

struct RedisLock(redis_of_redis_lock::Client);

impl Subject for RedisLock {
    fn name(&self) -> &'static str {
        "redis-lock 0.5"
    }

    fn cycle(&self, name: &str) -> Cycle {
        let mut lock = redis_lock::sync::MultiResourceLock::new(&self.0).expect("Redis answers");
        // A key beside those of others.
        let names = [format!("{name}:redis-lock")];
        Box::new(move |held| {
            let guard = lock.lock(&names, TTL, redis_lock::DEFAULT_TIMEOUT, redis_lock::DEFAULT_SLEEP);
            let guard = guard.expect("Redis answers").expect("its turn within a minute");
            held();
            drop(guard);
        })
    }
}

struct Rslock(String);

impl Subject for Rslock {
    fn name(&self) -> &'static str {
        "rslock 0.10"
    }

    fn cycle(&self, name: &str) -> Cycle {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let manager = rslock::LockManager::new(vec![self.0.as_str()]);
        let name = format!("{name}:rslock");
        Box::new(move |held| {
            runtime.block_on(async {
                let guard = manager.acquire(name.as_str(), TTL).await.expect("Redis answers");
                held();
                guard.release().await;
            });
        })
    }
}

struct Redlock(Arc<redlock::RedLock>);

impl Subject for Redlock {
    fn name(&self) -> &'static str {
        "redlock 2.0"
    }

    fn cycle(&self, name: &str) -> Cycle {
        let manager = Arc::clone(&self.0);
        let name = format!("{name}:redlock");
        Box::new(move |held| {
            let guard = manager.acquire(name.as_bytes(), TTL.as_millis() as usize).expect("Redis answers");
            held();
            drop(guard);
        })
    }
}
