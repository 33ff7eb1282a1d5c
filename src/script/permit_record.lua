-- Purpose: the part that every permit script but renew and lookup begins with. It unpacks the
--   record and brings served time up to date. A name has a capacity of permits, and each holder has
--   a lease of its own. Waiters are served strictly first come, first served. A semaphore is one
--   such name. A reader/writer lock is another: a reader takes one permit, a writer takes all.
--   The holders are a key of their own, so that a look at all of them does not cost more the more
--   wait. And the record knows a time before which no lease lapses, so that hardly any call has to
--   look. How parts share locals: see mutex_record.lua.
-- Expects: kind, packed_state, packed_queue: the fields 'k', 'p' and 'n' · clock: the reply to TIME
--   · now: the same in µs
-- KEYS: 1 the record (HASH) · 2 the queue (LIST) · 3 the holders (HASH)
-- ARGV: 1 the caller's manager · 2 P + T in µs · 3 H in µs · 4 prefix of the grant channels
-- Returns: nothing, unless the record is of another kind. A script's reply is {status, now in µs,
--   1 if there is more to do, the fields of that status, other waiters' grants}.
local record_key, queue_key, holders_key, manager = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
-- The field 'p' holds, in this order: fence (the last one that was not a reader's), next_lapse (no
-- holder lapses before it; 0 if there is no holder), shortest_lease and longest_lease (of the
-- holders, in ms), expires_at and holders_expire_at (of the two keys, in s), capacity (the largest
-- that a waiter goes by), permits_taken, previous (how the last holder ended; -1 is unknown). The
-- field 'k' has the kind, and the capacity that the newest grant went by.
-- A holder's field is its token, or 'c:<token>' while it cools. It holds lease_end, ttl and hold in
-- ms, weight (its permits), phase, previous (how the holder before it ended), then the text
-- 'kind capacity fence ticket granted-at manager ttl fixed hold permits label'. The phases: 0 holds
-- · 1 holds, and has had its grace · 2 cools · 3 lapsed · 4 released by force.
local STATE, HOLDER = '<ddI4I4I4I4I4I4b', '<dI4I4I4bb'
local fence, next_lapse, shortest_lease, longest_lease = nil, 0, 0, 0
local expires_at, holders_expire_at, capacity, permits_taken, previous = 0, 0, 0, 0, -1
local state_changed
local stored_kind = kind
local holders_to_set, holders_to_delete = {}, {}
-- The holders with this fence are released by force.
local forced_fence
-- How grants are announced: to the caller its own and those of its manager's other waiters, both in
-- the reply, and those of other managers by messages.
local own_grant, grants, messages = nil, {}, {}
--include record_now_text.lua

if packed_state then
  fence, next_lapse, shortest_lease, longest_lease, expires_at, holders_expire_at, capacity,
    permits_taken, previous = struct.unpack(STATE, packed_state)
elseif kind then
  -- Another kind, or another version of this protocol, is refused before any write.
  return { 'kind', now, 0, kind }
else
  -- The name was vacated, and this is the state in which that found it. Fences go on from there
  -- (P2).
  local vacated = redis.call('HGET', record_key, 'v')
  if vacated then
    local _, vacated_fence
    _, _, vacated_fence, _, _, _, _, previous = struct.unpack('<ddddI4I4I4bb', vacated)
    fence = vacated_fence
  end
end
--include queue_record.lua
