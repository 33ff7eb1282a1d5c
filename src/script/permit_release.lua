-- Purpose: ends a token's lease, or its place in the queue, and hands the permits over in the same step.
-- KEYS: 1 the record · 2 the queue · 3 the holders
-- ARGV: 1-4 as in permit_record.lua · 5 token · 6 fence · 7 mode: used (it was a guard) | unused (nobody
--   had it) | lost (a guard lost it) | keep_if_owner (leave the queue, but keep a grant that came first)
--   | downgrade (keep one permit) | forced (all that hold by this fence)
-- Returns: released · granted {fence, granted at, left, previous} (keep_if_owner)
--   · refused (forced; already if it was this very request before)
--   · already | lapsed | forced | lost (it holds nothing) · kind {kind}

local token, fence, mode = ARGV[5], ARGV[6] + 0, ARGV[7]
local kind, state, queue = unpack(redis.call('HMGET', KEYS[1], 'k', 'p', 'n'))
local had = redis.call('HGET', KEYS[3], token)
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
--include permit_record.lua
local e, ttl, hold, weight, stands, how, text
if had then
  e, ttl, hold, weight, stands, how, text = struct.unpack(HOLDER, had)
  if stands < 2 and mode == 'keep_if_owner' then
    local its, since = string.match(had, '^%S+ %d+ (%d+) %d+ (%d+)', text)
    return { 'granted', now, 0, its + 0, since + 0, math.max(0, e - now), how }
  end
end
-- Readers who come next have the same fence: sent twice, it must not strike them.
if mode == 'forced' and redis.call('HGET', key, 'x') ~= token then forced = fence end
--include permit_reclaim.lua

local waiter
if mode == 'forced' then
  status = not forced and 'already' or status or 'refused'
  if status == 'released' then
    set[#set + 1] = 'x'
    set[#set + 1] = token
  end
elseif had and stands < 2 then
  -- R9: a holder clears its own lease, lapsed or not.
  status, state_changed = 'released', true
  local since = string.match(had, '^%S+ %d+ %d+ %d+ (%d+)', text) + 0
  -- R15, and the clock may have gone back since the grant.
  e = math.min(e, now + 1000 * math.max(ttl, hold))
  local cool = hold > 0 and math.min(since, now) + 1000 * hold or 0
  local cools = (mode == 'used' or mode == 'lost') and cool > now
  -- What readers leave is never half done.
  if weight == capacity or string.sub(kind, 1, 3) ~= 'rw/' then
    if mode == 'used' or mode == 'downgrade' then d = 0 end
    if mode == 'lost' then d = 1 end
  end
  local kept = token
  if mode == 'downgrade' then
    used, weight = used - weight + 1, 1
  else
    hold_del[#hold_del + 1] = token
    if cools then
      -- R16: nobody owns it, but it counts as held until its least time is over. A late copy of its acquire may take
      -- the token again meanwhile.
      kept, e, stands = 'c:' .. token, cool, 2
      b = math.min(b, e)
      local earlier = redis.call('HGET', holders, kept)
      local rests, _, _, again = struct.unpack(HOLDER, earlier or had)
      -- What it took then was given back as well, and cools with this: it counts once.
      if earlier and rests > now then used = used - again end
    else
      kept, used = nil, used - weight
      if used == 0 then b, longest, th = 0, 0, 0 end
    end
  end
  if kept then
    hold_set[#hold_set + 1] = kept
    hold_set[#hold_set + 1] = struct.pack(HOLDER, e, ttl, hold, weight, stands, how) .. string.sub(had, text)
  end
else
  waiter = redis.call('HEXISTS', key, 'w:' .. token) == 1
  if waiter then
    del[#del + 1] = 'w:' .. token
    r, removed, queue_changed = r - 1, token, true
  end
  if had and stands > 2 then
    -- It stays until its time is over, so that the same request again hears the same (P7).
    status = stands == 4 and 'forced' or 'lapsed'
  else
    status = (not f or f < fence) and 'lost' or 'already'
  end
end
--include permit_promote.lua
--include queue_leave.lua
local refreshed, delete_first = false, true
--include permit_write.lua
return { status, now, more, unpack(grants) }
