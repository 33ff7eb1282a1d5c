-- Purpose: extends the lease of the recorded owner; never shortens one, never creates one. A lapsed
--   lease that nobody has cleared is extended as well (R9).
-- KEYS: 1 the record (always alone, so that a slot in migration never answers TRYAGAIN)
-- ARGV: 1-4 as in mutex_promote.lua · 5 token
-- Returns: renewed {left, fence} · gone {stored fence, fence of the last grant that was not released, how}
--   · kind {kind}
--include mutex_promote.lua
local token = ARGV[5]
read()
if foreign() then return foreign() end
if rec.owner ~= token then return answer('gone', { rec.f or 0, rec.x or 0, rec.y or -1 }) end
local p = parts(rec.request)
rec.e, end_changed = math.max(rec.e, now + p.ttl), true
if rec.n > 0 then queue_changed = true end
save_always()
return answer('renewed', { left(), rec.f })
