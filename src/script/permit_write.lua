-- Purpose: the part that writes everything, in the order that R20 (write order) asks for, and then
--   announces grants to other managers.
-- Expects: permit_record.lua before it · stamp_refreshed: whether this call writes the caller's
--   stamp · delete_first: R20 (write order): when memory is out, Redis refuses a script whose first
--   write may take memory, and lets every other script finish. An acquire must be refused as a
--   whole, so it begins with such a write. The others must go through, so they begin with a
--   deletion or, if there is none, with PEXPIREAT.
-- KEYS: as in permit_record.lua
-- ARGV: as in permit_record.lua
-- Returns: nothing
if state_changed or queue_changed or #fields_to_delete > 0 then
  -- Every manager whose waiters were forgotten must find out. So the caller's stamps end too,
  -- unless this call begins new ones.
  if queue_forgotten and not stamp_refreshed then
    fields_to_delete[#fields_to_delete + 1] = 'm:' .. manager
  end
  -- R20 (write order): the entry comes first, since the list's key may have become one of another
  -- type. If the list was evicted, this makes a new one without an expiry.
  if appended_token and redis.call('RPUSH', queue_key, appended_token) == 1 then
    queue_expires_at = 0
  end
  -- Each key must last an hour longer than everything in it. A key that would not gets a minute
  -- more than that, so that most calls within the minute need not set it again.
  local keep_until = math.ceil(math.max(now + 1000 * longest_lease, fence) / 1000000) + 3600
  local extend_record, extend_queue, extend_holders = expires_at < keep_until,
    entries > 0 and queue_expires_at < keep_until, holders_expire_at < keep_until
  local expire_first = delete_first and #fields_to_delete == 0 and #holders_to_delete == 0
    and heads_popped == 0 and tails_popped == 0
  if extend_record then expires_at = keep_until + 60 end
  if extend_queue then queue_expires_at = keep_until + 60 end
  if extend_holders then holders_expire_at = keep_until + 60 end
  if expire_first then redis.call('PEXPIREAT', record_key, string.format('%.0f000', expires_at)) end
  local write_holders = state_changed or extend_record or extend_holders
  if write_holders then
    holders_to_set[2] =
      struct.pack(STATE, fence, next_lapse, shortest_lease, longest_lease, look_pause, expires_at,
                  holders_expire_at, capacity, math.max(0, permits_taken), previous, look_outage)
      .. look_cursor
  end
  if delete_first then
    --include queue_delete.lua
    --include permit_holders.lua
  end
  -- A new name, a new kind, or a record that was lost.
  if kind ~= recorded_kind then
    fields_to_set[#fields_to_set + 1] = 'k'
    fields_to_set[#fields_to_set + 1] = kind
  end
  if queue_changed or extend_queue or entries > 0 then
    fields_to_set[#fields_to_set + 1] = 'n'
    fields_to_set[#fields_to_set + 1] =
      struct.pack(QUEUE, entries, math.max(0, waiter_records), looked_at, served_time, last_ticket,
                  served_ticket, queue_expires_at)
  end
  if #fields_to_set > 0 then redis.call('HSET', record_key, unpack(fields_to_set)) end
  if not delete_first then
    --include permit_holders.lua
    --include queue_delete.lua
  end
  if extend_record and not (expire_first and recorded_kind) then
    redis.call('PEXPIREAT', record_key, string.format('%.0f000', expires_at))
  end
  if extend_queue then
    redis.call('PEXPIREAT', queue_key, string.format('%.0f000', queue_expires_at))
  end
  if extend_holders then
    redis.call('PEXPIREAT', holders_key, string.format('%.0f000', holders_expire_at))
  end
end
for i = 1, #messages, 2 do redis.pcall('PUBLISH', ARGV[4] .. messages[i], messages[i + 1]) end
