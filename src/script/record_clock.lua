-- Purpose: the part that asks the server for the time. No client's clock ever reaches a script.
-- KEYS: none
-- ARGV: none
-- Returns: nothing; clock: the reply to TIME · now: the same in µs
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
