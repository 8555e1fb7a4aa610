#!lua flags=allow-oom
-- Transfer in: add units that another shard sent, once.
-- Invariant: available + held + sold + revoked + out = granted + in for the item, before and after.
-- allow-oom: the units have left their shard; they must be able to arrive.
--
-- KEYS[1] {sale:shard}:stock    hash  every item of the shard by SKU; never expires
-- KEYS[2] {sale:shard}:applied  set   ids that are finished here; never expires
-- ARGV[1] id     the transfer's id, 36 bytes
-- ARGV[2] sku    1..64 bytes
-- ARGV[3] units  1..1000000000
-- Returns {'IN'}       the units are free here
--         {'ALREADY'}  they were added before
-- Retry:  the id is remembered for as long as the sale.
-- Caller: src/stock/transfer.rs

local pack, unpack = struct.pack, struct.unpack
local stock_key, applied_key = KEYS[1], KEYS[2]
local id, sku, units = ARGV[1], ARGV[2], tonumber(ARGV[3])
if #id ~= 36 or not units or not (units >= 1 and units <= 1000000000) or units % 1 ~= 0 then
  return redis.error_reply('BADARG transfer_in')
end
local stock = redis.call('HGET', stock_key, sku)
if redis.call('SISMEMBER', applied_key, id) == 1 then
  return { 'ALREADY' }
elseif not stock or #stock < 81 then
  return redis.error_reply('MISSING stock')
end
local available = unpack('>I6', stock)
local came_in = unpack('>I6', stock, 61)
local version = unpack('>I6', stock, 73)

redis.call('SADD', applied_key, id)
redis.call('HSET', stock_key, sku, pack('>I6', available + units) .. stock:sub(7, 60)
  .. pack('>I6', came_in + units) .. stock:sub(67, 72) .. pack('>I6', version + 1) .. stock:sub(79))
return { 'IN' }
