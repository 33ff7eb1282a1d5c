-- Purpose: the part that all mutex scripts share, put where they say --include: it unpacks the record, keeps served time,
--   sees lapses, hands the lock to the first live waiter and writes everything back in one go.
--   All reads come before the first write, so that WRONGTYPE writes nothing (R20).
--   Numbers that are always read together lie packed in one field: a field costs a script more to read, to parse and to
--   print than all else that it does. What changes is kept in one table, since each variable that a function captures
--   costs as well, each time that the function is made.
-- Expects: state, queue, owner: the fields 's', 'q' and 'o' · now: the server's time in µs
-- KEYS: 1 the record (HASH) · 2 the queue (LIST); absent in the single-key form (R11)
-- ARGV: 1 the caller's manager · 2 P + T in µs · 3 H in µs · 4 prefix of the grant channels
-- Returns: nothing; each script ends with answer(): {status, now in µs, more, fields, grants}
local key, list, manager = KEYS[1], KEYS[2], ARGV[1]
local LIMIT, RETENTION = 64, 3600               -- dead heads in one call; seconds
-- s: end, grant, fence, fence of the last grant that ended without a release, the key's expiry in s, ttl and hold in ms,
--    how the last holder ended (d), how that other grant did (y); -1 is not known
-- q: entries, waiters' records, time and served time when last looked at, ticket last given, ticket last served, expiry
local STATE, QUEUE, STAMP = '<ddddI4I4I4bb', '<I4I4ddddI4', '<dd'

-- Another kind, or another version of this protocol, is refused before any write.
if not state then
  local kind = redis.call('HGET', key, 'k')
  if kind and kind ~= 'mutex/1' then return { 'kind', now, 0, { kind }, {} } end
end

local rec = { owner = owner or nil, e = 0, x = 0, t = 0, ttl = 0, hold = 0, d = -1, y = -1,
              n = 0, r = 0, s = now, v = 0, q = 0, h = 0, tq = 0,
              popped = 0, tails = 0, more = 0 }
local set, del = {}, {}                         -- further fields to write, fields to delete
local stamps = {}                               -- manager -> served time up to which it counts as alive
local news, grants = {}, {}

if state then
  rec.e, rec.g, rec.f, rec.x, rec.t, rec.ttl, rec.hold, rec.d, rec.y = struct.unpack(STATE, state)
  -- R15: an end further off than any lease reaches means that the server's clock went back.
  local cap = 1000 * math.max(rec.ttl, rec.hold)
  if rec.e - now > cap then rec.e, rec.state_changed = now + cap, true end
end
if queue then
  rec.n, rec.r, rec.s, rec.v, rec.q, rec.h, rec.tq = struct.unpack(QUEUE, queue)
  -- R2: served time grows only by what scripts saw pass, so an outage or a clock step ages nobody.
  local step = tonumber(ARGV[2])
  rec.unserved = now - rec.s > step
  rec.v = rec.v + math.max(0, math.min(now - rec.s, step))
  rec.s = now
end

local function int(x) return string.format('%.0f', x) end

local function answer(status, fields)
  return { status, now, rec.more, fields or {}, grants }
end

local function free() return not rec.owner and rec.e <= now end

local function left() return math.max(0, rec.e - now) end

-- What a grant tells: fence, granted at, time left, how the holder before ended.
local function held() return { rec.f, rec.g, left(), rec.d } end

local function vacate()
  rec.owner, rec.e, rec.owner_changed = nil, 0, true
end

-- A grant ended without a release: x is its fence and y says how, for its holder; d says so to those who
-- come next, until one of them ends well.
local function dirty(how)
  rec.x, rec.y, rec.d, rec.state_changed = rec.f, how, how, true
end

-- R9: only tokens other than the recorded one see a lapsed lease as free.
local function lapse(token)
  if not rec.owner or rec.owner == token or rec.e > now then return end
  local by, fixed = string.match(redis.call('HGET', key, 'a') or '', '^%d+ %d+ (%S+) %d+ (%d)')
  local dead = fixed == '0' and by ~= manager
  -- After a time in which nobody was served it may be the server that was away, and not the holder. If its
  -- process waits here too, a lease that lapsed so is given one step to be heard of, once in its life
  -- (u), so that nobody loses his place by an outage (P3).
  if dead and rec.unserved and rec.n > 0 and redis.call('HEXISTS', key, 'm:' .. by) == 1
    and redis.call('HGET', key, 'u') ~= int(rec.f) then
    rec.e = now + tonumber(ARGV[2])
    set[#set + 1] = 'u'
    set[#set + 1] = int(rec.f)
    rec.state_changed, rec.queue_changed = true, true
    return
  end
  dirty(1)
  -- R10: a renewed lease that lapsed means a dead process, whose waiters must not be granted next.
  if dead then
    stamps[by] = -1
    del[#del + 1] = 'm:' .. by
  end
  vacate()
end

-- ttl and hold in ms, as text.
local function grant(token, request, label, ttl, hold)
  if not rec.f then
    rec.x = now - 1
    set[#set + 1] = 'k'
    set[#set + 1] = 'mutex/1'
  end
  rec.owner, rec.request, rec.label = token, request, label
  -- The fence never falls, also when the record was lost: the server's clock is its floor (P2).
  rec.f = math.max((rec.f or 0) + 1, now)
  rec.g, rec.ttl, rec.hold = now, tonumber(ttl), tonumber(hold)
  rec.e = now + 1000 * math.max(rec.ttl, rec.hold)  -- R16
  rec.owner_changed = true
end

-- The queue's entries are gone (evicted, deleted): nobody's place is known any more (R4, R11).
local function forget()
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.find(field, '^[wm]:') and field ~= 'm:' .. manager then del[#del + 1] = field end
  end
  rec.n, rec.r, rec.h, rec.tq, rec.popped = 0, 0, rec.q, 0, 0
  rec.queue_changed, rec.forgot = true, true
end

-- Hands a free lock to the first live waiter; at most LIMIT dead ones are passed over in one call.
-- token: the caller's own, which learns of its grant from the status.
local function promote(token)
  while rec.n > 0 and free() do
    if rec.popped == LIMIT then
      rec.more = 1
      return
    end
    local head = redis.call('LINDEX', list, rec.popped)
    if not head then return forget() end
    rec.popped = rec.popped + 1
    rec.n = rec.n - 1
    rec.queue_changed = true
    -- Records that go in this step are still there to be read.
    local waiter = head ~= rec.removed and not rec.forgot and redis.call('HGET', key, 'w:' .. head)
    if waiter then
      del[#del + 1] = 'w:' .. head
      rec.r = rec.r - 1
      -- 'ticket since manager ttl fixed hold label', ttl and hold in ms.
      local request, ticket, by, ttl, hold, label =
        string.match(waiter, '^((%d+) %d+ (%S+) (%d+) %d (%d+)) (.*)$')
      rec.h = tonumber(ticket)
      if not stamps[by] then
        local stamp = redis.call('HGET', key, 'm:' .. by)
        stamps[by] = stamp and struct.unpack(STAMP, stamp) or -1
      end
      if stamps[by] >= rec.v then
        grant(head, request, label, ttl, hold)
        if by ~= manager then
          local f = int(rec.f)
          local g = rec.g == rec.f and f or int(rec.g)
          news[#news + 1] = by
          news[#news + 1] = table.concat({ head, f, g, int(left()), rec.d, key }, ' ')
        elseif head ~= token then
          grants = { head, unpack(held()) }
        end
      end
    end
  end
end

-- unpack() has a limit, so long argument lists go in pieces.
local function many(command, target, args)
  for i = 1, #args, 1000 do
    redis.call(command, target, unpack(args, i, math.min(i + 999, #args)))
  end
end

-- Each key is to last RETENTION longer than anything in it, and is told so a minute ahead: most calls need not.
-- expire_first: R20: when out of memory, Redis refuses a script whose first write may take memory and lets every other
-- one finish. An acquire must be refused as a whole; the others must go through.
local function write(expire_first)
  if not (rec.owner_changed or rec.state_changed or rec.queue_changed or #del > 0) then return end
  -- Ahead of the record's fields, since the key may have become one of another type (R20). A list that was evicted is
  -- made anew, and has no expiry then.
  if rec.appended and redis.call('RPUSH', list, rec.appended) == 1 then rec.tq = 0 end
  local lasts = math.ceil(math.max(now, rec.e, rec.f or 0) / 1000000) + RETENTION
  local late, list_late = expire_first or rec.t < lasts, list and rec.n > 0 and rec.tq < lasts
  if late then rec.t = lasts + 60 end
  if list_late then rec.tq = lasts + 60 end
  if expire_first then redis.call('PEXPIREAT', key, string.format('%.0f000', rec.t)) end
  if rec.owner_changed and rec.owner then
    for _, v in ipairs({ 'o', rec.owner, 'a', rec.request, 'l', rec.label }) do set[#set + 1] = v end
  end
  if rec.f and (late or rec.owner_changed or rec.state_changed) then
    set[#set + 1] = 's'
    set[#set + 1] = struct.pack(STATE, rec.e, rec.g, rec.f, rec.x, rec.t, rec.ttl, rec.hold, rec.d, rec.y)
  end
  if list_late or rec.queue_changed then
    set[#set + 1] = 'q'
    set[#set + 1] = struct.pack(QUEUE, rec.n, math.max(0, rec.r), rec.s, rec.v, rec.q, rec.h, rec.tq)
  end
  many('HSET', key, set)
  if late and not expire_first then redis.call('PEXPIREAT', key, string.format('%.0f000', rec.t)) end
  if list_late then redis.call('PEXPIREAT', list, string.format('%.0f000', rec.tq)) end
end

-- Answers whether anything was deleted.
local function delete()
  if rec.owner_changed and not rec.owner then del[#del + 1] = 'o' end
  -- Whoever is forgotten must find out, so the caller's row of stamps ends too, unless a new one begins here.
  if rec.forgot and not rec.refreshed then del[#del + 1] = 'm:' .. manager end
  many('HDEL', key, del)
  if rec.rewritten then
    redis.call('DEL', list)
    many('RPUSH', list, rec.rewritten)
  else
    if rec.popped > 0 then redis.call('LPOP', list, rec.popped) end
    if rec.tails > 0 then redis.call('RPOP', list, rec.tails) end
  end
  return #del > 0 or rec.popped > 0 or rec.tails > 0
end

-- For all but acquire.
local function save()
  write(not delete())
end

-- The message is only the news of a grant; a user without channel rights does without it (R17).
local function tell()
  for i = 1, #news, 2 do redis.pcall('PUBLISH', ARGV[4] .. news[i], news[i + 1]) end
end
