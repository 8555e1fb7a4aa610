#!lua
-- Leave room: an admitted shopper has bought, and makes room for the next one.
-- Invariant: whoever leaves the waiting room like that is counted once.
--
-- KEYS[1] {sale:shard}:admitted  sorted set  who was let in, by the end of that; never expires
-- KEYS[2] {sale:shard}:door      string      how letting in goes; never expires
-- ARGV[1] member  12 bytes that stand for the shopper
-- Returns {'LEFT'}         he made room
--         {'NOT_THERE'}    he had left before, or was never let in
-- Retry:  changes nothing.
-- Caller: src/stock/room.rs

local admitted_key, door_key, member = KEYS[1], KEYS[2], ARGV[1]
if #member ~= 12 then
  return redis.error_reply('BADARG leave_room')
end
if redis.call('ZREM', admitted_key, member) == 0 then
  return { 'NOT_THERE' }
end
local door = redis.call('GET', door_key)
if door then
  local bought = struct.unpack('>I6', door, 19)
  redis.call('SET', door_key, door:sub(1, 18) .. struct.pack('>I6', bought + 1) .. door:sub(25))
end
return { 'LEFT' }
