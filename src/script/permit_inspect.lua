-- Purpose: tells what is held, cooling or awaited under a name. Writes nothing.
-- KEYS: 1 the record · 2 the queue · 3 the holders
-- ARGV: 1-4 as in permit_record.lua · 5 how many holders and how many waiters to tell of, at most
-- Returns: seen {kind, fence, waiters, holders told of, for each its time left, 1 if it cools, its permits, and as text
--   'kind capacity fence ticket granted-at manager ttl fixed hold permits label'; then the waiters' records in order} · absent
--   · kind {kind}
local kind, state, queue = unpack(redis.call('HMGET', KEYS[1], 'k', 'p', 'n'))
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
--include permit_record.lua
local all, told, seen = redis.call('HGETALL', holders), 0, { 'seen', now, 0, kind, f or 0, r, 0 }
for i = 1, #all, 2 do
  local e, _, _, weight, stands, _, text = struct.unpack(HOLDER, all[i + 1])
  if (stands < 2 or stands == 2 and e > now) and told < ARGV[5] + 0 then
    local its = string.sub(all[i + 1], text)
    seen[4] = seen[4] or string.match(its, '^%S+ %d+')
    told = told + 1
    seen[#seen + 1] = math.max(0, e - now)
    seen[#seen + 1] = stands == 2 and 1 or 0
    seen[#seen + 1] = weight
    seen[#seen + 1] = its
  end
end
if told == 0 and r == 0 then return { 'absent', now, 0 } end
seen[7] = told
local tokens = redis.call('LRANGE', list, 0, tonumber(ARGV[5]) - 1)
for i = 1, #tokens do
  local waiter = redis.call('HGET', key, 'w:' .. tokens[i])
  if waiter then seen[#seen + 1] = waiter end
end
return seen
