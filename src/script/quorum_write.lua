-- Purpose: the part that writes the node's numbers about a name, and lets the key live long enough.
-- Expects: quorum_record.lua before it · fields_to_set: other fields and their values
-- KEYS: as in quorum_record.lua
-- ARGV: as in quorum_record.lua
-- Returns: nothing
-- P2 (rising fences): the key outlasts everything in it by an hour, so that a fence is not forgotten
-- before all clocks are past it. A key that would not gets a minute more than that, so that most
-- calls within the minute need not set it again.
local keep_until = math.ceil(math.max(now, lease_end, fence) / 1000000) + 3600
local extend_record = expires_at < keep_until
if extend_record then expires_at = keep_until + 60 end
local count = #fields_to_set
fields_to_set[count + 1], fields_to_set[count + 2] = 'k', 'quorum/1'
fields_to_set[count + 3] = 'g'
fields_to_set[count + 4] =
  struct.pack(GRANT, lease_end, granted_at, fence, ended_fence, expires_at, ttl, hold, ended_how)
redis.call('HSET', record_key, unpack(fields_to_set))
if extend_record then
  redis.call('PEXPIREAT', record_key, string.format('%.0f000', expires_at))
end
