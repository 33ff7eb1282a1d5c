-- Purpose: acquires permits for one token, or queues the token. A repeated request gets the same
--   answer, so it may be sent twice (P7).
-- KEYS: 1 the record · 2 the queue · 3 the holders
-- ARGV: 1-4 as in permit_record.lua · 5 token · 6 not_after: the server time in µs after which the
--   script takes nothing · 7 '1' if the token may wait · 8 'ttl fixed hold permits label', ttl and
--   hold in ms · 9 'kind capacity'
-- Returns: granted {fence, granted at, left, previous} · waiting {ticket, position, left, since} ·
--   busy {left} · late · more (call again at once) · kind {kind}

local token, not_after, params, wanted_kind = ARGV[5], ARGV[6] + 0, ARGV[8], ARGV[9]
local kind, packed_state, packed_queue, waiter, own_stamp =
  unpack(redis.call('HMGET', KEYS[1], 'k', 'p', 'n', 'w:' .. token, 'm:' .. ARGV[1]))
local packed_holder = redis.call('HGET', KEYS[3], token)
--include record_clock.lua
--include permit_record.lua

-- R5 (dated requests): the caller has given up by now, and would not release what this took.
if now > not_after then return { 'late', now, 0 } end
if packed_holder then
  local lease_end, ttl, hold, _, phase, holder_previous, text_start =
    struct.unpack(HOLDER, packed_holder)
  if phase < 2 then
    local holder_fence, granted_at =
      string.match(packed_holder, '^%S+ %d+ (%d+) %d+ (%d+)', text_start)
    -- R15 (clock went back): no more is left than the full lease.
    local left = math.min(lease_end - now, 1000 * math.max(ttl, hold))
    return { 'granted', now, 0, holder_fence + 0, granted_at + 0, math.max(0, left),
             holder_previous }
  end
end

--include permit_reclaim.lua
-- R3 (signs of life): the caller is alive, so its own waiters must not be passed over here.
live_manager = manager
--include permit_promote.lua
--include record_rights.lua

-- A name that nobody holds or waits for may become another kind, or get another capacity.
if more == 0 and kind ~= wanted_kind and permits_taken == 0 and entries == 0 then
  if not packed_state then
    local refused = refusal('HDEL', 'PEXPIREAT', 'PTTL')
    if refused then return refused end
    fence = math.max(fence or 0, now - 1)
  end
  kind, capacity, state_changed = wanted_kind, string.match(wanted_kind, '%d+$') + 0, true
  fields_to_set[#fields_to_set + 1] = 'k'
  fields_to_set[#fields_to_set + 1] = kind
end
local lease_params, ttl, hold, weight, label =
  string.match(params, '^((%d+) %d (%d+) (%d+)) (.*)$')
ttl, hold, weight = ttl + 0, hold + 0, weight + 0
-- P3: nobody overtakes a waiter, so permits that are left are taken only if the queue is empty.
if not own_grant and more == 0 and kind == wanted_kind and entries == 0
  and permits_taken + weight <= capacity then
  if waiter then
    fields_to_delete[#fields_to_delete + 1] = 'w:' .. token
    waiter_records, queue_changed = waiter_records - 1, true
  end
  -- Ticket 0: it did not wait.
  local new_holder, ticket, new_manager = token, '0', manager
  --include permit_grant.lua
end

local answer, stamp_refreshed
local left = math.max(0, next_lapse - now)
if own_grant then
  answer = own_grant
elseif more == 1 then
  answer = { 'more', now, 1 }
elseif kind ~= wanted_kind then
  answer = { 'kind', now, 0, kind }
elseif ARGV[7] ~= '1' then
  answer = { 'busy', now, 0, left }
else
  local refused = last_ticket == 0
    and refusal('HSET', 'RPUSH', 'LPOP', 'RPOP', 'LINDEX', 'LLEN', 'LRANGE', 'HGET', 'HEXISTS',
                'HKEYS', 'HGETALL', 'HLEN', 'HDEL', 'DEL', 'PEXPIREAT')
  if refused then return refused end
  --include queue_enter.lua
  --include queue_stamp.lua
  -- The position is at least 1. Where the list lost entries, a later ticket may have been served.
  answer = { 'waiting', now, 0, ticket, math.max(1, ticket - served_ticket), left, since }
end
for i = 1, #grants do answer[#answer + 1] = grants[i] end
local delete_first = false
--include permit_write.lua
return answer
