#!lua flags=allow-oom
-- Barrier: write something, so that a WAIT after it covers every write that this node has made before.
-- Invariant: nothing of the shard changes.
--
-- KEYS[1] {sale:shard}:barrier  string  empty; expires by itself
-- ARGV[1] kept_ms  1..86400000 milliseconds until it does
-- Returns {'SET'}  every earlier write of this node precedes this one on the way to its replicas
-- Retry:  each run is a barrier of its own.
-- Caller: src/stock/replicate.rs (and src/stock/permit.rs)

local barrier_key = KEYS[1]
local kept_ms = tonumber(ARGV[1])
if not kept_ms or not (kept_ms >= 1 and kept_ms <= 86400000) or kept_ms % 1 ~= 0 then
  return redis.error_reply('BADARG barrier')
end

redis.call('SET', barrier_key, '', 'PX', kept_ms)
return { 'SET' }
