#!lua
-- Token bucket: let requests pass at a steady rate, and as many at once as the bucket has tokens.
-- Invariant: level and time are stored together; the level never exceeds the burst and never falls below zero. So in
--   any span of t seconds at most burst + rate * t pass.
--
-- KEYS[1] {limit:id}:bucket  string  the level and its time; expires once the bucket would be full
-- ARGV[1] rate    tokens a second, above 0, at most 1000000; may be a fraction
-- ARGV[2] burst   how many tokens the bucket holds, 1..1000000
-- ARGV[3] cost    tokens that this request takes, above 0, at most the burst; may be a fraction
-- ARGV[4] at_least  the fewest tokens to take, if the bucket has less than cost: above 0, at most the cost
-- ARGV[5] now_ms  for tests; absent: TIME
-- Returns {'PASSED', taken, left}  tokens that were taken and that are left, in thousandths
--         {'LIMITED', wait_ms}     the bucket has at_least tokens after wait_ms; nothing was taken
-- Retry:  each run takes tokens.
-- Caller: src/stock/door/limit.rs (the packed layouts are written down in src/stock/record.rs)

local pack, unpack = struct.pack, struct.unpack
local bucket_key = KEYS[1]
local rate, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local at_least, now = tonumber(ARGV[4]), tonumber(ARGV[5])
if not (rate and burst and cost and at_least)
  or not (rate > 0 and rate <= 1000000) or not (burst >= 1 and burst <= 1000000)
  or not (cost > 0 and cost <= burst) or not (at_least > 0 and at_least <= cost) then
  return redis.error_reply('BADARG token_bucket')
end
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local level, at, bucket = burst, now, redis.call('GET', bucket_key)
if bucket and (bucket:byte(9) or 0) >= 16 then
  return redis.error_reply('NEWER bucket')
elseif bucket and #bucket == 14 then
  local its_level, its_time = unpack('>dI6', bucket)
  -- A clock that was set back adds no tokens, also when it passes the same moments again.
  at = math.max(now, its_time)
  level = math.min(burst, its_level + (at - its_time) * rate / 1000)
end
-- Rounding loses less than this, so a request that has waited for wait_ms passes.
local enough = at_least - 1e-7
if level < enough then
  return { 'LIMITED', math.max(1, math.ceil((at_least - level - 1e-9) * 1000 / rate)) }
end
local taken = math.min(cost, math.max(level, at_least))
level = math.max(0, level - taken)
-- A second more: the expiry counts from the script's start.
redis.call('SET', bucket_key, pack('>dI6', level, at), 'PX', math.ceil((burst - level) * 1000 / rate) + 1000)
return { 'PASSED', math.floor(taken * 1000 + 0.5), math.floor(level * 1000) }
