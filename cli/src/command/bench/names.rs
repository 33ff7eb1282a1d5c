//! The names that are measured.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use fairlock::LockManager;

use crate::exit::{Exit, Failure};

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

    fn first_used(&self, manager: &LockManager) -> fairlock::Result<Option<&str>> {
        for name in self.all() {
            if manager.inspect(name)?.is_some() {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }
}
