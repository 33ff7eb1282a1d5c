-- Purpose: acquires permits for one token, or queues the token. A repeated request gets the same
--   answer, so it may be sent twice (P7).
-- KEYS: 1 the record · 2 the queue · 3 the holders
-- ARGV: 1-4 as in permit_record.lua · 5 token · 6 not_after: the server time in µs after which the
--   script takes nothing · 7 '1' if the token may wait; else '0', or '2' if its caller has called
--   (queue_silent.lua) · 8 'ttl fixed hold permits label', ttl and hold in ms · 9 'kind capacity'
-- Returns: now, left, previous and fence alone, packed as '<ddbd', from the short way, which grants
--   the permits now · granted {fence, granted at, left, previous} · waiting {ticket, position, left,
--   since} · busy {left} · silent (queue_silent.lua) · late · more (call again at once) · kind
--   {kind}

local token, not_after, params, wanted_kind = ARGV[5], ARGV[6] + 0, ARGV[8], ARGV[9]
local kind, packed_queue = unpack(redis.call('HMGET', KEYS[1], 'k', 'n'))
local packed_state, packed_holder = unpack(redis.call('HMGET', KEYS[3], 'p', token))
--include record_clock.lua
--include record_now_text.lua
local wanted_name, wanted_capacity = string.match(wanted_kind, '^(%S+ )(%d+)$')
wanted_capacity = wanted_capacity + 0

-- The short way. Most names are of the wanted kind, have permits left, and nobody waits for them.
-- This grants with the same effect as the parts below, without the work that only a queue and a
-- look need. No look is under way (46 bytes: no cursor) or due, and the keys last long enough. The
-- fence is in the past, so that now can be the new one (P2).
if kind == wanted_kind and packed_state and #packed_state == 46 and not packed_holder
  and now <= not_after and (not packed_queue or struct.unpack('<I4', packed_queue) == 0) then
  local fence, next_lapse, shortest_lease, longest_lease, look_pause, expires_at, holders_expire_at,
    capacity, permits_taken, previous, look_outage =
    struct.unpack('<ddI4I4I4I4I4I4I4bb', packed_state)
  local ttl, hold, weight = string.match(params, '^(%d+) %d (%d+) (%d+)')
  weight = weight + 0
  local lease_ms = math.max(ttl, hold)
  longest_lease = math.max(longest_lease, lease_ms)
  if permits_taken + weight <= wanted_capacity and fence < now
    and (next_lapse == 0 or now < next_lapse and next_lapse - now <= 1000 * shortest_lease)
    and (now / 1000 + longest_lease) / 1000 + 3600 < math.min(expires_at, holders_expire_at) then
    local fence_text = now_text
    if weight < capacity and wanted_name == 'rw/1 ' then
      -- Readers share the fence of the writer before them.
      fence_text = string.format('%.0f', fence)
    else
      fence = now
    end
    local shortest = math.max(lease_ms, look_pause)
    local look_at = now + 1000 * shortest
    if next_lapse > 0 then
      shortest, look_at = math.min(shortest, shortest_lease), math.min(look_at, next_lapse)
    end
    local lease_us = 1000 * lease_ms
    redis.call('HSET', KEYS[3],
               'p', struct.pack('<ddI4I4I4I4I4I4I4bb', fence, look_at, shortest, longest_lease,
                                look_pause, expires_at, holders_expire_at, capacity,
                                permits_taken + weight, previous, look_outage),
               token, struct.pack('<dI4I4I4bb', now + lease_us, ttl, hold, weight, 0, previous)
                      .. kind .. ' ' .. fence_text .. ' 0 ' .. now_text .. ' ' .. ARGV[1] .. ' '
                      .. params)
    -- One value: see mutex_acquire.lua.
    return struct.pack('<ddbd', now, lease_us, previous, fence)
  end
end

local waiter, own_stamp = unpack(redis.call('HMGET', KEYS[1], 'w:' .. token, 'm:' .. ARGV[1]))
--include permit_record.lua

-- R5 (dated requests): the caller has given up by now, and would not release what this took.
if now > not_after then return { 'late', now, 0 } end
do
  --include permit_holder.lua
  if grant then return { 'granted', now, 0, unpack(grant) } end
end

local forced_fence, page_from
local weight_wanted = string.match(params, '^%d+ %d %d+ (%d+)') + 0
local may_take = permits_taken + weight_wanted <= wanted_capacity or look_cursor ~= ''
  or next_lapse > 0 and (now >= next_lapse or 1000 * shortest_lease < next_lapse - now)
--include queue_silent.lua
if all_counts then look_outage = 0 end
--include permit_reclaim.lua
-- Whether the name is this kind of lock. Its capacity may be another: a request uses its own,
-- and what is held stays held. So all processes need not change the capacity at the same time.
local is_wanted_kind = kind and string.sub(kind, 1, #wanted_name) == wanted_name
-- Dead waiters with a smaller capacity must not keep this request waiting.
if is_wanted_kind and entries > 0 and wanted_capacity > capacity then
  capacity, state_changed = wanted_capacity, true
end
-- R3 (signs of life): the caller is alive, so its own waiters must not be passed over here.
live_manager = manager
--include permit_promote.lua

-- A name that nobody holds or waits for may become another kind.
if more == 0 and not is_wanted_kind and permits_taken == 0 and entries == 0 then
  kind, capacity, is_wanted_kind, state_changed = wanted_kind, wanted_capacity, true, true
end
local lease_params, ttl, hold, weight, label =
  string.match(params, '^((%d+) %d (%d+) (%d+)) (.*)$')
ttl, hold, weight = ttl + 0, hold + 0, weight + 0
-- P3: nobody overtakes a waiter, so permits that are left are taken only if the queue is empty.
if not own_grant and more == 0 and is_wanted_kind and entries == 0
  and permits_taken + weight <= wanted_capacity then
  kind = wanted_kind
  -- The token does not wait: its own process counts as alive, so it would hold permits by now. And
  -- if the list lost its entry, the records of all waiters go. Ticket 0: it did not wait.
  local new_holder, ticket, new_manager = token, '0', manager
  --include permit_grant.lua
end

local answer, stamp_refreshed
-- R15 (clock went back): if it did during a look, next_lapse may be too far off until the next one.
local left =
  look_cursor == '' and math.max(0, math.min(next_lapse - now, 1000 * shortest_lease)) or 0
-- A look that is under way may still find a lapsed holder. A waiter goes on with it by its syncs.
if look_cursor ~= '' and (ARGV[7] ~= '1' or not is_wanted_kind) then more = 1 end
if own_grant then
  answer, own_grant[3] = own_grant, 2 * dead_waiters
elseif more == 1 then
  answer = { 'more', now, 1 + 2 * dead_waiters }
elseif not is_wanted_kind then
  answer = { 'kind', now, 2 * dead_waiters, kind }
elseif ARGV[7] ~= '1' then
  answer = { 'busy', now, 2 * dead_waiters, left }
else
  local largest = math.max(entries > 0 and capacity or 0, wanted_capacity)
  if largest ~= capacity then capacity, state_changed = largest, true end
  params = string.format('%s %.0f %s', lease_params, wanted_capacity, label)
  --include queue_enter.lua
  --include queue_stamp.lua
  -- The position is at least 1. Where the list lost entries, a later ticket may have been served.
  answer = { 'waiting', now, 2 * dead_waiters, ticket, math.max(1, ticket - served_ticket), left,
             since }
end
for i = 1, #grants do answer[#answer + 1] = grants[i] end
local delete_first = false
--include permit_write.lua
return answer
