-- Purpose: shows who holds a name on this node, and whether it cools. Writes nothing.
-- KEYS: 1 the record
-- ARGV: 1-4 as in quorum_record.lua · 5 ignored
-- Returns: seen {owner or '', fence, granted at, left (below 0: the lease is over since then), how
--   the last guard ended, request, label, 0 waiters, fence of that guard} · absent · kind {kind}
local kind, packed_grant, owner, stored_request, stored_label =
  unpack(redis.call('HMGET', KEYS[1], 'k', 'g', 'o', 'a', 'l'))
--include record_clock.lua
--include quorum_record.lua
if not owner and lease_end <= now then return { 'absent', now, 0 } end
return { 'seen', now, 0, owner or '', fence, granted_at, lease_end - now, ended_how,
         stored_request or '', stored_label or '', 0, ended_fence }
