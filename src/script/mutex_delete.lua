-- Purpose: the part that deletes fields, and takes from the list what leaves it.
-- Expects: mutex_record.lua before it · refreshed: whether the caller's stamp is written
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing
if owner_changed and not owner then del[#del + 1] = 'o' end
-- Whoever is forgotten must find out, so the caller's row of stamps ends too, unless a new one begins here.
if forgot and not refreshed then del[#del + 1] = 'm:' .. manager end
-- unpack() has a limit, so long argument lists go in pieces.
for i = 1, #del, 1000 do redis.call('HDEL', key, unpack(del, i, math.min(i + 999, #del))) end
if rewritten then
  redis.call('DEL', list)
  for i = 1, #rewritten, 1000 do redis.call('RPUSH', list, unpack(rewritten, i, math.min(i + 999, #rewritten))) end
else
  if popped > 0 then redis.call('LPOP', list, popped) end
  if tails > 0 then redis.call('RPOP', list, tails) end
end
