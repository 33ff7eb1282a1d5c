-- Purpose: extends the lease of the recorded owner. It never shortens a lease and never creates
--   one. R9 (own lapse): a lapsed lease that no other token has seen is extended as well.
-- KEYS: 1 the record, always alone, so that a slot in migration never answers TRYAGAIN
-- ARGV: 1-4 as in mutex_record.lua · 5 token · 6 not_after: the server time in µs after which the
--   script extends nothing
-- Returns: renewed {left, fence, how many wait} · gone {stored fence, fence of the last grant that ended
--   without a release, how that one ended} · late · kind {kind}
local packed_state, packed_queue, owner = unpack(redis.call('HMGET', KEYS[1], 's', 'q', 'o'))
--include record_clock.lua
local goes_on, looks_back = true, true
--include mutex_record.lua
if owner ~= ARGV[5] then return { 'gone', now, 0, fence or 0, ended_fence, ended_how } end
-- R5 (dated requests): its process may have given up the release by now. A late copy would revive the
-- lease for nobody.
if now > ARGV[6] + 0 then return { 'late', now, 0 } end
lease_end, state_changed = math.max(lease_end, now + 1000 * ttl), true
if entries > 0 then queue_changed = true end
local expire_first = true
--include mutex_write.lua
return { 'renewed', now, 0, math.max(0, lease_end - now), fence, waiter_records }
