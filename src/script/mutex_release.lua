-- Purpose: ends a token's lease, or its place in the queue, and hands the lock over in the same step.
-- KEYS: 1 the record · 2 the queue
-- ARGV: 1-4 as in mutex_promote.lua · 5 token · 6 fence · 7 mode: used (it was a guard) | unused (nobody
--   had it) | lost (a guard lost it) | keep_if_owner (leave the queue, but keep a grant that came first)
--   | forced (by fence alone)
-- Returns: released · granted {fence, granted at, left, previous} (keep_if_owner) · refused (forced; already if
--   it was this fence that was forced last)
--   · already | lapsed | forced | lost | unknown (not the owner; the answer comes from the fences)
--   · queued (both keys are needed) · kind {kind}

-- Most locks are released by their owner while nobody waits: the same as below, without the queue.
do
  local owner, request, entries, previous = unpack(redis.call('HMGET', KEYS[1], 'o', 'a', 'n', 'd'))
  if owner == ARGV[5] and ARGV[7] == 'used' and (entries or '0') == '0' and string.find(request, ' 0$') then
    redis.call('HDEL', KEYS[1], 'o', 'e')
    if previous ~= '0' then redis.call('HSET', KEYS[1], 'd', 0) end
    local clock = redis.call('TIME')
    return { 'released', clock[1] * 1000000 + clock[2], 0, {}, {} }
  end
end

--include mutex_promote.lua

local token, fence, mode = ARGV[5], tonumber(ARGV[6]), ARGV[7]
local waiter = read('w:' .. token)
if foreign() then return foreign() end
if not list and rec.n > 0 then return answer('queued') end

local status
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
  local hold = parts(rec.request).hold
  local cool = hold > 0 and math.min(rec.g, now) + hold or 0
  if mode == 'used' and rec.d ~= 0 then
    rec.d = 0
    set[#set + 1] = 'd'
    set[#set + 1] = 0
  end
  if mode == 'lost' then dirty(1) end
  if (mode == 'used' or mode == 'lost') and cool > now then
    -- R16: nobody owns it, but it counts as held until its least time is over.
    rec.owner, rec.e = nil, cool
    owner_changed, end_changed = true, true
  else
    vacate()
  end
else
  if waiter then
    del[#del + 1] = 'w:' .. token
    rec.r = rec.r - 1
    removed = token
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
if waiter and list and rec.n > 0 then trim() elseif waiter then queue_changed = true end
save_always()
tell()
return answer(status)
