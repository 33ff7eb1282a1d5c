-- Purpose: the part that tells the owner that somebody waits for its lock. It comes after all other
--   writes. A server without memory refuses the field, and a user without the right to the channel
--   is refused the message: the script answers all the same.
-- Expects: mutex_wanted.lua before it
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing
if wanted then
  redis.pcall('HSET', record_key, 'b', struct.pack('<dd', fence, now))
  redis.pcall('PUBLISH', wanted_channel, wanted)
end
