-- Purpose: tells what Redis knows of some tokens of a process that waits. Writes nothing.
-- KEYS: 1 the record · 2 the queue · 3 the holders
-- ARGV: 1-4 as in permit_record.lua · 5… the tokens
-- Returns: present {since, for each token: 1 if it waits, 0 if it is not known, or its {fence, granted at, left, previous}}
--   · kind {kind}
local asked = { 'k', 'p', 'm:' .. ARGV[1] }
for i = 5, #ARGV do asked[#asked + 1] = 'w:' .. ARGV[i] end
local waits = redis.call('HMGET', KEYS[1], unpack(asked))
local holds = redis.call('HMGET', KEYS[3], unpack(ARGV, 5))
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
if waits[1] and not waits[2] then return { 'kind', now, 0, waits[1] } end
local since = 0
if waits[3] then since = select(2, struct.unpack('<dd', waits[3])) end
local answer = { 'present', now, 0, since }
for i = 1, #ARGV - 4 do
  local told = waits[i + 3] and 1 or 0
  if holds[i] then
    local e, _, _, _, stands, how, text = struct.unpack('<dI4I4I4bb', holds[i])
    local fence, at = string.match(holds[i], '^%S+ %d+ (%d+) %d+ (%d+)', text)
    if stands < 2 then told = { fence + 0, at + 0, math.max(0, e - now), how } end
  end
  answer[#answer + 1] = told
end
return answer
