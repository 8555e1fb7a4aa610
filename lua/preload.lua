#!lua
-- Preload: create one shard with its part of every item's stock, not selling yet.
-- Invariant: a shard is created once in an epoch; an existing one is left exactly as it is.
--
-- KEYS[1] {sale:shard}:stock   hash    created; never expires
-- KEYS[2] {sale:shard}:events  stream  created empty; never expires
-- ARGV[1] epoch       1.. the shard's generation
-- ARGV[2] starts_at   milliseconds since the epoch
-- ARGV[3] ends_at     milliseconds since the epoch
-- ARGV[4] rate_limit  1..100000 requests in a window
-- ARGV[5] window_ms   1..86400000 milliseconds
-- ARGV[6..] sku, units, unit_limit for each item, in the order of their positions; at most 1000 items
-- Returns {'LOADED'}   the shard was created
--         {'ALREADY'}  it was there
-- Retry:  the second run finds the shard.
-- Caller: src/stock/preload.rs

local pack = struct.pack
local stock_key, events_key = KEYS[1], KEYS[2]
local epoch, starts_at, ends_at = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local rate_limit, window_ms = tonumber(ARGV[4]), tonumber(ARGV[5])
if not (epoch and starts_at and ends_at and rate_limit and window_ms) or #ARGV < 8 or #ARGV > 3005
  or (#ARGV - 5) % 3 ~= 0 then
  return redis.error_reply('BADARG preload')
end
for at = 6, #ARGV, 3 do
  local units, unit_limit = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  if not (units and unit_limit) or units < 0 or units % 1 ~= 0 then
    return redis.error_reply('BADARG preload')
  end
end
local there = redis.call('HLEN', stock_key) > 0
if redis.call('EXISTS', events_key) == 1 then
  -- One without the other is a loss, not a fresh start.
  if not there then
    return redis.error_reply('MISSING stock')
  end
  return { 'ALREADY' }
elseif there then
  return redis.error_reply('MISSING events')
end

-- Trimming the first entry leaves an empty stream that exists: selling never creates one.
redis.call('XADD', events_key, ARGV[1] .. '-0', 'created', '')
redis.call('XTRIM', events_key, 'MAXLEN', 0)
redis.call('HSET', stock_key, ':shard', pack('>I6I6', epoch, 0))
local item = 0
for at = 6, #ARGV, 3 do
  local units = tonumber(ARGV[at + 1])
  redis.call('HSET', stock_key, ARGV[at], pack('>I6I6BI6I6I4I6I4', units, 0, 0, starts_at, ends_at, rate_limit,
    window_ms, tonumber(ARGV[at + 2])) .. 'u' .. pack('>I2I6I6I6I6I6I6I6', item, 0, 0, 0, 0, units, 0, 0)
    .. ARGV[1] .. '-*')
  item = item + 1
end
return { 'LOADED' }
