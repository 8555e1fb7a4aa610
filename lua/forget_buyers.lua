#!lua flags=allow-oom
-- Forget buyers: remove shoppers of a shard that is being written anew.
-- Invariant: nothing is removed from a shard that sells, or that is in another life: a call may come late.
-- allow-oom: a damaged shard must be restored also when memory is short.
--
-- KEYS[1]   {sale:shard}:shard         string  the shard; never expires
-- KEYS[2..] {sale:shard}:buyer:<user>  string  shoppers, at most 1000; removed
-- ARGV[1] epoch  the life that is being written
-- Returns {'FORGOTTEN'}  they are gone
--         {'CHANGED'}    the shard is of another epoch, or not being written
-- Retry:  the second run finds nothing to remove.
-- Caller: src/stock/restore.rs

local shard_key, epoch = KEYS[1], tonumber(ARGV[1])
if not epoch or #KEYS < 2 or #KEYS > 1001 then
  return redis.error_reply('BADARG forget_buyers')
end
local shard = redis.call('GET', shard_key)
if shard and shard:find('^[\4-\31]') then
  return redis.error_reply('NEWER shard')
elseif not shard or #shard < 45 then
  return redis.error_reply('MISSING shard')
elseif struct.unpack('>B', shard) ~= 0 or struct.unpack('>I6', shard, 37) ~= epoch then
  return { 'CHANGED' }
end
for at = 2, #KEYS do
  redis.call('UNLINK', KEYS[at])
end
return { 'FORGOTTEN' }
