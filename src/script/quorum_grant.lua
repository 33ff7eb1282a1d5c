-- Purpose: the part that grants the name to the caller's token, under the fence that it proposes.
-- Expects: quorum_record.lua before it · token · callers_fence · params: 'ttl fixed hold label' ·
--   now_text: now as text
-- KEYS: as in quorum_record.lua
-- ARGV: as in quorum_record.lua
-- Returns: nothing
-- A lease that is over and was never released may have been a guard's. Nobody here knows.
if owner and owner ~= token then ended_fence, ended_how = fence, 1 end
local lease_params, label
lease_params, ttl, hold, label = string.match(params, '^((%d+) %d (%d+)) (.*)$')
lease_end, granted_at, fence = now + 1000 * math.max(ttl, hold), now, callers_fence
local fields_to_set =
  { 'o', token, 'a', '0 ' .. now_text .. ' ' .. manager .. ' ' .. lease_params, 'l', label }
--include quorum_write.lua
