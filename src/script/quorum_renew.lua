-- Purpose: extends the lease of a token on this node. If the node has forgotten the grant, and has
--   granted nobody a larger fence since, this takes the name again under the same fence. It never
--   shortens a lease.
-- KEYS: 1 the record
-- ARGV: 1-4 as in quorum_record.lua · 5 token · 6 not_after: the server time in µs after which the
--   script does nothing · 7 the token's fence · 8 'ttl fixed hold label', ttl and hold in ms
-- Returns: renewed {left, fence} · busy {left, fence} (another token has it under a smaller fence:
--   ask again) · gone {stored fence, ended fence, how that guard ended} · late · kind {kind}
local token, not_after, callers_fence, params = ARGV[5], ARGV[6] + 0, ARGV[7] + 0, ARGV[8]
local kind, packed_grant, owner = unpack(redis.call('HMGET', KEYS[1], 'k', 'g', 'o'))
--include record_clock.lua
--include record_now_text.lua
--include quorum_record.lua

-- R5 (dated requests): a late copy must not take the name again after its release.
if now > not_after then return { 'late', now, 0 } end
if owner == token and fence == callers_fence then
  -- R9 (own lapse): a lapsed lease that no other token has seen is extended as well.
  lease_end = math.max(lease_end, now + 1000 * ttl)
  local fields_to_set = {}
  --include quorum_write.lua
elseif callers_fence <= fence then
  return { 'gone', now, 0, fence, ended_fence, ended_how }
elseif owner ~= token and lease_end > now then
  return { 'busy', now, 0, lease_end - now, fence }
else
  --include quorum_grant.lua
end
return { 'renewed', now, 0, math.max(0, lease_end - now), fence }
