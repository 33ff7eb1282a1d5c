-- Purpose: grants the name to one token on this node, under the fence that the client proposes. A
--   repeated request gets the same answer, so it may be sent twice (P7). A refusal changes nothing:
--   only a grant changes the fence of a node.
-- KEYS: 1 the record
-- ARGV: 1-4 as in quorum_record.lua · 5 token · 6 not_after: the server time in µs after which the
--   script takes nothing · 7 the proposed fence · 8 'ttl fixed hold label', ttl and hold in ms
-- Returns: granted {fence, granted at, left, ended fence, how that guard ended} · busy {left, fence}
--   (another token has it, or it cools) · outbid {fence} (it is free, and the proposed fence is not
--   above this one) · late · kind {kind}
local token, not_after, callers_fence, params = ARGV[5], ARGV[6] + 0, ARGV[7] + 0, ARGV[8]
local kind, packed_grant, owner = unpack(redis.call('HMGET', KEYS[1], 'k', 'g', 'o'))
--include record_clock.lua
--include record_now_text.lua
--include quorum_record.lua

-- R5 (dated requests): the caller has given up by now, and would not release what this took.
if now > not_after then return { 'late', now, 0 } end
if owner ~= token and lease_end > now then return { 'busy', now, 0, lease_end - now, fence } end
-- P2 (rising fences): a node grants only above all that it has granted.
if owner ~= token and callers_fence <= fence then return { 'outbid', now, 0, fence } end
-- The same token may raise its fence: other nodes refused the one before.
if owner ~= token or callers_fence > fence then
  --include quorum_grant.lua
end
return { 'granted', now, 0, fence, granted_at, math.max(0, lease_end - now), ended_fence, ended_how }
