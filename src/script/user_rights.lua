-- Purpose: finds the rights that the user lacks for the scripts. Redis keeps what a script wrote
--   before it was refused a command. So the client sends this before its first script that takes
--   something (docs/PROTOCOL.md, Rights).
-- KEYS: 1 the record of the name that is wanted, which is not touched, 2 a key that nobody uses (to a
--   server that says it is older than 7.0, outside of a cluster)
-- ARGV: 1 the manager's channel, 2 `queue`, or `quorum` for the scripts of a quorum: they need less
-- Returns: what is lacking: a command, its error, the next command, ... A rule with an empty error is
--   about what a caller needs later: to wait, or to list names. `-`, in place of `+`, is about a command
--   that the server does not have
local key, errors = KEYS[2] or KEYS[1] .. ':x', {}
-- From 7.0 on, the server can be asked. That touches no key, and leaves no trace.
local can_ask, protected = redis.acl_check_cmd, pcall
-- Whether the user may run it, and whether the server has it: it raises an error about a command that
-- was renamed.
local function may(command, ...)
  if not can_ask then
    return false, true
  end
  local is_known, is_allowed = protected(can_ask, command, ...)
  return is_known and is_allowed, is_known
end
local function try(command, ...)
  if may(command, ...) then
    return true
  end
  local reply = redis.pcall(command, ...)
  local refused = type(reply) == 'table' and reply.err
  if refused then
    errors[#errors + 1] = command
    errors[#errors + 1] = refused
  end
  return not refused
end
local expires, deletes = try('PEXPIREAT', key, '1'), try('HDEL', key, 'x')
local unlinks, pops, publishes
local needs_queue = ARGV[2] == 'queue'
if needs_queue then
  unlinks, pops = try('UNLINK', key), try('LPOP', key)
end
-- Without `can_ask`, RPUSH and HSET write. So another command must be able to delete that again.
local function undo(command, ...)
  if not can_ask then redis.pcall(command, ...) end
end
local remove = expires and {'PEXPIREAT', key, '1'} or unlinks and {'UNLINK', key}
local pop, delete = remove or pops and {'LPOP', key}, remove or deletes and {'HDEL', key, 'x'}
if needs_queue and (can_ask or pop) then
  try('RPUSH', key, 'x')
  undo(unpack(pop or {}))
end
if can_ask or delete then
  try('HSET', key, 'x', 'x')
  undo(unpack(delete or {}))
end
try('HMGET', key, 'x')
try('LLEN', key)
try('TIME')
if needs_queue then
  try('HGET', key, 'x')
  try('HGETALL', key)
  try('HKEYS', key)
  try('HEXISTS', key, 'x')
  try('HLEN', key)
  try('HSCAN', key, '0')
  try('LINDEX', key, '0')
  try('LRANGE', key, '0', '0')
  try('RPOP', key)
  try('PTTL', key)
  publishes = try('PUBLISH', ARGV[1], '')
end
local function note(rule)
  errors[#errors + 1] = rule
  errors[#errors + 1] = ''
end
-- A user who may run neither command may lack the channel, too. Nothing tells.
if needs_queue and not publishes and not may('SUBSCRIBE') then note('&?') end
-- Before 7.0, no script can find these out.
local function later(command, ...)
  local is_allowed, is_known = may(command, ...)
  if not is_allowed then note((is_known and '+' or '-') .. string.lower(command)) end
  return is_allowed
end
if can_ask then
  -- Valkey 9.1 crashes if it is asked about EVAL or EVALSHA without all their arguments. EVAL is
  -- running, so only the key can be the reason.
  if not may('EVAL', '', '1', key) then note('~') end
  later('EVALSHA', '', '0')
  later('SCAN', '0')
  if needs_queue then
    later('PING')
    if later('SUBSCRIBE') and not may('SUBSCRIBE', ARGV[1]) then note('&') end
  end
end
return errors
