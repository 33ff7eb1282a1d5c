-- Purpose: the part that decides whether a waiter's process is alive: it is the caller's own (R3,
--   signs of life), or its stamp is not older than served time (R2).
-- Expects: the record part before it · waiter_manager: that process
-- KEYS: as in the record part
-- ARGV: as in the record part
-- Returns: nothing; is_alive
local stamp = waiter_manager ~= live_manager and not skip[waiter_manager]
  and redis.call('HGET', record_key, 'm:' .. waiter_manager)
local is_alive = waiter_manager == live_manager
  or stamp and struct.unpack(STAMP, stamp) >= served_time
