-- Purpose: extends the lease of a holder; never shortens one, never creates one. A lapsed lease that nobody has cleared is
--   extended as well (R9).
-- KEYS: 1 the holders · 2 the record; absent in the single-key form (R11)
-- ARGV: 1-4 as in permit_record.lua · 5 token
-- Returns: renewed {left, fence} · gone {its fence, the same, how} of one that lapsed or was released by force
--   · gone {0, 0, -1}
local HOLDER = '<dI4I4I4bb'
local had = redis.call('HGET', KEYS[1], ARGV[5])
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
if not had then return { 'gone', now, 0, 0, 0, -1 } end
local e, ttl, hold, weight, stands, how, text = struct.unpack(HOLDER, had)
local fence = string.match(had, '^%S+ %d+ (%d+)', text) + 0
if stands > 2 then return { 'gone', now, 0, fence, fence, stands - 2 } end
-- R15: an end further off than any lease reaches means that the server's clock went back. If this one comes nearer, the
-- next request must look at all of them, or this could lapse unseen.
local full = now + 1000 * math.max(ttl, hold)
local state = e > full and KEYS[2] and redis.call('HGET', KEYS[2], 'p')
e = math.max(math.min(e, full), now + 1000 * ttl)
-- The key is to last an hour longer than anything in it: never less than somebody else has set.
local lasts = math.max((math.ceil(e / 1000000) + 3660) * 1000, math.floor(now / 1000) + redis.call('PTTL', KEYS[1]))
-- The record is to outlive its holders: without it the name could be taken as another kind.
local kept = KEYS[2] and redis.call('PTTL', KEYS[2]) or -2
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', lasts))
if kept >= -1 then
  redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', math.max(lasts, math.floor(now / 1000) + kept)))
end
if state then
  redis.call('HSET', KEYS[2], 'p', string.sub(state, 1, 8) .. struct.pack('<d', now) .. string.sub(state, 17))
end
redis.call('HSET', KEYS[1], ARGV[5], struct.pack(HOLDER, e, ttl, hold, weight, stands, how) .. string.sub(had, text))
return { 'renewed', now, 0, e - now, fence }
