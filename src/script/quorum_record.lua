-- Purpose: the part that every quorum script begins with. It unpacks what this node knows of a name
--   whose lock a majority of independent nodes decides.
--   R20 (write order): all reads come before the first write, so that WRONGTYPE writes nothing.
-- Expects: kind, packed_grant, owner: the fields 'k', 'g' and 'o' · now: the server's time in µs
-- KEYS: 1 the record (HASH)
-- ARGV: 1 the caller's manager · 2 P + T in µs · 3 H in µs · 4 prefix of the grant channels; only
--   the first is used
-- Returns: nothing, unless the record is of another kind
local record_key, manager = KEYS[1], ARGV[1]
-- The field 'g' holds, in this order: lease_end, granted_at, fence (the largest that this node has
-- granted for the name), ended_fence (of the last guard whose end this node has seen), expires_at
-- (the record's key, in s), ttl and hold (in ms), ended_how (how that guard ended; -1 is unknown).
local GRANT = '<ddddI4I4I4b'
local lease_end, granted_at, fence, ended_fence = 0, 0, 0, 0
local expires_at, ttl, hold, ended_how = 0, 0, 0, -1

if kind and kind ~= 'quorum/1' then return { 'kind', now, 0, kind } end
-- P10 (bad input): another program's hash is refused, as in mutex_record.lua.
if not kind and not packed_grant then redis.call('LLEN', record_key) end
if packed_grant then
  lease_end, granted_at, fence, ended_fence, expires_at, ttl, hold, ended_how =
    struct.unpack(GRANT, packed_grant)
  -- R15 (clock went back): no lease reaches this far, so the server's clock was set back.
  lease_end = math.min(lease_end, now + 1000 * math.max(ttl, hold))
end
