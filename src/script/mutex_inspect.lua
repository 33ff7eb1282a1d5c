-- Purpose: tells what is held, cooling or awaited under a name. Writes nothing.
-- KEYS: 1 the record · 2 the queue
-- ARGV: 1-4 as in mutex_record.lua · 5 how many waiters to tell of, at most
-- Returns: seen {owner or '', fence, granted at, left, previous, request, label, waiters} with the
--   waiters' records in order · absent · kind {kind}
local state, queue, owner, asked, owner_label = unpack(redis.call('HMGET', KEYS[1], 's', 'q', 'o', 'a', 'l'))
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
--include mutex_record.lua
if not state or (not owner and e <= now and r == 0) then return { 'absent', now, 0 } end
local tokens = redis.call('LRANGE', list, 0, tonumber(ARGV[5]) - 1)
local seen = { 'seen', now, 0, owner or '', f, g, math.max(0, e - now), d, asked or '', owner_label or '', r }
for i = 1, #tokens do
  local waiter = redis.call('HGET', key, 'w:' .. tokens[i])
  if waiter then seen[#seen + 1] = waiter end
end
return seen
