-- Purpose: the part that shows who waits, in order.
-- Expects: the record part before it · seen: the reply
-- KEYS: as in the record part
-- ARGV: as in the record part · 5 how many waiters to show, at most
-- Returns: nothing; appends the waiters' records to seen
local tokens = redis.call('LRANGE', queue_key, 0, tonumber(ARGV[5]) - 1)
for i = 1, #tokens do
  local waiter = redis.call('HGET', record_key, 'w:' .. tokens[i])
  if waiter then seen[#seen + 1] = waiter end
end
