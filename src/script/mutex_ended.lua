-- Purpose: the part that notes that the owner's lease ended without a release.
-- Expects: mutex_record.lua before it · how: 1 if it lapsed or its guard lost it, 2 if it was
--   released by force · spare: how many of the fences behind the grant's first count as used: all
--   that mutex_spare.lua says, or as many as the client says · last_ended: the fence, or the one of
--   these by which it was released
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing
-- R7 (late copies): a release that comes again must learn how its lease ended, although other
-- leases ended without a release in between. The field 'z' has the ends before the last one, newest
-- first, each a fence, which is negative if it was released by force. Nearly no record has more.
-- With more than 64 bytes in a field the record would take twice the memory.
local earlier_ends = ended_how > 0 and redis.call('HGET', record_key, 'z') or ''
earlier_ends = struct.pack('<d', ended_how == 2 and -ended_fence or ended_fence) .. earlier_ends
-- The forced release that comes again asks about the fence that it named, the holder about its own.
if last_ended > fence then earlier_ends = struct.pack('<d', -fence) .. earlier_ends end
fields_to_set[#fields_to_set + 1] = 'z'
fields_to_set[#fields_to_set + 1] = string.sub(earlier_ends, 1, 64)
-- P2 (rising fences): guards that took the lock from each other within their process may have used
-- these.
ended_fence, ended_how, previous, state_changed = last_ended, how, how, true
fence = fence + spare
