#!lua
-- Fixed window: count requests in windows; a window begins with the first request after the previous window.
-- Invariant: a counter expires with its window, and no request changes when; no count is above its limit.
-- Around the end of a window, twice the limit may pass within less than a window: see docs/limits.md.
--
-- KEYS[1] {limit:id}:counter  string  the window's end and its count; expires a second after the end
-- ARGV[1] limit      1..1000000000 in a window
-- ARGV[2] window_ms  1..86400000
-- ARGV[3] cost       1..limit: how much this request counts
-- ARGV[4] now_ms     for tests; absent: TIME
-- Returns {'PASSED', used}      so much of the limit is used, with this request
--         {'LIMITED', wait_ms}  the window ends after wait_ms; nothing was counted
-- Retry:  each run counts.
-- Caller: src/stock/door/limit.rs (the packed layouts are written down in src/stock/record.rs)

local pack, unpack = struct.pack, struct.unpack
local counter_key = KEYS[1]
local limit, window_ms, cost, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if not (limit and window_ms and cost)
  or not (limit >= 1 and limit <= 1000000000) or not (window_ms >= 1 and window_ms <= 86400000)
  or not (cost >= 1 and cost <= limit) or limit % 1 + window_ms % 1 + cost % 1 ~= 0 then
  return redis.error_reply('BADARG fixed_window')
end
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local counter = redis.call('GET', counter_key)
local ends_at, used = now + window_ms, 0
if counter and counter:find('^[\16-\255]') then
  return redis.error_reply('NEWER counter')
elseif counter and #counter == 10 then
  local its_end, its_count = unpack('>I6I4', counter)
  -- A counter that ends later than a window that begins now is ignored: the clock was set back, or the window was
  -- longer.
  if now < its_end and its_end <= ends_at then
    ends_at, used = its_end, its_count
  end
end
if used + cost > limit then
  return { 'LIMITED', ends_at - now }
end
-- A second more: the expiry counts from the script's start, the window from TIME.
redis.call('SET', counter_key, pack('>I6I4', ends_at, used + cost), 'PX', ends_at - now + 1000)
return { 'PASSED', used + cost }
