-- Purpose: the part that says how many fences the owner's grant has reserved behind its first. The
--   request asks for a number of them. P2 (rising fences): if the data is lost, the next fence is the
--   clock's. So no reserved fence is further ahead of the time of the grant than 65,535 µs. The client
--   reckons in the same way. A grant whose fence is ahead by that much has no spare fences.
-- Expects: mutex_record.lua before it · spare: the number in the owner's request, as text, or nil
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing; spare
spare = math.max(0, math.min(tonumber(spare) or 0, granted_at + 65535 - fence))
