#!lua flags=allow-oom
-- Barrier: write a key, so that a WAIT after it covers every earlier write of this node.
-- Invariant: no record of the shard changes.
--
-- KEYS[1] {sale:shard}:barrier  string  empty; expires by itself
-- ARGV[1] kept_ms  1..86400000 milliseconds until the key expires
-- Returns {'SET'}  replicas get every earlier write of this node before this one
-- Retry:  each run is a barrier of its own.
-- Caller: src/stock/settle/replicate.rs (and src/stock/recover/permit.rs)

local barrier_key = KEYS[1]
local kept_ms = tonumber(ARGV[1])
if not kept_ms or not (kept_ms >= 1 and kept_ms <= 86400000) or kept_ms % 1 ~= 0 then
  return redis.error_reply('BADARG barrier')
end

redis.call('SET', barrier_key, '', 'PX', kept_ms)
return { 'SET' }
