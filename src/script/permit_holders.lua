-- Purpose: the part that writes the holders, and the state beside them. Deletions come before
--   additions: a token may take permits again after it lapsed. unpack() has a limit, so long lists
--   of arguments go in pieces.
-- Expects: permit_record.lua before it · delete_first, write_holders: as in permit_write.lua
-- KEYS: as in permit_record.lua
-- ARGV: as in permit_record.lua
-- Returns: nothing
if write_holders and #holders_to_delete > 0 then
  -- R20 (write order): a deletion must not be the first write of an acquire.
  if not delete_first then
    redis.call('HSET', holders_key, holders_to_set[1], holders_to_set[2])
  end
  for i = 1, #holders_to_delete, 1000 do
    redis.call('HDEL', holders_key,
               unpack(holders_to_delete, i, math.min(i + 999, #holders_to_delete)))
  end
end
for i = 1, write_holders and #holders_to_set or 0, 1000 do
  redis.call('HSET', holders_key, unpack(holders_to_set, i, math.min(i + 999, #holders_to_set)))
end
