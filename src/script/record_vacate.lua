-- Purpose: the part that clears the record of a name that nobody uses, so that the name can become
--   another kind of lock. The key stays, with its expiry, and so does the floor of the fences.
-- Expects: the record part before it · vacated: the state that stays, packed like the field 's'
-- KEYS: as in the record part
-- ARGV: as in the record part
-- Returns: nothing
-- R20 (write order): a queue of the wrong type must stop the script before it writes anything.
redis.call('LLEN', queue_key)
-- R20 (write order): all fields are listed before the first write, which Redis refuses when memory
-- is out.
for _, field in ipairs(redis.call('HKEYS', record_key)) do
  if field ~= 'v' then fields_to_delete[#fields_to_delete + 1] = field end
end
redis.call('HSET', record_key, 'v', vacated)
for i = 1, #fields_to_delete, 1000 do
  redis.call('HDEL', record_key, unpack(fields_to_delete, i, math.min(i + 999, #fields_to_delete)))
end
redis.call('UNLINK', queue_key)
