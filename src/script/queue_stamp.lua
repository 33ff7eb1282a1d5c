-- Purpose: the part by which a manager that waits shows that it is alive: it writes the caller's stamp.
-- Expects: the record part before it · own: the caller's field 'm:<manager>'
-- KEYS: as in the record part
-- ARGV: as in the record part
-- Returns: nothing; since: the server time at which this row of stamps began. A waiter that was enqueued under another
--   one may have been passed over as dead, or forgotten.
local since
do
  local stamp
  if own and not forgot then stamp, since = struct.unpack(STAMP, own) end
  if not stamp or stamp < v then since = now end
  refreshed, queue_changed = true, true
  set[#set + 1] = 'm:' .. manager
  set[#set + 1] = struct.pack(STAMP, v + ARGV[3], since)
  if not own then
    -- Stamps of managers that went away are swept when their number has doubled.
    local count, limit = string.match(redis.call('HGET', key, 'c') or '0 64', '^(%d+) (%d+)$')
    count, limit = count + 1, tonumber(limit)
    if count > limit then
      count = 1
      local all = redis.call('HGETALL', key)
      for i = 1, #all, 2 do
        if string.find(all[i], '^m:') then
          if struct.unpack(STAMP, all[i + 1]) < v then
            del[#del + 1] = all[i]
          else
            count = count + 1
          end
        end
      end
      limit = 2 * count + r + 64
    end
    set[#set + 1] = 'c'
    set[#set + 1] = string.format('%.0f %.0f', count, limit)
  end
end
