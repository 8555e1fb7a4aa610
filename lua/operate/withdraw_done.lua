#!lua flags=allow-oom
-- Withdraw done: mark a withdrawal delivered, once the ledger has taken its units off the books.
-- Invariant: available + held + sold + revoked + out = granted + in for the item, and withdrawn <= out.
--
-- KEYS[1] {sale:shard}:item:<sku>  string  the item's units on this shard; never expires
-- KEYS[2] {sale:shard}:transfers   hash    transfers in transit, by id; never expires
-- KEYS[3] {sale:shard}:applied     set     ids of transfers and restocks that are finished here; never expires
-- ARGV[1] id   the transfer's id, 36 bytes; its destination is `ledger`
-- ARGV[2] sku  the item's, 1..64 bytes
-- Returns {'DONE'}  the withdrawal is marked delivered, now or before
-- Retry:  the second run finds the id in applied.
-- Caller: src/stock/sell/transfer.rs

local pack, unpack = struct.pack, struct.unpack
local item_key, transfers_key, applied_key, id = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
if #id ~= 36 then
  return redis.error_reply('BADARG withdraw_done')
end
local known = redis.call('HGET', transfers_key, id)
if redis.call('SISMEMBER', applied_key, id) == 1 or not known then
  return { 'DONE' }
elseif known:find('^[\1-\31]') then
  return redis.error_reply('NEWER transfer')
end
local sent, its_sku = known:match('^ledger (%d+) %d+ %d+ (.+)$')
local units = redis.call('GET', item_key)
if units and units:find('^[\1-\31]') then
  return redis.error_reply('NEWER item')
elseif not units or #units ~= 60 then
  return redis.error_reply('MISSING item')
end
-- Withdrawn units stay in `out`: the shard may have borrowed them, so `granted` cannot be lowered.
local out = unpack('>I6', units, 31)
local withdrawn = unpack('>I6', units, 55)
sent = tonumber(sent)
if its_sku ~= ARGV[2] or out < withdrawn + sent then
  return redis.error_reply('INVARIANT withdraw_done')
end

redis.call('SADD', applied_key, id)
redis.call('HDEL', transfers_key, id)
redis.call('SET', item_key, units:sub(1, 54) .. pack('>I6', withdrawn + sent))
return { 'DONE' }
