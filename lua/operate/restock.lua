#!lua flags=allow-oom
-- Restock: add units that the ledger has granted to this shard, once.
-- Invariant: available + held + sold + revoked + out = granted + in for the item, before and after.
--
-- KEYS[1] {sale:shard}:item:<sku>  string  the item's units on this shard; never expires
-- KEYS[2] {sale:shard}:shard       string  the shard; never expires
-- KEYS[3] {sale:shard}:applied     set     ids of transfers and restocks that are finished here; never expires
-- ARGV[1] id     the restock's id, 36 bytes
-- ARGV[2] units  1..1000000000
-- ARGV[3] epoch  this shard's epoch before the caller saw that the restock was due: a rebuild since then may have
--                counted the units already
-- Returns {'ADDED'}    the units are free here
--         {'ALREADY'}  the units were added before
--         {'STALE'}    this shard was rebuilt since; the caller checks again whether the restock is due
-- Retry:  the id stays in applied for as long as the sale.
-- Caller: src/stock/operate/restock.rs

local pack, unpack = struct.pack, struct.unpack
local item_key, shard_key, applied_key = KEYS[1], KEYS[2], KEYS[3]
local id, added, epoch = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if #id ~= 36 or not added or not (added >= 1 and added <= 1000000000) or added % 1 ~= 0 or not epoch then
  return redis.error_reply('BADARG restock')
end
local units, shard = redis.call('GET', item_key), redis.call('GET', shard_key)
if redis.call('SISMEMBER', applied_key, id) == 1 then
  return { 'ALREADY' }
elseif units and units:find('^[\1-\31]') then
  return redis.error_reply('NEWER item')
elseif shard and shard:find('^[\4-\31]') then
  return redis.error_reply('NEWER shard')
elseif not units or #units ~= 60 then
  return redis.error_reply('MISSING item')
elseif not shard or #shard < 45 then
  return redis.error_reply('MISSING shard')
elseif unpack('>I6', shard, 37) ~= epoch then
  return { 'STALE' }
end
local available = unpack('>I6', units)
local granted, version = unpack('>I6I6', units, 43)

redis.call('SADD', applied_key, id)
redis.call('SET', item_key, pack('>I6', available + added) .. units:sub(7, 42)
  .. pack('>I6I6', granted + added, version + 1) .. units:sub(55))
return { 'ADDED' }
