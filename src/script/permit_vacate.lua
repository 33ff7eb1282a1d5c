-- Purpose: clears the record of permits that nobody holds or waits for, so that the name can become
--   a mutex. If there is something to do before, this does that: it ends leases that are over, and
--   serves live waiters. A second copy does no harm: it finds no permits, or does the same once
--   more. The entries of holders that lapsed stay, so that they learn how they ended. Or it deletes
--   all keys of the name, also of one that was a mutex and is vacated.
-- KEYS: 1 the record · 2 the queue · 3 the holders
-- ARGV: 1-4 as in permit_record.lua · 5 'delete' if the keys are to go
-- Returns: vacated · kind {kind}, if somebody uses the permits, or there is more to do before, or
--   the name is another kind by now · refused, if the keys must stay
local kind, packed_queue, past = unpack(redis.call('HMGET', KEYS[1], 'k', 'n', 'v'))
local packed_state = redis.call('HGET', KEYS[3], 'p')
--include record_clock.lua
--include record_now_text.lua
--include permit_record.lua
local deletes = ARGV[5] == 'delete'
-- P2 (rising fences): without the keys, the clock is the floor of the next fence.
local must_stay = deletes and fence >= now
-- R20 (write order): a queue of the wrong type must stop the script before it deletes anything.
if deletes then redis.call('LLEN', queue_key) end
if not kind then
  if must_stay then return { 'refused', now, 0 } end
  if deletes then redis.call('UNLINK', record_key, queue_key, holders_key) end
  return { 'vacated', now, 0 }
end
-- A vacate belongs to no token.
local token, stamp_refreshed, forced_fence, page_from
--include permit_reclaim.lua
-- R3 (signs of life): the caller is alive, so its own waiters must not be passed over here.
live_manager = manager
--include permit_promote.lua
if look_cursor ~= '' then more = 1 end
local is_free = permits_taken == 0 and entries == 0 and more == 0
if is_free and not (state_changed or queue_changed) then
  if must_stay then return { 'refused', now, 0 } end
  if deletes then
    -- The holders' key may have many entries of leases that lapsed. UNLINK frees them in the
    -- background; with 100,000, DEL would stop the server for 30 ms.
    redis.call('UNLINK', record_key, queue_key, holders_key)
    return { 'vacated', now, 0 }
  end
  -- How the last mutex of this name ended stays known to its holder.
  local ended_fence, ended_how = fence, -1
  if past then
    local _, _, _, past_fence, _, _, _, _, past_how = struct.unpack('<ddddI4I4I4bb', past)
    ended_fence, ended_how = past_fence, past_how
  end
  local vacated = struct.pack('<ddddI4I4I4bb', 0, now, fence, ended_fence, 0, 0, 0, previous,
                              ended_how)
  --include record_vacate.lua
  redis.call('HDEL', holders_key, 'p')
  return { 'vacated', now, 0 }
end
-- The next call finds the permits at rest.
if is_free then more = 1 end
local delete_first = true
--include permit_write.lua
return { 'kind', now, more + 2 * dead_waiters, kind, unpack(grants) }
