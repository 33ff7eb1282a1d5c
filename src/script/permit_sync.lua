-- Purpose: what a process that waits asks once per check period: it keeps the process's waiters alive, hands over what
--   lapsed holders had, and tells whether anything may have been missed. It never enqueues (R4).
-- KEYS: 1 the record · 2 the queue · 3 the holders
-- ARGV: 1-4 as in permit_record.lua · 5 not_after: server time in µs past which nothing is done
--   · 6 the newest waiting token of this process
-- Returns: synced {'', fence, now, time until a holder may lapse, previous, entries, since, newest is known,
--   ticket last served, 0} · absent (no record at all) · late · kind {kind}
local newest, length = ARGV[6], redis.call('LLEN', KEYS[2])
local kind, state, queue, waiter, own =
  unpack(redis.call('HMGET', KEYS[1], 'k', 'p', 'n', 'w:' .. newest, 'm:' .. ARGV[1]))
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
--include permit_record.lua
if now > ARGV[5] + 0 then return { 'late', now, 0 } end
if not state then return { 'absent', now, 0 } end
-- R11: a queue shorter than the record says has lost entries, so every place in it is void.
if length < n then
  --include queue_forget.lua
  waiter = nil
end
-- A list that is not the one that was counted may be a new one.
if length ~= n then queue_changed, tq = true, 0 end
n = length
local token, refreshed                          -- a sync is nobody's own
--include permit_reclaim.lua
--include queue_stamp.lua
alive = manager                                 -- R3
--include permit_promote.lua
local left = b > 0 and math.max(0, b - now) or ARGV[2] + 0
local delete_first = true
--include permit_write.lua
return { 'synced', now, more, '', f, now, left, d, n, since, waiter and 1 or 0, h, 0, unpack(grants) }
