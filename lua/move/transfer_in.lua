#!lua flags=allow-oom
-- Transfer in: add units that another shard sent, once.
-- Invariant: available + held + sold + revoked + out = granted + in for the item, before and after.
-- allow-oom: the units have left their shard; they must be able to arrive.
-- The script refuses three kinds of units:
--   all units, while this shard has no permit: a rebuild would overwrite them;
--   units that left an earlier generation of the lender: its rebuild has counted them as its own;
--   units of a lender on this server, if the server is another one by now: it may have lost the transfer.
--
-- KEYS[1] {sale:shard}:item:<sku>  string  the item's units on this shard; never expires
-- KEYS[2] {sale:shard}:shard       string  the shard; never expires
-- KEYS[3] {sale:shard}:fences      hash    by lender, the earliest epoch whose transfers are accepted; never expires
-- KEYS[4] {sale:shard}:applied     set     ids of transfers and restocks that are finished here; never expires
-- KEYS[5] {sale:shard}:transfers   hash    transfers in transit, by id; only for units that return to their lender:
--                                          without an entry here, they have never left
-- ARGV[1] id         the transfer's id, 36 bytes
-- ARGV[2] units      1..1000000000
-- ARGV[3] lender     the number of the shard that sent them
-- ARGV[4] epoch      the lender's epoch when it sent them
-- ARGV[5] own_epoch  this shard's epoch before the caller read the transfer at the lender: a rebuild since then may
--                    have counted the units already, and have lost the id
-- ARGV[6] server     the server on which the lender has the transfer, if this shard is on it too: run id, replication
--                    id, and the one that it had as a replica, joined by hyphens; empty when the lender is on another
-- ARGV[7] now_ms     for tests; absent: TIME
-- Returns {'IN'}       the units are free here
--         {'ALREADY'}  the units were added before
--         {'FENCED'}   the lender was rebuilt since, or has no such transfer; the units are its own
--         {'STALE'}    this shard was rebuilt since; the caller reads the lender again
--         {'MOVED'}    this is another server by now; the caller reads the lender again
--         {'HALTED'}   this shard has no permit
-- Retry:  the id stays in applied for as long as the sale.
-- Caller: src/stock/sell/transfer.rs

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
  return { 'HALTED' }
end
local available = unpack('>I6', units)
local came_in = unpack('>I6', units, 37)
local version = unpack('>I6', units, 49)

redis.call('SADD', applied_key, id)
redis.call('SET', item_key, pack('>I6', available + added) .. units:sub(7, 36) .. pack('>I6', came_in + added)
  .. units:sub(43, 48) .. pack('>I6', version + 1) .. units:sub(55))
return { 'IN' }
