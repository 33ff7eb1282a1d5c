-- Purpose: the part with which all mutex scripts begin: it unpacks the record and keeps served time.
--   The parts stand as text where a script says --include, and speak to each other by these locals. As functions they would
--   cost each time that they are made, 2,500 instructions each, and with a table for what they share, each time that one
--   looks into it: a third of what a hand-over took. tonumber() reads a text twice, arithmetic (+ 0) once.
--   All reads come before the first write, so that WRONGTYPE writes nothing (R20).
-- Expects: state, queue, owner: the fields 's', 'q' and 'o' · clock: the server's time · now: the same in µs
-- KEYS: 1 the record (HASH) · 2 the queue (LIST); absent in the single-key form (R11)
-- ARGV: 1 the caller's manager · 2 P + T in µs · 3 H in µs · 4 prefix of the grant channels
-- Returns: nothing, unless the record is of another kind; each script's answer is {status, now in µs, 1 if there is more to
--   do, what the status says, another waiter's grant}
local key, list, manager = KEYS[1], KEYS[2], ARGV[1]
-- Numbers that are always read together lie packed in one field: a field costs a script more to read, to parse and to
-- print than all else that it does.
-- s: end, grant, fence, fence of the last grant that ended without a release, the key's expiry in s, ttl and hold in ms,
--    how the last holder ended (d), how that other grant did (y); -1 is not known
-- q: entries, waiters' records, time and served time when last looked at, ticket last given, ticket last served, expiry
local STATE, QUEUE, STAMP = '<ddddI4I4I4bb', '<I4I4ddddI4', '<dd'
local e, g, f, x, t, ttl, hold, d, y = 0, nil, nil, 0, 0, 0, 0, -1, -1
local n, r, s, v, q, h, tq = 0, 0, now, 0, 0, 0, 0
local owner_changed, state_changed, queue_changed, forgot, unserved
-- Fields to write, with room for ten words so that it does not grow bit by bit.
local set = { nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }
local del = {}                                  -- fields to delete
local alive, dead = nil, {}                     -- the caller, if it counts as alive; managers that do not, and their tokens
local popped, tails, rewritten = 0, 0, nil      -- what leaves the list: at its head, at its tail, or all for these
local removed, appended                         -- the caller's token, if it leaves the queue, or enters it
local more, by, request, label = 0, nil, nil, nil   -- the manager and the words of who is granted the lock in this call
local grants, message = {}, nil                 -- what is told of that grant: to the caller, or to another manager

if state then
  e, g, f, x, t, ttl, hold, d, y = struct.unpack(STATE, state)
  -- R15: an end further off than any lease reaches means that the server's clock went back.
  local cap = 1000 * math.max(ttl, hold)
  if e - now > cap then e, state_changed = now + cap, true end
else
  -- Another kind, or another version of this protocol, is refused before any write.
  local kind = redis.call('HGET', key, 'k')
  if kind and kind ~= 'mutex/1' then return { 'kind', now, 0, kind } end
end
if queue then
  n, r, s, v, q, h, tq = struct.unpack(QUEUE, queue)
  -- R2: served time grows only by what scripts saw pass, so an outage or a clock step ages nobody.
  local passed, step = now - s, ARGV[2] + 0
  unserved = passed > step
  v = v + math.max(0, math.min(passed, step))
  s = now
end
