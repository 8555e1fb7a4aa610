#!lua flags=no-writes
-- Read shard: everything that one shard knows of its units, as of one moment.
--
-- KEYS[1] {sale:shard}:stock      hash    every item of the shard by SKU
-- KEYS[2] {sale:shard}:transfers  hash    transfers on their way by id
-- KEYS[3] {sale:shard}:events     stream  events that the drain has not trimmed yet
-- ARGV[1] events_max  0..1000 undrained events to return
-- Returns {now_ms, stock fields and values, transfers fields and values, undrained, events}
-- Retry:  reads only.
-- Caller: src/stock/read_shard.rs

local stock_key, transfers_key, events_key = KEYS[1], KEYS[2], KEYS[3]
local events_max = tonumber(ARGV[1])
if not events_max or events_max < 0 or events_max > 1000 then
  return redis.error_reply('BADARG read_shard')
end
if redis.call('HEXISTS', stock_key, ':shard') == 0 then
  return redis.error_reply('MISSING stock')
elseif redis.call('EXISTS', events_key) == 0 then
  return redis.error_reply('MISSING events')
end
local time = redis.call('TIME')
local events = {}
if events_max > 0 then
  events = redis.call('XRANGE', events_key, '-', '+', 'COUNT', events_max)
end
return { time[1] * 1000 + math.floor(time[2] / 1000), redis.call('HGETALL', stock_key),
  redis.call('HGETALL', transfers_key), redis.call('XLEN', events_key), events }
