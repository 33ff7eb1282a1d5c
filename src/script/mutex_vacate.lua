-- Purpose: clears the record of a mutex that nobody holds or waits for, so that the name can become
--   another kind of lock. If there is something to do before, this does that: it ends a lease that
--   is over, and serves live waiters. A second copy does no harm: it finds no mutex, or does the
--   same once more.
-- KEYS: 1 the record · 2 the queue
-- ARGV: 1-4 as in mutex_record.lua
-- Returns: vacated · kind {kind}, if somebody uses the mutex, or there is more to do before, or the
--   name is another kind by now
local packed_state, packed_queue, owner, stored_request, told =
  unpack(redis.call('HMGET', KEYS[1], 's', 'q', 'o', 'a', 'b'))
--include record_clock.lua
local goes_on, looks_back = false, false
--include mutex_record.lua
if not packed_state then return { 'vacated', now, 0 } end
-- A vacate belongs to no token.
local token, stamp_refreshed
--include mutex_lapse.lua
-- R3 (signs of life): the caller is alive, so its own waiters must not be passed over here.
live_manager = manager
--include mutex_promote.lua
local is_free = not owner and lease_end <= now and entries == 0
if is_free and not (owner_changed or state_changed or queue_changed) then
  local vacated =
    struct.pack(STATE, 0, granted_at, fence, ended_fence, 0, 0, 0, previous, ended_how)
  --include record_vacate.lua
  return { 'vacated', now, 0 }
end
-- The next call finds the mutex at rest.
if is_free then more = 1 end
--include mutex_grant.lua
-- The caller wants the name too, as another kind.
--include mutex_wanted.lua
--include mutex_delete.lua
-- R20 (write order): a deletion that came first has made the script one that may finish.
local expire_first = #fields_to_delete == 0 and heads_popped == 0 and tails_popped == 0
--include mutex_write.lua
if message then redis.pcall('PUBLISH', ARGV[4] .. new_manager, message) end
--include mutex_tell.lua
return { 'kind', now, more + 2 * dead_waiters, 'mutex/1', unpack(grants) }
