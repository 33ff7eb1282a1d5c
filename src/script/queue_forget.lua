-- Purpose: the part for a queue that lost entries (evicted, deleted). Nobody's place is known any
--   more, so all waiters and stamps go, and every process finds out by its next sync (R4, R11).
-- Expects: the record part before it
-- KEYS: as in the record part
-- ARGV: as in the record part
-- Returns: nothing
for _, field in ipairs(redis.call('HKEYS', record_key)) do
  if string.find(field, '^[wm]:') and field ~= 'm:' .. manager then
    fields_to_delete[#fields_to_delete + 1] = field
  end
end
entries, waiter_records, served_ticket, queue_expires_at, heads_popped = 0, 0, last_ticket, 0, 0
queue_changed, queue_forgotten = true, true
