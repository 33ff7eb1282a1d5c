-- Purpose: the part by which permits that are released cool. R16 (hold_at_least): nobody owns them,
--   but they count as taken until their least time is over.
-- Expects: token, cool_until, HOLDER · the holder's and the state's numbers · seen: the permits of
--   the holders that this script has looked at
-- KEYS: as in the record part
-- ARGV: as in the record part
-- Returns: nothing; kept_field: the entry's name, and its lease_end and phase
-- The entry gets another name, since a late copy of the acquire (R7) may take permits for the token
-- again.
kept_field, lease_end, phase = 'c:' .. token, cool_until, 2
-- A look that is under way may have been past this field, and may have seen no holder yet.
local lease_ms = math.max(ttl, hold, look_pause)
local due_at = math.max(lease_end, now + 1000 * look_pause)
shortest_lease = next_lapse > 0 and math.min(shortest_lease, lease_ms) or lease_ms
next_lapse = next_lapse > 0 and math.min(next_lapse, due_at) or due_at
-- The late copy's permits were released as well, and cool together with these. They must not count
-- twice.
local earlier = redis.call('HGET', holders_key, kept_field)
if earlier then
  local _, _, _, earlier_weight = struct.unpack(HOLDER, earlier)
  permits_taken = permits_taken - (seen[kept_field] or earlier_weight)
end
