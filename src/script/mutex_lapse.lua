-- Purpose: the part that sees that the owner's time is over. R9: only tokens other than the recorded one see that.
-- Expects: mutex_record.lua before it · token: the caller's own
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing
if owner and owner ~= token and e <= now then
  local holder, fixed = string.match(redis.call('HGET', key, 'a') or '', '^%d+ %d+ (%S+) %d+ (%d)')
  local died = fixed == '0' and holder ~= manager
  -- After a time in which nobody was served it may be the server that was away, and not the holder. If its
  -- process waits here too, a lease that lapsed so is given one step to be heard of, once in its life
  -- (u), so that nobody loses his place by an outage (P3).
  if died and unserved and n > 0 and redis.call('HEXISTS', key, 'm:' .. holder) == 1
    and redis.call('HGET', key, 'u') ~= string.format('%.0f', f) then
    e = now + ARGV[2]
    set[#set + 1] = 'u'
    set[#set + 1] = string.format('%.0f', f)
    state_changed, queue_changed = true, true
  else
    x, y, d, state_changed = f, 1, 1, true
    owner, e, owner_changed = nil, 0, true
    -- R10: a renewed lease that lapsed means a dead process, whose waiters must not be granted next.
    if died then
      dead[holder] = true
      del[#del + 1] = 'm:' .. holder
    end
  end
end
