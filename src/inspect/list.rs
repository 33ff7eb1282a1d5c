//! Goes through all names, page by page.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::LockInfo;
use crate::error::{Error, Misuse, Result};
use crate::glob::Glob;
use crate::key::{self, Key};
use crate::logging::Logger;
use crate::manager::LockManager;

/// How many records are inspected in one pipeline.
const PAGE: usize = 128;

impl LockManager {
    /// All names that match a glob and are held, cooling or lapsed, or that somebody waits for.
    /// Each once, in no particular order.
    ///
    /// The glob has `*`, `?`, `[ab]`, `[^a-z]`, and `\` as escape. It covers the names with this
    /// manager's prefix.
    ///
    /// The iterator reads page by page with SCAN. Between pages it holds no connection, and it may
    /// miss what changes during that time. All pages together make Redis go through every key of
    /// the database, including keys of other programs. Each matching record costs one more request.
    /// The iterator remembers the names that it has returned. It passes over a record that this
    /// version cannot read, which may be of another version or of another program. At its end it
    /// logs how many, and why it cannot read the first.
    ///
    /// This call never blocks. Each page blocks for at most four command timeouts, and two more for
    /// every 128 names on it. If semaphores or reader/writer locks are among those, it is four
    /// more, and two more for every 32 holders that one of them has. The errors are those of
    /// [`inspect`](LockManager::inspect). An error comes last. If a master of a cluster cannot be
    /// read, the rest of its names is missing, and those of the other masters come first.
    ///
    /// ```no_run
    /// # let mgr = fairlock::LockManager::connect("redis://127.0.0.1/")?;
    /// for info in mgr.list("invoices:*") {
    ///     let info = info?;
    ///     println!("{info}"); // "invoices:42": mutex, held by process 4711 on web-1, …
    /// }
    /// # Ok::<(), fairlock::Error>(())
    /// ```
    pub fn list(
        &self,
        pattern: impl AsRef<str>,
    ) -> Box<dyn Iterator<Item = Result<LockInfo>> + Send> {
        let glob = Glob::new(pattern.as_ref());
        Box::new(List {
            manager: self.clone(),
            pattern: key::scan_pattern(&self.engine().config().prefix, &glob),
            glob,
            cursor: Some(0),
            seen: HashSet::new(),
            page: VecDeque::new(),
            failed: None,
            passed_over: None,
        })
    }
}

/// The iterator of [`LockManager::list`]. It ends after an error.
struct List {
    manager: LockManager,
    pattern: String,
    glob: Glob,
    /// Where the next page begins. `None` after the last page.
    cursor: Option<u64>,
    /// The names that were returned: SCAN may return a key twice.
    seen: HashSet<Arc<str>>,
    page: VecDeque<LockInfo>,
    /// Why names are missing.
    failed: Option<Error>,
    /// How many records this version cannot read, and why it cannot read the first.
    passed_over: Option<(u64, Error)>,
}

impl Iterator for List {
    type Item = Result<LockInfo>;

    fn next(&mut self) -> Option<Result<LockInfo>> {
        loop {
            if let Some(info) = self.page.pop_front() {
                return Some(Ok(info));
            }
            let Some(cursor) = self.cursor.take() else {
                if let Some((count, why)) = self.passed_over.take() {
                    log::warn!(logger: Logger, "a list passed over {count} records: {why}");
                }
                return self.failed.take().map(Err);
            };
            if let Err(error) = self.turn_page(cursor) {
                self.failed.get_or_insert(error);
                let next = self.manager.engine().client().scan_on(cursor);
                self.cursor = (next != 0).then_some(next);
            }
        }
    }
}

impl List {
    fn turn_page(&mut self, cursor: u64) -> Result<()> {
        let engine = self.manager.engine();
        let (next, records) = engine.client().scan(cursor, &self.pattern)?;
        self.cursor = (next != 0).then_some(next);
        let prefix = &engine.config().prefix;
        let mut keys: Vec<Key> = records
            .iter()
            .filter_map(|record| Key::from_record(prefix, record))
            .collect();
        keys.retain(|key| self.glob.matches(&key.name) && self.seen.insert(Arc::clone(&key.name)));
        for keys in keys.chunks(PAGE) {
            for info in self.manager.inspect_all(keys.to_vec())? {
                match info {
                    Ok(info) => self.page.extend(info),
                    // A kind of another version, or a key of another program: neither is a lock to
                    // list.
                    Err(error) if is_no_lock(&error) => {
                        self.passed_over.get_or_insert((0, error)).0 += 1;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

fn is_no_lock(error: &Error) -> bool {
    match error {
        Error::Misused {
            misuse: Misuse::Kind { .. },
            ..
        } => true,
        Error::Refused { code, .. } => code == "WRONGTYPE" || code == "WRONGVERSION",
        _ => false,
    }
}
