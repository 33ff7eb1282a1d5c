-- Purpose: the part of a sync that compares the list with the record. R11 (missing keys): a list
--   that is shorter than the record says has lost entries, and nobody's place in it is known any
--   more.
-- Expects: the record part before it · length: of the list · waiter: the record of the newest token
-- KEYS: as in the record part
-- ARGV: as in the record part
-- Returns: nothing
if length < math.max(entries, waiter and 1 or 0) then
  --include queue_forget.lua
  waiter = nil
end
-- A list of another length than was counted may be a new one, without an expiry.
if length ~= entries then queue_changed, queue_expires_at = true, 0 end
entries = length
