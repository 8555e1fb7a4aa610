#!lua flags=allow-oom
-- Resolve: an order leaves `reserved`, as the ledger has decided; its units go where the decision says.
-- Invariant: available + held + sold + revoked + out = granted + in for the item, before and after.
-- allow-oom: this gives units back, and must work when memory is short.
--
-- KEYS[1] {sale:shard}:stock         hash  every item of the shard by SKU; never expires
-- KEYS[2] {sale:shard}:buyer:<user>  hash  the shopper
-- ARGV[1] order    16 bytes
-- ARGV[2] sku      1..64 bytes
-- ARGV[3] state    1 paid, 2 cancelled, 3 expired, 4 revoked
-- ARGV[4] at_ms    when it was decided, milliseconds since the epoch
-- Returns {'RESOLVED'}         the order was reserved and now is not
--         {'ALREADY'}          it was in that state
--         {'CONFLICT', state}  it had left `reserved` for another state
--         {'UNKNOWN'}          no such order here
-- Retry:  the second run finds the state and changes nothing.
-- Caller: src/stock/resolve.rs

local pack, unpack = struct.pack, struct.unpack
local stock_key, buyer_key = KEYS[1], KEYS[2]
local order, sku, target, at = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if #order ~= 16 or not (target and at) or not (target >= 1 and target <= 4) or target % 1 ~= 0 then
  return redis.error_reply('BADARG resolve')
end
local stock = redis.call('HGET', stock_key, sku)
if not stock or #stock < 81 then
  return redis.error_reply('MISSING stock')
end
local units_field = stock:sub(40, 42)
local buyer = redis.call('HMGET', buyer_key, order, units_field)
local record = buyer[1]
if not record then
  return { 'UNKNOWN' }
end
local state, item, quantity, created_at = unpack('>BI2I4I6', record)
if state == target then
  return { 'ALREADY' }
elseif state ~= 0 then
  return { 'CONFLICT', state }
end
local available, held = unpack('>I6I6', stock)
local its_item, sold, revoked = unpack('>I2I6I6', stock, 41)
local version = unpack('>I6', stock, 73)
local units = buyer[2] and unpack('>I4', buyer[2]) or 0
if its_item ~= item or held < quantity or (target ~= 1 and units < quantity) then
  return redis.error_reply('INVARIANT resolve')
end

held = held - quantity
if target == 1 then
  sold = sold + quantity
else
  units = units - quantity
  version = version + 1
  if target == 4 then
    revoked = revoked + quantity
  else
    available = available + quantity
  end
end
redis.call('HSET', stock_key, sku, pack('>I6I6', available, held) .. stock:sub(13, 42)
  .. pack('>I6I6', sold, revoked) .. stock:sub(55, 72) .. pack('>I6', version) .. stock:sub(79))
redis.call('HSET', buyer_key, order, pack('>BI2I4I6I6', target, item, quantity, created_at, at)
  .. record:sub(20), units_field, pack('>I4', units))
return { 'RESOLVED' }
