-- Purpose: the part that deletes fields of the record, and entries of the list.
-- Expects: mutex_record.lua before it · stamp_refreshed: whether this call writes the caller's
--   stamp
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing
if owner_changed and not owner then fields_to_delete[#fields_to_delete + 1] = 'o' end
-- Every manager whose waiters were forgotten must find out. So the caller's row of stamps ends too,
-- unless this call begins a new one.
if queue_forgotten and not stamp_refreshed then
  fields_to_delete[#fields_to_delete + 1] = 'm:' .. manager
end
-- unpack() has a limit, so long lists of arguments go in pieces.
for i = 1, #fields_to_delete, 1000 do
  redis.call('HDEL', record_key, unpack(fields_to_delete, i, math.min(i + 999, #fields_to_delete)))
end
if rewritten_queue then
  redis.call('DEL', queue_key)
  for i = 1, #rewritten_queue, 1000 do
    redis.call('RPUSH', queue_key, unpack(rewritten_queue, i, math.min(i + 999, #rewritten_queue)))
  end
else
  if heads_popped > 0 then redis.call('LPOP', queue_key, heads_popped) end
  if tails_popped > 0 then redis.call('RPOP', queue_key, tails_popped) end
end
