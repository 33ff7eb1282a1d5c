-- Purpose: shows who holds permits of a name, what is cooling, and who waits. It shows the holders
--   page by page, and the waiters with the first page. Writes nothing.
-- KEYS: 1 the record · 2 the queue · 3 the holders
-- ARGV: 1-4 as in permit_record.lua · 5 how many waiters to show, at most · 6 where the page
--   begins: '0', or the end of the page before
-- Returns: seen {kind, fence, waiters, holders shown; for each of these its time left (not above 0:
--   it lapsed that long ago), 1 if it cools, its permits, and the text 'kind capacity fence ticket
--   granted-at manager ttl fixed hold permits label'; then previous, the ticket served last, and
--   the waiters in order, as in queue_inspect.lua} · absent · kind {kind}. In place of the 1 for more, seen has
--   where the next page begins, '0' after the last.
local kind, packed_queue = unpack(redis.call('HMGET', KEYS[1], 'k', 'n'))
local packed_state = redis.call('HGET', KEYS[3], 'p')
--include record_clock.lua
--include record_now_text.lua
--include permit_record.lua
if not kind then return { 'absent', now, 0 } end
local page, shown = redis.call('HSCAN', holders_key, ARGV[6], 'COUNT', 32), 0
local seen = { 'seen', now, page[1], kind, packed_state and fence or 0, waiter_records, 0 }
local fields = page[2]
for i = 1, #fields, 2 do
  if fields[i] ~= 'p' then
    local lease_end, ttl, hold, weight, phase, _, text_start =
      struct.unpack(HOLDER, fields[i + 1])
    -- A lapse that others have noticed is shown until a guard releases properly. It was noticed one
    -- ttl before the end of the entry.
    if phase == 3 then lease_end = math.min(now, lease_end - 1000 * ttl) end
    if phase < 2 or phase == 2 and lease_end > now or phase == 3 and previous == 1 then
      shown = shown + 1
      -- R15 (clock went back): no more is left than the full lease.
      seen[#seen + 1] = math.min(lease_end - now, 1000 * math.max(ttl, hold))
      seen[#seen + 1] = phase == 2 and 1 or 0
      seen[#seen + 1] = weight
      seen[#seen + 1] = string.sub(fields[i + 1], text_start)
    end
  end
end
seen[#seen + 1] = previous
seen[#seen + 1] = served_ticket
if ARGV[6] == '0' then
  if shown == 0 and page[1] == '0' and waiter_records == 0 then return { 'absent', now, 0 } end
  --include queue_inspect.lua
end
seen[7] = shown
return seen
