-- The statements of the fence recipe, with the answers of a real server. try.py runs them.
-- Sessions count found rows (CLIENT_FOUND_ROWS). The session "changed" has the server's default.

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

-- By the server's default, the same claim and the same write count 0. That is no newer holder.
-- session changed
UPDATE accounts SET fence = 5 WHERE id = 1 AND fence <= 5;
-- = 0 rows
UPDATE accounts SET balance = 10 WHERE id = 1 AND fence = 5;
-- = 0 rows

-- An older holder's claim and write: stop.
-- session found
UPDATE accounts SET fence = 4 WHERE id = 1 AND fence <= 4;
-- = 0 rows
UPDATE accounts SET balance = 20 WHERE id = 1 AND fence = 4;
-- = 0 rows

-- A row that may not exist: make it with the fence 0, whatever that counts. Then claim.
INSERT INTO accounts (id) VALUES (2) ON DUPLICATE KEY UPDATE id = id;
-- = 1 row
UPDATE accounts SET fence = 7 WHERE id = 2 AND fence <= 7;
-- = 1 row
INSERT INTO accounts (id) VALUES (2) ON DUPLICATE KEY UPDATE id = id;
-- = 1 row
UPDATE accounts SET fence = 7 WHERE id = 2 AND fence <= 7;
-- = 1 row
INSERT INTO accounts (id) VALUES (2) ON DUPLICATE KEY UPDATE id = id;
-- = 1 row
UPDATE accounts SET fence = 6 WHERE id = 2 AND fence <= 6;
-- = 0 rows

-- No single statement does that. This one counts the same for the same fence and for an older one.
INSERT INTO accounts (id, fence) VALUES (2, 7) ON DUPLICATE KEY UPDATE fence = GREATEST(fence, 7);
-- = 1 row
INSERT INTO accounts (id, fence) VALUES (2, 6) ON DUPLICATE KEY UPDATE fence = GREATEST(fence, 6);
-- = 1 row

-- 40001 is a deadlock here. The other holder is the older one, and the claim fails all the same: it says nothing about
-- fences. The transaction is over. Again from its first statement, it claims.
-- session older
BEGIN;
UPDATE accounts SET fence = 8 WHERE id = 1 AND fence <= 8;
-- = 1 row
-- session newer
BEGIN;
UPDATE accounts SET fence = 9 WHERE id = 2 AND fence <= 9;
-- = 1 row
-- session older, in the background
UPDATE accounts SET fence = 8 WHERE id = 2 AND fence <= 8;
-- session newer
UPDATE accounts SET fence = 9 WHERE id = 1 AND fence <= 9;
-- = error 40001 (1213)
-- session older, again
-- = 1 row
ROLLBACK;
-- session newer
ROLLBACK;
BEGIN;
UPDATE accounts SET fence = 9 WHERE id = 1 AND fence <= 9;
-- = 1 row
UPDATE accounts SET fence = 9 WHERE id = 2 AND fence <= 9;
-- = 1 row
COMMIT;

-- A snapshot before the claim reads old values after it. So the claim is the first statement.
-- session newer
BEGIN;
SELECT balance FROM accounts WHERE id = 1;
-- = 10
-- session older
UPDATE accounts SET balance = 30 WHERE id = 1 AND fence = 9;
-- = 1 row
-- session newer
UPDATE accounts SET fence = 10 WHERE id = 2 AND fence <= 10;
-- = 1 row
SELECT balance FROM accounts WHERE id = 1;
-- = 10
ROLLBACK;
