-- Purpose: the part that looks for the first live waiter when the lock is free. One call passes
--   over at most 64 dead ones.
-- Expects: mutex_record.lua before it
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing. If it finds one: owner, new_manager, new_request, new_label, ttl, hold, for
--   mutex_grant.lua
while entries > 0 and not owner and lease_end <= now do
  if heads_popped == 64 then
    more = 1
    break
  end
  local head = redis.call('LINDEX', queue_key, heads_popped)
  if not head then
    --include queue_forget.lua
    break
  end
  heads_popped, entries, queue_changed = heads_popped + 1, entries - 1, true
  -- R20 (write order): records that this call deletes can still be read, so it must remember them.
  -- And a token may be in the list twice: where it left, and where a late copy of its acquire
  -- queued it again.
  local field = 'w:' .. head
  local waiter = head ~= removed_token and not queue_forgotten and not skip[head]
    and redis.call('HGET', record_key, field)
  if waiter then
    fields_to_delete[#fields_to_delete + 1] = field
    waiter_records = waiter_records - 1
    -- The record is 'ticket since manager ttl fixed hold label', with ttl and hold in ms.
    local request, ticket, waiter_manager, waiter_ttl, waiter_hold, label =
      string.match(waiter, '^((%d+) %d+ (%S+) (%d+) %d (%d+)) (.*)$')
    served_ticket = ticket + 0
    local stamp = waiter_manager ~= live_manager and not skip[waiter_manager]
      and redis.call('HGET', record_key, 'm:' .. waiter_manager)
    if waiter_manager == live_manager or stamp and struct.unpack(STAMP, stamp) >= served_time then
      owner, new_manager, new_request, new_label, ttl, hold =
        head, waiter_manager, request, label, waiter_ttl, waiter_hold
    else
      skip[waiter_manager], skip[head] = true, true
    end
  end
end
