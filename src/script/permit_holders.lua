-- Purpose: the part that writes the holders. Deletions come before additions: a token may take
--   permits again after it lapsed. unpack() has a limit, so long lists of arguments go in pieces.
-- Expects: permit_record.lua before it
-- KEYS: as in permit_record.lua
-- ARGV: as in permit_record.lua
-- Returns: nothing
for i = 1, #holders_to_delete, 1000 do
  redis.call('HDEL', holders_key,
             unpack(holders_to_delete, i, math.min(i + 999, #holders_to_delete)))
end
for i = 1, #holders_to_set, 1000 do
  redis.call('HSET', holders_key, unpack(holders_to_set, i, math.min(i + 999, #holders_to_set)))
end
