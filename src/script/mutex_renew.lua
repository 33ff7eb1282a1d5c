-- Purpose: extends the lease of the recorded owner; never shortens one, never creates one. A lapsed
--   lease that nobody has cleared is extended as well (R9).
-- KEYS: 1 the record (always alone, so that a slot in migration never answers TRYAGAIN)
-- ARGV: 1-4 as in mutex_promote.lua · 5 token
-- Returns: renewed {left, fence} · gone {stored fence, fence of the last grant that was not released, how}
--   · kind {kind}
local state, queue, owner = unpack(redis.call('HMGET', KEYS[1], 's', 'q', 'o'))
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
--include mutex_promote.lua
if rec.owner ~= ARGV[5] then return answer('gone', { rec.f or 0, rec.x, rec.y }) end
rec.e, rec.state_changed = math.max(rec.e, now + 1000 * rec.ttl), true
if rec.n > 0 then rec.queue_changed = true end
write(true)
return answer('renewed', { left(), rec.f })
