#!lua
-- Preload: create one shard with its part of every item's stock, not selling yet and without a permit.
-- Invariant: a shard is created once in an epoch; an existing shard is left exactly as it is.
--
-- KEYS[1]   {sale:shard}:shard       string  created; never expires
-- KEYS[2]   {sale:shard}:events      stream  created empty; never expires
-- KEYS[3..] {sale:shard}:item:<sku>  string  created, in the order of the items' positions; at most 1000
-- ARGV[1] epoch       1.. the shard's generation
-- ARGV[2] starts_at   Unix milliseconds
-- ARGV[3] ends_at     Unix milliseconds
-- ARGV[4] rate_limit  1..100000 requests in a window
-- ARGV[5] window_ms   1..86400000 milliseconds
-- ARGV[6..] units, unit_limit for each item, in the order of the keys
-- Returns {'LOADED'}   the shard was created
--         {'ALREADY'}  the shard existed
-- Retry:  the second run finds the shard.
-- Caller: src/stock/operate/preload.rs

local pack = struct.pack
local shard_key, events_key = KEYS[1], KEYS[2]
local epoch, starts_at, ends_at = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local rate_limit, window_ms = tonumber(ARGV[4]), tonumber(ARGV[5])
local items = #KEYS - 2
if not (epoch and starts_at and ends_at and rate_limit and window_ms) or items < 1 or items > 1000
  or #ARGV ~= 5 + items * 2 then
  return redis.error_reply('BADARG preload')
end
for at = 6, #ARGV, 2 do
  local units, unit_limit = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  if not (units and unit_limit) or units < 0 or units % 1 ~= 0 then
    return redis.error_reply('BADARG preload')
  end
end
local there = 0
for at = 1, #KEYS do
  there = there + redis.call('EXISTS', KEYS[at])
end
if there == #KEYS then
  return { 'ALREADY' }
elseif there > 0 then
  -- Some keys without the others mean a loss, not a fresh start.
  return redis.error_reply('MISSING keys')
end

-- Trimming the only entry leaves a stream that exists and is empty. Selling never creates a stream.
redis.call('XADD', events_key, ARGV[1] .. '-0', 'created', '')
redis.call('XTRIM', events_key, 'MAXLEN', 0)
redis.call('SET', shard_key, pack('>BBI6I6I6I4I6I6I6', 0, 0, 0, starts_at, ends_at, rate_limit, window_ms, 0, epoch)
  .. ARGV[1] .. '-*')
for item = 0, items - 1 do
  local units, unit_limit = tonumber(ARGV[6 + item * 2]), tonumber(ARGV[7 + item * 2])
  redis.call('SET', KEYS[3 + item],
    pack('>I6I6I4I2I6I6I6I6I6I6I6', units, 0, unit_limit, item, 0, 0, 0, 0, units, 0, 0))
end
return { 'LOADED' }
