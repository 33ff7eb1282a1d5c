-- Purpose: the part that looks for the first live waiter when the lock is free; at most 64 dead ones are passed over in one
--   call.
-- Expects: mutex_record.lua before it
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing; owner, by, request, label, ttl, hold: whom mutex_grant.lua grants it
while n > 0 and not owner and e <= now do
  if popped == 64 then
    more = 1
    break
  end
  local head = redis.call('LINDEX', list, popped)
  if not head then
    --include queue_forget.lua
    break
  end
  popped, n, queue_changed = popped + 1, n - 1, true
  -- Records that go in this step are still there to be read, and a token may stand twice: where it left, and where a late
  -- copy of its acquire put it.
  local field = 'w:' .. head
  local waiter = head ~= removed and not forgot and not dead[head] and redis.call('HGET', key, field)
  if waiter then
    del[#del + 1] = field
    r = r - 1
    -- 'ticket since manager ttl fixed hold label', ttl and hold in ms.
    local asked, ticket, process, its_ttl, its_hold, its_label =
      string.match(waiter, '^((%d+) %d+ (%S+) (%d+) %d (%d+)) (.*)$')
    h = ticket + 0
    local stamp = process ~= alive and not dead[process] and redis.call('HGET', key, 'm:' .. process)
    if process == alive or stamp and struct.unpack(STAMP, stamp) >= v then
      owner, by, request, label, ttl, hold = head, process, asked, its_label, its_ttl, its_hold
    else
      dead[process], dead[head] = true, true
    end
  end
end
