#!lua flags=allow-oom
-- Begin restore: begin a shard's next generation; the caller has claimed the shard in the ledger for a rebuild.
-- Invariant: no event that the drain can still apply is deleted; a shard with another epoch than ARGV[1] stays as it
--   is.
-- allow-oom: a damaged shard must be rebuilt also when memory is short.
--
-- KEYS[1] {sale:shard}:shard      string  rewritten; never expires
-- KEYS[2] {sale:shard}:events     stream  created empty, if none of its events can still be drained; never expires
-- KEYS[3] {sale:shard}:transfers  hash    deleted: the rebuild counts their units here, or they have arrived
-- KEYS[4] {sale:shard}:fences     hash    deleted, and set to the given fences
-- KEYS[5] {sale:shard}:applied    set     kept, unless the key holds another type; never expires
-- KEYS[6] {sale:shard}:halt       string  deleted: no other process knows the new epoch yet
-- ARGV[1] epoch   the shard's epoch when the caller read it; 0 when it had none
-- ARGV[2] next    the new epoch, above the old one
-- ARGV[3] record  the shard's new record, loading and without a permit
-- ARGV[4] known   the shard's epoch in the ledger: the drain never applies events of an earlier one
-- ARGV[5..] lender, epoch for each other shard of the sale
-- Returns {'BEGUN', lost}  the shard is loading; lost is 0 if its stream existed and was empty, else 1
--         {'CHANGED'}      the shard has another epoch, or events to drain: the caller reads the shard again
-- Retry:  the second run finds another epoch.
-- Caller: src/stock/recover/restore.rs

local shard_key, events_key, transfers_key = KEYS[1], KEYS[2], KEYS[3]
local fences_key, applied_key, halt_key = KEYS[4], KEYS[5], KEYS[6]
local epoch, next_epoch, record, known = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
if not (epoch and next_epoch and known) or next_epoch <= epoch or #record < 45 or #ARGV % 2 ~= 0 or #ARGV > 516 then
  return redis.error_reply('BADARG begin_restore')
end
-- A key may hold another type. Its value counts as missing, and is replaced.
local its_epoch = 0
if redis.call('TYPE', shard_key).ok == 'string' then
  local shard = redis.call('GET', shard_key)
  if shard:find('^[\4-\31]') then
    return redis.error_reply('NEWER shard')
  end
  -- As in src/stock/record.rs: bytes that do not begin with a known state are no record.
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
-- As in preload.lua: the stream exists and is empty.
redis.call('XADD', events_key, ARGV[2] .. '-0', 'created', '')
redis.call('XTRIM', events_key, 'MAXLEN', 0)
for at = 5, #ARGV, 2 do
  redis.call('HSET', fences_key, ARGV[at], ARGV[at + 1])
end
return { 'BEGUN', had_stream and not last and 0 or 1 }
