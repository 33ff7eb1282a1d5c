-- Purpose: the part that refuses a record of another kind, or of another version of this protocol,
--   before any write.
-- Expects: kind: the field 'k' of the record · now: the server's time in µs
-- KEYS: none
-- ARGV: none
-- Returns: nothing, unless the record is of another kind
if kind and string.sub(kind, 1, 5) ~= 'rw/1 ' and string.sub(kind, 1, 12) ~= 'semaphore/1 ' then
  return { 'kind', now, 0, kind }
end
