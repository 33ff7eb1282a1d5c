-- Purpose: extends the lease of the recorded owner; never shortens one, never creates one. A lapsed
--   lease that nobody has cleared is extended as well (R9).
-- KEYS: 1 the record (always alone, so that a slot in migration never answers TRYAGAIN)
-- ARGV: 1-4 as in mutex_record.lua · 5 token
-- Returns: renewed {left, fence} · gone {stored fence, fence of the last grant that was not released, how}
--   · kind {kind}
local state, queue, owner = unpack(redis.call('HMGET', KEYS[1], 's', 'q', 'o'))
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
--include mutex_record.lua
if owner ~= ARGV[5] then return { 'gone', now, 0, f or 0, x, y } end
e, state_changed = math.max(e, now + 1000 * ttl), true
if n > 0 then queue_changed = true end
local expire_first = true
--include mutex_write.lua
return { 'renewed', now, 0, math.max(0, e - now), f }
