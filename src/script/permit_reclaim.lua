-- Purpose: the part that looks for holders whose time is over, if there can be any. R9: only tokens other than the holder's
--   own see that. After a loss of the record it makes another one from the holders.
-- Expects: permit_record.lua before it · token: the caller's own
-- KEYS: as in permit_record.lua
-- ARGV: as in permit_record.lua
-- Returns: nothing; status: released, if somebody was by force
local status
-- R15: if a holder lasts for longer than any lease, the server's clock went back.
if not state or forced or b > 0 and (now >= b or b - now > 1000 * shortest) then
  local all, first, least = redis.call('HGETALL', holders), nil, nil
  used, longest, state_changed = 0, 0, state ~= false
  for i = 1, #all, 2 do
    local whose = all[i]
    local e, ttl, hold, weight, stands, how, text = struct.unpack(HOLDER, all[i + 1])
    text = string.sub(all[i + 1], text)
    local its_kind, fence, by, fixed = string.match(text, '^(%S+ %d+) (%d+) %d+ %d+ (%S+) %d+ (%d)')
    fence = fence + 0
    if not state then
      f = math.max(f or 0, fence)
      -- What lapsed may have been of another kind.
      if stands < 3 then kind, capacity, state_changed = its_kind, string.match(its_kind, '%d+$') + 0, true end
    end
    local alone = weight == capacity or string.sub(its_kind, 1, 3) ~= 'rw/'
    local changed, ends, cap = false, false, math.max(ttl, hold)
    if e - now > 1000 * cap then e, changed = now + 1000 * cap, true end
    if forced == fence then
      if stands < 2 then
        status, ends = 'released', 4
      elseif stands == 2 then
        status, ends = e > now and 'released' or status, true
      end
    elseif e <= now and whose ~= token then
      -- After a time in which nobody was served it may be the server that was away, and not the holder. If its process
      -- waits here too, it is given one step to be heard of, once, so that nobody loses his place by an outage (P3).
      local died = fixed == '0' and by ~= manager
      if stands > 1 then
        ends = true
      elseif stands == 0 and died and unserved and n > 0 and redis.call('HEXISTS', key, 'm:' .. by) == 1 then
        e, stands, changed, queue_changed = now + math.min(ARGV[2], 1000 * cap), 1, true, true
      else
        ends = 3
        -- R10: a renewed lease that lapsed means a dead process, whose waiters must not be granted next.
        if died and not dead[by] then
          dead[by] = true
          del[#del + 1] = 'm:' .. by
        end
      end
    end
    if ends == true then
      hold_del[#hold_del + 1] = whose
    else
      if ends then
        -- It takes nothing any more, and stays for a while, so that its holder hears what became of it. What readers leave
        -- is never half done.
        if alone then d = ends - 2 end
        e, weight, stands, changed = now + 1000 * ttl, 0, ends, true
      end
      if changed and (ends or whose ~= token) then
        hold_set[#hold_set + 1] = whose
        hold_set[#hold_set + 1] = struct.pack(HOLDER, e, ttl, hold, weight, stands, how) .. text
      end
      used, longest, first = used + weight, math.max(longest, cap), math.min(first or e, e)
      least = math.min(least or cap, cap)
    end
  end
  b, shortest = first or 0, least or 0
  -- A look costs some 2 µs a holder. Where there are many, the next is put off, so that leases that end one after the other
  -- take no more than a tenth of the server's time. That is not the clock's having gone back, however short they are.
  if b > 0 and #all > 128 then
    local later = math.min(10 * #all, ARGV[2] / 8)
    b, shortest = math.max(b, now + later), math.max(shortest, math.ceil(later / 1000))
  end
end
