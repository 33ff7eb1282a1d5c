-- Purpose: a process that waits sends this once per check period. It keeps the process's waiters
--   alive, hands over what lapsed holders had, and reports whether the process may have missed
--   anything. R4 (lost places): it never enqueues.
-- KEYS: 1 the record · 2 the queue · 3 the holders
-- ARGV: 1-4 as in permit_record.lua · 5 not_after: the server time in µs after which the script
--   does nothing · 6 the newest waiting token of this process
-- Returns: synced {'', fence, now, time until a holder may lapse, previous, entries, since, 1 if
--   the newest token is known, ticket last served, 0} · absent (no record) · late · kind
--   {kind}
local newest, length = ARGV[6], redis.call('LLEN', KEYS[2])
local kind, packed_queue, waiter, own_stamp =
  unpack(redis.call('HMGET', KEYS[1], 'k', 'n', 'w:' .. newest, 'm:' .. ARGV[1]))
local packed_state = redis.call('HGET', KEYS[3], 'p')
--include record_clock.lua
--include record_now_text.lua
--include permit_record.lua
-- R5 (dated requests): a late copy would keep alive a process that may be dead by now.
if now > ARGV[5] + 0 then return { 'late', now, 0 } end
if not recorded_kind then return { 'absent', now, 0 } end
--include queue_check.lua
-- A sync belongs to no token.
local token, stamp_refreshed, forced_fence, page_from
--include permit_reclaim.lua
--include queue_stamp.lua
-- R3 (signs of life): the caller is alive, so its own waiters must not be passed over here.
live_manager = manager
--include permit_promote.lua
-- R15 (clock went back): if it did during a look, next_lapse may be too far off until the next one.
local left = next_lapse > 0 and math.max(0, math.min(next_lapse - now, 1000 * shortest_lease))
             or ARGV[2] + 0
-- The look goes on at once while somebody waits for what it may find.
if look_cursor ~= '' and entries > 0 then left, more = 0, 1 end
local delete_first = true
--include permit_write.lua
more = more + 2 * dead_waiters
return { 'synced', now, more, '', fence, now, left, previous, entries, since, waiter and 1 or 0,
         served_ticket, 0, unpack(grants) }
