#!lua
-- Purchase: decide one shopper's request for units of one item and write all that follows from it.
-- Invariant: available + held + sold + revoked + out = granted + in for the item on this shard, before and
--   after; available is never below zero; one idempotency key has one order; every order has one event.
--
-- KEYS[1] {sale:shard}:shard         string  the shard; never expires
-- KEYS[2] {sale:shard}:item:<sku>    string  the item's units on this shard; never expires
-- KEYS[3] {sale:shard}:buyer:<user>  string  the shopper; expires only while it holds no order
-- KEYS[4] {sale:shard}:events        stream  trimmed by the drain after its commit; never expires
-- ARGV[1] order     16 bytes, derived from sale, user and idempotency key: the same key is the same order
-- ARGV[2] quantity  1..100000 units
-- ARGV[3] identity  idempotency key, newline, user: carried to the drain, opaque here
-- ARGV[4] looked    the number of a LOOK, since when the ledger was asked and does not have the order; or empty
-- ARGV[5] now_ms    absent or empty: ask TIME; stands in for it in tests
-- ARGV[6] holds     absent or 0: as many as the row takes; else how many unpaid orders the shopper may have at a time
-- ARGV[7] cooldown  absent or 0: none; else milliseconds without buying after an order that was not paid, doubled for
--                   each further one in a row, a day at most. The first that is cancelled within a minute is none
-- ARGV[8] origin    absent: nobody traces the request; else 24 bytes: carried to the drain, opaque here
-- Returns record                         the order was written (a bare string: an array costs 6 % of the call)
--         {'REPLAYED', record, drained}  the key is known; drained is 1 once the drain trimmed its event
--         {'KEY_REUSED'}                 the key is known with another item or quantity
--         {'LOOK', number}               some of the shopper's orders are in the ledger alone: look there first
--         {'STOPPED'}                    the shard has no permit to sell, or is being written anew
--         {'OVERLOADED'}                 too much waits for the ledger
--         {'BANNED'}                     the account is banned
--         {'RATE_LIMITED', wait_ms}      the window is full for that long
--         {'NOT_OPEN', state}            scheduled, paused, closed, or draft while it is being loaded
--         {'COOLING_DOWN', wait_ms}      too many of the shopper's last orders were not paid
--         {'TOO_MANY_HOLDS'}             as many unpaid orders as there may be
--         {'LIMIT_REACHED'}              more than the shopper may have of this item
--         {'SHORT', available}           this shard holds too few units; others may hold more
-- Retry:  the same key finds its order and returns it; a refused request counts once in its window.
-- Caller: src/stock/purchase.rs (the packed layouts are written down in src/stock/record.rs)

-- A shopper's undecided orders stay in the row. With more bytes of them than this, nothing is added: about 400 orders.
local ORDERS_MAX = 16384

local call, pack, unpack = redis.call, struct.pack, struct.unpack
local shard_key, item_key, buyer_key, events_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local order, quantity, now, origin = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5]), ARGV[8]
if #order ~= 16 or not quantity or not (quantity >= 1 and quantity <= 100000) or quantity % 1 ~= 0
  or origin and #origin ~= 24 then
  return redis.error_reply('BADARG purchase')
end
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- One command reads all that is decided on, and one writes it: each costs as much as all the packing below.
local found = call('MGET', shard_key, item_key, buyer_key)
local shard, units, buyer = found[1], found[2], found[3]
if shard and shard:find('^[\4-\31]') then
  return redis.error_reply('NEWER shard')
elseif units and units:find('^[\1-\31]') then
  return redis.error_reply('NEWER item')
elseif not shard or #shard < 45 then
  return redis.error_reply('MISSING shard')
elseif not units or #units ~= 60 then
  return redis.error_reply('MISSING item')
end
local state, brake, permit_until, starts_at, ends_at, rate_limit, window_ms = unpack('>BBI6I6I6I4I6', shard)
local available, held, unit_limit, item = unpack('>I6I6I4I2', units)

-- What is known of a ban goes from row to row as it is: 4 bytes of seconds, 2 of the decision's number.
local banned, elsewhere, limits, window, orders = 0, 0, '', '', ''
if buyer then
  local items, entries
  banned, elsewhere, items, entries = unpack('>I6BI2I3', buyer)
  if items >= 4096 then
    return redis.error_reply('NEWER shopper')
  end
  local window_at = 13 + items * 6
  local orders_at = window_at + entries * 12
  limits, window, orders = buyer:sub(13, window_at - 1), buyer:sub(window_at, orders_at - 1), buyer:sub(orders_at)
  -- An id is half a keyed hash: no other bytes of a shopper look like it.
  local _, at = orders:find(order, 1, true)
  if at then
    local _, its_item, its_quantity = unpack('>BI2I4', orders, at + 1)
    if state == 0 then
      -- It is being written anew: this row may be of a life that is over.
      return { 'STOPPED' }
    elseif its_item ~= item or its_quantity ~= quantity then
      return { 'KEY_REUSED' }
    end
    if call('EXISTS', events_key) == 0 then
      return redis.error_reply('MISSING events')
    end
    local id = unpack('>Bc0', orders, at + 20)
    return { 'REPLAYED', orders:sub(at + 1, at + 19) .. id, #call('XRANGE', events_key, id, id) == 0 and 1 or 0 }
  elseif elsewhere ~= 0 and tonumber(ARGV[4]) ~= elsewhere then
    return { 'LOOK', elsewhere }
  end
end
if now >= permit_until then
  return { 'STOPPED' }
elseif brake == 1 then
  return { 'OVERLOADED' }
elseif banned ~= 0 and now < math.floor(banned / 65536) * 1000 then
  return { 'BANNED' }
end

-- The window is a row of 12-byte entries, oldest first: 6 bytes of time, then 6 of the order it counted.
local member, counted = order:sub(11), nil
if window ~= '' then
  local first = 1
  while first <= #window and unpack('>I6', window, first) <= now - window_ms do
    first = first + 12
  end
  window = window:sub(first)
  counted = window:find(member, 1, true)
  while counted and counted % 12 ~= 7 do
    counted = window:find(member, counted + 1, true)
  end
end
if not counted then
  if #window >= rate_limit * 12 then
    return { 'RATE_LIMITED', unpack('>I6', window) + window_ms - now }
  end
  window = window .. pack('>I6', now) .. member
end

-- What the shopper has of each item is a row of 6-byte entries: 2 bytes of the item's position, then 4 of units.
local mine, mine_at = 0, #limits + 1
for at = 1, #limits, 6 do
  local its_item, its_units = unpack('>I2I4', limits, at)
  if its_item == item then
    mine, mine_at = its_units, at
    break
  end
end
-- What the guards of unpaid holds go by: only where they are asked for is every order looked at.
local holds, cooling_until = 0, 0
if ARGV[6] then
  local unpaid, regrets, last, at = 0, 0, 0, 1
  while at < #orders do
    local its_state, _, _, created_at, resolved_at, length = unpack('>BI2I4I6I6B', orders, at + 16)
    if its_state == 0 then
      holds = holds + 1
    elseif its_state == 1 then
      unpaid, regrets = 0, 0
    elseif its_state == 2 and resolved_at - created_at <= 60000 and regrets == 0 then
      -- Who changes his mind at once has kept nothing from anybody; who does so again and again, has.
      regrets = 1
    elseif its_state == 2 or its_state == 3 then
      unpaid, last = unpaid + 1, math.max(last, resolved_at)
    end
    at = at + 36 + length
  end
  if unpaid > 0 and ARGV[7] ~= '0' then
    cooling_until = last + math.min(ARGV[7] * 2 ^ (unpaid - 1), 86400000)
  end
end
local refusal
if state == 0 then
  refusal = { 'NOT_OPEN', 'draft' }
elseif state == 3 or now >= ends_at then
  refusal = { 'NOT_OPEN', 'closed' }
elseif state == 2 then
  refusal = { 'NOT_OPEN', 'paused' }
elseif now < starts_at then
  refusal = { 'NOT_OPEN', 'scheduled' }
elseif now < cooling_until then
  refusal = { 'COOLING_DOWN', cooling_until - now }
elseif mine + quantity > unit_limit then
  refusal = { 'LIMIT_REACHED' }
elseif #orders > ORDERS_MAX or holds > 0 and holds >= tonumber(ARGV[6]) and ARGV[6] ~= '0' then
  refusal = { 'TOO_MANY_HOLDS' }
elseif available < quantity then
  refusal = { 'SHORT', available }
end
if refusal then
  if not counted then
    local row = pack('>I6BI2I3', banned, elsewhere, #limits / 6, #window / 12) .. limits .. window .. orders
    if #orders + elsewhere > 0 then
      call('SET', buyer_key, row)
    else
      -- A shopper with nothing but a window is forgotten with it; a second of slack, because an expiry counts
      -- from the script's start and the window from TIME. Up to a tenth more, so that a rush does not go at once.
      call('SET', buyer_key, row, 'PX', window_ms + 1000 + math.floor(order:byte(16) * window_ms / 2560))
    end
  end
  return refusal
end

-- XADD goes first: it alone can still refuse (no stream), and nothing has been written by then. Its id is the
-- shard's epoch and the next sequence number.
local head = pack('>BI2I4I6I6', 0, item, quantity, now, 0)
local next_id, event = shard:sub(43), head .. order .. ARGV[3]
local id
if origin then
  id = call('XADD', events_key, 'NOMKSTREAM', next_id, 'reserved', event, 'origin', origin)
else
  id = call('XADD', events_key, 'NOMKSTREAM', next_id, 'reserved', event)
end
if not id then
  return redis.error_reply('MISSING events')
end
limits = limits:sub(1, mine_at - 1) .. pack('>I2I4', item, mine + quantity) .. limits:sub(mine_at + 6)
call('MSET', item_key, pack('>I6I6', available - quantity, held + quantity) .. units:sub(13), buyer_key,
  pack('>I6BI2I3', banned, elsewhere, #limits / 6, #window / 12) .. limits .. window .. orders .. order .. head
  .. string.char(#id) .. id)
return head .. id
