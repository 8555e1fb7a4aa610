#!lua
-- Purchase: decide one shopper's request for units of one item and write all that follows from it.
-- Invariant: available + held + sold + revoked + out = granted + in for the item on this shard, before and
--   after; available is never below zero; one idempotency key has one order; every order has one event.
--
-- KEYS[1] {sale:shard}:stock         hash    every item of the shard by SKU; never expires
-- KEYS[2] {sale:shard}:buyer:<user>  hash    the shopper; expires only while it holds no order
-- KEYS[3] {sale:shard}:events        stream  trimmed by the drain after its commit; never expires
-- ARGV[1] order     16 bytes, derived from sale, user and idempotency key: the same key is the same order
-- ARGV[2] sku       1..64 bytes
-- ARGV[3] quantity  1..100000 units
-- ARGV[4] identity  idempotency key, newline, user: carried to the drain, opaque here
-- ARGV[5] now_ms    absent: ask TIME; stands in for it in tests
-- Returns record                         the order was written (a bare string: an array costs 6 % of the call)
--         {'REPLAYED', record, drained}  the key is known; drained is 1 once the drain trimmed its event
--         {'KEY_REUSED'}                 the key is known with another item or quantity
--         {'BANNED'}                     the account is banned
--         {'RATE_LIMITED', wait_ms}      the window is full for that long
--         {'NOT_OPEN', state}            scheduled, paused, closed, or draft while it is being loaded
--         {'LIMIT_REACHED'}              more than the shopper may have of this item
--         {'SHORT', available}           this shard holds too few units; others may hold more
-- Retry:  the same key finds its order and returns it; a refused request counts once in its window.
-- Caller: src/stock/purchase.rs (the packed layouts are written down in src/stock/record.rs)

local call, pack, unpack = redis.call, struct.pack, struct.unpack
local stock_key, buyer_key, events_key = KEYS[1], KEYS[2], KEYS[3]
local order, sku, quantity, now = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
if #order ~= 16 or not quantity or not (quantity >= 1 and quantity <= 100000) or quantity % 1 ~= 0 then
  return redis.error_reply('BADARG purchase')
end
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Reading both hashes first proves their types: no write below can fail with WRONGTYPE.
local stock = call('HGET', stock_key, sku)
if not stock or #stock < 87 then
  return redis.error_reply('MISSING stock')
end
local available, held, state, starts_at, ends_at, rate_limit, window_ms, unit_limit, item =
  unpack('>I6I6BI6I6I4I6I4xI2', stock)
local units_field = stock:sub(40, 42)
local buyer = call('HMGET', buyer_key, order, 'w', units_field, 'b')

local record = buyer[1]
if record then
  local _, its_item, its_quantity = unpack('>BI2I4', record)
  if its_item ~= item or its_quantity ~= quantity then
    return { 'KEY_REUSED' }
  end
  if call('EXISTS', events_key) == 0 then
    return redis.error_reply('MISSING events')
  end
  local id = record:sub(20)
  return { 'REPLAYED', record, #call('XRANGE', events_key, id, id) == 0 and 1 or 0 }
end

if buyer[4] and now < tonumber(buyer[4]) then
  return { 'BANNED' }
end

-- The window is a row of 12-byte entries, oldest first: 6 bytes of time, then 6 of the order it counted.
local window, member, counted = buyer[2] or '', order:sub(11), nil
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

local units = buyer[3] and unpack('>I4', buyer[3]) or 0
local refusal
if state == 0 then
  refusal = { 'NOT_OPEN', 'draft' }
elseif state == 3 or now >= ends_at then
  refusal = { 'NOT_OPEN', 'closed' }
elseif state == 2 then
  refusal = { 'NOT_OPEN', 'paused' }
elseif now < starts_at then
  refusal = { 'NOT_OPEN', 'scheduled' }
elseif units + quantity > unit_limit then
  refusal = { 'LIMIT_REACHED' }
elseif available < quantity then
  refusal = { 'SHORT', available }
end
if refusal then
  if not counted then
    call('HSET', buyer_key, 'w', window)
    -- A shopper with nothing but a window is forgotten with it; a second of slack, because an expiry counts
    -- from the script's start and the window from TIME.
    if call('HLEN', buyer_key) == 1 then
      call('PEXPIRE', buyer_key, window_ms + 1000)
    end
  end
  return refusal
end

-- XADD goes first: it alone can still refuse (no stream), and nothing has been written by then. Its id is the
-- shard's epoch and the next sequence number.
local head = pack('>BI2I4I6I6', 0, item, quantity, now, 0)
local id = call('XADD', events_key, 'NOMKSTREAM', stock:sub(85), 'reserved', head .. order .. ARGV[4])
if not id then
  return redis.error_reply('MISSING events')
end
record = head .. id
call('HSET', stock_key, sku, pack('>I6I6', available - quantity, held + quantity) .. stock:sub(13))
call('HSET', buyer_key, order, record, 'w', window, units_field, pack('>I4', units + quantity))
if buyer[2] and not buyer[3] then
  call('PERSIST', buyer_key)
end
return record
