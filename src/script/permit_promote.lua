-- Purpose: the part that grants permits to waiters, in their order, while there are enough. A
--   waiter that wants more than are left is not overtaken. One call grants or passes over at most
--   64.
-- Expects: permit_record.lua before it · token: the caller's own
-- KEYS: as in permit_record.lua
-- ARGV: as in permit_record.lua
-- Returns: nothing
local passed = {}
while entries > 0 and permits_taken < capacity do
  if heads_popped == 64 then
    more = 1
    break
  end
  local new_holder = redis.call('LINDEX', queue_key, heads_popped)
  if not new_holder then
    --include queue_forget.lua
    break
  end
  -- R20 (write order): records that this call deletes can still be read, so it must remember them.
  -- And a token may be in the list twice: where it left, and where a late copy of its acquire
  -- queued it again.
  local field = 'w:' .. new_holder
  local waiter = new_holder ~= removed_token and not queue_forgotten and not passed[new_holder]
    and redis.call('HGET', record_key, field)
  if waiter then
    -- The record is 'ticket since manager ttl fixed hold permits label', with ttl and hold in ms.
    local ticket, new_manager, lease_params, ttl, hold, weight, label =
      string.match(waiter, '^(%d+) %d+ (%S+) ((%d+) %d (%d+) (%d+)) (.*)$')
    ttl, hold, weight = ttl + 0, hold + 0, weight + 0
    local stamp = new_manager ~= live_manager and not skip[new_manager]
      and redis.call('HGET', record_key, 'm:' .. new_manager)
    local is_alive = new_manager == live_manager
      or stamp and struct.unpack(STAMP, stamp) >= served_time
    if is_alive and permits_taken + weight > capacity then break end
    passed[new_holder] = true
    fields_to_delete[#fields_to_delete + 1] = field
    waiter_records, served_ticket = waiter_records - 1, ticket + 0
    if is_alive then
      --include permit_grant.lua
    else
      skip[new_manager] = true
    end
  end
  heads_popped, entries, queue_changed = heads_popped + 1, entries - 1, true
end
