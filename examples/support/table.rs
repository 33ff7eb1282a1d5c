//! Stands for a table of a database whose rows remember the newest fence. Each function here is one
//! statement, with its SQL.
//!
//! A *turn* is what a holder does under one grant. It follows one rule, in one transaction or not:
//! **claim, then read, then write.** The claim stores the fence of the turn. From then on each
//! statement of an older turn is refused. So nobody changes the row between the read and the write.
//!
//! A check in the write alone is too late. An older holder may wake after this turn has read and
//! before it has written. Its write is accepted then, and this turn overwrites it by what it
//! computed from an outdated read.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Rows by their id. In a real program the column `fence` is a `BIGINT NOT NULL DEFAULT 0`.
#[derive(Default)]
pub(crate) struct Table<Row> {
    rows: Mutex<BTreeMap<String, Fenced<Row>>>,
}

#[derive(Default)]
struct Fenced<Row> {
    fence: u64,
    row: Row,
}

impl<Row: Clone + Default> Table<Row> {
    /// The first statement of a turn. `false`: a newer holder has claimed the row, so the turn is
    /// over. The turn of a lock of several names claims a row for each name.
    ///
    /// ```sql
    /// INSERT INTO rows (id, fence) VALUES (:id, :fence)
    ///     ON CONFLICT (id) DO UPDATE SET fence = :fence WHERE rows.fence <= :fence
    /// ```
    ///
    /// If it counts no row, stop. This form also serves a row that does not exist yet. If all rows
    /// exist, this is enough: `UPDATE rows SET fence = :fence WHERE id = :id AND fence <= :fence`.
    /// `examples/fencing/sql` has both for several databases. MySQL and MariaDB have to be asked to
    /// count the rows that are found.
    #[must_use]
    pub(crate) fn claim(&self, id: &str, fence: u64) -> bool {
        let mut rows = self.rows();
        let stored = &mut rows.entry(id.to_owned()).or_default().fence;
        let is_newest = *stored <= fence;
        if is_newest {
            *stored = fence;
        }
        is_newest
    }

    /// Reads a row. Under the claim of a turn, nobody but that turn can change it.
    ///
    /// ```sql
    /// SELECT * FROM rows WHERE id = :id
    /// ```
    pub(crate) fn read(&self, id: &str) -> Row {
        self.rows()
            .get(id)
            .map(|fenced| fenced.row.clone())
            .unwrap_or_default()
    }

    /// Changes all of these rows, or none. `false`: a newer holder has claimed one of them, so the
    /// turn is over.
    ///
    /// ```sql
    /// UPDATE rows SET … WHERE id = :id AND fence = :fence
    /// ```
    ///
    /// Several rows need a transaction. Roll it back if one of its statements finds no row.
    #[must_use]
    pub(crate) fn write<const N: usize>(
        &self,
        claims: [(&str, u64); N],
        change: impl FnOnce(&mut [Row; N]),
    ) -> bool {
        let mut rows = self.rows();
        let is_claimed =
            |(id, fence): (&str, u64)| rows.get(id).is_some_and(|row| row.fence == fence);
        if !claims.into_iter().all(is_claimed) {
            return false;
        }
        let mut changed = claims.map(|(id, _)| rows[id].row.clone());
        change(&mut changed);
        for ((id, fence), row) in claims.into_iter().zip(changed) {
            rows.insert(id.to_owned(), Fenced { fence, row });
        }
        true
    }

    fn rows(&self) -> MutexGuard<'_, BTreeMap<String, Fenced<Row>>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
