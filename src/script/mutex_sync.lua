-- Purpose: a process that waits sends this once per check period. It keeps the process's waiters
--   alive, hands over a lock whose holder's lease is over, and reports what the process may have
--   missed. R4 (lost places): it never enqueues.
-- KEYS: 1 the record · 2 the queue
-- ARGV: 1-4 as in mutex_record.lua · 5 not_after: the server time in µs after which the script does
--   nothing · 6 the newest waiting token of this process
-- Returns: synced {owner or '', fence, granted at, left, previous, entries, since, 1 if the newest
--   token is known, ticket last served, 1 if the owner waited here and is the caller's} · absent
--   (no record at all) · late · kind {kind}
local newest, length = ARGV[6], redis.call('LLEN', KEYS[2])
local packed_state, packed_queue, owner, waiter, own_stamp, stored_request, told =
  unpack(redis.call('HMGET', KEYS[1], 's', 'q', 'o', 'w:' .. newest, 'm:' .. ARGV[1], 'a', 'b'))
--include record_clock.lua
local goes_on, looks_back = false, false
--include mutex_record.lua
-- R5 (dated requests): a late copy would keep alive a process that may be dead by now.
if now > ARGV[5] + 0 then return { 'late', now, 0 } end
if not packed_state then return { 'absent', now, 0 } end
--include queue_check.lua
-- A sync belongs to no token.
local token, stamp_refreshed
--include mutex_lapse.lua
--include queue_stamp.lua
-- R3 (signs of life): the caller is alive, so its own waiters must not be passed over here.
live_manager = manager
--include mutex_promote.lua
--include mutex_grant.lua
--include mutex_wanted.lua
-- The waiter for which this was sent may have become the owner by now.
if waiter_records <= 0 then wanted = nil end
local newest_known = waiter or owner == newest
-- R13 (unwanted grants): an owner of the caller's that waited here (its ticket is not 0) is one
-- that the caller must know. If it does not, it releases it.
local ticket, owner_manager =
  string.match(owner and (new_request or stored_request) or '', '^(%d+) %d+ (%S+)')
local owner_waited_here = ticket and ticket ~= '0' and owner_manager == manager
--include mutex_delete.lua
-- R20 (write order): a deletion that came first has made the script one that may finish.
local expire_first = #fields_to_delete == 0 and heads_popped == 0 and tails_popped == 0
--include mutex_write.lua
if message then redis.pcall('PUBLISH', ARGV[4] .. new_manager, message) end
--include mutex_tell.lua
more = more + 2 * dead_waiters
return { 'synced', now, more, owner or '', fence, granted_at, math.max(0, lease_end - now),
         previous, entries, since, newest_known and 1 or 0, served_ticket,
         owner_waited_here and 1 or 0, unpack(grants) }
