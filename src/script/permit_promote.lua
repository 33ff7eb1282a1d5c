-- Purpose: the part that grants permits to waiters, in their order, while there are enough. A
--   waiter that wants more than are left is not overtaken. Each waiter uses the capacity in its
--   own request. None uses a larger one than the record has. One call grants at most 32, and passes
--   over at most 64 with them: a grant costs up to 20 µs, and no call may take 1 ms.
-- Expects: permit_record.lua before it · token: the caller's own
-- KEYS: as in permit_record.lua
-- ARGV: as in permit_record.lua
-- Returns: nothing
local granted = 0
while entries > 0 and permits_taken < capacity do
  if granted == 32 then
    more = 1
    break
  end
  --include queue_head.lua
  if waiter then
    -- The record is 'ticket since manager ttl fixed hold permits capacity label', with ttl and hold
    -- in ms.
    local ticket, waiter_manager, lease_params, ttl, hold, weight, waiter_capacity, label =
      string.match(waiter, '^(%d+) %d+ (%S+) ((%d+) %d (%d+) (%d+)) (%d+) (.*)$')
    ttl, hold, weight = ttl + 0, hold + 0, weight + 0
    --include queue_alive.lua
    if is_alive and permits_taken + weight > waiter_capacity + 0 then break end
    skip[head] = true
    fields_to_delete[#fields_to_delete + 1] = field
    waiter_records, served_ticket = waiter_records - 1, ticket + 0
    if is_alive then
      local new_holder, new_manager = head, waiter_manager
      if string.sub(kind, -1 - #waiter_capacity) ~= ' ' .. waiter_capacity then
        kind = string.match(kind, '^%S+ ') .. waiter_capacity
      end
      --include permit_grant.lua
      granted = granted + 1
    else
      skip[waiter_manager], dead_waiters = true, dead_waiters + 1
    end
  end
  heads_popped, entries, queue_changed = heads_popped + 1, entries - 1, true
end
