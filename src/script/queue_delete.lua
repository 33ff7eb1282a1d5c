-- Purpose: the part that deletes fields of the record, and entries of the list. unpack() has a
--   limit, so long lists of arguments go in pieces.
-- Expects: the record part before it
-- KEYS: as in the record part
-- ARGV: as in the record part
-- Returns: nothing
for i = 1, #fields_to_delete, 1000 do
  redis.call('HDEL', record_key, unpack(fields_to_delete, i, math.min(i + 999, #fields_to_delete)))
end
if rewritten_queue then
  -- The new entries come before the old ones go. A list that is empty has no key, and in a slot in
  -- migration a script cannot make that key again.
  for i = 1, #rewritten_queue, 1000 do
    redis.call('RPUSH', queue_key, unpack(rewritten_queue, i, math.min(i + 999, #rewritten_queue)))
  end
  redis.call('LPOP', queue_key, replaced_entries)
else
  if heads_popped > 0 then redis.call('LPOP', queue_key, heads_popped) end
  if tails_popped > 0 then redis.call('RPOP', queue_key, tails_popped) end
end
