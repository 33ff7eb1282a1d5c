-- Purpose: extends the lease of a holder. It never shortens a lease and never creates one. R9 (own
--   lapse): a lapsed lease that no other token has seen is extended as well.
-- KEYS: 1 the holders · 2 the record; absent in the single-key form of R11 (missing keys)
-- ARGV: 1-4 as in permit_record.lua · 5 token · 6 not_after: the server time in µs after which the
--   script extends nothing
-- Returns: renewed {left, fence} · gone {its fence, the same, how} of a holder that lapsed or was
--   released by force · gone {0, 0, -1} · late
local HOLDER = '<dI4I4I4bb'
local packed_holder = redis.call('HGET', KEYS[1], ARGV[5])
--include record_clock.lua
if not packed_holder then return { 'gone', now, 0, 0, 0, -1 } end
local lease_end, ttl, hold, weight, phase, holder_previous, text_start =
  struct.unpack(HOLDER, packed_holder)
local holder_fence = string.match(packed_holder, '^%S+ %d+ (%d+)', text_start) + 0
if phase > 2 then return { 'gone', now, 0, holder_fence, holder_fence, phase - 2 } end
-- R5 (dated requests): as in mutex_renew.lua.
if now > ARGV[6] + 0 then return { 'late', now, 0 } end
-- R15 (clock went back): no lease reaches further than latest_end. If this one does, it is cut.
-- Then the next request must look at all holders, or this lease could lapse unseen.
local latest_end = now + 1000 * math.max(ttl, hold)
local packed_state = lease_end > latest_end and redis.call('HGET', KEYS[1], 'p')
lease_end = math.max(math.min(lease_end, latest_end), now + 1000 * ttl)
-- The key must last an hour longer than everything in it, so never less than another renewal has
-- set.
local keep_until_ms = math.max((math.ceil(lease_end / 1000000) + 3660) * 1000,
                               math.floor(now / 1000) + redis.call('PTTL', KEYS[1]))
-- The record must outlive its holders: without it the name could be taken as another kind.
local record_ttl = KEYS[2] and redis.call('PTTL', KEYS[2]) or -2
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', keep_until_ms))
if record_ttl >= -1 then
  redis.call('PEXPIREAT', KEYS[2],
             string.format('%.0f', math.max(keep_until_ms, math.floor(now / 1000) + record_ttl)))
end
local holder = struct.pack(HOLDER, lease_end, ttl, hold, weight, phase, holder_previous)
               .. string.sub(packed_holder, text_start)
if packed_state then
  -- now as next_lapse
  local state = string.sub(packed_state, 1, 8) .. struct.pack('<d', now)
                .. string.sub(packed_state, 17)
  redis.call('HSET', KEYS[1], ARGV[5], holder, 'p', state)
else
  redis.call('HSET', KEYS[1], ARGV[5], holder)
end
return { 'renewed', now, 0, lease_end - now, holder_fence }
