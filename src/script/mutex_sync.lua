-- Purpose: what a process that waits asks once per check period: it keeps the process's waiters alive,
--   hands over a lock whose holder's time is up, and tells what the process may have missed. It never
--   enqueues (R4).
-- KEYS: 1 the record · 2 the queue
-- ARGV: 1-4 as in mutex_record.lua · 5 not_after: server time in µs past which nothing is done
--   · 6 the newest waiting token of this process
-- Returns: synced {owner or '', fence, granted at, left, previous, entries, since, newest is known,
--   ticket last served, 1 if the owner waited here and is the caller's} · absent (no record at all) · late · kind {kind}
local newest, length = ARGV[6], redis.call('LLEN', KEYS[2])
local state, queue, owner, waiter, own, asked =
  unpack(redis.call('HMGET', KEYS[1], 's', 'q', 'o', 'w:' .. newest, 'm:' .. ARGV[1], 'a'))
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
--include mutex_record.lua
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
--include mutex_lapse.lua
--include queue_stamp.lua
alive = manager                                 -- R3
--include mutex_promote.lua
--include mutex_grant.lua
local known = waiter or owner == newest
local ticket, holder = string.match(owner and (request or asked) or '', '^(%d+) %d+ (%S+)')
local ours = ticket and ticket ~= '0' and holder == manager
--include mutex_delete.lua
local expire_first = #del == 0 and popped == 0 and tails == 0   -- what is deleted came first
--include mutex_write.lua
if message then redis.pcall('PUBLISH', ARGV[4] .. by, message) end
return { 'synced', now, more, owner or '', f, g, math.max(0, e - now), d, n, since, known and 1 or 0, h, ours and 1 or 0,
         unpack(grants) }
