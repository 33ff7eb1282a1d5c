-- Purpose: the part that looks for holders whose leases are over, if there can be any. A look takes
--   the holders page by page, one page in each call, so that a call costs the same however many
--   hold. R9 (own lapse): only a token other than the holder's own sees the end of its lease.
-- Expects: permit_record.lua before it · token: the caller's own · forced_fence, page_from: if the
--   holders with that fence are released by force, and where the page of this call begins
-- KEYS: as in permit_record.lua
-- ARGV: as in permit_record.lua
-- Returns: nothing; status: released, if a holder was released by force · page_to: where the next
--   page begins, '0' after the last · seen: the fields of the page, each with the permits that it
--   counts for now
local status
local page_to, seen = '0', {}
if not page_from and look_cursor ~= '' then
  page_from, look_outage = look_cursor, outage_possible and 1 or look_outage
-- R15 (clock went back): next_lapse is further off than the shortest lease reaches, so the server's
-- clock was set back.
elseif not page_from and next_lapse > 0
  and (now >= next_lapse or next_lapse - now > 1000 * shortest_lease) then
  -- During a look these are about the holders that it has seen, and new ones.
  page_from, next_lapse, shortest_lease, look_pause = '0', 0, 0, 0
  look_outage = outage_possible and 1 or 0
end
-- A release by force gives the grace as well.
if forced_fence and outage_possible then look_outage = 1 end
if page_from then
  local page = redis.call('HSCAN', holders_key, page_from, 'COUNT', 32)
  local fields, weight_seen = page[2], 0
  page_to, state_changed = page[1], packed_state ~= false
  -- The keys must outlast the holders of all pages, so only a page with all holders lowers this.
  if page_from == '0' and page_to == '0' then longest_lease = 0 end
  for i = 1, #fields, 2 do
    local field, packed_holder = fields[i], fields[i + 1]
    -- HSCAN may return a field twice.
    if field ~= 'p' and not seen[field] then
      local lease_end, ttl, hold, weight, phase, holder_previous, text_start =
        struct.unpack(HOLDER, packed_holder)
      -- ends: true if the holder's entry goes, or the phase in which it stays.
      local changed, ends, lease_ms, old_weight = false, false, math.max(ttl, hold), weight
      if lease_end - now > 1000 * lease_ms then lease_end, changed = now + 1000 * lease_ms, true end
      if forced_fence
        and string.match(packed_holder, '^%S+ %d+ (%d+)', text_start) + 0 == forced_fence then
        if phase < 2 then
          status, ends = 'released', 4
        elseif phase == 2 then
          status, ends = lease_end > now and 'released' or status, true
        end
      elseif lease_end <= now and field ~= token then
        local holder_manager, fixed =
          string.match(packed_holder, '^%S+ %d+ %d+ %d+ %d+ (%S+) %d+ (%d)', text_start)
        -- If no script served this queue for a while, the server may have been away, and the holder
        -- may be alive. If its process waits here too, the lease gets one step of grace, once. In
        -- that step the process can renew or release. Without the grace an outage would cost a live
        -- process its places (P3), by R10.
        local holder_died = fixed == '0' and holder_manager ~= manager
        if phase > 1 then
          ends = true
        elseif phase == 0 and holder_died and look_outage == 1 and entries > 0
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
        weight = 0
        holders_to_delete[#holders_to_delete + 1] = field
      else
        if ends then
          -- It holds no permits any more. Its entry stays for one ttl, so that the holder can find
          -- out how it ended. A reader leaves nothing half done, so it does not change previous.
          if weight == capacity or string.sub(kind, 1, 3) ~= 'rw/' then previous = ends - 2 end
          lease_end, weight, phase, changed = now + 1000 * ttl, 0, ends, true
        end
        if changed and (ends or field ~= token) then
          holders_to_set[#holders_to_set + 1] = field
          holders_to_set[#holders_to_set + 1] =
            struct.pack(HOLDER, lease_end, ttl, hold, weight, phase, holder_previous)
            .. string.sub(packed_holder, text_start)
        end
        longest_lease = math.max(longest_lease, lease_ms)
        local noticed_in = math.max(lease_ms, look_pause)
        shortest_lease = next_lapse > 0 and math.min(shortest_lease, noticed_in) or noticed_in
        local look_at = math.max(lease_end, look_pause > 0 and now + 1000 * look_pause or 0)
        next_lapse = next_lapse > 0 and math.min(next_lapse, look_at) or look_at
      end
      seen[field], weight_seen = weight, weight_seen + weight
      permits_taken = permits_taken + weight - old_weight
    end
  end
  if not forced_fence then
    -- If all holders are on one page, what is taken can be counted afresh.
    if page_from == '0' and page_to == '0' then permits_taken = weight_seen end
    look_cursor = page_to ~= '0' and page_to or ''
    if look_cursor == '' then
      -- After a failover the cursor may have missed holders. Then there is another look soon.
      if next_lapse == 0 and permits_taken > 0 then
        next_lapse, shortest_lease = now + ARGV[2], math.ceil(ARGV[2] / 1000)
      end
      -- A look costs some 5 µs per holder. Where there are many, the next look is put off by 50 µs
      -- per holder, so that on average looks take at most a tenth of the server's time. The shortest
      -- lease must not be shorter than that, or the delay would look like a clock that went back.
      local holders = redis.call('HLEN', holders_key) - 1 - #holders_to_delete
      look_pause, look_outage = holders > 64 and math.ceil(holders / 20) or 0, 0
      if look_pause > 0 and next_lapse > 0 then
        next_lapse, shortest_lease =
          math.max(next_lapse, now + 1000 * look_pause), math.max(shortest_lease, look_pause)
      end
    end
  end
end
