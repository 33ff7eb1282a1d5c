-- Purpose: ends a token's lease, or its place in the queue, and hands the lock over in the same step.
-- KEYS: 1 the record · 2 the queue
-- ARGV: 1-4 as in mutex_promote.lua · 5 token · 6 fence · 7 mode: used (it was a guard) | unused (nobody
--   had it) | lost (a guard lost it) | keep_if_owner (leave the queue, but keep a grant that came first)
--   | forced (by fence alone)
-- Returns: 'released' alone, from the short way · released · granted {fence, granted at, left, previous} (keep_if_owner)
--   · refused (forced; already if it was this fence that was forced last)
--   · already | lapsed | forced | lost | unknown (not the owner; the answer comes from the fences)
--   · queued (both keys are needed) · kind {kind}

local token, fence, mode = ARGV[5], tonumber(ARGV[6]), ARGV[7]
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
--include mutex_promote.lua
if not list and rec.n > 0 then return answer('queued') end

local status, waiter
if mode == 'forced' then
  if rec.f == fence and (rec.owner or rec.e > now) then
    if rec.owner then dirty(2) end
    vacate()
    status = 'released'
  else
    -- Sent twice, the second finds it gone.
    status = rec.x == fence and rec.y == 2 and 'already' or 'refused'
  end
elseif rec.owner == token and mode == 'keep_if_owner' then
  return answer('granted', held())
elseif rec.owner == token then
  -- R9: the recorded owner clears its own lease, lapsed or not.
  status = 'released'
  -- The clock may have gone back since the grant (R15).
  local cool = rec.hold > 0 and math.min(rec.g, now) + 1000 * rec.hold or 0
  if mode == 'used' then rec.d = 0 end
  if mode == 'lost' then dirty(1) end
  vacate()
  -- R16: nobody owns it, but it counts as held until its least time is over.
  if (mode == 'used' or mode == 'lost') and cool > now then rec.e = cool end
else
  waiter = redis.call('HEXISTS', key, 'w:' .. token) == 1
  if waiter then
    del[#del + 1] = 'w:' .. token
    rec.r, rec.removed = rec.r - 1, token
  end
  if not rec.f or rec.f < fence then
    status = 'lost'
  elseif rec.x < fence then
    status = 'already'
  elseif rec.x == fence then
    status = rec.y == 2 and 'forced' or 'lapsed'
  else
    status = 'unknown'
  end
  lapse(token)
end
promote(token)

-- R19: dead entries at the tail go, and a queue that is mostly dead is rewritten.
if waiter and list then
  while rec.tails < math.min(LIMIT, rec.n) do
    local last = redis.call('LINDEX', list, -1 - rec.tails)
    if not last or (last ~= token and redis.call('HEXISTS', key, 'w:' .. last) == 1) then break end
    rec.tails = rec.tails + 1
  end
  rec.n = rec.n - rec.tails
  if rec.n > 2 * rec.r + 64 then
    rec.rewritten = {}
    local all = redis.call('LRANGE', list, rec.popped, -1 - rec.tails)
    for i = 1, #all do
      if all[i] ~= token and redis.call('HEXISTS', key, 'w:' .. all[i]) == 1 then
        rec.rewritten[#rec.rewritten + 1] = all[i]
      end
    end
    rec.n, rec.tq = #rec.rewritten, 0
  end
end
if waiter then rec.queue_changed = true end
save()
tell()
return answer(status)
