#!lua
-- Purchase: decide one shopper's request for units of one item, and write the order, its event and the counters.
-- Invariant: available + held + sold + revoked + out = granted + in for the item on this shard, before and
--   after; available is never below zero; one idempotency key has one order; every order has one event.
--
-- KEYS[1] {sale:shard}:shard         string  the shard; never expires
-- KEYS[2] {sale:shard}:item:<sku>    string  the item's units on this shard; never expires
-- KEYS[3] {sale:shard}:buyer:<user>  string  the shopper; expires only while it has no order
-- KEYS[4] {sale:shard}:events        stream  trimmed by the drain after its commit; never expires
-- ARGV[1] order     16 bytes, derived from sale, user and idempotency key: the same key is the same order
-- ARGV[2] quantity  1..100000 units
-- ARGV[3] identity  idempotency key, newline, user: carried to the drain, opaque here
-- ARGV[4] asked     the number of an ASK_LEDGER, if the ledger was asked since and does not have the order; or empty
-- ARGV[5] now_ms    for tests; absent or empty: TIME
-- ARGV[6] named     1: a new order comes with the server's replication id; absent or anything else: without
-- ARGV[7] holds     how many unpaid orders the shopper may have at a time; absent or 0: as many as the row takes
-- ARGV[8] cooldown  milliseconds without buying after an unpaid order, doubled for each further one in a row, at most a
--                   day; absent or 0: none. The first order that is cancelled within a minute does not count
-- ARGV[9] origin    24 bytes: carried to the drain, opaque here; absent: the request is not traced
-- Returns record                         the order was written (a bare string, because an array costs more)
--         {'RESERVED', record, server}   the same; server: the replication id, which every restart and every promotion
--                                        changes
--         {'REPLAYED', record, drained}  the key is known; drained is 1 once the drain trimmed its event
--         {'KEY_REUSED'}                 the key is known with another item or quantity
--         {'ASK_LEDGER', number}         some of the shopper's orders are in the ledger alone: ask the ledger first
--         {'HALTED'}                     the shard has no permit to sell, or is being rebuilt
--         {'OVERLOADED'}                 the brake holds: events have waited too long for the ledger
--         {'BANNED', until_s}            the account is banned until this Unix second; 4294967295 is for ever
--         {'RATE_LIMITED', wait_ms}      the shopper's window is full for wait_ms
--         {'NOT_OPEN', state}            scheduled, paused, closed, or draft while the shard is loading
--         {'COOLING_DOWN', wait_ms}      the shopper did not pay the last orders
--         {'TOO_MANY_HOLDS'}             the shopper has as many unpaid orders as allowed, or the row is full
--         {'LIMIT_REACHED'}              more units than the shopper may have of this item
--         {'SHORT', available}           this shard has too few free units; others may have more
-- Retry:  the same key finds its order and returns it; a refused request counts once in its window.
-- Caller: src/stock/sell/purchase.rs (the packed layouts are written down in src/stock/record.rs)

-- A row with more bytes of orders than this takes no new order: about 400 orders. Undecided orders never leave the row.
local ORDERS_MAX = 16384

local call, pack, unpack = redis.call, struct.pack, struct.unpack
local shard_key, item_key, buyer_key, events_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local order, quantity, now, origin = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5]), ARGV[9]
if #order ~= 16 or not quantity or not (quantity >= 1 and quantity <= 100000) or quantity % 1 ~= 0
  or origin and #origin ~= 24 then
  return redis.error_reply('BADARG purchase')
end
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- One command reads all records and one writes them: a command costs as much as all the packing below.
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

-- The ban is copied unchanged from row to row: 4 bytes of seconds, 2 of the decision's revision.
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
  -- An order id is half a keyed hash, so no other bytes of the row equal it.
  local _, at = orders:find(order, 1, true)
  if at then
    local _, its_item, its_quantity = unpack('>BI2I4', orders, at + 1)
    if state == 0 then
      -- The shard is being rebuilt: this row may be of an earlier generation.
      return { 'HALTED' }
    elseif its_item ~= item or its_quantity ~= quantity then
      return { 'KEY_REUSED' }
    end
    if call('EXISTS', events_key) == 0 then
      return redis.error_reply('MISSING events')
    end
    local id = unpack('>Bc0', orders, at + 20)
    return { 'REPLAYED', orders:sub(at + 1, at + 19) .. id, #call('XRANGE', events_key, id, id) == 0 and 1 or 0 }
  elseif elsewhere ~= 0 and tonumber(ARGV[4]) ~= elsewhere then
    return { 'ASK_LEDGER', elsewhere }
  end
end
if now >= permit_until then
  return { 'HALTED' }
elseif brake == 1 then
  return { 'OVERLOADED' }
elseif banned ~= 0 and now < math.floor(banned / 65536) * 1000 then
  return { 'BANNED', math.floor(banned / 65536) }
end

-- The window has 12-byte entries, oldest first: 6 bytes of time, then the last 6 of the counted order's id.
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

-- The shopper's units have a 6-byte entry for each item: 2 bytes of the item's position, then 4 of units.
local mine, mine_at = 0, #limits + 1
for at = 1, #limits, 6 do
  local its_item, its_units = unpack('>I2I4', limits, at)
  if its_item == item then
    mine, mine_at = its_units, at
    break
  end
end
-- The guards on unpaid orders must read every order, so this runs only where a caller asks for them.
local holds, cooling_until = 0, 0
if ARGV[7] then
  local unpaid, regrets, last, at = 0, 0, 0, 1
  while at < #orders do
    local its_state, _, _, created_at, resolved_at, length = unpack('>BI2I4I6I6B', orders, at + 16)
    if its_state == 0 then
      holds = holds + 1
    elseif its_state == 1 then
      unpaid, regrets = 0, 0
    elseif its_state == 2 and resolved_at - created_at <= 60000 and regrets == 0 then
      -- One order that is cancelled within a minute is forgiven: it kept no unit from others for long. Further ones
      -- count.
      regrets = 1
    elseif its_state == 2 or its_state == 3 then
      unpaid, last = unpaid + 1, math.max(last, resolved_at)
    end
    at = at + 36 + length
  end
  if unpaid > 0 and ARGV[8] ~= '0' then
    cooling_until = last + math.min(ARGV[8] * 2 ^ (unpaid - 1), 86400000)
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
elseif #orders > ORDERS_MAX or holds > 0 and holds >= tonumber(ARGV[7]) and ARGV[7] ~= '0' then
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
      -- A row with nothing but a window expires with it. A second more: the expiry counts from the script's start, the
      -- window from TIME. Up to a tenth of the window more, so that the rows of a rush do not all expire at once.
      call('SET', buyer_key, row, 'PX', window_ms + 1000 + math.floor(order:byte(16) * window_ms / 2560))
    end
  end
  return refusal
end

local server
if ARGV[6] == '1' then
  local info = call('INFO', 'replication')
  local _, at = info:find('master_replid:', 1, true)
  server = info:sub(at + 1, at + 40)
end

-- XADD is the first write, because only XADD can still fail (no stream). Its id is the shard's epoch and the next
-- sequence number.
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
if server then
  return { 'RESERVED', head .. id, server }
end
return head .. id
