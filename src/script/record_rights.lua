-- Purpose: the part that looks whether the user may run the commands that will be needed, where the
--   server can say so (7.0). The writes of a script stay if a later command is refused. So an
--   acquire looks before its first write to a record, and before its first to a queue. Otherwise it
--   could take a lock, or a place, that no script is able to end.
-- KEYS: 1 the record
-- ARGV: none
-- Returns: nothing; refusal(...): the error for the first of these commands that is not allowed
local function refusal(...)
  for _, command in ipairs(redis.acl_check_cmd and { ... } or {}) do
    if not redis.acl_check_cmd(command, KEYS[1]) then
      return redis.error_reply('NOPERM this user lacks +' .. string.lower(command))
    end
  end
end
