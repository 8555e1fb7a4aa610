#!lua flags=allow-oom
-- Transfer done: mark a transfer delivered, once its units have arrived.
-- Invariant: no counter changes; an id that is marked delivered is never used again.
--
-- KEYS[1] {sale:shard}:transfers  hash  transfers in transit, by id; never expires
-- KEYS[2] {sale:shard}:applied    set   ids of transfers and restocks that are finished here; never expires
-- ARGV[1] id  the transfer's id, 36 bytes
-- Returns {'DONE'}  always
-- Retry:  the second run changes nothing.
-- Caller: src/stock/sell/transfer.rs

local transfers_key, applied_key, id = KEYS[1], KEYS[2], ARGV[1]
if #id ~= 36 then
  return redis.error_reply('BADARG transfer_done')
end
local known = redis.call('HEXISTS', transfers_key, id)
redis.call('SISMEMBER', applied_key, id)
if known == 1 then
  redis.call('SADD', applied_key, id)
  redis.call('HDEL', transfers_key, id)
end
return { 'DONE' }
