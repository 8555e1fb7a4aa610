#!lua
-- Waiting room: give a shopper a place in line, let in whoever's turn it is, and say how this shopper stands.
-- Invariant: a shopper waits at one place or is admitted, not both; nobody overtakes; no more are let in than the rate
--   allows, nor than the free units may be for; nobody is let in before the sale starts or while it is paused.
--
-- KEYS[1] {sale:shard}:shard     string      the shard's state and times; never expires
-- KEYS[2] {sale:shard}:room      sorted set  who waits, by place; never expires
-- KEYS[3] {sale:shard}:admitted  sorted set  who was let in, by the end of that; never expires
-- KEYS[4] {sale:shard}:door      string      how letting in goes; never expires
-- ARGV[1] member    12 bytes that stand for the shopper
-- ARGV[2] lot       0..2^40-1, the shopper's place among those who came before the start
-- ARGV[3] rate      shoppers a second that this shard lets in, a fraction
-- ARGV[4] stay_ms   how long an admission lasts
-- ARGV[5] free      units that are free for this shard's shoppers, a fraction
-- ARGV[6] room_max  how many may wait here
-- ARGV[7] its_room  the line that the shopper's ticket names, or empty
-- ARGV[8] its_place  his place in that line, or empty
-- ARGV[9] now_ms    absent: ask TIME; stands in for it in tests
-- Returns {'ADMITTED', until_ms}
--         {'WAITING', place, ahead, waiting, room, rate}  rate: let in lately, in thousandths of a shopper a second
--         {'FULL'}             as many wait as may
--         {'NOT_OPEN', state}  closed, or draft while it is being loaded
-- Retry:  a shopper who waits or is admitted is told the same again. A place that this line does not know counts
--         only if it was given by another line, which was lost: in this one, it has been used.
-- Caller: src/stock/room.rs

local call, pack, read = redis.call, struct.pack, struct.unpack
local shard_key, room_key, admitted_key, door_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local member, lot, rate, stay_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local free, room_max, now = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[9])
if #member ~= 12 or not (lot and rate and stay_ms and free and room_max) or not (rate > 0 and rate <= 1000000) then
  return redis.error_reply('BADARG waiting_room')
end
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local shard = call('GET', shard_key)
if not shard or #shard < 45 then
  return redis.error_reply('MISSING shard')
end
local state, _, _, starts_at, ends_at = read('>BBI6I6I6', shard)
if state == 0 then
  return { 'NOT_OPEN', 'draft' }
elseif state == 3 or now >= ends_at then
  return { 'NOT_OPEN', 'closed' }
end

-- The line's name is when it began; level is what the rate has let come together, in thousandths of a shopper.
local room, at, level, bought, gone, span_at, span, span_before = now, now, 1000, 0, 0, now, 0, 0
local door = call('GET', door_key)
if door then
  room, at, level, bought, gone, span_at, span, span_before = read('>I6I6I6I6I6I6I4I4', door)
end

local admitted_until = tonumber(call('ZSCORE', admitted_key, member) or 0)
local place = call('ZSCORE', room_key, member)
if admitted_until <= now and not place then
  if call('ZCARD', room_key) >= room_max then
    return { 'FULL' }
  end
  if ARGV[8] ~= '' and tonumber(ARGV[7]) ~= room then
    place = tonumber(ARGV[8])
  elseif now < starts_at then
    place = lot
  else
    place = 2 ^ 40 + now - starts_at
  end
  call('ZADD', room_key, place, member)
end

-- Whoever was let in and has not bought in time makes room; a hundred at a time, so that no call takes long.
local late = call('ZRANGEBYSCORE', admitted_key, '-inf', now, 'LIMIT', 0, 100)
if #late > 0 then
  call('ZREM', admitted_key, unpack(late))
  gone = gone + #late
end
level = math.min(math.max(1000, rate * 1000), level + math.max(0, now - at) * rate)
if now - span_at >= 10000 then
  span_before, span = now - span_at < 20000 and span or 0, 0
  span_at = now
end
if state == 1 and now >= starts_at and free > 0 then
  -- Of those who are let in, only some buy: as many more as that takes, at most fifty times as many.
  local share = math.max(0.02, (bought + 1) / (bought + gone + 1))
  local wanted = math.ceil(free / share) - call('ZCARD', admitted_key)
  local let_in = math.min(math.floor(level / 1000), wanted, 100)
  if let_in > 0 then
    local next_ones = call('ZPOPMIN', room_key, let_in)
    for i = 1, #next_ones, 2 do
      call('ZADD', admitted_key, now + stay_ms, next_ones[i])
      if next_ones[i] == member then
        admitted_until = now + stay_ms
      end
    end
    level, span = level - #next_ones * 500, span + #next_ones / 2
  end
end
call('SET', door_key, pack('>I6I6I6I6I6I6I4I4', room, now, math.floor(level), bought, gone, span_at, span, span_before))

if admitted_until > now then
  return { 'ADMITTED', admitted_until }
end
-- What the span before let in counts for as much of it as lies within the last ten seconds.
local lately = span + span_before * math.max(0, 10000 - (now - span_at)) / 10000
return { 'WAITING', tonumber(place), call('ZRANK', room_key, member), call('ZCARD', room_key), room, lately * 100 }
