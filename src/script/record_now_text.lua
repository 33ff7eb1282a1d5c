-- Purpose: the part that writes now as text.
-- Expects: record_clock.lua before it
-- KEYS: none
-- ARGV: none
-- Returns: nothing; now_text. It is put together from the clock's two texts, because to print a
--   number of 16 digits is slow.
local now_text = clock[1] .. string.sub('00000' .. clock[2], -6)
