-- Purpose: the part that deletes fields of the record, and entries of the list.
-- Expects: mutex_record.lua before it · stamp_refreshed: whether this call writes the caller's
--   stamp
-- KEYS: as in mutex_record.lua
-- ARGV: as in mutex_record.lua
-- Returns: nothing
if owner_changed and not owner then fields_to_delete[#fields_to_delete + 1] = 'o' end
-- Every manager whose waiters were forgotten must find out. So the caller's stamps end too,
-- unless this call begins new ones.
if queue_forgotten and not stamp_refreshed then
  fields_to_delete[#fields_to_delete + 1] = 'm:' .. manager
end
--include queue_delete.lua
