-- Purpose: the part that writes everything except deletions, in one go.
-- Expects: mutex_record.lua before it · expire_first: R20 (write order): when memory is out, Redis
--   refuses a script whose first write may take memory, and lets every other script finish. An
--   acquire must be refused as a whole, so it begins with such a write. The others must go through,
--   so they begin with a deletion or, if expire_first is set, with PEXPIREAT.
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing
if owner_changed or state_changed or queue_changed or #fields_to_delete > 0 then
  -- R20 (write order): the entry comes before the record's fields, since the list's key may have
  -- become one of another type. If the list was evicted, this makes a new one without an expiry.
  if appended_token and redis.call('RPUSH', queue_key, appended_token) == 1 then
    queue_expires_at = 0
  end
  -- Each key must last an hour longer than everything in it. A key that would not gets a minute
  -- more than that, so that most calls within the minute need not set it again.
  local keep_until = math.ceil(math.max(now, lease_end, fence or 0) / 1000000) + 3600
  local extend_record = expire_first or expires_at < keep_until
  local extend_queue = queue_key and entries > 0 and queue_expires_at < keep_until
  if extend_record then expires_at = keep_until + 60 end
  if extend_queue then queue_expires_at = keep_until + 60 end
  if expire_first then redis.call('PEXPIREAT', record_key, string.format('%.0f000', expires_at)) end
  if owner_changed and owner then
    local count = #fields_to_set
    fields_to_set[count + 1], fields_to_set[count + 2], fields_to_set[count + 3],
      fields_to_set[count + 4], fields_to_set[count + 5], fields_to_set[count + 6] =
      'o', owner, 'a', new_request, 'l', new_label
  end
  if fence and (extend_record or owner_changed or state_changed) then
    fields_to_set[#fields_to_set + 1] = 's'
    fields_to_set[#fields_to_set + 1] =
      struct.pack(STATE, lease_end, granted_at, fence, ended_fence, expires_at, ttl, hold, previous,
                  ended_how)
  end
  if extend_queue or queue_changed then
    fields_to_set[#fields_to_set + 1] = 'q'
    fields_to_set[#fields_to_set + 1] =
      struct.pack(QUEUE, entries, math.max(0, waiter_records), looked_at, served_time, last_ticket,
                  served_ticket, queue_expires_at)
  end
  if #fields_to_set > 0 then redis.call('HSET', record_key, unpack(fields_to_set)) end
  if extend_record and not expire_first then
    redis.call('PEXPIREAT', record_key, string.format('%.0f000', expires_at))
  end
  if extend_queue then
    redis.call('PEXPIREAT', queue_key, string.format('%.0f000', queue_expires_at))
  end
end
