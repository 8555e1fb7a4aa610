#!lua
-- Sliding window: let at most `limit` requests pass in any span of a window's length, to the millisecond.
-- Invariant: the set holds only requests that passed within the last window, so never more than the limit; it expires
--   one window after the last of them.
--
-- KEYS[1] {limit:id}:window  sorted set  the requests that passed, by time; expires with the last of them
-- ARGV[1] limit      1..100000 in any window
-- ARGV[2] window_ms  1..86400000
-- ARGV[3] request    1..128 bytes that name this request alone: two requests with one name count once
-- ARGV[4] now_ms     for tests; absent: TIME
-- Returns {'PASSED', used}      so many requests are in the window, with this one
--         {'LIMITED', wait_ms}  one more may pass after wait_ms; this request was not counted
-- Retry:  a request that passed passes again for a window's length, and is counted once.
-- Caller: src/stock/door/limit.rs

local window_key = KEYS[1]
local limit, window_ms, request, now = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
if not (limit and window_ms and request)
  or not (limit >= 1 and limit <= 100000) or not (window_ms >= 1 and window_ms <= 86400000)
  or limit % 1 + window_ms % 1 ~= 0 or #request < 1 or #request > 128 then
  return redis.error_reply('BADARG sliding_window')
end
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

redis.call('ZREMRANGEBYSCORE', window_key, '-inf', now - window_ms)
local used = redis.call('ZCARD', window_key)
if redis.call('ZSCORE', window_key, request) then
  return { 'PASSED', used }
elseif used >= limit then
  -- If the limit was lowered, more than one entry has to leave first.
  local leaves = redis.call('ZRANGE', window_key, used - limit, used - limit, 'WITHSCORES')
  return { 'LIMITED', leaves[2] + window_ms - now }
end
redis.call('ZADD', window_key, now, request)
-- A second more: the expiry counts from the script's start, the window from TIME.
redis.call('PEXPIRE', window_key, window_ms + 1000)
return { 'PASSED', used + 1 }
