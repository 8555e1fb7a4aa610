#!lua flags=allow-oom
-- Resolve: move an order out of `reserved`, as the ledger has decided, and its units where the decision says.
-- Invariant: available + held + sold + revoked + out = granted + in for the item, before and after.
-- allow-oom: the script frees units, and must run also when memory is short.
--
-- KEYS[1] {sale:shard}:item:<sku>    string  the item's units on this shard; never expires
-- KEYS[2] {sale:shard}:buyer:<user>  string  the shopper
-- ARGV[1] order    16 bytes
-- ARGV[2] state    1 paid, 2 cancelled, 3 expired, 4 revoked
-- ARGV[3] at_ms    when the ledger decided, Unix milliseconds
-- Returns {'RESOLVED'}         the order was reserved and now is not
--         {'ALREADY'}          the order was in that state, or is not here and may be in the ledger alone
--         {'CONFLICT', state}  the order had left `reserved` for another state
--         {'UNKNOWN'}          the shopper has no such order here
-- Retry:  the second run finds the state and changes nothing.
-- Caller: src/stock/settle/resolve.rs

-- A row with more bytes than this leaves decided orders to the ledger, so that a purchase reads few bytes.
local ROW_MAX = 4096

local pack, unpack = struct.pack, struct.unpack
local item_key, buyer_key = KEYS[1], KEYS[2]
local order, target, decided_at = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if #order ~= 16 or not (target and decided_at) or not (target >= 1 and target <= 4) or target % 1 ~= 0 then
  return redis.error_reply('BADARG resolve')
end
local units, buyer = redis.call('GET', item_key), redis.call('GET', buyer_key)
if units and units:find('^[\1-\31]') then
  return redis.error_reply('NEWER item')
elseif not units or #units ~= 60 then
  return redis.error_reply('MISSING item')
elseif not buyer then
  return { 'UNKNOWN' }
end
local banned, elsewhere, items, entries = unpack('>I6BI2I3', buyer)
if items >= 4096 then
  return redis.error_reply('NEWER shopper')
end
local first, at = buyer:find(order, 13 + items * 6 + entries * 12, true)
if not at then
  return { elsewhere ~= 0 and 'ALREADY' or 'UNKNOWN' }
end
local state, item, quantity, created_at = unpack('>BI2I4I6', buyer, at + 1)
if state == target then
  return { 'ALREADY' }
elseif state ~= 0 then
  return { 'CONFLICT', state }
end
local available, held, _, its_item, sold, revoked = unpack('>I6I6I4I2I6I6', units)
local version = unpack('>I6', units, 49)
local mine, mine_at = 0, nil
for position = 13, 12 + items * 6, 6 do
  local of, its_units = unpack('>I2I4', buyer, position)
  if of == item then
    mine, mine_at = its_units, position
    break
  end
end
if its_item ~= item or held < quantity or not mine_at or (target ~= 1 and mine < quantity) then
  return redis.error_reply('INVARIANT resolve')
end

held = held - quantity
if target == 1 then
  sold = sold + quantity
else
  mine = mine - quantity
  version = version + 1
  if target == 4 then
    revoked = revoked + quantity
  else
    available = available + quantity
  end
end
local decided = order .. pack('>BI2I4I6I6', target, item, quantity, created_at, decided_at)
local length = unpack('>B', buyer, at + 20)
local kept = decided .. buyer:sub(at + 20, at + 20 + length)
if #buyer > ROW_MAX then
  -- A new number each time: a caller that asked the ledger before this must ask it again.
  kept, elsewhere = '', elsewhere % 255 + 1
end
redis.call('MSET', item_key, pack('>I6I6', available, held) .. units:sub(13, 18) .. pack('>I6I6', sold, revoked)
  .. units:sub(31, 48) .. pack('>I6', version) .. units:sub(55), buyer_key,
  pack('>I6BI2I3', banned, elsewhere, items, entries) .. buyer:sub(13, mine_at - 1)
  .. pack('>I2I4', item, mine) .. buyer:sub(mine_at + 6, first - 1) .. kept .. buyer:sub(at + 21 + length))
return { 'RESOLVED' }
