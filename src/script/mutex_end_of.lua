-- Purpose: the part that finds out how the lease with the caller's fence ended.
-- Expects: mutex_record.lua before it · callers_fence: 0 if the caller does not know its fence, or
--   never had one
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing; status: lost (so was the record) | already (released before) | lapsed | forced
--   | unknown
if not fence or fence < callers_fence then
  status = 'lost'
elseif ended_fence < callers_fence then
  status = 'already'
elseif ended_fence == callers_fence then
  status = ended_how == 2 and 'forced' or 'lapsed'
else
  -- Other leases ended without a release since; the field 'z' has the ends before the last one.
  status = 'unknown'
  local earlier_ends = callers_fence > 0 and redis.call('HGET', record_key, 'z') or ''
  for at = 1, #earlier_ends, 8 do
    local earlier = struct.unpack('<d', string.sub(earlier_ends, at))
    if math.abs(earlier) == callers_fence then status = earlier < 0 and 'forced' or 'lapsed' end
    if math.abs(earlier) < callers_fence then status = 'already' end
    if math.abs(earlier) <= callers_fence then break end
  end
end
