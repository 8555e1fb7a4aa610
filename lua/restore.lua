#!lua flags=allow-oom
-- Restore: write a part of a shard that is being rebuilt.
-- Invariant: nothing is written to a shard that somebody else has begun to rebuild, or that may sell.
-- allow-oom: a shard that is being rebuilt sells nothing.
--
-- KEYS[1]   {sale:shard}:shard    string  read, and written at the end; never expires
-- KEYS[2]   {sale:shard}:applied  set     ids that are finished here; never expires
-- KEYS[3..] {sale:shard}:<rest>   string  shoppers or items, written over; never expire
-- ARGV[1]  epoch   the one that the rebuilding has begun
-- ARGV[2]  record  the shard's when all is written; empty before
-- ARGV[3]  ids     so many ids follow, each of 36 bytes, that are finished here
-- ARGV[4..] the ids, and then a value for each of the keys
-- Returns {'RESTORED'}      all of it is written
--         {'STALE', epoch}  the shard is of that epoch, or done; nothing was written
-- Retry:  the second run writes the same again, or finds it done.
-- Caller: src/stock/restore.rs

local shard_key, applied_key = KEYS[1], KEYS[2]
local epoch, record, ids = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
if not epoch or not ids or ids < 0 or ids % 1 ~= 0 or #ARGV ~= 3 + ids + #KEYS - 2 or #KEYS > 1002
  or (record ~= '' and #record < 45) then
  return redis.error_reply('BADARG restore')
end
local shard = redis.call('GET', shard_key)
if not shard or #shard < 45 then
  return redis.error_reply('MISSING shard')
end
local state, its_epoch = shard:byte(1), struct.unpack('>I6', shard, 37)
if its_epoch ~= epoch or state ~= 0 then
  return { 'STALE', its_epoch }
end

for at = 4, 3 + ids do
  redis.call('SADD', applied_key, ARGV[at])
end
for at = 3, #KEYS do
  redis.call('SET', KEYS[at], ARGV[1 + ids + at])
end
if record ~= '' then
  redis.call('SET', shard_key, record)
end
return { 'RESTORED' }
