-- Purpose: the part with which the permit scripts begin: it unpacks the record and keeps served time. Permits out of a
--   capacity, each holder with a lease of its own, strictly first come first served: a semaphore, or a reader/writer lock,
--   in which a reader takes one permit and a writer all.
--   The holders are a key of their own, so that looking for lapsed ones does not cost more the more wait; and the record
--   knows a time before which none lapses, so that hardly any call has to look.
-- Expects: kind, state, queue: the fields 'k', 'p' and 'n' · clock: the server's time · now: the same in µs
-- KEYS: 1 the record (HASH) · 2 the queue (LIST) · 3 the holders (HASH)
-- ARGV: 1 the caller's manager · 2 P + T in µs · 3 H in µs · 4 prefix of the grant channels
-- Returns: nothing, unless the record is of another kind; each script's answer is {status, now in µs, 1 if there is more to
--   do, what the status says, other waiters' grants}
local key, list, holders, manager = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
-- p: fence last given to a holder that was alone or took a semaphore's permits, time before which no holder lapses (0: there
--    is none), the shortest and the longest that one of them lasts in ms, expiry of the record and of the holders in s,
--    capacity, permits taken, how the last holder ended (d); -1 is not known
-- n: as the queue of a mutex
-- a holder, by its token, or 'c:<token>' while it cools: end, ttl and hold in ms, permits, how it stands (0 holds, 1 holds
--    and has had its grace, 2 cools, 3 lapsed, 4 released by force), how the holder before it ended; and then, as text,
--    'kind capacity fence ticket granted-at manager ttl fixed hold permits label'
local STATE, QUEUE, STAMP, HOLDER = '<ddI4I4I4I4I4I4b', '<I4I4ddddI4', '<dd', '<dI4I4I4bb'
local f, b, shortest, longest, t, th, capacity, used, d = nil, 0, 0, 0, 0, 0, 0, 0, -1
local n, r, s, v, q, h, tq = 0, 0, now, 0, 0, 0, 0
local state_changed, queue_changed, forgot, unserved
local set, del = {}, {}                         -- the record's fields to write, and to delete
local hold_set, hold_del = {}, {}               -- holders to write, and to delete
local alive, dead = nil, {}                     -- the caller, if it counts as alive; managers that do not
local popped, tails, rewritten = 0, 0, nil      -- what leaves the list: at its head, at its tail, or all for these
local removed, appended                         -- the caller's token, if it leaves the queue, or enters it
local more, forced = 0, nil                     -- the fence of those who are released by force
local mine, grants, messages = nil, {}, {}      -- what is told of grants: to the caller of its own and of others', to other managers
-- now as text; a number of 16 digits is dear to print.
local at = clock[1] .. string.sub('00000' .. clock[2], -6)

if state then
  f, b, shortest, longest, t, th, capacity, used, d = struct.unpack(STATE, state)
elseif kind then
  -- Another kind, or another version of this protocol, is refused before any write.
  return { 'kind', now, 0, kind }
end
if queue then
  n, r, s, v, q, h, tq = struct.unpack(QUEUE, queue)
  -- R2: served time grows only by what scripts saw pass, so an outage or a clock step ages nobody.
  local passed, step = now - s, ARGV[2] + 0
  unserved = passed > step
  v = v + math.max(0, math.min(passed, step))
  s = now
end
