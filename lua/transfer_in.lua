#!lua flags=allow-oom
-- Transfer in: add units that another shard sent, once.
-- Invariant: available + held + sold + revoked + out = granted + in for the item, before and after.
-- allow-oom: the units have left their shard; they must be able to arrive.
-- A shard that is being rebuilt takes nothing in, or what it took would be overwritten; nothing comes in from a
-- lender's earlier life, because its rebuilding has counted those units as still its own; and nothing that left a
-- lender on another server, which may have been taken over from, or have lost it in a restart.
--
-- KEYS[1] {sale:shard}:item:<sku>  string  the item's units on this shard; never expires
-- KEYS[2] {sale:shard}:shard       string  the shard; never expires
-- KEYS[3] {sale:shard}:fences      hash    the earliest epoch that is let in, by lender; never expires
-- KEYS[4] {sale:shard}:applied     set     ids that are finished here; never expires
-- KEYS[5] {sale:shard}:transfers   hash    transfers on their way by id; only for units that come back to the shard
--                                          that sent them: what is not written down there has never left
-- ARGV[1] id         the transfer's id, 36 bytes
-- ARGV[2] units      1..1000000000
-- ARGV[3] lender     the number of the shard that sent them
-- ARGV[4] epoch      the lender's when it sent them
-- ARGV[5] own_epoch  this shard's before the caller saw the transfer written down at the lender: a later life of it may
--                    have counted the units already, and have forgotten the id
-- ARGV[6] server     where the lender, which is on this server as well, has the transfer written down: run id,
--                    replication id, and the one that it had as a replica, with hyphens in between; empty when it
--                    is on another
-- ARGV[7] now_ms     absent: ask TIME; stands in for it in tests
-- Returns {'IN'}       the units are free here
--         {'ALREADY'}  they were added before
--         {'FENCED'}   the lender has been rebuilt since, or has forgotten that they left; the units are its own
--         {'STALE'}    this shard has been rebuilt since; look at the lender again
--         {'MOVED'}    this is not that server; look at the lender again
--         {'STOPPED'}  this shard has no permit
-- Retry:  the id is remembered for as long as the sale.
-- Caller: src/stock/transfer.rs

local pack, unpack = struct.pack, struct.unpack
local item_key, shard_key, fences_key, applied_key, transfers_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, added, lender = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local epoch, own_epoch, server, now = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
if #id ~= 36 or not added or not (added >= 1 and added <= 1000000000) or added % 1 ~= 0
  or not (epoch and own_epoch and server) then
  return redis.error_reply('BADARG transfer_in')
end
local units, shard = redis.call('GET', item_key), redis.call('GET', shard_key)
local fence = redis.call('HGET', fences_key, lender)
if redis.call('SISMEMBER', applied_key, id) == 1 then
  return { 'ALREADY' }
elseif shard and shard:find('^[\4-\31]') then
  return redis.error_reply('NEWER shard')
elseif units and units:find('^[\1-\31]') then
  return redis.error_reply('NEWER item')
elseif not shard or #shard < 45 then
  return redis.error_reply('MISSING shard')
elseif not units or #units ~= 60 then
  return redis.error_reply('MISSING item')
elseif fence and epoch < tonumber(fence) then
  return { 'FENCED' }
elseif unpack('>I6', shard, 37) ~= own_epoch then
  return { 'STALE' }
elseif transfers_key and redis.call('HEXISTS', transfers_key, id) == 0 then
  return { 'FENCED' }
end
if server ~= '' then
  local info = redis.call('INFO', 'server', 'replication')
  if info:match('run_id:(%x+)') .. '-' .. info:match('master_replid:(%x+)') .. '-'
    .. info:match('master_replid2:(%x+)') ~= server then
    return { 'MOVED' }
  end
end
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
if now >= unpack('>I6', shard, 3) then
  return { 'STOPPED' }
end
local available = unpack('>I6', units)
local came_in = unpack('>I6', units, 37)
local version = unpack('>I6', units, 49)

redis.call('SADD', applied_key, id)
redis.call('SET', item_key, pack('>I6', available + added) .. units:sub(7, 36) .. pack('>I6', came_in + added)
  .. units:sub(43, 48) .. pack('>I6', version + 1) .. units:sub(55))
return { 'IN' }
