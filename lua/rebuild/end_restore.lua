#!lua flags=allow-oom
-- End restore: write the units of a shard that is being rebuilt, and the sale's state.
-- Invariant: a shard that sells, or has another epoch, is not written; the rebuilt shard has no permit yet.
-- allow-oom: a damaged shard must be rebuilt also when memory is short.
--
-- KEYS[1]   {sale:shard}:shard       string  the shard, loading
-- KEYS[2]   {sale:shard}:applied     set     ids of transfers and restocks that are finished here; never expires
-- KEYS[3..] {sale:shard}:item:<sku>  string  the items' units on this shard, rewritten; at most 1000
-- ARGV[1]   epoch   the epoch that is being rebuilt
-- ARGV[2]   record  the shard's new record, with the sale's state
-- ARGV[3..] units of each item, in the order of the keys, then ids whose units are counted among them
-- Returns {'RESTORED'}  the shard is rebuilt
--         {'CHANGED'}   the shard has another epoch, or is not loading
-- Retry:  the second run finds a shard that is not loading, and changes nothing.
-- Caller: src/stock/recover/restore.rs

local shard_key, applied_key, epoch, record = KEYS[1], KEYS[2], tonumber(ARGV[1]), ARGV[2]
if not epoch or #record < 45 or #KEYS < 3 or #KEYS > 1002 or #ARGV < #KEYS or #ARGV > 100000 then
  return redis.error_reply('BADARG end_restore')
end
for at = 3, #KEYS do
  if #ARGV[at] ~= 60 then
    return redis.error_reply('BADARG end_restore')
  end
end
local shard = redis.call('GET', shard_key)
redis.call('SISMEMBER', applied_key, '')
if shard and shard:find('^[\4-\31]') then
  return redis.error_reply('NEWER shard')
elseif not shard or #shard < 45 or struct.unpack('>B', shard) ~= 0 or struct.unpack('>I6', shard, 37) ~= epoch then
  return { 'CHANGED' }
end
for at = 3, #KEYS do
  -- As in restore_buyers.lua: MGET finds nothing in a value of another type.
  local units = redis.call('MGET', KEYS[at])[1]
  if units and units:find('^[\1-\31]') then
    return redis.error_reply('NEWER item')
  end
end
for at = 3, #KEYS do
  redis.call('SET', KEYS[at], ARGV[at])
end
for at = #KEYS + 1, #ARGV do
  redis.call('SADD', applied_key, ARGV[at])
end
redis.call('SET', shard_key, record)
return { 'RESTORED' }
