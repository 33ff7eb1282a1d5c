-- Purpose: reports what Redis knows about some tokens of a process that waits. Writes nothing.
-- KEYS: 1 the record · 2 the queue · 3 the holders
-- ARGV: 1-4 as in permit_record.lua · 5… the tokens
-- Returns: present {since, for each token: 1 if it waits, 0 if it is unknown, or its grant {fence,
--   granted at, left, previous}} · kind {kind}
local fields = { 'k', 'm:' .. ARGV[1] }
for i = 5, #ARGV do fields[#fields + 1] = 'w:' .. ARGV[i] end
local values = redis.call('HMGET', KEYS[1], unpack(fields))
local packed_holders = redis.call('HMGET', KEYS[3], unpack(ARGV, 5))
--include record_clock.lua
local HOLDER, kind, since = '<dI4I4I4bb', values[1], 0
--include permit_kind.lua
if values[2] then since = select(2, struct.unpack('<dd', values[2])) end
local answer = { 'present', now, 0, since }
for i = 1, #ARGV - 4 do
  local packed_holder = packed_holders[i]
  --include permit_holder.lua
  answer[#answer + 1] = grant or (values[i + 2] and 1 or 0)
end
return answer
