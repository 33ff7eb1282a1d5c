-- Purpose: the part that unpacks one holder.
-- Expects: packed_holder: its field · HOLDER: the format · now: the server's time in µs
-- KEYS: none
-- ARGV: none
-- Returns: nothing; lease_end and the other numbers of the field · text_start: where the text
--   begins · own_fence · grant: its grant as replies have it {fence, granted at, left, previous},
--   or nil if it holds nothing any more
local lease_end, ttl, hold, weight, phase, holder_previous, text_start, own_fence, grant
if packed_holder then
  lease_end, ttl, hold, weight, phase, holder_previous, text_start =
    struct.unpack(HOLDER, packed_holder)
  local fence_text, granted_at =
    string.match(packed_holder, '^%S+ %d+ (%d+) %d+ (%d+)', text_start)
  own_fence = fence_text + 0
  if phase < 2 then
    -- R15 (clock went back): no more is left than the full lease. The next look cuts the rest, and
    -- the holder must not believe in it.
    local left = math.min(lease_end - now, 1000 * math.max(ttl, hold))
    grant = { own_fence, granted_at + 0, math.max(0, left), holder_previous }
  end
end
