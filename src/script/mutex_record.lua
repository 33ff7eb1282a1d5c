-- Purpose: the part that every mutex script begins with. It unpacks the record and brings served
--   time up to date.
--   A part is included as text, and the parts share the locals that are declared here. A function
--   would cost 2,500 instructions each time that a script makes it, and a table for the shared
--   values one lookup per use: together a third of what a hand-over took. tonumber() parses a text
--   twice, arithmetic (+ 0) once. Names of locals cost nothing.
--   R20 (write order): all reads come before the first write, so that WRONGTYPE writes nothing.
-- Expects: packed_state, packed_queue, owner: the fields 's', 'q' and 'o' · clock: the reply to
--   TIME · now: the same in µs · goes_on, looks_back: whether the script takes over the state of a
--   name that was vacated, and whether it does so even if the name is another kind by now
-- KEYS: 1 the record (HASH) · 2 the queue (LIST); absent in the single-key form of R11
-- ARGV: 1 the caller's manager · 2 P + T in µs · 3 H in µs · 4 prefix of the grant channels
-- Returns: nothing, unless the record is of another kind. A script's reply is {status, now in µs,
--   1 if there is more to do + 2 for each waiter of a dead process that the call passed over, the
--   fields of that status, another waiter's grant}.
local record_key, queue_key, manager = KEYS[1], KEYS[2], ARGV[1]
-- Numbers that are always read together are packed into one field: to read, parse and print a field
-- costs a script more than all else that it does. The field 's' holds, in this order: lease_end,
-- granted_at, fence, ended_fence (of the last grant that ended without a release), expires_at (the
-- record's key, in s), ttl and hold (in ms), previous (how the last holder ended), ended_how (how
-- the grant with ended_fence ended). -1 is unknown.
local STATE = '<ddddI4I4I4bb'
local lease_end, granted_at, fence, ended_fence = 0, nil, nil, 0
local expires_at, ttl, hold, previous, ended_how = 0, 0, 0, -1, -1
local owner_changed, state_changed
-- The first grant writes the kind.
local is_new_record = false
-- If this call grants the lock: the manager, request and label of the new owner, and how many wait
-- behind it.
local new_manager, new_request, new_label, waiters_left
-- How that grant is announced: in the reply to the caller, or as a message to another manager.
local grants, message = {}, nil

if not packed_state then
  -- Another kind, or another version of this protocol, is refused before any write. The field 'v'
  -- is the state in which the name was vacated. A new mutex goes on from its fence (P2), and a
  -- token of the earlier mutex learns from it how its lease ended.
  local kind, vacated = unpack(redis.call('HMGET', record_key, 'k', 'v'))
  -- P10 (bad input): a hash with neither belongs to another program. LLEN refuses it by WRONGTYPE,
  -- like a key of any other type. Otherwise it would get an expiry, and be gone in an hour.
  if not kind and not vacated then redis.call('LLEN', record_key) end
  if kind and kind ~= 'mutex/1' and not (looks_back and vacated) then
    return { 'kind', now, 0, kind }
  end
  -- The record was damaged by hand if it has an owner all the same. Nobody knows that lease: its
  -- renewal is answered that it is gone.
  packed_state, is_new_record, owner = goes_on and vacated, not kind, nil
end
if packed_state then
  lease_end, granted_at, fence, ended_fence, expires_at, ttl, hold, previous, ended_how =
    struct.unpack(STATE, packed_state)
  -- A release on the short way deletes the owner and leaves the state as it is. Otherwise a lease
  -- without an owner is a lock that cools: R16 (hold_at_least).
  if not owner and hold == 0 and lease_end > 0 then lease_end, previous = 0, 0 end
  -- R15 (clock went back): no lease reaches this far, so the server's clock was set back. The lease
  -- is cut to its full length, or the lock would stay taken until the clock is there again.
  local lease_us = 1000 * math.max(ttl, hold)
  if lease_end - now > lease_us then lease_end, state_changed = now + lease_us, true end
end
--include queue_record.lua
