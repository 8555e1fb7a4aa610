#!lua
-- Compact window: let so many requests pass in any span of a window's length, as lua/sliding_window.lua does, in 12
--   bytes each; the form in which lua/purchase.lua keeps a shopper's window.
-- Invariant: the row holds the requests that passed within the last window, oldest first, so never more than the
--   limit; it leaves one window after the last of them.
--
-- KEYS[1] {limit:id}:row  string  entries of 12 bytes: 6 of time in ms, 6 of the request; expires with the last of them
-- ARGV[1] limit      1..100000 in any window
-- ARGV[2] window_ms  1..86400000
-- ARGV[3] request    6..128 bytes, the last 6 of which name this request; two with one name count once
-- ARGV[4] now_ms     absent: ask TIME; stands in for it in tests
-- Returns {'PASSED', used}      so many are in the window, this one included
--         {'LIMITED', wait_ms}  one more may pass after that long; this one was not counted
-- Retry:  a request that passed passes again for a window's length, and is counted once.
-- Caller: src/stock/limit.rs

local pack, unpack = struct.pack, struct.unpack
local row_key = KEYS[1]
local limit, window_ms, request, now = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
if not (limit and window_ms and request)
  or not (limit >= 1 and limit <= 100000) or not (window_ms >= 1 and window_ms <= 86400000)
  or limit % 1 + window_ms % 1 ~= 0 or #request < 6 or #request > 128 then
  return redis.error_reply('BADARG compact_window')
end
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local row = redis.call('GET', row_key) or ''
local first, member = 1, request:sub(-6)
while first <= #row and unpack('>I6', row, first) <= now - window_ms do
  first = first + 12
end
row = row:sub(first)
local counted = row:find(member, 1, true)
while counted and counted % 12 ~= 7 do
  counted = row:find(member, counted + 1, true)
end
local used = #row / 12
if counted then
  return { 'PASSED', used }
elseif used >= limit then
  -- With a lower limit than before, more than one has to leave first.
  return { 'LIMITED', unpack('>I6', row, (used - limit) * 12 + 1) + window_ms - now }
end
redis.call('SET', row_key, row .. pack('>I6', now) .. member, 'PX', window_ms + 1000)
return { 'PASSED', used + 1 }
