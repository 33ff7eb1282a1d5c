-- Purpose: ends a token's lease on this node. It keeps the node's fence, and how a guard ended.
-- KEYS: 1 the record
-- ARGV: 1-4 as in quorum_record.lua · 5 token · 6 fence · 7 mode: used (it was a guard) | unused
--   (nobody had it) | lost (a guard lost it) | forced (by fence alone) · 8 forced: not_after, the
--   server time in µs after which the script does nothing
-- Returns: released · late (forced) · refused (forced; already if this very request came before) · already | lapsed
--   | forced | lost | unknown (the token does not have the lease; the fences say what became of
--   that) · kind {kind}
local token, callers_fence, mode = ARGV[5], ARGV[6] + 0, ARGV[7]
local kind, packed_grant, owner, forced_by =
  unpack(redis.call('HMGET', KEYS[1], 'k', 'g', 'o', 'i'))
--include record_clock.lua
--include quorum_record.lua

local fields_to_set = {}
if mode == 'forced' then
  -- R5 (dated requests): as in mutex_release.lua.
  if now > ARGV[8] + 0 then return { 'late', now, 0 } end
  if fence ~= callers_fence or not owner and lease_end <= now then
    return { forced_by == token and 'already' or 'refused', now, 0 }
  end
  fields_to_set[1], fields_to_set[2] = 'i', token
  if owner then ended_fence, ended_how = fence, 2 end
  lease_end = 0
elseif owner == token then
  -- R9 (own lapse): the recorded owner clears its own lease, lapsed or not.
  -- R15 (clock went back): granted_at may be in the future.
  local cool_until = math.min(granted_at, now) + 1000 * hold
  lease_end = 0
  -- R16 (hold_at_least): nobody owns the lock, but it counts as held until its least time is over.
  if mode ~= 'unused' and hold > 0 and cool_until > now then lease_end = cool_until end
  -- An attempt that nobody used says nothing about the guard before it.
  if mode == 'used' then ended_fence, ended_how = fence, 0 end
  if mode == 'lost' then ended_fence, ended_how = fence, 1 end
elseif fence < callers_fence then
  return { 'lost', now, 0 }
elseif callers_fence == 0 or ended_fence ~= callers_fence then
  return { fence == callers_fence and 'already' or 'unknown', now, 0 }
else
  local status = 'already'
  if ended_how == 1 then status = 'lapsed' elseif ended_how == 2 then status = 'forced' end
  return { status, now, 0 }
end
-- R20 (write order): a deletion comes first, so that Redis lets the script finish when memory is out.
redis.call('HDEL', record_key, 'o')
--include quorum_write.lua
return { 'released', now, 0 }
