-- Purpose: the part that makes the new owner's lease and says who is to be told of it.
-- Expects: mutex_promote.lua before it · token: the caller's own, which learns of its grant from the status · if there is a
--   new owner, it and by, request, label, ttl, hold: ttl and hold in ms, as text
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing
if request then
  if not f then
    x = now - 1
    set[#set + 1] = 'k'
    set[#set + 1] = 'mutex/1'
  end
  -- The fence never falls, also when the record was lost: the server's clock is its floor (P2).
  f, g = math.max((f or 0) + 1, now), now
  local left = 1000 * math.max(ttl, hold)
  e, owner_changed = now + left, true           -- R16
  if by ~= manager then
    -- now as text; a number of 16 digits is dear to print.
    local at = clock[1] .. string.sub('00000' .. clock[2], -6)
    message = table.concat({ owner, f == now and at or string.format('%.0f', f), at, string.format('%.0f', left), d, key }, ' ')
  elseif owner ~= token then
    grants = { owner, f, now, left, d }
  end
end
