-- Purpose: ends a token's lease, or its place in the queue, and hands the permits over in the same
--   step.
-- KEYS: 1 the record · 2 the queue · 3 the holders
-- ARGV: 1-4 as in permit_record.lua · 5 token · 6 fence · 7 mode: used (it was a guard) | unused
--   (nobody had it) | lost (a guard lost it) | keep_if_owner (leave the queue, but keep a grant
--   that came first) | downgrade (keep one permit) | forced (all holders with this fence)
-- Returns: released · granted {fence, granted at, left, previous} (keep_if_owner) · refused
--   (forced; already if this very request came before) · already | lapsed | forced | lost (it holds
--   nothing) · kind {kind}

local token, callers_fence, mode = ARGV[5], ARGV[6] + 0, ARGV[7]
local kind, packed_state, packed_queue = unpack(redis.call('HMGET', KEYS[1], 'k', 'p', 'n'))
local packed_holder = redis.call('HGET', KEYS[3], token)
--include record_clock.lua
--include permit_record.lua
local lease_end, ttl, hold, weight, phase, holder_previous, text_start
if packed_holder then
  lease_end, ttl, hold, weight, phase, holder_previous, text_start =
    struct.unpack(HOLDER, packed_holder)
  if phase < 2 and mode == 'keep_if_owner' then
    local holder_fence, granted_at =
      string.match(packed_holder, '^%S+ %d+ (%d+) %d+ (%d+)', text_start)
    -- R15 (clock went back): no more is left than the full lease.
    local left = math.min(lease_end - now, 1000 * math.max(ttl, hold))
    return { 'granted', now, 0, holder_fence + 0, granted_at + 0, math.max(0, left),
             holder_previous }
  end
end
-- Readers that come next have the same fence. If the request is sent twice, the second copy must
-- not release them.
if mode == 'forced' and redis.call('HGET', record_key, 'x') ~= token then
  forced_fence = callers_fence
end
--include permit_reclaim.lua

local waiter
if mode == 'forced' then
  status = not forced_fence and 'already' or status or 'refused'
  if status == 'released' then
    fields_to_set[#fields_to_set + 1] = 'x'
    fields_to_set[#fields_to_set + 1] = token
  end
elseif packed_holder and phase < 2 then
  -- R9 (own lapse): a holder clears its own lease, lapsed or not.
  status, state_changed = 'released', true
  local granted_at = string.match(packed_holder, '^%S+ %d+ %d+ %d+ (%d+)', text_start) + 0
  -- R15 (clock went back): the end and the time of the grant may be too far in the future.
  lease_end = math.min(lease_end, now + 1000 * math.max(ttl, hold))
  local cool_until = hold > 0 and math.min(granted_at, now) + 1000 * hold or 0
  local must_cool = (mode == 'used' or mode == 'lost') and cool_until > now
  -- A reader leaves nothing half done, so its end does not change previous.
  if weight == capacity or string.sub(kind, 1, 3) ~= 'rw/' then
    if mode == 'used' or mode == 'downgrade' then previous = 0 end
    if mode == 'lost' then previous = 1 end
  end
  local kept_field = token
  if mode == 'downgrade' then
    permits_taken, weight = permits_taken - weight + 1, 1
  else
    holders_to_delete[#holders_to_delete + 1] = token
    if must_cool then
      -- R16 (hold_at_least): nobody owns the permits, but they count as taken until their least
      -- time is over. The entry gets another name, since a late copy of the acquire (R7) may take
      -- permits for the token again.
      kept_field, lease_end, phase = 'c:' .. token, cool_until, 2
      next_lapse = math.min(next_lapse, lease_end)
      local earlier = redis.call('HGET', holders_key, kept_field)
      local earlier_end, _, _, earlier_weight = struct.unpack(HOLDER, earlier or packed_holder)
      -- The late copy's permits were released as well, and cool together with these. They must not
      -- count twice.
      if earlier and earlier_end > now then permits_taken = permits_taken - earlier_weight end
    else
      kept_field, permits_taken = nil, permits_taken - weight
      if permits_taken == 0 then next_lapse, longest_lease, holders_expire_at = 0, 0, 0 end
    end
  end
  if kept_field then
    holders_to_set[#holders_to_set + 1] = kept_field
    holders_to_set[#holders_to_set + 1] =
      struct.pack(HOLDER, lease_end, ttl, hold, weight, phase, holder_previous)
      .. string.sub(packed_holder, text_start)
  end
else
  --include queue_remove.lua
  if packed_holder and phase > 2 then
    -- The entry stays for its time, so that the same request sent twice gets the same answer (P7).
    status = phase == 4 and 'forced' or 'lapsed'
  else
    status = (not fence or fence < callers_fence) and 'lost' or 'already'
  end
end
--include permit_promote.lua
--include queue_leave.lua
local stamp_refreshed, delete_first = false, true
--include permit_write.lua
return { status, now, more, unpack(grants) }
