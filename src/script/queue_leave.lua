-- Purpose: the part that takes dead entries out of the list when a waiter leaves the queue. R19
--   (dead entries): dead entries at the tail go, and a list that is mostly dead is rewritten, so
--   that waiters that come and leave do not make it grow. R11 (missing keys): a list that has lost
--   entries is neither counted nor written anew, or nobody could see any more that waiters lost
--   their places.
-- Expects: the record part before it · token: the caller's own · waiter: whether it was queued
-- KEYS: as in the record part
-- ARGV: as in the record part
-- Returns: nothing
if waiter and queue_key then
  if redis.call('LLEN', queue_key) < heads_popped + entries then
    --include queue_forget.lua
  end
  while tails_popped < math.min(64, entries) do
    local last = redis.call('LINDEX', queue_key, -1 - tails_popped)
    if not last or (last ~= token and redis.call('HEXISTS', record_key, 'w:' .. last) == 1) then
      break
    end
    tails_popped = tails_popped + 1
  end
  entries = entries - tails_popped
  if entries > 2 * waiter_records + 64 then
    rewritten_queue = {}
    local tokens = redis.call('LRANGE', queue_key, heads_popped, -1 - tails_popped)
    for i = 1, #tokens do
      if tokens[i] ~= token and redis.call('HEXISTS', record_key, 'w:' .. tokens[i]) == 1 then
        rewritten_queue[#rewritten_queue + 1] = tokens[i]
      end
    end
    replaced_entries = heads_popped + #tokens + tails_popped
    entries, queue_expires_at = #rewritten_queue, 0
  end
end
