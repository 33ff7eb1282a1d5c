-- Purpose: shows who holds permits of a name, what is cooling, and who waits. Writes nothing.
-- KEYS: 1 the record · 2 the queue · 3 the holders
-- ARGV: 1-4 as in permit_record.lua · 5 how many holders and how many waiters to show, at most
-- Returns: seen {kind, fence, waiters, holders shown; for each of these its time left (not above 0:
--   it lapsed that long ago), 1 if it cools, its permits, and the text 'kind capacity fence ticket
--   granted-at manager ttl fixed hold permits label'; then the waiters' records in order} · absent ·
--   kind {kind}
local kind, packed_state, packed_queue = unpack(redis.call('HMGET', KEYS[1], 'k', 'p', 'n'))
--include record_clock.lua
--include permit_record.lua
local all, shown, seen = redis.call('HGETALL', holders_key), 0,
  { 'seen', now, 0, kind, fence or 0, waiter_records, 0 }
for i = 1, #all, 2 do
  local lease_end, ttl, hold, weight, phase, _, text_start = struct.unpack(HOLDER, all[i + 1])
  -- A lapse that others have noticed is shown until a guard releases properly. It was noticed one
  -- ttl before the end of the entry.
  if phase == 3 then lease_end = math.min(now, lease_end - 1000 * ttl) end
  if (phase < 2 or phase == 2 and lease_end > now or phase == 3 and previous == 1)
    and shown < ARGV[5] + 0 then
    local text = string.sub(all[i + 1], text_start)
    -- If the record was lost, the holders know the kind.
    seen[4] = seen[4] or string.match(text, '^%S+ %d+')
    shown = shown + 1
    -- R15 (clock went back): no more is left than the full lease.
    seen[#seen + 1] = math.min(lease_end - now, 1000 * math.max(ttl, hold))
    seen[#seen + 1] = phase == 2 and 1 or 0
    seen[#seen + 1] = weight
    seen[#seen + 1] = text
  end
end
if shown == 0 and waiter_records == 0 then return { 'absent', now, 0 } end
seen[7] = shown
--include queue_inspect.lua
return seen
