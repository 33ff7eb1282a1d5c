-- Purpose: the part that grants permits to those who wait, in their order, for as long as there are enough: one who asks
--   for more than there are is not overtaken. At most 64 are granted or passed over in one call.
-- Expects: permit_record.lua before it
-- KEYS: as in permit_record.lua
-- ARGV: as in permit_record.lua
-- Returns: nothing
local passed = {}
while n > 0 and used < capacity do
  if popped == 64 then
    more = 1
    break
  end
  local whom = redis.call('LINDEX', list, popped)
  if not whom then
    --include queue_forget.lua
    break
  end
  -- Records that go in this step are still there to be read, and a token may stand twice: where it left, and where a late
  -- copy of its acquire put it.
  local field = 'w:' .. whom
  local waiter = whom ~= removed and not forgot and not passed[whom] and redis.call('HGET', key, field)
  if waiter then
    local ticket, by, terms, ttl, hold, weight, label =
      string.match(waiter, '^(%d+) %d+ (%S+) ((%d+) %d (%d+) (%d+)) (.*)$')
    ttl, hold, weight = ttl + 0, hold + 0, weight + 0
    local stamp = by ~= alive and not dead[by] and redis.call('HGET', key, 'm:' .. by)
    local lives = by == alive or stamp and struct.unpack(STAMP, stamp) >= v
    if lives and used + weight > capacity then break end
    passed[whom] = true
    del[#del + 1] = field
    r, h = r - 1, ticket + 0
    if lives then
      --include permit_grant.lua
    else
      dead[by] = true
    end
  end
  popped, n, queue_changed = popped + 1, n - 1, true
end
