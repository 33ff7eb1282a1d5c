-- Purpose: takes the lock, or a place in its queue, for one token; the same token asked again gets
--   the same answer, so it may be sent twice (P7).
-- KEYS: 1 the record · 2 the queue
-- ARGV: 1-4 as in mutex_promote.lua · 5 token · 6 not_after: server time in µs past which nothing is
--   taken · 7 '1' if it may wait · 8 'ttl fixed hold label', ttl and hold in ms
-- Returns: granted {fence, granted at, left, previous} · waiting {ticket, position, left, since}
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

-- Most locks are free and awaited by nobody. Such a one is granted here, as grant() below would do it,
-- without what only a queue needs: a fifth of the instructions.
do
  local owner, cooling, entries, kind, fence, previous = unpack(redis.call('HMGET', KEYS[1], 'o', 'e', 'n', 'k', 'f', 'd'))
  local clock = redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]
  if not owner and not cooling and (entries or '0') == '0' and (kind or 'mutex/1') == 'mutex/1'
    and (fence or 0) + 1 <= now and now <= tonumber(ARGV[6]) then
    local refused = not fence and refusal('HDEL', 'PEXPIREAT')
    if refused then return refused end
    local terms, ttl, hold, label = string.match(ARGV[8], '^((%d+) %d (%d+)) (.*)$')
    local left = math.max(ttl, hold)
    local at = clock[1] .. string.sub('00000' .. clock[2], -6)
    redis.call('HSET', KEYS[1], 'o', ARGV[5], 'a', '0 ' .. at .. ' ' .. ARGV[1] .. ' ' .. terms, 'l', label,
               'e', string.format('%.0f', now + 1000 * left), 'g', at, 'f', at)
    if not fence then redis.call('HSET', KEYS[1], 'k', 'mutex/1', 'x', string.format('%.0f', now - 1)) end
    redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.floor(now / 1000) + left + 3600000))
    return { 'granted', now, 0, { now, now, 1000 * left, tonumber(previous) or -1 }, {} }
  end
end

--include mutex_promote.lua

local token, not_after, may_wait, asked = ARGV[5], tonumber(ARGV[6]), ARGV[7] == '1', ARGV[8]
local waiter, own = read('w:' .. token, 'm:' .. manager)
if foreign() then return foreign() end
-- R5: a request that arrives after its caller gave up takes nothing.
if now > not_after then return answer('late') end
if rec.owner == token then return answer('granted', held()) end
-- R11: without the queue's key only a record without a queue can be served.
if not list and rec.n > 0 then return answer('queued') end

lapse(token)
stamps[manager] = rec.v + horizon               -- R3
promote(token)

local status, fields
if rec.owner == token then
  status, fields = 'granted', held()
elseif more == 1 then
  status = 'more'
elseif free() then
  local refused = not rec.f and refusal('HDEL', 'PEXPIREAT')
  if refused then return refused end
  if waiter then
    del[#del + 1] = 'w:' .. token
    rec.r = math.max(0, rec.r - 1)
    queue_changed = true
  end
  local request, label = string.match(asked, '^(%d+ %d %d+) (.*)$')
  grant(token, '0 ' .. int(now) .. ' ' .. manager .. ' ' .. request, label)
  status, fields = 'granted', held()
elseif not may_wait then
  status, fields = 'busy', { left() }
elseif not list then
  return answer('queued')
else
  local refused = rec.q == 0 and refusal('RPUSH', 'LPOP', 'RPOP', 'LINDEX', 'LLEN', 'LRANGE', 'HGET', 'HEXISTS', 'HKEYS',
                                         'HGETALL', 'HDEL', 'DEL', 'PEXPIREAT')
  if refused then return refused end
  local ticket
  if waiter then
    ticket = parts(waiter).ticket
  else
    -- An empty queue has no entries: what stands in the list is left from a record that was lost.
    stale = redis.call('LLEN', list) > 0 and rec.n == 0
    if rec.n == 0 then rec.h = rec.q end
    rec.q = rec.q + 1
    ticket = rec.q
    rec.n, rec.r = rec.n + 1, rec.r + 1
    set[#set + 1] = 'w:' .. token
    set[#set + 1] = int(ticket) .. ' ' .. int(now) .. ' ' .. manager .. ' ' .. asked
  end
  keep = true
  -- Where the list lost entries, somebody with a later ticket may have been served.
  status, fields = 'waiting', { ticket, math.max(1, ticket - rec.h), left(), refresh(own) }
  write_fields()
  write_deletions()
  if not waiter then redis.call('RPUSH', list, token) end
  retain()
  tell()
  return answer(status, fields)
end
save_or_refuse()
tell()
return answer(status, fields)
