-- Purpose: the part that writes everything, in the order that R20 asks for, and tells other managers of their grants, last.
-- Expects: permit_record.lua before it · refreshed: whether the caller's stamp is written · delete_first: when out of memory,
--   Redis refuses a script whose first write may take memory and lets every other one finish. An acquire must be refused as a
--   whole; the others must go through.
-- KEYS: as in permit_record.lua
-- ARGV: as in permit_record.lua
-- Returns: nothing
if state_changed or queue_changed or #del > 0 or #hold_set > 0 or #hold_del > 0 then
  -- Whoever is forgotten must find out, so the caller's row of stamps ends too, unless a new one begins here.
  if forgot and not refreshed then del[#del + 1] = 'm:' .. manager end
  -- Where no holder is left, or they were evicted, the key is made anew, and has no expiry then.
  if #hold_set > 0 and th > 0 and redis.call('HLEN', holders) <= #hold_del then th = 0 end
  -- Before those that are set: a token may take permits again after it lapsed. unpack() has a limit, so long argument lists
  -- go in pieces.
  local function write_holders()
    for i = 1, #hold_del, 1000 do redis.call('HDEL', holders, unpack(hold_del, i, math.min(i + 999, #hold_del))) end
    for i = 1, #hold_set, 1000 do redis.call('HSET', holders, unpack(hold_set, i, math.min(i + 999, #hold_set))) end
  end
  local function delete()
    for i = 1, #del, 1000 do redis.call('HDEL', key, unpack(del, i, math.min(i + 999, #del))) end
    if rewritten then
      redis.call('DEL', list)
      for i = 1, #rewritten, 1000 do redis.call('RPUSH', list, unpack(rewritten, i, math.min(i + 999, #rewritten))) end
    else
      if popped > 0 then redis.call('LPOP', list, popped) end
      if tails > 0 then redis.call('RPOP', list, tails) end
    end
  end
  -- An entry comes first, since the key may have become one of another type (R20). A list that was evicted is made anew.
  if appended and redis.call('RPUSH', list, appended) == 1 then tq = 0 end
  -- Each key is to last an hour longer than anything in it, and is told so a minute ahead: most calls need not.
  local lasts = math.ceil(math.max(now + 1000 * longest, f or 0) / 1000000) + 3600
  local late, list_late = t < lasts, n > 0 and tq < lasts
  local holders_late = #hold_set > 0 and th < lasts
  local expire_first = delete_first and #del == 0 and #hold_del == 0 and popped == 0 and tails == 0
  if late or expire_first then t = lasts + 60 end
  if list_late then tq = lasts + 60 end
  if holders_late then th = lasts + 60 end
  if expire_first then redis.call('PEXPIREAT', key, string.format('%.0f000', t)) end
  if delete_first then
    delete()
    write_holders()
  end
  if kind then
    set[#set + 1] = 'p'
    set[#set + 1] = struct.pack(STATE, f, b, shortest, longest, t, th, capacity, math.max(0, used), d)
    set[#set + 1] = 'n'
    set[#set + 1] = struct.pack(QUEUE, n, math.max(0, r), s, v, q, h, tq)
    if not state then
      set[#set + 1] = 'k'
      set[#set + 1] = kind
    end
  end
  if #set > 0 then redis.call('HSET', key, unpack(set)) end
  if not delete_first then
    write_holders()
    delete()
  end
  if late and not (expire_first and state) then redis.call('PEXPIREAT', key, string.format('%.0f000', t)) end
  if list_late then redis.call('PEXPIREAT', list, string.format('%.0f000', tq)) end
  if holders_late then redis.call('PEXPIREAT', holders, string.format('%.0f000', th)) end
end
for i = 1, #messages, 2 do redis.pcall('PUBLISH', ARGV[4] .. messages[i], messages[i + 1]) end
