-- Purpose: the part for a queue whose entries are gone (evicted, deleted): nobody's place is known any more (R4, R11).
-- Expects: mutex_record.lua before it
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing
for _, field in ipairs(redis.call('HKEYS', key)) do
  if string.find(field, '^[wm]:') and field ~= 'm:' .. manager then del[#del + 1] = field end
end
n, r, h, tq, popped = 0, 0, q, 0, 0
queue_changed, forgot = true, true
