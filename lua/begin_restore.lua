#!lua flags=allow-oom
-- Begin restore: end a shard's life and begin the next, in which it is loading, if the ledger has all of its events.
-- Invariant: no event is forgotten that waits for the ledger; an epoch begins once.
-- allow-oom: a shard that is being rebuilt sells nothing.
-- Whatever stands in a key's place goes. What is finished here stays finished: a call that comes late changes nothing.
--
-- KEYS[1] {sale:shard}:shard      string  written; never expires
-- KEYS[2] {sale:shard}:events     stream  created empty; never expires
-- KEYS[3] {sale:shard}:transfers  hash    removed: what was on its way is counted as this shard's own
-- KEYS[4] {sale:shard}:applied    set     kept; never expires
-- KEYS[5] {sale:shard}:fences     hash    written; never expires
-- ARGV[1]  epoch   the next one
-- ARGV[2]  record  the shard's, while it is loading
-- ARGV[3..] lender, epoch for each shard of the sale: the earliest that is let in; at most 256
-- Returns {'BEGUN', lost}      the shard has no permit until the ledger knows this epoch; lost is 1 if it had no stream
--         {'EVENTS', waiting}  so many have to be taken in first
--         {'STALE', epoch}     somebody else has begun this epoch or a later one
-- Retry:  the second run is stale; the next rebuilding begins a later epoch.
-- Caller: src/stock/restore.rs

local shard_key, events_key, transfers_key, applied_key, fences_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local epoch, record = tonumber(ARGV[1]), ARGV[2]
if not epoch or epoch < 1 or epoch % 1 ~= 0 or not record or #record < 45 or #ARGV % 2 ~= 0 or #ARGV > 514 then
  return redis.error_reply('BADARG begin_restore')
end
if redis.call('TYPE', shard_key).ok == 'string' then
  local shard = redis.call('GET', shard_key)
  if #shard >= 45 and struct.unpack('>I6', shard, 37) >= epoch then
    return { 'STALE', struct.unpack('>I6', shard, 37) }
  end
end
local had_stream = redis.call('TYPE', events_key).ok == 'stream'
if had_stream then
  local waiting = redis.call('XLEN', events_key)
  if waiting > 0 then
    return { 'EVENTS', waiting }
  end
end

redis.call('DEL', events_key, transfers_key, fences_key)
if redis.call('TYPE', applied_key).ok ~= 'set' then
  redis.call('DEL', applied_key)
end
-- As in preload.lua: a stream that is empty and exists.
redis.call('XADD', events_key, ARGV[1] .. '-0', 'created', '')
redis.call('XTRIM', events_key, 'MAXLEN', 0)
redis.call('SET', shard_key, record)
for at = 3, #ARGV, 2 do
  redis.call('HSET', fences_key, ARGV[at], ARGV[at + 1])
end
return { 'BEGUN', had_stream and 0 or 1 }
