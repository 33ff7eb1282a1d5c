-- Purpose: moves the lock from its owner to another token, ahead of the queue. A guard detaches its
--   lock: then the owner is the hash of a secret, and no manager has it. The bearer of the secret
--   attaches the lock. A repeated request gets the same answer, so it may be sent twice (P7).
-- KEYS: 1 the record, always alone, so that a slot in migration never answers TRYAGAIN
-- ARGV: 1-4 as in mutex_record.lua · 5 the new owner's token · 6 not_after: the server time in µs
--   after which the script moves nothing · 7 'detach' or 'attach' · 8 detach: the token of the
--   guard; attach: the secret · 9 the fence under which that is the owner · 10 as 8 of
--   mutex_acquire.lua; for detach, ttl is how long the lock stays valid · 11 detach: the last fence of
--   the grant that a guard had or may have, if that is not the first
-- Returns: granted {fence, granted at, left, previous, how many wait} · late · already | lapsed | forced
--   | lost | unknown (it does not have this fence's lease; the fences say what became of that) · kind
--   {kind}
local token, from, callers_fence, is_attach = ARGV[5], ARGV[8], ARGV[9] + 0, ARGV[7] == 'attach'
local packed_state, packed_queue, owner, stored_label =
  unpack(redis.call('HMGET', KEYS[1], 's', 'q', 'o', 'l'))
--include record_clock.lua
local goes_on, looks_back = true, true
--include mutex_record.lua
-- R5 (dated requests): a late copy would move the lock after its sender has given up.
if now > ARGV[6] + 0 then return { 'late', now, 0 } end
if owner == token then
  return { 'granted', now, 0, fence, granted_at, math.max(0, lease_end - now), previous,
           waiter_records }
end
-- Redis never has the secret of a lock that is detached. Whoever reads the record cannot attach it.
if is_attach then from = string.sub(redis.sha1hex(from), 1, 32) end
local status
if owner ~= from or fence ~= callers_fence then
  --include mutex_end_of.lua
elseif is_attach and math.min(lease_end, granted_at + 1000 * ttl) <= now then
  -- hold_at_least may keep the lock taken for longer than it is valid.
  status = 'lapsed'
end
if status then return { status, now, 0 } end

if is_attach then
  -- If the attach is given up, the lock is detached again: see mutex_give_back.lua.
  fields_to_set[#fields_to_set + 1] = 'd'
  fields_to_set[#fields_to_set + 1] =
    string.format('%s %s %.0f %.0f %.0f %.0f %s', token, owner, fence, granted_at, ttl, hold,
                  stored_label or '')
end
-- P2 (rising fences): the guards of the process had these.
fence = (ARGV[11] or fence) + 0
-- R16 (hold_at_least): the lock stays taken for what is left of that time. R15 (clock went back):
-- granted_at may be in the future.
local hold_left = math.ceil((math.min(granted_at, now) + 1000 * hold - now) / 1000)
local fixed, handovers
ttl, fixed, hold, handovers, new_label = string.match(ARGV[10], '^(%d+) (%d) (%d+)([%d ]*) (.*)$')
ttl, hold = ttl + 0, math.max(hold, hold_left)
-- No message: the caller is the one that learns of this grant. R10 (places of the dead), R13
-- (unwanted grants): a detached lock is no manager's, and nobody renews it. So a lapse voids
-- nobody's places, and no check of a waiter releases it.
owner, new_manager = token, manager
new_request = string.format('0 %.0f %s %.0f %s %.0f%s', now, is_attach and manager or '-', ttl,
                            fixed, hold, handovers)
--include mutex_grant.lua
-- R20 (write order): a lock that is held may change hands although memory is out.
local expire_first = true
--include mutex_write.lua
return { 'granted', now, 0, fence, granted_at, math.max(0, lease_end - now), previous,
         waiters_left }
