#!lua flags=allow-oom
-- Begin restore: begin a shard's next life, which the ledger has claimed for writing it anew.
-- Invariant: nothing that the ledger has not taken in is forgotten; a shard of another life than the one that was
--   looked at is left as it is.
-- allow-oom: a damaged shard must be restored also when memory is short.
--
-- KEYS[1] {sale:shard}:shard      string  rewritten; never expires
-- KEYS[2] {sale:shard}:events     stream  created empty, if it has nothing that could be taken in; never expires
-- KEYS[3] {sale:shard}:transfers  hash    forgotten: their units are counted as this shard's, or have arrived
-- KEYS[4] {sale:shard}:fences     hash    forgotten, and set anew
-- KEYS[5] {sale:shard}:applied    set     kept, unless something else stands in its place; never expires
-- KEYS[6] {sale:shard}:halt       string  removed: nobody knows the new epoch yet
-- ARGV[1] epoch   the one that was looked at; 0 when the shard had none
-- ARGV[2] next    a later one
-- ARGV[3] record  the shard's, loading and without a permit
-- ARGV[4] known   the epoch that the ledger knows: events of an earlier one are never taken in
-- ARGV[5..] lender, epoch for each other shard of the sale
-- Returns {'BEGUN', lost}  the shard is loading; lost is 1 if it had no stream, or one that is never taken in
--         {'CHANGED'}      it is of another epoch, or has events: look again
-- Retry:  the second run finds another epoch.
-- Caller: src/stock/restore.rs

local shard_key, events_key, transfers_key = KEYS[1], KEYS[2], KEYS[3]
local fences_key, applied_key, halt_key = KEYS[4], KEYS[5], KEYS[6]
local epoch, next_epoch, record, known = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
if not (epoch and next_epoch and known) or next_epoch <= epoch or #record < 45 or #ARGV % 2 ~= 0 or #ARGV > 516 then
  return redis.error_reply('BADARG begin_restore')
end
-- Whatever stands in a key's place goes.
local its_epoch = 0
if redis.call('TYPE', shard_key).ok == 'string' then
  local shard = redis.call('GET', shard_key)
  if shard:find('^[\4-\31]') then
    return redis.error_reply('NEWER shard')
  end
  -- As src/stock/record.rs reads it: what begins with no state is no record.
  if #shard > 42 and struct.unpack('>B', shard) <= 3 then
    its_epoch = struct.unpack('>I6', shard, 37)
  end
end
local had_stream = redis.call('TYPE', events_key).ok == 'stream'
local last = had_stream and redis.call('XREVRANGE', events_key, '+', '-', 'COUNT', 1)[1]
if its_epoch ~= epoch or (last and tonumber(last[1]:match('^%d+')) >= known) then
  return { 'CHANGED' }
end

redis.call('DEL', events_key, transfers_key, fences_key, halt_key)
if redis.call('TYPE', applied_key).ok ~= 'set' then
  redis.call('DEL', applied_key)
end
redis.call('SET', shard_key, record)
-- As in preload.lua: a stream that is empty and exists.
redis.call('XADD', events_key, ARGV[2] .. '-0', 'created', '')
redis.call('XTRIM', events_key, 'MAXLEN', 0)
for at = 5, #ARGV, 2 do
  redis.call('HSET', fences_key, ARGV[at], ARGV[at + 1])
end
return { 'BEGUN', had_stream and not last and 0 or 1 }
