//! The names that are measured.
//!
//! Redis remembers a released name for an hour, to protect its lock from late copies of earlier
//! requests. The names of a bench are never used again, so they are deleted at the end.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::thread;
use std::time::{Duration, Instant};

use fairlock::LockManager;

use crate::exit::{Exit, Failure};

/// How long to try again to delete names that are still in use.
const RETRY_FOR: Duration = Duration::from_secs(1);
/// From one try to the next.
const PAUSE: Duration = Duration::from_millis(20);

/// Names that nobody else has: each contains a random id.
#[derive(Debug)]
pub(super) struct Names(Vec<String>);

impl Names {
    pub(super) fn new(prefix: &str, threads: u32) -> Names {
        // The keys of a hash map are random in each process: 128 bits, of which this shows 64.
        let id = RandomState::new().build_hasher().finish();
        let name = |at| format!("{prefix}:{id:016x}:{at}");
        Names((0..threads).map(name).collect())
    }

    pub(super) fn first(&self) -> &str {
        &self.0[0]
    }

    /// One for each thread.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Fails if a name is in use, as unlikely as that is.
    pub(super) fn check_unused(&self, manager: &LockManager) -> Result<(), Failure> {
        match self.first_used(manager)? {
            None => Ok(()),
            Some(name) => Err(Failure::new(
                Exit::BUSY,
                format!("the name {name:?} is in use; nothing was measured"),
            )),
        }
    }

    /// Fails if a name is still held or awaited at the end.
    pub(super) fn check_released(&self, manager: &LockManager) -> Result<(), Failure> {
        match self.first_used(manager)? {
            None => Ok(()),
            Some(name) => Err(Failure::internal(format!(
                "{name:?} is not released; its TTL ends it"
            ))),
        }
    }

    /// Deletes all names. Call it when the managers are shut down. An error keeps no other name,
    /// and says how many are left.
    ///
    /// Blocks for `RETRY_FOR` and one call of `delete`, or for one call per name if that is longer.
    /// If one name has failed and the time is over, the others are left: Redis may be silent.
    pub(super) fn delete(&self, manager: &LockManager) -> Result<(), String> {
        delete_each(self.all().collect(), |name| manager.delete(name))
    }

    fn first_used(&self, manager: &LockManager) -> fairlock::Result<Option<&str>> {
        for name in self.all() {
            if manager.inspect(name)?.is_some() {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }
}

fn delete_each(
    names: Vec<&str>,
    delete: impl Fn(&str) -> fairlock::Result<bool>,
) -> Result<(), String> {
    let until = Instant::now() + RETRY_FOR;
    let all = names.len();
    let mut left = names;
    let mut failed = 0;
    let mut why: Option<String> = None;
    loop {
        left.retain(|name| {
            if failed > 0 && Instant::now() >= until {
                return true;
            }
            match delete(name) {
                Ok(is_deleted) => !is_deleted,
                Err(error) => {
                    failed += 1;
                    why.get_or_insert_with(|| error.to_string());
                    false
                }
            }
        });
        if left.is_empty() || Instant::now() >= until {
            break;
        }
        thread::sleep(PAUSE);
    }
    let in_use = left.first().map(|name| format!("{name:?} is still in use"));
    match why.or(in_use) {
        None => Ok(()),
        Some(why) => Err(format!(
            "Redis forgets {} of the {all} names of this bench within an hour, and not now: {why}",
            failed + left.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use fairlock::LockManager;

    use super::delete_each;

    #[test]
    fn other_names_are_deleted_after_a_failure() {
        let deleted = RefCell::new(Vec::new());
        let refused = LockManager::connect("no URL").map(|_| true);
        let end = delete_each(vec!["a", "b", "c", "d"], |name| {
            if name == "b" || name == "c" {
                return refused.as_ref().map(|_| true).map_err(Clone::clone);
            }
            deleted.borrow_mut().push(name.to_owned());
            Ok(true)
        });
        let said = end.err().unwrap_or_default();
        assert!(said.contains("forgets 2 of the 4 names"), "{said}");
        assert_eq!(deleted.into_inner(), ["a", "d"]);
    }

    #[test]
    fn name_in_use_keeps_no_other_name() {
        let tries = RefCell::new(0);
        let end = delete_each(vec!["a", "b"], |name| {
            *tries.borrow_mut() += 1;
            Ok(name == "b" || *tries.borrow() > 4)
        });
        assert!(end.is_ok());
        assert_eq!(tries.into_inner(), 5);
    }
}
