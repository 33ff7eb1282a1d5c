-- Purpose: reports what Redis knows about some tokens of a process that waits. Writes nothing.
-- KEYS: 1 the record · 2 the queue · 3 the holders
-- ARGV: 1-4 as in permit_record.lua · 5… the tokens
-- Returns: present {since, for each token: 1 if it waits, 0 if it is unknown, or its grant {fence,
--   granted at, left, previous}} · kind {kind}
local fields = { 'k', 'p', 'm:' .. ARGV[1] }
for i = 5, #ARGV do fields[#fields + 1] = 'w:' .. ARGV[i] end
local values = redis.call('HMGET', KEYS[1], unpack(fields))
local packed_holders = redis.call('HMGET', KEYS[3], unpack(ARGV, 5))
--include record_clock.lua
if values[1] and not values[2] then return { 'kind', now, 0, values[1] } end
local since = 0
if values[3] then since = select(2, struct.unpack('<dd', values[3])) end
local answer = { 'present', now, 0, since }
for i = 1, #ARGV - 4 do
  local found = values[i + 3] and 1 or 0
  if packed_holders[i] then
    local lease_end, ttl, hold, _, phase, holder_previous, text_start =
      struct.unpack('<dI4I4I4bb', packed_holders[i])
    local holder_fence, granted_at =
      string.match(packed_holders[i], '^%S+ %d+ (%d+) %d+ (%d+)', text_start)
    -- R15 (clock went back): no more is left than the full lease.
    local left = math.min(lease_end - now, 1000 * math.max(ttl, hold))
    if phase < 2 then
      found = { holder_fence + 0, granted_at + 0, math.max(0, left), holder_previous }
    end
  end
  answer[#answer + 1] = found
end
return answer
