-- Purpose: acquires the lock for one token, or queues the token. A repeated request gets the same
--   answer, so it may be sent twice (P7).
-- KEYS: 1 the record · 2 the queue
-- ARGV: 1-4 as in mutex_record.lua · 5 token · 6 not_after: the server time in µs after which the
--   script takes nothing · 7 '1' if the token may wait · 8 'ttl fixed hold label', ttl and hold in
--   ms
-- Returns: 'granted', now, left, previous, from the short way, with now as the fence and the time
--   of the grant · granted {fence, granted at, left, previous} · waiting {ticket, position, left,
--   since} · busy {left} · late · more (call again at once) · queued (both keys are needed) · kind
--   {kind}

-- What a script has written stays if a later command is refused. So before the first write to a
-- record, and before the first to its queue, the script looks whether the user may run every
-- command that will be needed, where the server can tell (7.0). Otherwise a lock could be taken
-- that no script is able to end.
local function refusal(...)
  for _, command in ipairs(redis.acl_check_cmd and { ... } or {}) do
    if not redis.acl_check_cmd(command, KEYS[1]) then
      return redis.error_reply('NOPERM this user lacks +' .. string.lower(command))
    end
  end
end

local token, not_after, params = ARGV[5], ARGV[6] + 0, ARGV[8]
local packed_state, packed_queue = unpack(redis.call('HMGET', KEYS[1], 's', 'q'))
local clock = redis.call('TIME')
local now, owner = clock[1] * 1000000 + clock[2], nil
-- A text made of the clock's two texts: to print a number of 16 digits is slow.
local now_text = clock[1] .. string.sub('00000' .. clock[2], -6)

-- The short way. Most locks are known, free, and nobody waits for them. This grants such a lock
-- with the same effect as the parts below, without the work that only a queue needs. It needs a
-- fence in the past, so that now can be the new one (P2), and a key that lasts long enough.
if packed_state and now <= not_after
  and (not packed_queue or struct.unpack('<I4', packed_queue) == 0) then
  local lease_end, _, fence, ended_fence, expires_at, _, _, previous, ended_how =
    struct.unpack('<ddddI4I4I4bb', packed_state)
  local lease_params, ttl, hold, label = string.match(params, '^((%d+) %d (%d+)) (.*)$')
  local lease_us = 1000 * math.max(ttl, hold)
  if lease_end == 0 and fence < now and (now + lease_us) / 1000000 + 3600 < expires_at then
    redis.call('HSET', KEYS[1], 'o', token,
               'a', '0 ' .. now_text .. ' ' .. ARGV[1] .. ' ' .. lease_params, 'l', label,
               's', struct.pack('<ddddI4I4I4bb', now + lease_us, now, now, ended_fence, expires_at,
                                ttl, hold, previous, ended_how))
    return { 'granted', now, lease_us, previous }
  end
end

local waiter, own_stamp
owner, waiter, own_stamp =
  unpack(redis.call('HMGET', KEYS[1], 'o', 'w:' .. token, 'm:' .. ARGV[1]))
--include mutex_record.lua

-- R5 (dated requests): the caller has given up by now, and would not release what this took.
if now > not_after then return { 'late', now, 0 } end
if owner == token then
  return { 'granted', now, 0, fence, granted_at, math.max(0, lease_end - now), previous }
end
-- R11 (missing keys): the record alone is enough only while its queue is empty.
if not queue_key and entries > 0 then return { 'queued', now, 0 } end

--include mutex_lapse.lua
-- R3 (signs of life): the caller is alive, so its own waiters must not be passed over here.
live_manager = manager
--include mutex_promote.lua

if not owner and lease_end <= now and more == 0 then
  local refused = not fence and refusal('HDEL', 'PEXPIREAT')
  if refused then return refused end
  if waiter then
    fields_to_delete[#fields_to_delete + 1] = 'w:' .. token
    waiter_records, queue_changed = waiter_records - 1, true
  end
  owner, new_manager = token, manager
  new_request, ttl, hold, new_label = string.match(params, '^((%d+) %d (%d+)) (.*)$')
  new_request = '0 ' .. now_text .. ' ' .. manager .. ' ' .. new_request
end
--include mutex_grant.lua

local answer, stamp_refreshed
local left = math.max(0, lease_end - now)
if owner == token then
  answer = { 'granted', now, 0, fence, granted_at, left, previous }
elseif more == 1 then
  answer = { 'more', now, 1 }
elseif ARGV[7] ~= '1' then
  answer = { 'busy', now, 0, left, unpack(grants) }
elseif not queue_key then
  return { 'queued', now, 0 }
else
  local refused = last_ticket == 0
    and refusal('HSET', 'RPUSH', 'LPOP', 'RPOP', 'LINDEX', 'LLEN', 'LRANGE', 'HGET', 'HEXISTS',
                'HKEYS', 'HGETALL', 'HDEL', 'DEL', 'PEXPIREAT')
  if refused then return refused end
  local ticket
  if waiter then
    ticket = tonumber(string.match(waiter, '^%d+'))
  else
    -- The record says that the queue is empty. So entries in the list belong to a record that was
    -- lost, and they go.
    if entries == 0 then
      heads_popped, served_ticket, queue_expires_at = redis.call('LLEN', queue_key), last_ticket, 0
    end
    last_ticket = last_ticket + 1
    ticket = last_ticket
    entries, waiter_records, appended_token = entries + 1, waiter_records + 1, token
    fields_to_set[#fields_to_set + 1] = 'w:' .. token
    fields_to_set[#fields_to_set + 1] = ticket .. ' ' .. now_text .. ' ' .. manager .. ' ' .. params
  end
  --include queue_stamp.lua
  -- The position is at least 1. Where the list lost entries, a later ticket may have been served.
  answer = { 'waiting', now, 0, ticket, math.max(1, ticket - served_ticket), left, since,
             unpack(grants) }
end
local expire_first = false
--include mutex_write.lua
--include mutex_delete.lua
if message then redis.pcall('PUBLISH', ARGV[4] .. new_manager, message) end
return answer
