-- Purpose: the part that decides whether the owner must hear that somebody waits for its lock. A
--   process that keeps a lock after its guard was dropped lets go only when it hears that.
-- Expects: mutex_grant.lua before it, if the script has it · token: the caller's own, or nil ·
--   stored_request, told: the fields 'a' and 'b'
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing; wanted_channel, wanted: whom mutex_tell.lua tells, and what, or nil ·
--   keeper_knows: whether the owner's process may keep the lock, and hears that somebody waits
local wanted_channel, wanted, keeper_knows
if owner and owner ~= token and lease_end > now then
  local request = new_request or stored_request or ''
  local owner_manager, hears = string.match(request, '^%d+ %d+ (%S+) %d+ %d %d+ %d+ ([12])$')
  if owner_manager then
    keeper_knows = hears == '2'
    -- The field 'b' has the fence that was told, and when. A message can be lost, so the owner is told
    -- again after half a step, but not by each of many waiters.
    local told_fence, told_at = 0, 0
    if told and #told == 16 then told_fence, told_at = struct.unpack('<dd', told) end
    -- R15 (clock went back): the time may be in the future.
    local is_told = told_fence == fence and math.abs(now - told_at) < ARGV[2] / 2
    -- A grant of this call says how many wait.
    if waiters_left and waiters_left > 0 then is_told = true end
    if not is_told then
      wanted_channel = ARGV[4] .. owner_manager
      wanted = 'wanted ' .. string.format('%.0f', fence) .. ' ' .. record_key
    end
  end
end
