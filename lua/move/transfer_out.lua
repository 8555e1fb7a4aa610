#!lua
-- Transfer out: take free units of an item out of this shard, and record where they go.
-- Invariant: available + held + sold + revoked + out = granted + in for the item, before and after.
-- Only a shard with a permit may lend: a shard that has lost its sales shows units that it does not have.
--
-- KEYS[1] {sale:shard}:item:<sku>  string  the item's units on this shard; never expires
-- KEYS[2] {sale:shard}:shard       string  the shard; never expires
-- KEYS[3] {sale:shard}:transfers   hash    transfers in transit, by id; never expires
-- KEYS[4] {sale:shard}:applied     set     ids of transfers and restocks that are finished here; never expires
-- ARGV[1] id      the transfer's id, 36 bytes
-- ARGV[2] sku     1..64 bytes, for a process that finishes an interrupted transfer
-- ARGV[3] to      the borrower's shard, or `ledger` for units that leave the sale
-- ARGV[4] wanted  1..1000000000 units at the most
-- ARGV[5] at_ms   Unix milliseconds, for a process that finishes an interrupted transfer
-- ARGV[6] now_ms  for tests; absent: TIME
-- Returns {'OUT', units, epoch}  so many units are in transit (a repeated call gets the first answer)
--         {'NONE'}               nothing is free here
--         {'DONE'}               this transfer is finished already
--         {'HALTED'}             the shard has no permit
-- Retry:  the second run finds the id in transfers, or in applied once it is marked delivered.
-- Caller: src/stock/sell/transfer.rs

local pack, unpack = struct.pack, struct.unpack
local item_key, shard_key, transfers_key, applied_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, sku, to, wanted = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
if #id ~= 36 or not wanted or not (wanted >= 1 and wanted <= 1000000000) or wanted % 1 ~= 0
  or not tonumber(ARGV[5]) then
  return redis.error_reply('BADARG transfer_out')
end
local units = redis.call('GET', item_key)
local known = redis.call('HGET', transfers_key, id)
if redis.call('SISMEMBER', applied_key, id) == 1 then
  return { 'DONE' }
elseif known and known:find('^[\1-\31]') then
  return redis.error_reply('NEWER transfer')
elseif known then
  local sent, epoch = known:match('^%S+ (%d+) %d+ (%d+) ')
  return { 'OUT', tonumber(sent), tonumber(epoch) }
elseif units and units:find('^[\1-\31]') then
  return redis.error_reply('NEWER item')
elseif not units or #units ~= 60 then
  return redis.error_reply('MISSING item')
end
local shard, now = redis.call('GET', shard_key), tonumber(ARGV[6])
if shard and shard:find('^[\4-\31]') then
  return redis.error_reply('NEWER shard')
elseif not shard or #shard < 45 then
  return redis.error_reply('MISSING shard')
end
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
if now >= unpack('>I6', shard, 3) then
  return { 'HALTED' }
end
local available = unpack('>I6', units)
local sent = math.min(available, wanted)
if sent == 0 then
  return { 'NONE' }
end
local out = unpack('>I6', units, 31)
local version = unpack('>I6', units, 49)
local epoch = unpack('>I6', shard, 37)

redis.call('HSET', transfers_key, id, string.format('%s %.0f %s %.0f %s', to, sent, ARGV[5], epoch, sku))
redis.call('SET', item_key, pack('>I6', available - sent) .. units:sub(7, 30) .. pack('>I6', out + sent)
  .. units:sub(37, 48) .. pack('>I6', version + 1) .. units:sub(55))
return { 'OUT', sent, epoch }
