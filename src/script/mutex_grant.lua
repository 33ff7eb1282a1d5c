-- Purpose: the part that makes the new owner's lease, and the announcement of it.
-- Expects: mutex_promote.lua before it · token: the caller's own, whose grant the status reports ·
--   if there is a new owner, it in owner, and new_manager, new_request, new_label, ttl, hold, the
--   last two in ms, as text
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing; waiters_left
if new_request then
  if is_new_record then
    if not fence then ended_fence = now - 1 end
    fields_to_set[#fields_to_set + 1] = 'k'
    fields_to_set[#fields_to_set + 1] = 'mutex/1'
  end
  -- P2: the fence never falls. The stored one counts because the clock may have gone back (R15),
  -- the clock because the record may have been lost.
  local since_grant = now - (granted_at or now)
  fence, granted_at = math.max((fence or 0) + 1, now), now
  -- Two masters that live at once after a failover have the same stored fence. If their clocks are
  -- behind it, both would give the same next one. Bits of the token make that improbable. They add
  -- less than half of the time since the last grant, so that the clock catches up with the fence.
  -- If that grant is in the future, it was another master's. Beyond a minute they are left out.
  if fence > now and fence < now + 60000000 then
    local most = since_grant < 0 and 1024 or math.min(1024, math.floor(since_grant / 2))
    if most > 0 then fence = fence + (tonumber(string.sub(owner, 1, 3), 16) or 0) % most end
  end
  -- R16 (hold_at_least): a lease lasts at least as long as the lock must be held.
  local lease_us = 1000 * math.max(ttl, hold)
  lease_end, owner_changed = now + lease_us, true
  -- The new owner learns with its grant how many wait. So an owner that hears need not be told: see
  -- mutex_wanted.lua.
  waiters_left = math.max(0, waiter_records)
  if waiters_left > 0 and string.find(new_request, '^%d+ %d+ %S+ %d+ %d %d+ %d+ [12]$') then
    fields_to_set[#fields_to_set + 1] = 'b'
    fields_to_set[#fields_to_set + 1] = struct.pack('<dd', fence, now)
  end
  if new_manager ~= manager then
    --include record_now_text.lua
    local fence_text = fence == now and now_text or string.format('%.0f', fence)
    message = table.concat({ waiters_left, owner, fence_text, now_text,
                             string.format('%.0f', lease_us), previous, record_key }, ' ')
  elseif owner ~= token then
    grants = { owner, fence, now, lease_us, previous, waiters_left }
  end
end
