-- Purpose: tells what is held, cooling or awaited under a name. Writes nothing.
-- KEYS: 1 the record · 2 the queue
-- ARGV: 1-4 as in mutex_promote.lua · 5 how many waiters to tell of, at most
-- Returns: seen {owner or '', fence, granted at, left, previous, request, label, waiters} with the
--   waiters' records in order · absent · kind {kind}
--include mutex_promote.lua
read()
if foreign() then return foreign() end
if not rec.kind or (free() and rec.r == 0) then return answer('absent') end
local label = redis.call('HGET', key, 'l')
local tokens = redis.call('LRANGE', list, 0, tonumber(ARGV[5]) - 1)
local queue = {}
for i = 1, #tokens do
  local waiter = redis.call('HGET', key, 'w:' .. tokens[i])
  if waiter then queue[#queue + 1] = waiter end
end
return { 'seen', now, 0, { rec.owner or '', rec.f or 0, rec.g or 0, left(), rec.d or -1, rec.request or '', label or '', rec.r }, queue }
