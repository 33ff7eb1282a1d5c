-- Purpose: the part that shows who waits, in order.
-- Expects: the record part before it · seen: the reply
-- KEYS: as in the record part
-- ARGV: as in the record part · 5 how many waiters to show, at most
-- Returns: nothing; appends to seen, for each waiter, its record, and for how long nobody has heard
--   of its process, in µs, or -1
local unheard_for = {}
local tokens = redis.call('LRANGE', queue_key, 0, tonumber(ARGV[5]) - 1)
for i = 1, #tokens do
  local waiter = redis.call('HGET', record_key, 'w:' .. tokens[i])
  if waiter then
    local waiter_manager = string.match(waiter, '^%d+ %d+ (%S+)') or ''
    if not unheard_for[waiter_manager] then
      local stamp = redis.call('HGET', record_key, 'm:' .. waiter_manager)
      unheard_for[waiter_manager] = stamp
        and math.max(0, now - struct.unpack('<d', string.sub(stamp, 17))) or -1
    end
    seen[#seen + 1] = waiter
    seen[#seen + 1] = unheard_for[waiter_manager]
  end
end
