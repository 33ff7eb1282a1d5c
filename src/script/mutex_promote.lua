-- Purpose: the part that looks for the first live waiter when the lock is free. One call passes
--   over at most 64 dead ones.
-- Expects: mutex_record.lua before it
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing. If it finds one: owner, new_manager, new_request, new_label, ttl, hold, for
--   mutex_grant.lua
while queue_key and entries > 0 and not owner and lease_end <= now do
  --include queue_head.lua
  heads_popped, entries, queue_changed = heads_popped + 1, entries - 1, true
  if waiter then
    fields_to_delete[#fields_to_delete + 1] = field
    waiter_records = waiter_records - 1
    -- The record is 'ticket since manager', and then as 8 of mutex_acquire.lua.
    local request, ticket, waiter_manager, waiter_ttl, waiter_hold, label =
      string.match(waiter, '^((%d+) %d+ (%S+) (%d+) %d (%d+)[%d ]*) (.*)$')
    served_ticket = ticket + 0
    --include queue_alive.lua
    if is_alive then
      owner, new_manager, new_request, new_label, ttl, hold =
        head, waiter_manager, request, label, waiter_ttl, waiter_hold
    else
      skip[waiter_manager], skip[head] = true, true
      dead_waiters = dead_waiters + 1
    end
  end
end
