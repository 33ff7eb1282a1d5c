-- Purpose: the part that looks for holders whose leases are over, if there can be any. R9 (own
--   lapse): only a token other than the holder's own sees that. After the record was lost, it makes
--   a new one from the holders.
-- Expects: permit_record.lua before it · token: the caller's own
-- KEYS: as in permit_record.lua
-- ARGV: as in permit_record.lua
-- Returns: nothing; status: released, if a holder was released by force
local status
-- R15 (clock went back): next_lapse is further off than the shortest lease reaches, so the server's
-- clock was set back.
if not packed_state or forced_fence
  or next_lapse > 0 and (now >= next_lapse or next_lapse - now > 1000 * shortest_lease) then
  local all, first_end, least_lease = redis.call('HGETALL', holders_key), nil, nil
  permits_taken, longest_lease, state_changed = 0, 0, packed_state ~= false
  for i = 1, #all, 2 do
    local holder_token = all[i]
    local lease_end, ttl, hold, weight, phase, holder_previous, text_start =
      struct.unpack(HOLDER, all[i + 1])
    local text = string.sub(all[i + 1], text_start)
    local holder_kind, holder_fence, holder_manager, fixed =
      string.match(text, '^(%S+ %d+) (%d+) %d+ %d+ (%S+) %d+ (%d)')
    holder_fence = holder_fence + 0
    if not packed_state then
      fence = math.max(fence or 0, holder_fence)
      -- A holder that lapsed may have been of another kind.
      if phase < 3 then
        kind, capacity, state_changed = holder_kind, string.match(holder_kind, '%d+$') + 0, true
      end
    end
    local may_leave_half_done = weight == capacity or string.sub(holder_kind, 1, 3) ~= 'rw/'
    -- ends: true if the holder's entry goes, or the phase in which it stays.
    local changed, ends, lease_ms = false, false, math.max(ttl, hold)
    if lease_end - now > 1000 * lease_ms then lease_end, changed = now + 1000 * lease_ms, true end
    if forced_fence == holder_fence then
      if phase < 2 then
        status, ends = 'released', 4
      elseif phase == 2 then
        status, ends = lease_end > now and 'released' or status, true
      end
    elseif lease_end <= now and holder_token ~= token then
      -- If no script served this queue for a while, the server may have been away, and the holder
      -- may be alive. If its process waits here too, the lease gets one step of grace, once. In
      -- that step the process can renew or release. Without the grace an outage would cost a live
      -- process its places (P3), by R10.
      local holder_died = fixed == '0' and holder_manager ~= manager
      if phase > 1 then
        ends = true
      elseif phase == 0 and holder_died and outage_possible and entries > 0
        and redis.call('HEXISTS', record_key, 'm:' .. holder_manager) == 1 then
        lease_end, phase, changed, queue_changed =
          now + math.min(ARGV[2], 1000 * lease_ms), 1, true, true
      else
        ends = 3
        -- R10 (places of the dead): a renewed lease lapses only if its process died. The permits
        -- must not go next to waiters that died with it.
        if holder_died and not skip[holder_manager] then
          skip[holder_manager] = true
          fields_to_delete[#fields_to_delete + 1] = 'm:' .. holder_manager
        end
      end
    end
    if ends == true then
      holders_to_delete[#holders_to_delete + 1] = holder_token
    else
      if ends then
        -- It holds no permits any more. Its entry stays for one ttl, so that the holder can find
        -- out how it ended. A reader leaves nothing half done, so it does not change previous.
        if may_leave_half_done then previous = ends - 2 end
        lease_end, weight, phase, changed = now + 1000 * ttl, 0, ends, true
      end
      if changed and (ends or holder_token ~= token) then
        holders_to_set[#holders_to_set + 1] = holder_token
        holders_to_set[#holders_to_set + 1] =
          struct.pack(HOLDER, lease_end, ttl, hold, weight, phase, holder_previous) .. text
      end
      permits_taken, longest_lease = permits_taken + weight, math.max(longest_lease, lease_ms)
      first_end = math.min(first_end or lease_end, lease_end)
      least_lease = math.min(least_lease or lease_ms, lease_ms)
    end
  end
  next_lapse, shortest_lease = first_end or 0, least_lease or 0
  -- A look costs some 2 µs per holder. Where there are many, the next look is put off, so that
  -- leases that end one after the other take at most a tenth of the server's time. The shortest
  -- lease must not be shorter than that, or the delay would look like a clock that went back.
  if next_lapse > 0 and #all > 128 then
    local delay = math.min(10 * #all, ARGV[2] / 8)
    next_lapse, shortest_lease =
      math.max(next_lapse, now + delay), math.max(shortest_lease, math.ceil(delay / 1000))
  end
end
