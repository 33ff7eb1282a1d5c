-- Purpose: the part for a queue whose entries are gone (evicted, deleted): nobody's place is known any more (R4, R11).
-- Expects: the record part before it
-- KEYS: as in the record part
-- ARGV: as in the record part
-- Returns: nothing
for _, field in ipairs(redis.call('HKEYS', key)) do
  if string.find(field, '^[wm]:') and field ~= 'm:' .. manager then del[#del + 1] = field end
end
n, r, h, tq, popped = 0, 0, q, 0, 0
queue_changed, forgot = true, true
