-- Purpose: acquires the lock for one token, or queues the token. A repeated request gets the same
--   answer, so it may be sent twice (P7).
-- KEYS: 1 the record · 2 the queue
-- ARGV: 1-4 as in mutex_record.lua · 5 token · 6 not_after: the server time in µs after which the
--   script takes nothing · 7 '1' if the token may wait; else '0', or '2' if its caller has called
--   (queue_silent.lua) · 8 'ttl fixed hold label', ttl and hold in ms; 'ttl fixed hold spare
--   hears label' unless both are 0. spare: how many fences the grant reserves behind its first. hears:
--   1 if the owner wants to hear that somebody waits, 2 if its process also keeps the lock after a
--   guard, else 0
-- Returns: now, left and previous alone, packed as '<ddb', from the short way, which grants the
--   lock with now as the fence and the time of the grant · granted {fence, granted at, left,
--   previous, how many others wait} · waiting {ticket, position, left, since} ·
--   busy {left, 1 if a process that keeps the lock was told} · silent (queue_silent.lua) · late ·
--   more (call again at once) · queued (both keys are needed) · kind {kind}

local token, not_after, params = ARGV[5], ARGV[6] + 0, ARGV[8]
local packed_state, packed_queue, owner = unpack(redis.call('HMGET', KEYS[1], 's', 'q', 'o'))
--include record_clock.lua
--include record_now_text.lua

-- The short way. Most locks are known, free, and nobody waits for them. This grants such a lock
-- with the same effect as the parts below, without the work that only a queue needs. It needs a
-- fence in the past, so that now can be the new one (P2), and a key that lasts long enough.
if packed_state and not owner and now <= not_after
  and (not packed_queue or struct.unpack('<I4', packed_queue) == 0) then
  local lease_end, _, fence, ended_fence, expires_at, _, last_hold, previous, ended_how =
    struct.unpack('<ddddI4I4I4bb', packed_state)
  -- A release on the short way leaves the lease's end as it is.
  if lease_end > 0 and last_hold == 0 then lease_end, previous = 0, 0 end
  local lease_params, ttl, hold, label = string.match(params, '^((%d+) %d (%d+)[%d ]*) (.*)$')
  ttl, hold = ttl + 0, hold + 0
  local lease_us = 1000 * math.max(ttl, hold)
  if lease_end == 0 and fence < now and (now + lease_us) / 1000000 + 3600 < expires_at then
    redis.call('HSET', KEYS[1], 'o', token,
               'a', '0 ' .. now_text .. ' ' .. ARGV[1] .. ' ' .. lease_params, 'l', label,
               's', struct.pack('<ddddI4I4I4bb', now + lease_us, now, now, ended_fence, expires_at,
                                ttl, hold, previous, ended_how))
    -- One value: Redis takes five times as long to make a reply of an array.
    return struct.pack('<ddb', now, lease_us, previous)
  end
end

local waiter, own_stamp, stored_request, told =
  unpack(redis.call('HMGET', KEYS[1], 'w:' .. token, 'm:' .. ARGV[1], 'a', 'b'))
local goes_on, looks_back = true, false
--include mutex_record.lua

-- R5 (dated requests): the caller has given up by now, and would not release what this took.
if now > not_after then return { 'late', now, 0 } end
if owner == token then
  return { 'granted', now, 0, fence, granted_at, math.max(0, lease_end - now), previous,
           waiter_records }
end
-- R11 (missing keys): the record alone is enough only while its queue is empty. The owner hears of
-- the caller all the same, since a message needs no key.
if not queue_key and entries > 0 then
  --include mutex_wanted.lua
  --include mutex_tell.lua
  return { 'queued', now, 0 }
end

local may_take = lease_end <= now
--include queue_silent.lua
--include mutex_lapse.lua
-- R3 (signs of life): the caller is alive, so its own waiters must not be passed over here.
live_manager = manager
--include mutex_promote.lua

if not owner and lease_end <= now and more == 0 then
  -- The token does not wait: its own process counts as alive, so it would be the owner by now. And
  -- if the list lost its entry, the records of all waiters go.
  owner, new_manager = token, manager
  new_request, ttl, hold, new_label = string.match(params, '^((%d+) %d (%d+)[%d ]*) (.*)$')
  new_request = '0 ' .. now_text .. ' ' .. manager .. ' ' .. new_request
end
--include mutex_grant.lua

local answer, stamp_refreshed
local left = math.max(0, lease_end - now)
--include mutex_wanted.lua
if owner == token then
  answer = { 'granted', now, 2 * dead_waiters, fence, granted_at, left, previous, waiters_left }
elseif more == 1 then
  answer = { 'more', now, 1 + 2 * dead_waiters }
elseif ARGV[7] ~= '1' then
  if keeper_knows then table.insert(grants, 1, 1) end
  answer = { 'busy', now, 2 * dead_waiters, left, unpack(grants) }
elseif not queue_key then
  --include mutex_tell.lua
  return { 'queued', now, 0 }
else
  --include queue_enter.lua
  --include queue_stamp.lua
  -- The position is at least 1. Where the list lost entries, a later ticket may have been served.
  answer = { 'waiting', now, 2 * dead_waiters, ticket, math.max(1, ticket - served_ticket), left,
             since, unpack(grants) }
end
local expire_first = false
--include mutex_write.lua
--include mutex_delete.lua
if message then redis.pcall('PUBLISH', ARGV[4] .. new_manager, message) end
--include mutex_tell.lua
return answer
