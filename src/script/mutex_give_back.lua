-- Purpose: the part for the release of a token that was never a guard's. If that token has attached a
--   detached lock, the lock is detached again, as it was: nobody has worked under it, so the text must
--   serve another try. The field 'd' has what it was: the token that attached it, the owner before that,
--   its fence, when it was detached, for how long it is valid, hold and label.
-- Expects: mutex_record.lua before it · token: the owner until now
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing; owner, if it is detached again; how, spare: if it is over
local by, detached_owner, detached_fence, detached_at, valid_ms, least_ms, detached_label =
  string.match(redis.call('HGET', record_key, 'd') or '',
               '^(%S+) (%S+) (%d+) (%d+) (%d+) (%d+) (.*)$')
if by == token and detached_at + 1000 * valid_ms > now then
  -- P2 (rising fences): a fence that no guard had may be granted again.
  owner, owner_changed, state_changed = detached_owner, false, true
  fence, granted_at, ttl, hold = detached_fence + 0, detached_at + 0, valid_ms + 0, least_ms + 0
  lease_end = granted_at + 1000 * math.max(ttl, hold)
  local detached = { 'o', owner, 'a', string.format('0 %s - %s 1 %s', detached_at, valid_ms, least_ms),
                     'l', detached_label }
  for i = 1, #detached do fields_to_set[#fields_to_set + 1] = detached[i] end
elseif by == token then
  -- The work was to begin, and nobody else can begin it.
  how, spare = 1, 0
end
