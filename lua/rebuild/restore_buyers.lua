#!lua flags=allow-oom
-- Restore buyers: write shoppers of a shard that is being rebuilt.
-- Invariant: a shard that sells, or has another epoch, is not written. If one of the rows has a newer version, none is
--   written.
-- allow-oom: a damaged shard must be rebuilt also when memory is short.
--
-- KEYS[1]   {sale:shard}:shard         string  the shard, loading
-- KEYS[2..] {sale:shard}:buyer:<user>  string  shoppers, rewritten; at most 1000
-- ARGV[1]   epoch  the epoch that is being rebuilt
-- ARGV[2..] row for each shopper, in the order of the keys
-- Returns {'WRITTEN'}  the shoppers have these rows
--         {'CHANGED'}  the shard has another epoch, or is not loading
-- Retry:  the second run writes the same.
-- Caller: src/stock/recover/restore.rs

local shard_key, epoch = KEYS[1], tonumber(ARGV[1])
if not epoch or #KEYS ~= #ARGV or #KEYS < 2 or #KEYS > 1001 then
  return redis.error_reply('BADARG restore_buyers')
end
local shard = redis.call('GET', shard_key)
if shard and shard:find('^[\4-\31]') then
  return redis.error_reply('NEWER shard')
elseif not shard or #shard < 45 or struct.unpack('>B', shard) ~= 0 or struct.unpack('>I6', shard, 37) ~= epoch then
  return { 'CHANGED' }
end
for at = 2, #KEYS do
  -- GET would fail on a value of another type; MGET finds nothing, and the row replaces it. The upper four bits of
  -- byte 7 are the row's version.
  local row = redis.call('MGET', KEYS[at])[1]
  if row and (row:byte(8) or 0) >= 16 then
    return redis.error_reply('NEWER shopper')
  end
end
for at = 2, #KEYS do
  redis.call('SET', KEYS[at], ARGV[at])
end
return { 'WRITTEN' }
