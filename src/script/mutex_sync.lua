-- Purpose: what a process that waits asks once per check period: it keeps the process's waiters alive,
--   hands over a lock whose holder's time is up, and tells what the process may have missed. It never
--   enqueues (R4).
-- KEYS: 1 the record · 2 the queue
-- ARGV: 1-4 as in mutex_promote.lua · 5 not_after: server time in µs past which nothing is done
--   · 6 the newest waiting token of this process
-- Returns: synced {owner or '', fence, granted at, left, previous, entries, since, newest is known,
--   ticket last served, 1 if the owner waited here and is the caller's} · absent (no record at all) · late · kind {kind}
local token, length = ARGV[6], redis.call('LLEN', KEYS[2])
local state, queue, owner, waiter, own, request =
  unpack(redis.call('HMGET', KEYS[1], 's', 'q', 'o', 'w:' .. token, 'm:' .. ARGV[1], 'a'))
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
--include mutex_promote.lua
if now > tonumber(ARGV[5]) then return answer('late') end
if not state then return answer('absent') end
-- R11: a queue shorter than the record says has lost entries, so every place in it is void.
if length < rec.n then
  forget()
  waiter = nil
end
-- A list that is not the one that was counted may be a new one.
if length ~= rec.n then rec.queue_changed, rec.tq = true, 0 end
rec.n = length
lapse(nil)
--include mutex_stamp.lua
promote(nil)
local known = waiter or rec.owner == token
local ticket, by = string.match(rec.owner and (rec.request or request) or '', '^(%d+) %d+ (%S+)')
local ours = ticket and ticket ~= '0' and by == manager
save()
tell()
return answer('synced', { rec.owner or '', rec.f, rec.g, left(), rec.d, rec.n, since, known and 1 or 0, rec.h,
                          ours and 1 or 0 })
