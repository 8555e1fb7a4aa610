#!lua flags=no-writes
-- Read shard: everything that one shard knows of its units, as of one moment.
--
-- KEYS[1]   {sale:shard}:shard       string  the shard
-- KEYS[2]   {sale:shard}:transfers   hash    transfers in transit, by id
-- KEYS[3]   {sale:shard}:events      stream  events that the drain has not trimmed yet
-- KEYS[4..] {sale:shard}:item:<sku>  string  the items' units on this shard, at most 1000
-- ARGV[1] events_max  0..1000 undrained events to return
-- Returns {now_ms, shard, items in the order of their keys, transfers fields and values, undrained, events}
-- Retry:  reads only.
-- Caller: src/stock/operate/read_shard.rs

local shard_key, transfers_key, events_key = KEYS[1], KEYS[2], KEYS[3]
local events_max = tonumber(ARGV[1])
if not events_max or events_max < 0 or events_max > 1000 or #KEYS > 1003 then
  return redis.error_reply('BADARG read_shard')
end
local shard = redis.call('GET', shard_key)
if not shard then
  return redis.error_reply('MISSING shard')
elseif redis.call('EXISTS', events_key) == 0 then
  return redis.error_reply('MISSING events')
end
local items = {}
for at = 4, #KEYS do
  local units = redis.call('GET', KEYS[at])
  if not units then
    return redis.error_reply('MISSING item')
  end
  items[at - 3] = units
end
local time = redis.call('TIME')
local events = {}
if events_max > 0 then
  events = redis.call('XRANGE', events_key, '-', '+', 'COUNT', events_max)
end
return { time[1] * 1000 + math.floor(time[2] / 1000), shard, items, redis.call('HGETALL', transfers_key),
  redis.call('XLEN', events_key), events }
