-- The statements of the fence recipe, with the answers of a real database. try.py runs them.

PRAGMA journal_mode = WAL;
-- = wal
CREATE TABLE accounts (id INTEGER PRIMARY KEY, fence BIGINT NOT NULL DEFAULT 0, balance BIGINT NOT NULL DEFAULT 0);
INSERT INTO accounts (id) VALUES (1);
-- = 1 row

-- A claim. Sent again, as after an unknown outcome, it finds the row, too.
UPDATE accounts SET fence = 5 WHERE id = 1 AND fence <= 5;
-- = 1 row
UPDATE accounts SET fence = 5 WHERE id = 1 AND fence <= 5;
-- = 1 row

-- A write, and one of the value that is there.
UPDATE accounts SET balance = 10 WHERE id = 1 AND fence = 5;
-- = 1 row
UPDATE accounts SET balance = 10 WHERE id = 1 AND fence = 5;
-- = 1 row

-- An older holder's claim and write: stop.
UPDATE accounts SET fence = 4 WHERE id = 1 AND fence <= 4;
-- = 0 rows
UPDATE accounts SET balance = 20 WHERE id = 1 AND fence = 4;
-- = 0 rows

-- A row that may not exist: the first claim makes it, and an older one finds a newer holder.
INSERT INTO accounts (id, fence) VALUES (2, 7) ON CONFLICT (id) DO UPDATE SET fence = 7 WHERE accounts.fence <= 7;
-- = 1 row
INSERT INTO accounts (id, fence) VALUES (2, 7) ON CONFLICT (id) DO UPDATE SET fence = 7 WHERE accounts.fence <= 7;
-- = 1 row
INSERT INTO accounts (id, fence) VALUES (2, 6) ON CONFLICT (id) DO UPDATE SET fence = 6 WHERE accounts.fence <= 6;
-- = 0 rows

-- SQLITE_BUSY is the serialization failure of SQLite. The other holder is the older one: it says nothing about fences.
-- Again from its first statement, the transaction claims.
-- session newer
BEGIN;
SELECT count(*) FROM accounts;
-- = 2
-- session older
UPDATE accounts SET fence = 8 WHERE id = 1 AND fence <= 8;
-- = 1 row
-- session newer
UPDATE accounts SET fence = 9 WHERE id = 1 AND fence <= 9;
-- = error SQLITE_BUSY
ROLLBACK;
BEGIN IMMEDIATE;
UPDATE accounts SET fence = 9 WHERE id = 1 AND fence <= 9;
-- = 1 row
COMMIT;
