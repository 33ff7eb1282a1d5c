-- Purpose: shows who holds a name, whether it is cooling, and who waits for it. Writes nothing.
-- KEYS: 1 the record · 2 the queue; absent in the single-key form of R11 (missing keys)
-- ARGV: 1-4 as in mutex_record.lua · 5 how many waiters to show, at most
-- Returns: seen {owner or '', fence, granted at, left (below 0: the lease is over since then),
--   previous, request, label, waiters, ticket served last}, then the waiters in order, as in
--   queue_inspect.lua · absent · queued (both keys are needed) · kind {kind}
local packed_state, packed_queue, owner, stored_request, stored_label =
  unpack(redis.call('HMGET', KEYS[1], 's', 'q', 'o', 'a', 'l'))
--include record_clock.lua
local goes_on, looks_back = false, false
--include mutex_record.lua
-- R11 (missing keys): the record alone is enough only while nobody waits.
if not queue_key and waiter_records > 0 then return { 'queued', now, 0 } end
if not packed_state or (not owner and lease_end <= now and waiter_records == 0) then
  return { 'absent', now, 0 }
end
local seen = { 'seen', now, 0, owner or '', fence, granted_at, lease_end - now, previous,
               stored_request or '', stored_label or '', waiter_records, served_ticket }
if queue_key then
  --include queue_inspect.lua
end
return seen
