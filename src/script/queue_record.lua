-- Purpose: the part that unpacks the queue's numbers, brings served time up to date, and declares
--   what scripts note about the queue until they write it back.
-- Expects: packed_queue: the field 'q' of a mutex, 'n' of permits · now: the server's time in µs
-- KEYS: as in the record part
-- ARGV: as in the record part
-- Returns: nothing
-- The field holds, in this order: entries (in the list), waiter_records ('w:' fields), looked_at
-- (when served_time was brought up to date), served_time (R2), last_ticket (given out),
-- served_ticket, queue_expires_at (in s). A stamp, the field 'm:<manager>', holds the served time
-- up to which that manager counts as alive, the server time at which these stamps began, and that of
-- the stamp itself.
local QUEUE, STAMP = '<I4I4ddddI4', '<dd'
local entries, waiter_records, looked_at, served_time = 0, 0, now, 0
local last_ticket, served_ticket, queue_expires_at = 0, 0, 0
local queue_changed, queue_forgotten, outage_possible
-- For how long no script has brought served time up to date.
local unseen_for = 0
-- The record's fields. The table starts with room for ten values, so that it does not grow one
-- value at a time.
local fields_to_set = { nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }
local fields_to_delete = {}
-- The caller's manager once it counts as alive (R3). In skip: managers that count as dead, and
-- tokens that this call has granted or passed over.
local live_manager, skip = nil, {}
-- These leave the list: entries at its head, entries at its tail, or everything but these tokens.
-- If the list is written anew, replaced_entries is how many it had.
local heads_popped, tails_popped, rewritten_queue, replaced_entries = 0, 0, nil, 0
-- The caller's token, if this call takes it out of the queue, or appends it.
local removed_token, appended_token
-- 1 if there is more of the same to do, so that the caller asks again at once. And how many waiters
-- of dead processes this call passed over: the reply has that number twice, added to the first.
local more, dead_waiters = 0, 0

if packed_queue then
  entries, waiter_records, looked_at, served_time, last_ticket, served_ticket, queue_expires_at =
    struct.unpack(QUEUE, packed_queue)
  -- R2 (served time): it grows only by the time that scripts saw pass, at most one step per script.
  -- So neither an outage nor a jump of the clock makes a stamp look old.
  local elapsed, step = now - looked_at, ARGV[2] + 0
  outage_possible, unseen_for = elapsed > step, elapsed
  served_time = served_time + math.max(0, math.min(elapsed, step))
  looked_at = now
end
