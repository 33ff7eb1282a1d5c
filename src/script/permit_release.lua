-- Purpose: ends a token's lease, or its place in the queue, and hands the permits over in the same
--   step.
-- KEYS: 1 the record · 2 the queue · 3 the holders; the holders alone in the single-key form of R11
--   (missing keys)
-- ARGV: 1-4 as in permit_record.lua · 5 token · 6 fence, 0 if the caller knows of no lease · 7
--   mode: used (it was a guard) | unused (nobody had it) | lost (a guard lost it) | keep_if_owner
--   (leave the queue, but keep a grant that came first) | reduce (keep some of the permits) |
--   forced (all holders with this fence, page by page) · 8 for reduce: how many permits to keep;
--   for forced: 'page from', the number of the page and where it begins; the first is '0 0' · 9 forced: not_after, the server
--   time in µs after which the script does nothing
-- Returns: 'released' alone, from the short way · released · late (forced) · granted {fence, granted at, left,
--   previous} (keep_if_owner) · refused (forced: nobody on this page; already if this very request
--   came before) · already | lapsed | forced | lost (it does not hold that lease) · queued (all keys are needed) · kind
--   {kind}

local token, callers_fence, mode = ARGV[5], ARGV[6] + 0, ARGV[7]
--include permit_release_alone.lua
local kind, packed_queue = unpack(redis.call('HMGET', KEYS[1], 'k', 'n'))
local packed_state, packed_holder = unpack(redis.call('HMGET', KEYS[3], 'p', token))

-- The short way. Most permits are released by their holder while nobody waits. This has the same
-- effect as the parts below, without the work that only a queue and a look need. No look is under
-- way (46 bytes: no cursor).
if mode == 'used' and kind and packed_state and #packed_state == 46 and packed_holder
  and (not packed_queue or struct.unpack('<I4', packed_queue) == 0) then
  local _, _, hold, weight, phase = struct.unpack('<dI4I4I4b', packed_holder)
  local fence, next_lapse, shortest_lease, longest_lease, look_pause, expires_at, holders_expire_at,
    capacity, permits_taken, previous, look_outage =
    struct.unpack('<ddI4I4I4I4I4I4I4bb', packed_state)
  local grant = kind .. ' ' .. ARGV[6] .. ' '
  if hold == 0 and phase < 2 and weight <= permits_taken
    and string.sub(packed_holder, 23, 22 + #grant) == grant then
    permits_taken = permits_taken - weight
    local may_lapse = permits_taken > 0
    if may_lapse then
      -- A look for leases of the other holders may be due.
      --include record_clock.lua
      may_lapse = now >= next_lapse or 1000 * shortest_lease < next_lapse - now
    else
      next_lapse, longest_lease, look_pause, look_outage = 0, 0, 0, 0
    end
    if not may_lapse then
      -- A reader leaves nothing half done, so its end does not change previous.
      if weight == capacity or string.sub(kind, 1, 3) ~= 'rw/' then previous = 0 end
      redis.call('HDEL', KEYS[3], token)
      redis.call('HSET', KEYS[3], 'p',
                 struct.pack('<ddI4I4I4I4I4I4I4bb', fence, next_lapse, shortest_lease,
                             longest_lease, look_pause, expires_at, holders_expire_at, capacity,
                             permits_taken, previous, look_outage))
      return 'released'
    end
  end
end

--include record_clock.lua
--include record_now_text.lua
-- R5 (dated requests): as in mutex_release.lua.
if mode == 'forced' and now > ARGV[9] + 0 then return { 'late', now, 0 } end
-- The name was vacated and has become a mutex. So the token's lease or place has ended before, and
-- the entry of its holder says how, or its fence.
local past = kind == 'mutex/1' and mode ~= 'forced' and redis.call('HGET', KEYS[1], 'v')
if past then
  local _, _, last_fence = struct.unpack('<ddd', past)
  local phase
  if packed_holder then _, _, _, _, phase = struct.unpack('<dI4I4I4b', packed_holder) end
  if phase == 3 then return { 'lapsed', now, 0 } end
  if phase == 4 then return { 'forced', now, 0 } end
  if not phase then return { last_fence < callers_fence and 'lost' or 'already', now, 0 } end
end
--include permit_record.lua
--include permit_holder.lua
if grant and mode == 'keep_if_owner' then return { 'granted', now, 0, unpack(grant) } end
-- The field 'x' has the last page on which a request found holders to release by force: its token,
-- the number of the page, and where the next begins. Readers that come next have the same fence. If
-- the request is sent twice, the second copy must not release them.
local forced_fence, page_from, page_number, done_before
if mode == 'forced' then
  local from
  page_number, from = string.match(ARGV[8], '^(%d+) (%d+)$')
  local last_token, last_page, next_from =
    string.match(redis.call('HGET', record_key, 'x') or '', '^(%S+) (%d+) (%d+)$')
  if last_token == token and page_number + 0 <= last_page + 0 then
    done_before = next_from
  else
    forced_fence, page_from = callers_fence, from
  end
end
--include permit_reclaim.lua

local waiter
if mode == 'forced' then
  status = done_before and 'already' or status or 'refused'
  if status == 'released' then
    -- Only readers share a fence.
    if permits_taken == 0 or string.sub(kind, 1, 3) ~= 'rw/' then page_to = '0' end
    fields_to_set[#fields_to_set + 1] = 'x'
    fields_to_set[#fields_to_set + 1] = token .. ' ' .. page_number .. ' ' .. page_to
  end
elseif grant and callers_fence > 0 and callers_fence ~= own_fence then
  -- A late copy of the acquire (R7), or an older copy of the data, gave the token another lease.
  -- Nobody wants it (R13, unwanted grants). The caller's own lease is over, and the entry stays for
  -- one ttl to say so again if the request is sent twice (P7).
  status, state_changed, permits_taken = 'lapsed', true, permits_taken - weight
  holders_to_set[#holders_to_set + 1] = token
  holders_to_set[#holders_to_set + 1] =
    struct.pack(HOLDER, now + 1000 * ttl, ttl, hold, 0, 3, holder_previous)
    .. string.sub(packed_holder, text_start)
elseif grant then
  -- R9 (own lapse): a holder clears its own lease, lapsed or not.
  status, state_changed = 'released', true
  -- R15 (clock went back): the end and the time of the grant may be too far in the future.
  lease_end = math.min(lease_end, now + 1000 * math.max(ttl, hold))
  local granted_at = grant[2]
  local cool_until = hold > 0 and math.min(granted_at, now) + 1000 * hold or 0
  local must_cool = (mode == 'used' or mode == 'lost') and cool_until > now
  -- A reader leaves nothing half done, so its end does not change previous.
  local is_rw = string.sub(kind, 1, 3) == 'rw/'
  if weight == capacity or not is_rw then
    if mode == 'used' or mode == 'reduce' and is_rw then previous = 0 end
    if mode == 'lost' then previous = 1 end
  end
  local kept_field = token
  if mode == 'reduce' then
    -- The number is of permits to keep, not to release. So a second or late copy changes nothing.
    local kept = math.min(weight, ARGV[8] + 0)
    permits_taken, weight = permits_taken - weight + kept, kept
  else
    holders_to_delete[#holders_to_delete + 1] = token
    if must_cool then
      --include permit_cool.lua
    else
      kept_field, permits_taken = nil, permits_taken - weight
      if permits_taken == 0 then
        next_lapse, longest_lease, look_pause, look_outage, look_cursor = 0, 0, 0, 0, ''
      end
    end
  end
  if kept_field then
    holders_to_set[#holders_to_set + 1] = kept_field
    holders_to_set[#holders_to_set + 1] =
      struct.pack(HOLDER, lease_end, ttl, hold, weight, phase, holder_previous)
      .. string.sub(packed_holder, text_start)
  end
else
  --include queue_remove.lua
  if packed_holder and phase > 2 then
    -- The entry stays for its time, so that the same request sent twice gets the same answer (P7).
    status = phase == 4 and 'forced' or 'lapsed'
  else
    status = (not (packed_state or vacated) or fence < callers_fence) and 'lost' or 'already'
  end
end
--include permit_promote.lua
--include queue_leave.lua
local stamp_refreshed, delete_first = false, true
--include permit_write.lua
more = more + 2 * dead_waiters
-- In place of all that, a release by force has where its next page begins.
if mode == 'forced' and (done_before or page_to) ~= '0' then more = done_before or page_to end
return { status, now, more, unpack(grants) }
