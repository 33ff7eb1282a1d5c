-- Purpose: the part that every permit script but renew and lookup begins with. It unpacks the state
--   and brings served time up to date. A name has a capacity of permits, and each holder has a
--   lease of its own. Waiters are served strictly first come, first served. A semaphore is one such
--   name. A reader/writer lock is another: a reader takes one permit, a writer takes all.
--   The holders are a key of their own, so that a look at them does not cost more the more wait.
--   The state lies beside them, so that both are lost together, and permits_taken is always the sum
--   of what they hold. It knows a time before which no lease lapses, so that hardly any call has to
--   look. How parts share locals: see mutex_record.lua.
-- Expects: kind, packed_queue: the fields 'k' and 'n' of the record · packed_state: the field 'p'
--   of the holders · now: the server's time in µs, and now_text:
--   the same as text
-- KEYS: 1 the record (HASH) · 2 the queue (LIST) · 3 the holders (HASH)
-- ARGV: 1 the caller's manager · 2 P + T in µs · 3 H in µs · 4 prefix of the grant channels
-- Returns: nothing, unless the record is of another kind. A script's reply is {status, now in µs,
--   1 if there is more to do + 2 for each waiter of a dead process that the call passed over, the
--   fields of that status, other waiters' grants}.
local record_key, queue_key, holders_key, manager = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
-- The field 'p' holds, in this order: fence (the last one that was not a reader's), next_lapse (no
-- holder lapses before it; 0 if there is no holder), shortest_lease and longest_lease (of the
-- holders, in ms), look_pause (from one look to the next at least, in ms), expires_at and
-- holders_expire_at (of the two keys, in s), capacity (the largest that a waiter asked with),
-- permits_taken, previous (how the last holder ended; -1 is unknown), look_outage (1 if the server
-- may have been away when the look began that is under way). The rest is look_cursor, from which
-- that look goes on, or nothing. The field 'k' has the kind, and the capacity that the newest grant
-- went by.
-- A holder's field is its token, or 'c:<token>' while it cools. It holds lease_end, ttl and hold in
-- ms, weight (its permits), phase, previous (how the holder before it ended), then the text
-- 'kind capacity fence ticket granted-at manager ttl fixed hold permits label'. The phases: 0 holds
-- · 1 holds, and has had its grace · 2 cools · 3 lapsed · 4 released by force.
local STATE, HOLDER = '<ddI4I4I4I4I4I4I4bb', '<dI4I4I4bb'
local fence, next_lapse, shortest_lease, longest_lease, look_pause = now - 1, 0, 0, 0, 0
local expires_at, holders_expire_at, capacity, permits_taken, previous = 0, 0, 0, 0, -1
local look_outage, look_cursor = 0, ''
local recorded_kind, state_changed = kind, nil
-- The state is the first field of the holders that is written.
local holders_to_set, holders_to_delete = { 'p', '' }, {}
-- How grants are announced: to the caller its own and those of its manager's other waiters, both in
-- the reply, and those of other managers by messages.
local own_grant, grants, messages = nil, {}, {}

--include permit_kind.lua
if packed_state then
  local cursor_start
  fence, next_lapse, shortest_lease, longest_lease, look_pause, expires_at, holders_expire_at,
    capacity, permits_taken, previous, look_outage, cursor_start =
    struct.unpack(STATE, packed_state)
  look_cursor = string.sub(packed_state, cursor_start)
  -- The record was lost, and its queue with it. Its kind follows from the capacity. It is written
  -- again, or the name could be taken as a mutex beside its holders.
  if not kind then
    kind = (capacity == 1073741824 and 'rw/1 ' or 'semaphore/1 ') .. string.format('%.0f', capacity)
    state_changed = true
    expires_at = 0
  end
elseif kind then
  -- The holders were lost: their permits are free, and the clock is the floor of the fences. Until
  -- the next enqueue, a waiter with a larger capacity than the newest grant had may wait longer.
  capacity = string.match(kind, '%d+$') + 0
end
-- The name may have been vacated, as a mutex or as permits. Fences go on from there (P2).
local vacated = not recorded_kind and redis.call('HGET', record_key, 'v')
-- P10 (bad input): another program's hash is refused, as in mutex_record.lua.
if not recorded_kind and not vacated then redis.call('LLEN', record_key) end
if vacated then
  local _, _, vacated_fence, _, _, _, _, vacated_previous = struct.unpack('<ddddI4I4I4bb', vacated)
  fence = math.max(packed_state and fence or 0, vacated_fence)
  if not packed_state then previous = vacated_previous end
end
--include queue_record.lua
