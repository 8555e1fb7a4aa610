#!lua flags=allow-oom
-- Stop: take a shard's permit away, and block new permits for a while.
-- Invariant: no counter changes; a missing shard is not created.
-- allow-oom: a shard that is about to be rebuilt must be halted also when memory is short.
--
-- KEYS[1] {sale:shard}:shard  string  the shard; never expires
-- KEYS[2] {sale:shard}:halt   string  while it exists, lua/permit/permit.lua gives no permit; expires by itself
-- ARGV[1] halt_ms  0..60000 milliseconds; 0: the next permit may come at once
-- Returns {'HALTED'}   the shard has no permit
-- Retry:  the second run does the same; the halt counts from then on.
-- Caller: src/stock/recover/permit.rs

local shard_key, halt_key, halt_ms = KEYS[1], KEYS[2], tonumber(ARGV[1])
if not halt_ms or not (halt_ms >= 0 and halt_ms <= 60000) or halt_ms % 1 ~= 0 then
  return redis.error_reply('BADARG stop')
end
local shard = redis.call('GET', shard_key)
if shard and shard:find('^[\4-\31]') then
  return redis.error_reply('NEWER shard')
end
if halt_ms > 0 then
  redis.call('SET', halt_key, '', 'PX', halt_ms)
end
if not shard or #shard < 45 then
  return redis.error_reply('MISSING shard')
end
redis.call('SET', shard_key, shard:sub(1, 2) .. struct.pack('>I6', 0) .. shard:sub(9))
return { 'HALTED' }
