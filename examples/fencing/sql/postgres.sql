-- The statements of the fence recipe, with the answers of a real server. try.py runs them.

CREATE TABLE accounts (id BIGINT PRIMARY KEY, fence BIGINT NOT NULL DEFAULT 0, balance BIGINT NOT NULL DEFAULT 0);
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

-- A serialization failure. The other holder is the older one, and the claim fails all the same: it says nothing about
-- fences. The transaction is over. Again from its first statement, it claims.
-- session newer
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM accounts;
-- = 2
-- session older
UPDATE accounts SET fence = 8 WHERE id = 1 AND fence <= 8;
-- = 1 row
-- session newer
UPDATE accounts SET fence = 9 WHERE id = 1 AND fence <= 9;
-- = error 40001
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
UPDATE accounts SET fence = 9 WHERE id = 1 AND fence <= 9;
-- = 1 row
COMMIT;

-- Behind a newer holder, the second try counts 0: stop.
-- session older
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM accounts;
-- = 2
-- session newer
UPDATE accounts SET fence = 11 WHERE id = 1 AND fence <= 11;
-- = 1 row
-- session older
UPDATE accounts SET fence = 10 WHERE id = 1 AND fence <= 10;
-- = error 40001
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
UPDATE accounts SET fence = 10 WHERE id = 1 AND fence <= 10;
-- = 0 rows
ROLLBACK;

-- Read committed, the default, looks at the row anew, so a claim never fails that way.
-- session newer
BEGIN;
SELECT count(*) FROM accounts;
-- = 2
-- session older
UPDATE accounts SET fence = 12 WHERE id = 1 AND fence <= 12;
-- = 1 row
-- session newer
UPDATE accounts SET fence = 13 WHERE id = 1 AND fence <= 13;
-- = 1 row
COMMIT;
