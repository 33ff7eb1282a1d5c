-- Purpose: what a process that waits asks once per check period: it keeps the process's waiters alive,
--   hands over a lock whose holder's time is up, and tells what the process may have missed. It never
--   enqueues (R4).
-- KEYS: 1 the record · 2 the queue
-- ARGV: 1-4 as in mutex_promote.lua · 5 not_after: server time in µs past which nothing is done
--   · 6 the newest waiting token of this process
-- Returns: synced {owner or '', fence, granted at, left, previous, entries, since, newest is known,
--   ticket last served, 1 if the owner waited here and is the caller's} · absent (no record at all) · late · kind {kind}
--include mutex_promote.lua
local not_after, token = tonumber(ARGV[5]), ARGV[6]
local waiter, own = read('w:' .. token, 'm:' .. manager)
if foreign() then return foreign() end
if now > not_after then return answer('late') end
if not rec.kind then return answer('absent') end
-- R11: a queue shorter than the record says has lost entries, so every place in it is void.
local length = redis.call('LLEN', list)
if length < rec.n then
  forget()
  own, waiter = nil, false
end
if length ~= rec.n then queue_changed = true end
rec.n = length
lapse(nil)
local since = refresh(own)                      -- R3
promote(nil)
local known = waiter or rec.owner == token
local owner = rec.owner and parts(rec.request)
local ours = owner and owner.manager == manager and owner.ticket > 0
keep = true
save_always()
tell()
return answer('synced', { rec.owner or '', rec.f or 0, rec.g or 0, left(), rec.d or -1, rec.n, since,
                          known and 1 or 0, rec.h, ours and 1 or 0 })
