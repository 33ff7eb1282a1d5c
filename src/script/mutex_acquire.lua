-- Purpose: takes the lock, or a place in its queue, for one token; the same token asked again gets
--   the same answer, so it may be sent twice (P7).
-- KEYS: 1 the record · 2 the queue
-- ARGV: 1-4 as in mutex_record.lua · 5 token · 6 not_after: server time in µs past which nothing is
--   taken · 7 '1' if it may wait · 8 'ttl fixed hold label', ttl and hold in ms
-- Returns: 'granted', now, left, previous, from the short way, with now as the fence and the time of the grant
--   · granted {fence, granted at, left, previous} · waiting {ticket, position, left, since}
--   · busy {left} · late · more (call again at once) · queued (both keys are needed) · kind {kind}

-- What a script has written stays when its next command is refused. So before the first write to a record, and the first
-- to its queue, the user's rights are looked at, where the server can tell (7.0): nothing is begun that could not be ended.
local function refusal(...)
  for _, command in ipairs(redis.acl_check_cmd and { ... } or {}) do
    if not redis.acl_check_cmd(command, KEYS[1]) then
      return redis.error_reply('NOPERM this user lacks +' .. string.lower(command))
    end
  end
end

local token, not_after, asked = ARGV[5], ARGV[6] + 0, ARGV[8]
local state, queue = unpack(redis.call('HMGET', KEYS[1], 's', 'q'))
local clock = redis.call('TIME')
local now, owner = clock[1] * 1000000 + clock[2], nil
-- now as text; a number of 16 digits is dear to print.
local at = clock[1] .. string.sub('00000' .. clock[2], -6)

-- Most locks are known, free, and awaited by nobody. Such a one is granted here, as the parts below would do it,
-- without what only a queue needs.
if state and now <= not_after and (not queue or struct.unpack('<I4', queue) == 0) then
  local e, _, f, x, t, _, _, previous, y = struct.unpack('<ddddI4I4I4bb', state)
  local terms, ttl, hold, label = string.match(asked, '^((%d+) %d (%d+)) (.*)$')
  local left = 1000 * math.max(ttl, hold)
  if e == 0 and f < now and (now + left) / 1000000 + 3600 < t then
    redis.call('HSET', KEYS[1], 'o', token, 'a', '0 ' .. at .. ' ' .. ARGV[1] .. ' ' .. terms, 'l', label,
               's', struct.pack('<ddddI4I4I4bb', now + left, now, now, x, t, ttl, hold, previous, y))
    return { 'granted', now, left, previous }
  end
end

local waiter, own
owner, waiter, own = unpack(redis.call('HMGET', KEYS[1], 'o', 'w:' .. token, 'm:' .. ARGV[1]))
--include mutex_record.lua

-- R5: a request that arrives after its caller gave up takes nothing.
if now > not_after then return { 'late', now, 0 } end
if owner == token then return { 'granted', now, 0, f, g, math.max(0, e - now), d } end
-- R11: without the queue's key only a record without a queue can be served.
if not list and n > 0 then return { 'queued', now, 0 } end

--include mutex_lapse.lua
alive = manager                                 -- R3
--include mutex_promote.lua

if not owner and e <= now and more == 0 then
  local refused = not f and refusal('HDEL', 'PEXPIREAT')
  if refused then return refused end
  if waiter then
    del[#del + 1] = 'w:' .. token
    r, queue_changed = r - 1, true
  end
  owner, by = token, manager
  request, ttl, hold, label = string.match(asked, '^((%d+) %d (%d+)) (.*)$')
  request = '0 ' .. at .. ' ' .. manager .. ' ' .. request
end
--include mutex_grant.lua

local answer, refreshed
local left = math.max(0, e - now)
if owner == token then
  answer = { 'granted', now, 0, f, g, left, d }
elseif more == 1 then
  answer = { 'more', now, 1 }
elseif ARGV[7] ~= '1' then
  answer = { 'busy', now, 0, left, unpack(grants) }
elseif not list then
  return { 'queued', now, 0 }
else
  local refused = q == 0 and refusal('HSET', 'RPUSH', 'LPOP', 'RPOP', 'LINDEX', 'LLEN', 'LRANGE', 'HGET', 'HEXISTS',
                                         'HKEYS', 'HGETALL', 'HDEL', 'DEL', 'PEXPIREAT')
  if refused then return refused end
  local ticket
  if waiter then
    ticket = tonumber(string.match(waiter, '^%d+'))
  else
    -- An empty queue has no entries: what stands in the list is left from a record that was lost.
    if n == 0 then popped, h, tq = redis.call('LLEN', list), q, 0 end
    q = q + 1
    ticket = q
    n, r, appended = n + 1, r + 1, token
    set[#set + 1] = 'w:' .. token
    set[#set + 1] = ticket .. ' ' .. at .. ' ' .. manager .. ' ' .. asked
  end
  --include queue_stamp.lua
  -- Where the list lost entries, somebody with a later ticket may have been served.
  answer = { 'waiting', now, 0, ticket, math.max(1, ticket - h), left, since, unpack(grants) }
end
local expire_first = false
--include mutex_write.lua
--include mutex_delete.lua
if message then redis.pcall('PUBLISH', ARGV[4] .. by, message) end
return answer
