-- Purpose: the part that writes the caller's stamp, by which a manager that waits counts as alive.
-- Expects: the record part before it · own_stamp: the caller's field 'm:<manager>'
-- KEYS: as in the record part
-- ARGV: as in the record part
-- Returns: nothing; since: the server time at which these stamps began. A waiter that was
--   enqueued under earlier ones may have been passed over as dead, or forgotten.
local since
do
  local alive_until
  if own_stamp and not queue_forgotten then alive_until, since = struct.unpack(STAMP, own_stamp) end
  if not alive_until or alive_until < served_time then since = now end
  stamp_refreshed, queue_changed = true, true
  fields_to_set[#fields_to_set + 1] = 'm:' .. manager
  -- R2 (served time): a stamp is in served time, so an outage does not age it.
  fields_to_set[#fields_to_set + 1] = struct.pack('<ddd', served_time + ARGV[3], since, now)
  if not own_stamp then
    -- Stamps of managers that went away are swept when the number of stamps has doubled.
    local count, limit =
      string.match(redis.call('HGET', record_key, 'c') or '0 64', '^(%d+) (%d+)$')
    count, limit = count + 1, tonumber(limit)
    if count > limit then
      count = 1
      local fields = redis.call('HGETALL', record_key)
      for i = 1, #fields, 2 do
        if string.find(fields[i], '^m:') then
          if struct.unpack(STAMP, fields[i + 1]) < served_time then
            fields_to_delete[#fields_to_delete + 1] = fields[i]
          else
            count = count + 1
          end
        end
      end
      limit = 2 * count + waiter_records + 64
    end
    fields_to_set[#fields_to_set + 1] = 'c'
    fields_to_set[#fields_to_set + 1] = string.format('%.0f %.0f', count, limit)
  end
end
