#!lua
-- Leave room: count an admitted shopper as a buyer, and make room for the next one.
-- Invariant: a shopper who leaves the waiting room in this way is counted once.
--
-- KEYS[1] {sale:shard}:admitted  sorted set  admitted shoppers, by the end of their admission; never expires
-- KEYS[2] {sale:shard}:door      string      the state of admission; never expires
-- ARGV[1] member  12 bytes that stand for the shopper
-- Returns {'LEFT'}         the shopper was admitted, and has made room
--         {'NOT_THERE'}    the shopper had left before, or was never admitted
-- Retry:  the second run changes nothing.
-- Caller: src/stock/door/room.rs

local admitted_key, door_key, member = KEYS[1], KEYS[2], ARGV[1]
if #member ~= 12 then
  return redis.error_reply('BADARG leave_room')
end
local door = redis.call('GET', door_key)
if door and door:find('^[\16-\255]') then
  return redis.error_reply('NEWER door')
end
if redis.call('ZREM', admitted_key, member) == 0 then
  return { 'NOT_THERE' }
end
if door then
  local bought = struct.unpack('>I6', door, 19)
  redis.call('SET', door_key, door:sub(1, 18) .. struct.pack('>I6', bought + 1) .. door:sub(25))
end
return { 'LEFT' }
