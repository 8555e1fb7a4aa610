#!lua flags=allow-oom
-- Forget buyers: remove shoppers of a shard that is being rebuilt.
-- Invariant: no row is removed from a shard that sells or has another epoch, also when the call comes late. If one of
--   the rows has a newer version, none is removed.
-- allow-oom: a damaged shard must be rebuilt also when memory is short.
--
-- KEYS[1]   {sale:shard}:shard         string  the shard; never expires
-- KEYS[2..] {sale:shard}:buyer:<user>  string  shoppers, at most 1000; removed
-- ARGV[1] epoch  the epoch that is being rebuilt
-- Returns {'FORGOTTEN'}  the rows are gone
--         {'CHANGED'}    the shard has another epoch, or is not loading
-- Retry:  the second run finds nothing to remove.
-- Caller: src/stock/recover/restore.rs

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
  -- As in restore_buyers.lua: MGET finds nothing in a value of another type.
  local row = redis.call('MGET', KEYS[at])[1]
  if row and (row:byte(8) or 0) >= 16 then
    return redis.error_reply('NEWER shopper')
  end
end
for at = 2, #KEYS do
  redis.call('UNLINK', KEYS[at])
end
return { 'FORGOTTEN' }
