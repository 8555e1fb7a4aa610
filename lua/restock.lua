#!lua flags=allow-oom
-- Restock: add units that the ledger has granted to this shard, once.
-- Invariant: available + held + sold + revoked + out = granted + in for the item, before and after.
--
-- KEYS[1] {sale:shard}:item:<sku>  string  the item's units on this shard; never expires
-- KEYS[2] {sale:shard}:applied     set     ids that are finished here; never expires
-- ARGV[1] id     the restock's id, 36 bytes
-- ARGV[2] units  1..1000000000
-- Returns {'ADDED'}    the units are free here
--         {'ALREADY'}  they were added before
-- Retry:  the id is remembered for as long as the sale.
-- Caller: src/stock/restock.rs

local pack, unpack = struct.pack, struct.unpack
local item_key, applied_key = KEYS[1], KEYS[2]
local id, added = ARGV[1], tonumber(ARGV[2])
if #id ~= 36 or not added or not (added >= 1 and added <= 1000000000) or added % 1 ~= 0 then
  return redis.error_reply('BADARG restock')
end
local units = redis.call('GET', item_key)
if redis.call('SISMEMBER', applied_key, id) == 1 then
  return { 'ALREADY' }
elseif not units or #units ~= 60 then
  return redis.error_reply('MISSING item')
end
local available = unpack('>I6', units)
local granted, version = unpack('>I6I6', units, 43)

redis.call('SADD', applied_key, id)
redis.call('SET', item_key, pack('>I6', available + added) .. units:sub(7, 42)
  .. pack('>I6I6', granted + added, version + 1) .. units:sub(55))
return { 'ADDED' }
