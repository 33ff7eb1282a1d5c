-- Purpose: the part that takes what is dead out of the list when somebody leaves the queue (R19).
-- Expects: the record part before it · token: the caller's own · waiter: whether it stood in the queue
-- KEYS: as in the record part
-- ARGV: as in the record part
-- Returns: nothing
-- R19: dead entries at the tail go, and a queue that is mostly dead is rewritten.
if waiter and list then
  while tails < math.min(64, n) do
    local last = redis.call('LINDEX', list, -1 - tails)
    if not last or (last ~= token and redis.call('HEXISTS', key, 'w:' .. last) == 1) then break end
    tails = tails + 1
  end
  n = n - tails
  if n > 2 * r + 64 then
    rewritten = {}
    local all = redis.call('LRANGE', list, popped, -1 - tails)
    for i = 1, #all do
      if all[i] ~= token and redis.call('HEXISTS', key, 'w:' .. all[i]) == 1 then
        rewritten[#rewritten + 1] = all[i]
      end
    end
    n, tq = #rewritten, 0
  end
end
