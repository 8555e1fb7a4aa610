#!lua flags=allow-oom
-- Fence: refuse units that a lender sent before it was rebuilt.
-- Invariant: a fence only ever rises.
--
-- KEYS[1] {sale:shard}:fences  hash  by lender, the earliest epoch whose transfers are accepted; never expires
-- ARGV[1..] lender, epoch for each shard that is rebuilt; at most 256
-- Returns {'FENCED'}  always
-- Retry:  the second run finds the fence.
-- Caller: src/stock/recover/restore.rs

local fences_key = KEYS[1]
if #ARGV < 2 or #ARGV > 512 or #ARGV % 2 ~= 0 then
  return redis.error_reply('BADARG fence')
end
for at = 1, #ARGV, 2 do
  if not tonumber(ARGV[at]) or not tonumber(ARGV[at + 1]) then
    return redis.error_reply('BADARG fence')
  end
end
for at = 1, #ARGV, 2 do
  local fence = redis.call('HGET', fences_key, ARGV[at])
  if not fence or tonumber(fence) < tonumber(ARGV[at + 1]) then
    redis.call('HSET', fences_key, ARGV[at], ARGV[at + 1])
  end
end
return { 'FENCED' }
