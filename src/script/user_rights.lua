-- Purpose: finds the commands of the scripts that the user may not run. Redis keeps what a script
--   wrote before it was refused a command. So the client sends this before its first script that
--   takes something (docs/PROTOCOL.md, Rights). It runs each command on a key that does not exist,
--   because 6.2 has no other way to ask.
-- KEYS: 1 the record of the name that is wanted
-- ARGV: 1 the manager's channel
-- Returns: the errors: a command, its error, the next command, ...
local key, errors = KEYS[1] .. ':x', {}
local function try(command, ...)
  local reply = redis.pcall(command, ...)
  local refused = type(reply) == 'table' and reply.err
  if refused then
    errors[#errors + 1] = command
    errors[#errors + 1] = refused
  end
  return not refused
end
-- Only RPUSH writes, so UNLINK is tried before it.
if try('UNLINK', key) then
  try('RPUSH', key, 'x')
  redis.pcall('UNLINK', key)
end
-- Redis looks for the right before it counts the values.
try('HSET', key, 'x', 'x', 'x')
try('HDEL', key, 'x')
try('HGET', key, 'x')
try('HMGET', key, 'x')
try('HGETALL', key)
try('HKEYS', key)
try('HEXISTS', key, 'x')
try('HLEN', key)
try('HSCAN', key, '0')
try('LINDEX', key, '0')
try('LLEN', key)
try('LRANGE', key, '0', '0')
try('LPOP', key)
try('RPOP', key)
try('PEXPIREAT', key, '1')
try('PTTL', key)
try('TIME')
try('PUBLISH', ARGV[1], '')
return errors
