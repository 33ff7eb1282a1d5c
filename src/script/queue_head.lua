-- Purpose: the part that reads the next entry of the queue, in a loop that serves waiters. It ends
--   the loop after 64 entries, so that a call stays short, and if the list lost entries.
-- Expects: the record part before it · a loop around it
-- KEYS: as in the record part
-- ARGV: as in the record part
-- Returns: nothing; head: the entry's token · waiter: its record, if it still waits · field: where
--   that is
if heads_popped == 64 then
  more = 1
  break
end
local head = redis.call('LINDEX', queue_key, heads_popped)
if not head then
  --include queue_forget.lua
  break
end
-- R20 (write order): records that this call deletes can still be read, so it must remember them.
-- And a token may be in the list twice: where it left, and where a late copy of its acquire queued
-- it again.
local field = 'w:' .. head
local waiter = head ~= removed_token and not queue_forgotten and not skip[head]
  and redis.call('HGET', record_key, field)
