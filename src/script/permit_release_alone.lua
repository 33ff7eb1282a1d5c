-- Purpose: the part for a release with the holders' key alone. R11 (missing keys): in a slot in
--   migration the other keys may be on another node. The permits are free or cool at once. Nobody is
--   served here: the next check of a waiter does that, once the keys are together again.
-- Expects: token, callers_fence, mode: as in permit_release.lua
-- KEYS: 1 the holders; with more keys this part does nothing
-- ARGV: as in permit_release.lua
-- Returns: nothing, unless the holders' key is the only one
if not KEYS[2] then
  local HOLDER, packed_state, packed_holder =
    '<dI4I4I4bb', unpack(redis.call('HMGET', KEYS[1], 'p', token))
  --include record_clock.lua
  --include permit_holder.lua
  -- Only the lease that the caller knows ends so.
  local is_known = grant and packed_state and (callers_fence == 0 or callers_fence == own_fence)
  if is_known and mode == 'keep_if_owner' then return { 'granted', now, 0, unpack(grant) } end
  if not is_known then return { 'queued', now, 0 } end
  local fence, next_lapse, shortest_lease, longest_lease, look_pause, expires_at, holders_expire_at,
    capacity, permits_taken, previous, look_outage, cursor_start =
    struct.unpack('<ddI4I4I4I4I4I4I4bb', packed_state)
  local look_cursor = string.sub(packed_state, cursor_start)
  local kept_field, kept = nil, 0
  -- A reader leaves nothing half done, so its end does not change previous.
  local is_rw = string.sub(packed_holder, text_start, text_start + 2) == 'rw/'
  if weight == capacity or not is_rw then
    if mode == 'used' or mode == 'reduce' and is_rw then previous = 0 end
    if mode == 'lost' then previous = 1 end
  end
  local cool_until = hold > 0 and math.min(grant[2], now) + 1000 * hold or 0
  if mode == 'reduce' then
    kept = math.min(weight, ARGV[8] + 0)
    if kept > 0 then kept_field = token end
  elseif mode ~= 'unused' and cool_until > now then
    local holders_key, seen = KEYS[1], {}
    kept = weight
    --include permit_cool.lua
  end
  permits_taken = math.max(0, permits_taken - weight + kept)
  if permits_taken == 0 then
    next_lapse, longest_lease, look_pause, look_outage, look_cursor = 0, 0, 0, 0, ''
  end
  local state = struct.pack('<ddI4I4I4I4I4I4I4bb', fence, next_lapse, shortest_lease, longest_lease,
                            look_pause, expires_at, holders_expire_at, capacity, permits_taken,
                            previous, look_outage) .. look_cursor
  -- R20 (write order): a deletion or PEXPIREAT comes first, so that Redis lets the script finish when
  -- memory is out.
  if kept_field ~= token then redis.call('HDEL', KEYS[1], token) end
  if kept == 0 then
    redis.call('HSET', KEYS[1], 'p', state)
  else
    redis.call('PEXPIREAT', KEYS[1], string.format('%.0f000', holders_expire_at))
    redis.call('HSET', KEYS[1], 'p', state, kept_field,
               struct.pack(HOLDER, lease_end, ttl, hold, kept, phase, holder_previous)
               .. string.sub(packed_holder, text_start))
  end
  return { 'released', now, 0 }
end
