-- Purpose: the part that makes one lease, and the announcement of it.
-- Expects: permit_record.lua before it · token: the caller's own · new_holder, ticket, new_manager:
--   the token that gets the permits, its ticket, its manager · kind: with the capacity in its
--   request · lease_params, label, ttl, hold, weight: its request, 'ttl fixed hold permits'
--   and the parts of it
-- KEYS: as in permit_record.lua
-- ARGV: as in permit_record.lua
-- Returns: nothing
do
  -- P2: readers share the fence of the writer before them, everybody else gets a new one. It never
  -- falls. If the record was lost, the server's clock is its floor.
  local last_fence = fence
  if weight == capacity or string.sub(kind, 1, 3) ~= 'rw/' then fence = math.max(fence + 1, now) end
  -- As in mutex_grant.lua: two masters with clocks behind the stored fence seldom give the same one.
  -- Nobody knows here when the last grant was. The bits are few, so that the clock catches up even
  -- with tens of thousands of grants in a second.
  if fence > last_fence and fence > now and fence < now + 60000000 then
    fence = fence + (tonumber(string.sub(new_holder, 1, 2), 16) or 0) % 32
  end
  -- R16 (hold_at_least): a lease lasts at least as long as the permits must be held.
  local lease_ms = math.max(ttl, hold)
  local lease_us = 1000 * lease_ms
  local fence_text = fence == now and now_text or string.format('%.0f', fence)
  permits_taken, longest_lease, state_changed =
    permits_taken + weight, math.max(longest_lease, lease_ms), true
  -- The next look is not before the time to which the last one has put it off.
  local look_in = math.max(lease_ms, look_pause)
  shortest_lease = next_lapse > 0 and math.min(shortest_lease, look_in) or look_in
  next_lapse = next_lapse > 0 and math.min(next_lapse, now + 1000 * look_in) or now + 1000 * look_in
  holders_to_set[#holders_to_set + 1] = new_holder
  holders_to_set[#holders_to_set + 1] =
    struct.pack(HOLDER, now + lease_us, ttl, hold, weight, 0, previous)
    .. table.concat({ kind, fence_text, ticket, now_text, new_manager, lease_params, label }, ' ')
  if new_holder == token then
    own_grant = { 'granted', now, 0, fence, now, lease_us, previous }
  elseif new_manager == manager then
    local count = #grants
    grants[count + 1], grants[count + 2], grants[count + 3], grants[count + 4], grants[count + 5] =
      new_holder, fence, now, lease_us, previous
  else
    messages[#messages + 1] = new_manager
    messages[#messages + 1] =
      table.concat({ 'permit', new_holder, fence_text, now_text, string.format('%.0f', lease_us),
                     previous, record_key }, ' ')
  end
end
