#!lua flags=allow-oom
-- Withdraw done: strike units that left the sale for the ledger, once the ledger has taken them off its books.
-- Invariant: available + held + sold + revoked + out = granted + in for the item, and withdrawn <= out.
--
-- KEYS[1] {sale:shard}:stock      hash  every item of the shard by SKU; never expires
-- KEYS[2] {sale:shard}:transfers  hash  transfers on their way by id; never expires
-- KEYS[3] {sale:shard}:applied    set   ids that are finished here; never expires
-- ARGV[1] id  the transfer's id, 36 bytes; its destination is `ledger`
-- Returns {'DONE'}  the units are no longer this shard's, or were struck before
-- Retry:  the id is found in applied.
-- Caller: src/stock/transfer.rs

local pack, unpack = struct.pack, struct.unpack
local stock_key, transfers_key, applied_key, id = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
if #id ~= 36 then
  return redis.error_reply('BADARG withdraw_done')
end
local known = redis.call('HGET', transfers_key, id)
if redis.call('SISMEMBER', applied_key, id) == 1 or not known then
  return { 'DONE' }
end
local units, sku = known:match('^ledger (%d+) %d+ (.+)$')
local stock = sku and redis.call('HGET', stock_key, sku)
if not stock or #stock < 87 then
  return redis.error_reply('MISSING stock')
end
-- What is withdrawn stays in `out`: the shard may have borrowed it, so it cannot be taken off what it was granted.
local out = unpack('>I6', stock, 55)
local withdrawn = unpack('>I6', stock, 79)
units = tonumber(units)
if out < withdrawn + units then
  return redis.error_reply('INVARIANT withdraw_done')
end

redis.call('SADD', applied_key, id)
redis.call('HDEL', transfers_key, id)
redis.call('HSET', stock_key, sku,
  stock:sub(1, 78) .. pack('>I6', withdrawn + units) .. stock:sub(85))
return { 'DONE' }
