-- Purpose: finds the commands of a quorum's scripts that the user may not run, as user_rights.lua
--   does for all others. A quorum has no queue and no messages, so it needs fewer.
-- KEYS: 1 the record of the name that is wanted
-- ARGV: none that it reads
-- Returns: the errors: a command, its error, the next command, ...
local key, errors = KEYS[1] .. ':x', {}
local function try(command, ...)
  local reply = redis.pcall(command, ...)
  if type(reply) == 'table' and reply.err then
    errors[#errors + 1] = command
    errors[#errors + 1] = reply.err
  end
end
-- Redis looks for the right before it counts the values.
try('HSET', key, 'x', 'x', 'x')
try('HDEL', key, 'x')
try('HMGET', key, 'x')
try('PEXPIREAT', key, '1')
try('LLEN', key)
try('TIME')
return errors
