-- Purpose: the part that writes everything but what is deleted, in one go.
-- Expects: mutex_record.lua before it · expire_first: R20: when out of memory, Redis refuses a script whose first write may
--   take memory and lets every other one finish. An acquire must be refused as a whole; the others must go through.
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing
if owner_changed or state_changed or queue_changed or #del > 0 then
  -- Ahead of the record's fields, since the key may have become one of another type (R20). A list that was evicted is
  -- made anew, and has no expiry then.
  if appended and redis.call('RPUSH', list, appended) == 1 then tq = 0 end
  -- Each key is to last an hour longer than anything in it, and is told so a minute ahead: most calls need not.
  local lasts = math.ceil(math.max(now, e, f or 0) / 1000000) + 3600
  local late, list_late = expire_first or t < lasts, list and n > 0 and tq < lasts
  if late then t = lasts + 60 end
  if list_late then tq = lasts + 60 end
  if expire_first then redis.call('PEXPIREAT', key, string.format('%.0f000', t)) end
  if owner_changed and owner then
    local i = #set
    set[i + 1], set[i + 2], set[i + 3], set[i + 4], set[i + 5], set[i + 6] = 'o', owner, 'a', request, 'l', label
  end
  if f and (late or owner_changed or state_changed) then
    set[#set + 1] = 's'
    set[#set + 1] = struct.pack(STATE, e, g, f, x, t, ttl, hold, d, y)
  end
  if list_late or queue_changed then
    set[#set + 1] = 'q'
    set[#set + 1] = struct.pack(QUEUE, n, math.max(0, r), s, v, q, h, tq)
  end
  if #set > 0 then redis.call('HSET', key, unpack(set)) end
  if late and not expire_first then redis.call('PEXPIREAT', key, string.format('%.0f000', t)) end
  if list_late then redis.call('PEXPIREAT', list, string.format('%.0f000', tq)) end
end
