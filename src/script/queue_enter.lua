-- Purpose: the part that queues the caller's token, unless it is queued already.
-- Expects: the record part before it · token, manager, params: who waits, and for what · waiter:
--   the token's record, if there is one · now_text
-- KEYS: as in the record part
-- ARGV: as in the record part
-- Returns: nothing; ticket
local ticket
if waiter and not queue_forgotten then
  ticket = tonumber(string.match(waiter, '^%d+'))
else
  -- If this call forgot the queue, the token's old record goes, and the one written here must stay,
  -- although deletions come last.
  for i = #fields_to_delete, 1, -1 do
    if fields_to_delete[i] == 'w:' .. token then table.remove(fields_to_delete, i) end
  end
  -- If the record says that the queue is empty, entries in the list belong to a record that was
  -- lost. They go.
  if entries == 0 then
    heads_popped, served_ticket, queue_expires_at = redis.call('LLEN', queue_key), last_ticket, 0
  end
  last_ticket = last_ticket + 1
  ticket = last_ticket
  entries, waiter_records, appended_token = entries + 1, waiter_records + 1, token
  fields_to_set[#fields_to_set + 1] = 'w:' .. token
  fields_to_set[#fields_to_set + 1] = ticket .. ' ' .. now_text .. ' ' .. manager .. ' ' .. params
end
