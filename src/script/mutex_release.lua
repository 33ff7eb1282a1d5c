-- Purpose: ends a token's lease, or its place in the queue, and hands the lock over in the same step.
-- KEYS: 1 the record · 2 the queue
-- ARGV: 1-4 as in mutex_record.lua · 5 token · 6 fence · 7 mode: used (it was a guard) | unused (nobody
--   had it) | lost (a guard lost it) | keep_if_owner (leave the queue, but keep a grant that came first)
--   | forced (by fence alone)
-- Returns: 'released' alone, from the short way · released · granted {fence, granted at, left, previous} (keep_if_owner)
--   · refused (forced; already if it was this fence that was forced last)
--   · already | lapsed | forced | lost | unknown (not the owner; the answer comes from the fences)
--   · queued (both keys are needed) · kind {kind}

local token, fence, mode = ARGV[5], ARGV[6] + 0, ARGV[7]
local state, queue, owner = unpack(redis.call('HMGET', KEYS[1], 's', 'q', 'o'))

-- Most locks are released by their owner while nobody waits: the same as below, without the queue and the clock.
if owner == token and mode == 'used' and state and (not queue or struct.unpack('<I4', queue) == 0) then
  local _, g, f, x, t, ttl, hold, _, y = struct.unpack('<ddddI4I4I4bb', state)
  if hold == 0 then
    redis.call('HDEL', KEYS[1], 'o')
    redis.call('HSET', KEYS[1], 's', struct.pack('<ddddI4I4I4bb', 0, g, f, x, t, ttl, hold, 0, y))
    return 'released'
  end
end

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
--include mutex_record.lua
if not list and n > 0 then return { 'queued', now, 0 } end

local status, waiter
if mode == 'forced' then
  if f == fence and (owner or e > now) then
    if owner then x, y, d = f, 2, 2 end
    owner, e, owner_changed = nil, 0, true
    status = 'released'
  else
    -- Sent twice, the second finds it gone.
    status = x == fence and y == 2 and 'already' or 'refused'
  end
elseif owner == token and mode == 'keep_if_owner' then
  return { 'granted', now, 0, f, g, math.max(0, e - now), d }
elseif owner == token then
  -- R9: the recorded owner clears its own lease, lapsed or not.
  status = 'released'
  -- The clock may have gone back since the grant (R15).
  local cool = hold > 0 and math.min(g, now) + 1000 * hold or 0
  if mode == 'used' then d = 0 end
  if mode == 'lost' then x, y, d = f, 1, 1 end
  owner, e, owner_changed = nil, 0, true
  -- R16: nobody owns it, but it counts as held until its least time is over.
  if (mode == 'used' or mode == 'lost') and cool > now then e = cool end
else
  waiter = redis.call('HEXISTS', key, 'w:' .. token) == 1
  if waiter then
    del[#del + 1] = 'w:' .. token
    r, removed = r - 1, token
  end
  if not f or f < fence then
    status = 'lost'
  elseif x < fence then
    status = 'already'
  elseif x == fence then
    status = y == 2 and 'forced' or 'lapsed'
  else
    status = 'unknown'
  end
  --include mutex_lapse.lua
end
--include mutex_promote.lua
--include mutex_grant.lua

--include queue_leave.lua
if waiter then queue_changed = true end
local refreshed = false
--include mutex_delete.lua
local expire_first = #del == 0 and popped == 0 and tails == 0   -- what is deleted came first
--include mutex_write.lua
if message then redis.pcall('PUBLISH', ARGV[4] .. by, message) end
return { status, now, more, unpack(grants) }
