-- Purpose: ends a token's lease, or its place in the queue, and hands the lock over in the same
--   step.
-- KEYS: 1 the record · 2 the queue; absent in the single-key form of R11 (missing keys)
-- ARGV: 1-4 as in mutex_record.lua · 5 token · 6 fence · 7 mode: used (it was a guard) | unused
--   (nobody had it) | lost (a guard lost it) | keep_if_owner (leave the queue, but keep a grant
--   that came first) | forced (by fence alone) · 8 used, lost: the last fence of this grant that a guard
--   had or may have, if that is not the first; forced: not_after, the server time in µs after which
--   the script does nothing
-- Returns: 'released' alone, from the short way · released · late (forced) · granted {fence, granted at,
--   left, previous, how many wait} (keep_if_owner) · refused (forced; already if this very request came
--   before, or if this fence was released by force) · already | lapsed | forced | lost | unknown (it does
--   not have this fence's lease; the fences say what became of that) · kind {kind}

local token, callers_fence, mode = ARGV[5], ARGV[6] + 0, ARGV[7]
local packed_state, packed_queue, owner = unpack(redis.call('HMGET', KEYS[1], 's', 'q', 'o'))

-- The short way. Most locks are released by their owner while nobody waits. This has the same
-- effect as the parts below, without the queue and the clock. The state stays as it is: all who
-- read a record without an owner and without a hold take its lease as released.
if owner == token and mode == 'used' and not ARGV[8] and packed_state
  and (not packed_queue or struct.unpack('<I4', packed_queue) == 0) then
  local _, _, fence, _, _, _, hold = struct.unpack('<ddddI4I4I4', packed_state)
  if hold == 0 and fence == callers_fence then
    redis.call('HDEL', KEYS[1], 'o')
    return 'released'
  end
end

--include record_clock.lua
local goes_on, looks_back = true, mode ~= 'forced'
--include mutex_record.lua
-- R5 (dated requests): the caller has given up, so a late copy must not take the lock from anybody.
if mode == 'forced' and now > ARGV[8] + 0 then return { 'late', now, 0 } end
-- R11 (missing keys): the record alone is enough to end a lease or a place. Then nobody is served
-- here: the next check of a waiter does that, once the keys are together again.

-- A late copy of the acquire (R7), or an older copy of the data, can grant another lease to the
-- token. Then the caller's own lease is over, and nobody wants this one (R13, unwanted grants).
local is_stray = owner == token and callers_fence > 0 and callers_fence ~= fence
-- how: if the lease of the owner ends without a release, 1 for a loss, 2 for force.
local status, waiter, how
-- Only such an end needs the owner's spare: see mutex_ended.lua.
local spare
if owner and (mode == 'lost' or mode == 'forced') then
  local request = redis.call('HGET', record_key, 'a') or ''
  spare = string.match(request, '^%d+ %d+ %S+ %d+ %d %d+ (%d+)')
  --include mutex_spare.lua
end
local last_ended = fence
if mode == 'forced' then
  -- The caller may name the fence of any guard of the grant. A cooling has one fence.
  local is_owners = owner and fence <= callers_fence and callers_fence <= fence + spare
  if is_owners or fence == callers_fence and lease_end > now then
    if owner then how, last_ended = 2, callers_fence end
    owner, lease_end, owner_changed = nil, 0, true
    status = 'released'
    fields_to_set[#fields_to_set + 1] = 'i'
    fields_to_set[#fields_to_set + 1] = token
  elseif redis.call('HGET', record_key, 'i') == token then
    -- The request was sent twice.
    status = 'already'
  else
    --include mutex_end_of.lua
    status = status == 'forced' and 'already' or 'refused'
  end
elseif owner == token and mode == 'keep_if_owner' then
  return { 'granted', now, 0, fence, granted_at, math.max(0, lease_end - now), previous,
           waiter_records }
elseif owner == token and not is_stray then
  -- R9 (own lapse): the recorded owner clears its own lease, lapsed or not.
  status = 'released'
  -- R15 (clock went back): granted_at may be in the future.
  local cool_until = hold > 0 and math.min(granted_at, now) + 1000 * hold or 0
  -- P2 (rising fences): fences that no guard had may be granted again.
  if mode == 'used' then previous, fence = 0, (ARGV[8] or fence) + 0 end
  if mode == 'lost' then
    how = 1
    -- The client knows how many its guards had. Otherwise many such ends in a row would carry the
    -- fence away from the clock.
    if ARGV[8] then spare = ARGV[8] - fence end
  end
  owner, lease_end, owner_changed = nil, 0, true
  -- R16 (hold_at_least): nobody owns the lock, but it counts as held until its least time is over.
  if (mode == 'used' or mode == 'lost') and cool_until > now then lease_end = cool_until end
  if mode == 'unused' then
    --include mutex_give_back.lua
  end
else
  --include queue_remove.lua
  --include mutex_end_of.lua
  if is_stray then
    owner, lease_end, owner_changed = nil, 0, true
    -- No record of that end is left, and the guard left its work half done.
    if mode == 'lost' and (status == 'already' or status == 'lost') then previous = 1 end
  end
  --include mutex_lapse.lua
end
if how then
  --include mutex_ended.lua
end
--include mutex_promote.lua
--include mutex_grant.lua

--include queue_leave.lua
local stamp_refreshed = false
--include mutex_delete.lua
-- R20 (write order): a deletion that came first has made the script one that may finish.
local expire_first = #fields_to_delete == 0 and heads_popped == 0 and tails_popped == 0
--include mutex_write.lua
if message then redis.pcall('PUBLISH', ARGV[4] .. new_manager, message) end
return { status, now, more + 2 * dead_waiters, unpack(grants) }
