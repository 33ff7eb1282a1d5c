-- Purpose: takes permits, or a place in the queue for them, for one token; the same token asked again gets the same answer,
--   so it may be sent twice (P7).
-- KEYS: 1 the record · 2 the queue · 3 the holders
-- ARGV: 1-4 as in permit_record.lua · 5 token · 6 not_after: server time in µs past which nothing is
--   taken · 7 '1' if it may wait · 8 'ttl fixed hold permits label', ttl and hold in ms · 9 'kind capacity'
-- Returns: granted {fence, granted at, left, previous} · waiting {ticket, position, left, since}
--   · busy {left} · late · more (call again at once) · kind {kind}

-- What a script has written stays when its next command is refused. So before the first write to a record, and the first
-- to its queue, the user's rights are looked at, where the server can tell (7.0): nothing is begun that could not be ended.
local function refusal(...)
  for _, command in ipairs(redis.acl_check_cmd and { ... } or {}) do
    if not redis.acl_check_cmd(command, KEYS[1]) then
      return redis.error_reply('NOPERM this user lacks +' .. string.lower(command))
    end
  end
end

local token, not_after, asked, wanted = ARGV[5], ARGV[6] + 0, ARGV[8], ARGV[9]
local kind, state, queue, waiter, own = unpack(redis.call('HMGET', KEYS[1], 'k', 'p', 'n', 'w:' .. token, 'm:' .. ARGV[1]))
local had = redis.call('HGET', KEYS[3], token)
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
--include permit_record.lua

-- R5: a request that arrives after its caller gave up takes nothing.
if now > not_after then return { 'late', now, 0 } end
if had then
  local e, _, _, _, stands, how, text = struct.unpack(HOLDER, had)
  if stands < 2 then
    local fence, since = string.match(had, '^%S+ %d+ (%d+) %d+ (%d+)', text)
    return { 'granted', now, 0, fence + 0, since + 0, math.max(0, e - now), how }
  end
end

--include permit_reclaim.lua
alive = manager                                 -- R3
--include permit_promote.lua

-- A name that nobody has or awaits is free to become another kind, or to have another capacity.
if more == 0 and kind ~= wanted and used == 0 and n == 0 then
  if not state then
    local refused = refusal('HDEL', 'PEXPIREAT', 'PTTL')
    if refused then return refused end
    f = math.max(f or 0, now - 1)
  end
  kind, capacity, state_changed = wanted, string.match(wanted, '%d+$') + 0, true
  set[#set + 1] = 'k'
  set[#set + 1] = kind
end
local terms, ttl, hold, weight, label = string.match(asked, '^((%d+) %d (%d+) (%d+)) (.*)$')
ttl, hold, weight = ttl + 0, hold + 0, weight + 0
if not mine and more == 0 and kind == wanted and n == 0 and used + weight <= capacity then
  if waiter then
    del[#del + 1] = 'w:' .. token
    r, queue_changed = r - 1, true
  end
  local whom, ticket, by = token, '0', manager
  --include permit_grant.lua
end

local answer, refreshed
local left = math.max(0, b - now)
if mine then
  answer = mine
elseif more == 1 then
  answer = { 'more', now, 1 }
elseif kind ~= wanted then
  answer = { 'kind', now, 0, kind }
elseif ARGV[7] ~= '1' then
  answer = { 'busy', now, 0, left }
else
  local refused = q == 0 and refusal('HSET', 'RPUSH', 'LPOP', 'RPOP', 'LINDEX', 'LLEN', 'LRANGE', 'HGET', 'HEXISTS',
                                         'HKEYS', 'HGETALL', 'HLEN', 'HDEL', 'DEL', 'PEXPIREAT')
  if refused then return refused end
  local ticket
  if waiter and not forgot then
    ticket = tonumber(string.match(waiter, '^%d+'))
  else
    -- Its place went with the list, and this is another one; what is forgotten is deleted last.
    for i = #del, 1, -1 do
      if del[i] == 'w:' .. token then table.remove(del, i) end
    end
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
  answer = { 'waiting', now, 0, ticket, math.max(1, ticket - h), left, since }
end
for i = 1, #grants do answer[#answer + 1] = grants[i] end
local delete_first = false
--include permit_write.lua
return answer
