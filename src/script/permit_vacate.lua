-- Purpose: clears the record of permits that nobody holds or waits for, so that the name can become
--   a mutex. If there is something to do before, this does that: it ends leases that are over, and
--   serves live waiters. A second copy does no harm: it finds no permits, or does the same once
--   more. The entries of holders that lapsed stay, so that they learn how they ended.
-- KEYS: 1 the record · 2 the queue · 3 the holders
-- ARGV: 1-4 as in permit_record.lua
-- Returns: vacated · kind {kind}, if somebody uses the permits, or there is more to do before, or
--   the name is another kind by now
local kind, packed_queue, past = unpack(redis.call('HMGET', KEYS[1], 'k', 'n', 'v'))
local packed_state = redis.call('HGET', KEYS[3], 'p')
--include record_clock.lua
--include permit_record.lua
if not kind then return { 'vacated', now, 0 } end
-- A vacate belongs to no token.
local token, stamp_refreshed, forced_fence, page_from
--include permit_reclaim.lua
-- R3 (signs of life): the caller is alive, so its own waiters must not be passed over here.
live_manager = manager
--include permit_promote.lua
if look_cursor ~= '' then more = 1 end
local is_free = permits_taken == 0 and entries == 0 and more == 0
if is_free and not (state_changed or queue_changed) then
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
return { 'kind', now, more, kind, unpack(grants) }
