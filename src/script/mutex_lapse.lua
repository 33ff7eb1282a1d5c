-- Purpose: the part that notices that the owner's lease is over. R9 (own lapse): only a token other
--   than the recorded one sees that.
-- Expects: mutex_record.lua before it · token: the caller's own
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing
if owner and owner ~= token and lease_end <= now then
  local holder_manager, fixed, spare = string.match(redis.call('HGET', record_key, 'a') or '',
                                                    '^%d+ %d+ (%S+) %d+ (%d) %d+ ?(%d*)')
  local holder_died = fixed == '0' and holder_manager ~= manager
  -- If no script served this queue for a while, the server may have been away, and the holder may
  -- be alive. If its process waits here too, the lease gets one step of grace, once in its life
  -- (field 'u'). In that step the process can renew or release. Without the grace an outage would
  -- cost a live process its places (P3), by R10.
  if holder_died and outage_possible and entries > 0
    and redis.call('HEXISTS', record_key, 'm:' .. holder_manager) == 1
    and redis.call('HGET', record_key, 'u') ~= string.format('%.0f', fence) then
    lease_end = now + ARGV[2]
    fields_to_set[#fields_to_set + 1] = 'u'
    fields_to_set[#fields_to_set + 1] = string.format('%.0f', fence)
    state_changed, queue_changed = true, true
  else
    local how, last_ended = 1, fence
    --include mutex_spare.lua
    --include mutex_ended.lua
    owner, lease_end, owner_changed = nil, 0, true
    -- R10 (places of the dead): a renewed lease lapses only if its process died. The lock must not
    -- go next to waiters that died with it.
    if holder_died then
      skip[holder_manager] = true
      fields_to_delete[#fields_to_delete + 1] = 'm:' .. holder_manager
    end
  end
end
