-- Purpose: the part by which a try decides about waiters of which nobody has heard. R22 (tries among
--   the dead): their processes may have died, or the server may have been away. So the first acquire
--   of a try calls them, and answers silent. The try asks again one command timeout later. If none
--   of them came in between, all of the time counts as served in which nobody came, and not one step.
-- Expects: the record part before it · may_take: whether the try could take the lock but for the
--   waiters, or the leases that are over
-- KEYS: as in the record part
-- ARGV: as in the record part · 7 '0' if the token may not wait, '2' if its caller has called before
-- Returns: nothing, unless the try must call; all_counts: whether all of the time counts
local all_counts = false
if may_take and ARGV[7] ~= '1' and entries > 0 and unseen_for > ARGV[3] + 0 then
  if ARGV[7] == '0' then
    local called, channels = {}, {}
    for _, queued in ipairs(redis.call('LRANGE', queue_key, 0, 63)) do
      local waiter_manager =
        string.match(redis.call('HGET', record_key, 'w:' .. queued) or '', '^%d+ %d+ (%S+) ')
      if waiter_manager and not called[waiter_manager] then
        called[waiter_manager] = true
        channels[#channels + 1] = ARGV[4] .. waiter_manager
      end
    end
    for _, channel in ipairs(channels) do redis.pcall('PUBLISH', channel, 'call ' .. record_key) end
    return { 'silent', now, 0 }
  end
  served_time = served_time + unseen_for - ARGV[2]
  all_counts, outage_possible, queue_changed = true, false, true
end
