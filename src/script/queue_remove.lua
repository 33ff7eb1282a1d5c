-- Purpose: the part that takes the caller's token out of the queue. R19 (dead entries): its record
--   goes here. Its entry in the list stays, and is dead, unless queue_leave.lua takes it out.
-- Expects: the record part before it · token: the caller's own
-- KEYS: as in the record part
-- ARGV: as in the record part
-- Returns: nothing; waiter: whether it was queued
waiter = redis.call('HEXISTS', record_key, 'w:' .. token) == 1
if waiter then
  fields_to_delete[#fields_to_delete + 1] = 'w:' .. token
  waiter_records, removed_token, queue_changed = waiter_records - 1, token, true
end
