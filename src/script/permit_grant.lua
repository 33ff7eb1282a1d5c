-- Purpose: the part that makes a lease, and says who is to be told of it.
-- Expects: permit_record.lua before it · token: the caller's own · whom, ticket, by: whose it is, its place, its manager
--   · terms, label, ttl, hold, weight: what it asked for, 'ttl fixed hold permits' and the rest
-- KEYS: as in permit_record.lua
-- ARGV: as in permit_record.lua
-- Returns: nothing
do
  -- Readers share the last writer's fence. It never falls, also when the record was lost: the server's clock is its
  -- floor (P2).
  if weight == capacity or string.sub(kind, 1, 3) ~= 'rw/' then f = math.max(f + 1, now) end
  local lasts = math.max(ttl, hold)             -- R16
  local left = 1000 * lasts
  local fence = f == now and at or string.format('%.0f', f)
  used, longest, state_changed = used + weight, math.max(longest, lasts), true
  shortest = b > 0 and math.min(shortest, lasts) or lasts
  b = b > 0 and math.min(b, now + left) or now + left
  hold_set[#hold_set + 1] = whom
  hold_set[#hold_set + 1] = struct.pack(HOLDER, now + left, ttl, hold, weight, 0, d)
    .. table.concat({ kind, fence, ticket, at, by, terms, label }, ' ')
  if whom == token then
    mine = { 'granted', now, 0, f, now, left, d }
  elseif by == manager then
    local i = #grants
    grants[i + 1], grants[i + 2], grants[i + 3], grants[i + 4], grants[i + 5] = whom, f, now, left, d
  else
    messages[#messages + 1] = by
    messages[#messages + 1] = table.concat({ 'permit', whom, fence, at, string.format('%.0f', left), d, key }, ' ')
  end
end
