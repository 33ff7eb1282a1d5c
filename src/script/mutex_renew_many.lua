-- Purpose: extends the leases of several mutexes in one call, because most of what a renewal costs
--   is the call itself. A lease is extended if its token is the owner. All other records stay as
--   they are, and the client renews each of them by mutex_renew.lua.
--   R20 (write order): all records are read before the first write, and that is PEXPIREAT. So the
--   leases are extended when memory is out, too.
-- KEYS: the records (HASH)
-- ARGV: 1-4 as in mutex_record.lua · 5 not_after: the server time in µs after which the script
--   extends nothing · from 6 on the token for each record
-- Returns: renewed {left, fence, left, fence, …}, a pair for each record; both are 0 if its lease was
--   not extended. Behind the pairs comes the number of each record, from 1 on, whose lease was
--   extended and for which somebody waits · late
--include record_clock.lua
-- R5 (dated requests): as in mutex_renew.lua.
if now > ARGV[5] + 0 then return { 'late', now, 0 } end
-- Locals, because each use of a global costs a look-up.
local keys, tokens, call, read = KEYS, ARGV, redis.call, redis.pcall
local pack, unpack, sub = struct.pack, struct.unpack, string.sub
local states, queues, expiries, wanted, reply = {}, {}, {}, {}, { 'renewed', now, 0 }
for i = 1, #keys do
  -- A key of another type must not fail the others. Its error has no fields.
  local fields = read('HMGET', keys[i], 's', 'q', 'o')
  local packed_state, left, fence = fields[1], 0, 0
  local packed_queue = fields[2]
  if fields[3] == tokens[5 + i] and packed_state and #packed_state == 46
    and (not packed_queue or #packed_queue == 44) then
    local lease_end, granted_at, newest_fence, ended_fence, expires_at, ttl, hold =
      unpack('<ddddI4I4I4', packed_state)
    -- Another number is no fence. Redis would refuse an expiry behind it, and so the whole call.
    if newest_fence >= 1 and newest_fence <= 9007199254740992 then
      left, fence = 1000 * ttl, newest_fence
      -- A longer hold_at_least is not over. R15 (clock went back): no more is left than its full
      -- time.
      if hold > ttl then left = math.max(left, math.min(lease_end - now, 1000 * hold)) end
      lease_end = now + left
      -- As in mutex_write.lua. The first of these keys gets a new expiry in any case, so that there
      -- is a PEXPIREAT before the first HSET.
      local needed = fence > lease_end and fence or lease_end
      if #expiries == 0 or (expires_at - 3600) * 1000000 < needed then
        expires_at = math.ceil(needed / 1000000) + 3660
        expiries[#expiries + 1] = { keys[i], string.format('%.0f000', expires_at) }
        packed_state = sub(packed_state, 1, 32) .. pack('<I4', expires_at) .. sub(packed_state, 37)
      end
      states[i] = pack('<d', lease_end) .. sub(packed_state, 9)
      if packed_queue then
        -- As in queue_record.lua, R2 (served time).
        local entries, waiter_records, looked_at, served_time = unpack('<I4I4dd', packed_queue)
        if waiter_records > 0 then wanted[#wanted + 1] = i end
        if entries > 0 then
          served_time = served_time + math.max(0, math.min(now - looked_at, ARGV[2] + 0))
          queues[i] =
            sub(packed_queue, 1, 8) .. pack('<dd', now, served_time) .. sub(packed_queue, 25)
        end
      end
    end
  end
  reply[2 + 2 * i], reply[3 + 2 * i] = left, fence
end
for _, i in ipairs(wanted) do reply[#reply + 1] = i end
for _, expiry in ipairs(expiries) do call('PEXPIREAT', expiry[1], expiry[2]) end
for i = 1, #keys do
  if queues[i] then
    call('HSET', keys[i], 's', states[i], 'q', queues[i])
  elseif states[i] then
    call('HSET', keys[i], 's', states[i])
  end
end
return reply
