-- Purpose: the part that all mutex scripts share, put where they say --include: it reads the record, keeps served time,
--   sees lapses, hands the lock to the first live waiter and writes everything back in one go.
--   All reads come before the first write, so that WRONGTYPE writes nothing (R20).
-- KEYS: 1 the record (HASH) · 2 the queue (LIST); absent in the single-key form (R11)
-- ARGV: 1 the caller's manager · 2 P + T in µs · 3 H in µs · 4 prefix of the grant channels
-- Returns: nothing; each script ends with answer(): {status, now in µs, more, fields, grants}
local key, list = KEYS[1], KEYS[2]
local manager, step, horizon, channel = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local KIND, LIMIT, RETENTION = 'mutex/1', 64, 3600000000

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local rec = {}                                  -- the record, as it will be written
local owner_changed, end_changed, queue_changed, keep = false, false, false, false
local set, del = {}, {}                         -- further fields to write, fields to delete
local stamps = {}                               -- manager -> served time up to which it counts as alive
local popped, tails, rewritten, stale, forgot = 0, 0, nil, false, false
local removed                                   -- a token whose record goes in this step
local refreshed = false                         -- the caller's own stamp is written in this step
local more, grants, news = 0, {}, {}

local function int(x) return string.format('%.0f', x) end

-- 'ticket since manager ttl fixed hold', ttl and hold in ms: the request of an owner or a waiter.
local function parts(request)
  local ticket, since, by, ttl, fixed, hold = string.match(request, '^(%d+) (%d+) (%S+) (%d+) (%d) (%d+)')
  return { ticket = tonumber(ticket), manager = by, fixed = fixed == '1',
           ttl = ttl * 1000, hold = hold * 1000 }
end

local function read(...)
  local raw = redis.call('HMGET', key, 'k', 'o', 'a', 'e', 'g', 'f', 'x', 'd', 'n', 'r', 's', 'v', 'q', 'h', 'y', 'u', ...)
  rec.kind, rec.owner, rec.request = raw[1], raw[2], raw[3]
  rec.e, rec.g, rec.f, rec.x, rec.d = tonumber(raw[4]) or 0, tonumber(raw[5]), tonumber(raw[6]), tonumber(raw[7]), tonumber(raw[8])
  rec.n, rec.r = tonumber(raw[9]) or 0, tonumber(raw[10]) or 0
  rec.s, rec.v = tonumber(raw[11]) or now, tonumber(raw[12]) or 0
  rec.q, rec.h = tonumber(raw[13]) or 0, tonumber(raw[14]) or 0
  -- R2: served time grows only by what scripts saw pass, so an outage or a clock step ages nobody.
  rec.v = rec.v + math.max(0, math.min(now - rec.s, step))
  rec.unserved = now - rec.s > step
  rec.s = now
  -- R15: an end further off than any lease reaches means that the server's clock went back.
  if rec.request and rec.e > now then
    local p = parts(rec.request)
    local cap = math.max(p.ttl, p.hold)
    if rec.e - now > cap then rec.e, end_changed = now + cap, true end
  end
  rec.y, rec.u = tonumber(raw[15]), tonumber(raw[16])
  return raw[17], raw[18]
end

local function answer(status, fields)
  return { status, now, more, fields or {}, grants }
end

-- Another kind, or another version of this protocol, is refused before any write.
local function foreign()
  if rec.kind and rec.kind ~= KIND then return answer('kind', { rec.kind }) end
end

local function free() return not rec.owner and rec.e <= now end

local function left() return math.max(0, rec.e - now) end

-- What a grant tells: fence, granted at, time left, how the holder before ended (-1: not known).
local function held() return { rec.f, rec.g, left(), rec.d or -1 } end

local function vacate()
  rec.owner, rec.request, rec.e = nil, nil, 0
  owner_changed = true
end

-- A grant ended without a release: x is its fence and y says how, for its holder; d says so to those who
-- come next, until one of them ends well.
local function dirty(how)
  rec.x, rec.y, rec.d = rec.f, how, how
  for _, v in ipairs({ 'x', int(rec.x), 'y', how, 'd', how }) do set[#set + 1] = v end
end

-- R9: only tokens other than the recorded one see a lapsed lease as free.
local function lapse(token)
  if not rec.owner or rec.owner == token or rec.e > now then return end
  local p = parts(rec.request)
  local dead = not p.fixed and p.manager ~= manager
  -- After a time in which nobody was served it may be the server that was away, and not the holder. If its
  -- process waits here too, a lease that lapsed so is given one step to be heard of, once in its life
  -- (u), so that nobody loses his place by an outage (P3).
  if dead and rec.unserved and rec.n > 0 and rec.u ~= rec.f
    and redis.call('HEXISTS', key, 'm:' .. p.manager) == 1 then
    rec.e, rec.u = now + step, rec.f
    set[#set + 1] = 'u'
    set[#set + 1] = int(rec.u)
    end_changed, queue_changed, keep = true, true, true
    return
  end
  dirty(1)
  -- R10: a renewed lease that lapsed means a dead process, whose waiters must not be granted next.
  if dead then
    stamps[p.manager] = -1
    del[#del + 1] = 'm:' .. p.manager
  end
  vacate()
end

local function grant(token, request, label)
  local p = parts(request)
  if not rec.f then
    rec.x = now - 1
    set[#set + 1] = 'x'
    set[#set + 1] = int(rec.x)
  end
  rec.owner, rec.request, rec.label = token, request, label
  -- The fence never falls, also when the record was lost: the server's clock is its floor (P2).
  rec.f = math.max((rec.f or 0) + 1, now)
  rec.g = now
  rec.e = now + math.max(p.ttl, p.hold)          -- R16
  owner_changed, keep = true, true
end

local function alive(by)
  if not stamps[by] then
    local stamp = redis.call('HGET', key, 'm:' .. by)
    stamps[by] = stamp and tonumber(string.match(stamp, '^%d+')) or -1
  end
  return stamps[by] >= rec.v
end

-- The queue's entries are gone (evicted, deleted): nobody's place is known any more (R4, R11).
local function forget()
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.find(field, '^[wm]:') and field ~= 'm:' .. manager then del[#del + 1] = field end
  end
  rec.n, rec.r, rec.h, popped = 0, 0, rec.q, 0
  queue_changed, forgot = true, true
end

-- Hands a free lock to the first live waiter; at most LIMIT dead ones are passed over in one call.
-- token: the caller's own, which learns of its grant from the status.
local function promote(token)
  while rec.n > 0 and free() do
    if popped == LIMIT then
      more = 1
      return
    end
    local head = redis.call('LINDEX', list, popped)
    if not head then return forget() end
    popped = popped + 1
    rec.n = rec.n - 1
    queue_changed = true
    -- Records that go in this step are still there to be read.
    local waiter = head ~= removed and not forgot and redis.call('HGET', key, 'w:' .. head)
    if waiter then
      del[#del + 1] = 'w:' .. head
      rec.r = rec.r - 1
      local p = parts(waiter)
      rec.h = p.ticket
      if alive(p.manager) then
        local request, label = string.match(waiter, '^(%S+ %S+ %S+ %S+ %S+ %S+) (.*)$')
        grant(head, request, label)
        local g = held()
        if p.manager ~= manager then
          news[#news + 1] = { p.manager, table.concat({ head, int(g[1]), int(g[2]), int(g[3]), g[4], key }, ' ') }
        elseif head ~= token then
          grants = { head, g[1], g[2], g[3], g[4] }
        end
      end
    end
  end
end

-- Writes the caller's stamp. Its second number tells when this row of stamps began: a waiter that was
-- enqueued under another one may have been passed over as dead, or forgotten.
local function refresh(own)
  local stamp, since = string.match(own or '', '^(%d+) (%d+)$')
  if forgot or not stamp or tonumber(stamp) < rec.v then since = int(now) end
  stamps[manager], refreshed = rec.v + horizon, true
  set[#set + 1] = 'm:' .. manager
  set[#set + 1] = int(stamps[manager]) .. ' ' .. since
  queue_changed = true
  if not stamp then
    -- Stamps of managers that went away are swept when their number has doubled.
    local count, limit = string.match(redis.call('HGET', key, 'c') or '0 64', '^(%d+) (%d+)$')
    count = count + 1
    if count > tonumber(limit) then
      count = 1
      local all = redis.call('HGETALL', key)
      for i = 1, #all, 2 do
        if string.find(all[i], '^m:') then
          if tonumber(string.match(all[i + 1], '^%d+')) < rec.v then
            del[#del + 1] = all[i]
          else
            count = count + 1
          end
        end
      end
      limit = 2 * count + rec.r + 64
    end
    set[#set + 1] = 'c'
    set[#set + 1] = int(count) .. ' ' .. int(limit)
  end
  return tonumber(since)
end

-- R19: dead entries at the tail go, and a queue that is mostly dead is rewritten.
local function trim()
  while tails < math.min(LIMIT, rec.n) do
    local last = redis.call('LINDEX', list, -1 - tails)
    if not last or (last ~= removed and redis.call('HEXISTS', key, 'w:' .. last) == 1) then break end
    tails = tails + 1
  end
  rec.n = rec.n - tails
  if rec.n > 2 * rec.r + 64 then
    rewritten = {}
    local all = redis.call('LRANGE', list, popped, -1 - tails)
    for i = 1, #all do
      if all[i] ~= removed and redis.call('HEXISTS', key, 'w:' .. all[i]) == 1 then
        rewritten[#rewritten + 1] = all[i]
      end
    end
    rec.n, keep = #rewritten, true
  end
  queue_changed = true
end

-- unpack() has a limit, so long argument lists go in pieces.
local function many(command, target, args)
  for i = 1, #args, 1000 do
    redis.call(command, target, unpack(args, i, math.min(i + 999, #args)))
  end
end

local function write_fields()
  if owner_changed and rec.owner then
    for _, v in ipairs({ 'k', KIND, 'o', rec.owner, 'a', rec.request, 'l', rec.label,
                         'e', int(rec.e), 'g', int(rec.g), 'f', int(rec.f) }) do
      set[#set + 1] = v
    end
  elseif end_changed and rec.e > 0 then
    set[#set + 1] = 'e'
    set[#set + 1] = int(rec.e)
  end
  if queue_changed then
    for _, v in ipairs({ 'n', int(rec.n), 'r', int(rec.r), 's', int(rec.s), 'v', int(rec.v),
                         'q', int(rec.q), 'h', int(rec.h) }) do
      set[#set + 1] = v
    end
  end
  many('HSET', key, set)
end

local function write_deletions()
  if owner_changed and not rec.owner then
    -- The rest of what the last holder asked for may stay: it is read only where there is an owner or an end.
    del[#del + 1] = 'o'
    if rec.e <= now then del[#del + 1] = 'e' end
  end
  -- Whoever is forgotten must find out, so the caller's row of stamps ends too, unless a new one begins here.
  if forgot and not refreshed then del[#del + 1] = 'm:' .. manager end
  many('HDEL', key, del)
  if rewritten then
    redis.call('DEL', list)
    many('RPUSH', list, rewritten)
  else
    if stale then redis.call('DEL', list) end
    if popped > 0 then redis.call('LPOP', list, popped) end
    if tails > 0 then redis.call('RPOP', list, tails) end
  end
end

local function retain()
  if not keep then return end
  local at = int(math.floor((math.max(now, rec.e, rec.f) + RETENTION) / 1000))
  redis.call('PEXPIREAT', key, at)
  if list and rec.n > 0 then redis.call('PEXPIREAT', list, at) end
end

-- R20: when out of memory, Redis refuses a script whose first write may take memory and lets every
-- other one finish. An acquire must be refused as a whole; the others must go through.
local function save_or_refuse()
  write_fields()
  write_deletions()
  retain()
end

local function save_always()
  if not (#del > 0 or owner_changed or end_changed or queue_changed or #set > 0) then return end
  if #del > 0 or owner_changed then
    write_deletions()
    write_fields()
    retain()
  else
    keep = true
    retain()
    write_deletions()
    write_fields()
  end
end

-- The message is only the news of a grant; a user without channel rights does without it (R17).
local function tell()
  for _, n in ipairs(news) do redis.pcall('PUBLISH', channel .. n[1], n[2]) end
end
