#!lua flags=allow-oom
-- Transfer in: add units that another shard sent, once.
-- Invariant: available + held + sold + revoked + out = granted + in for the item, before and after.
-- allow-oom: the units have left their shard; they must be able to arrive.
--
-- KEYS[1] {sale:shard}:item:<sku>  string  the item's units on this shard; never expires
-- KEYS[2] {sale:shard}:applied     set     ids that are finished here; never expires
-- ARGV[1] id     the transfer's id, 36 bytes
-- ARGV[2] units  1..1000000000
-- Returns {'IN'}       the units are free here
--         {'ALREADY'}  they were added before
-- Retry:  the id is remembered for as long as the sale.
-- Caller: src/stock/transfer.rs

local pack, unpack = struct.pack, struct.unpack
local item_key, applied_key = KEYS[1], KEYS[2]
local id, added = ARGV[1], tonumber(ARGV[2])
if #id ~= 36 or not added or not (added >= 1 and added <= 1000000000) or added % 1 ~= 0 then
  return redis.error_reply('BADARG transfer_in')
end
local units = redis.call('GET', item_key)
if redis.call('SISMEMBER', applied_key, id) == 1 then
  return { 'ALREADY' }
elseif not units or #units ~= 60 then
  return redis.error_reply('MISSING item')
end
local available = unpack('>I6', units)
local came_in = unpack('>I6', units, 37)
local version = unpack('>I6', units, 49)

redis.call('SADD', applied_key, id)
redis.call('SET', item_key, pack('>I6', available + added) .. units:sub(7, 36) .. pack('>I6', came_in + added)
  .. units:sub(43, 48) .. pack('>I6', version + 1) .. units:sub(55))
return { 'IN' }
