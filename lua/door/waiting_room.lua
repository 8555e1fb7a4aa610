#!lua
-- Waiting room: give a shopper a place in line, admit those whose turn it is, and return this shopper's standing.
-- Invariant: a shopper waits at one place or is admitted, not both; no shopper overtakes. No more are admitted than the
--   rate allows, nor than the free units may be for. None is admitted before the sale starts or while it is paused.
--
-- KEYS[1] {sale:shard}:shard     string      the shard's state and times; never expires
-- KEYS[2] {sale:shard}:room      sorted set  waiting shoppers, by place; never expires
-- KEYS[3] {sale:shard}:admitted  sorted set  admitted shoppers, by the end of their admission; never expires
-- KEYS[4] {sale:shard}:door      string      the state of admission; never expires
-- KEYS[5] {sale:shard}:returned  set         shoppers who took the place that they had in a lost line; never expires
-- KEYS[6] {sale:shard}:buyer:<user>  string  the shopper, of whom only the ban is read
-- ARGV[1] member    12 bytes that stand for the shopper
-- ARGV[2] lot       0..2^40-1, the shopper's place among those who come before the start
-- ARGV[3] rate      shoppers a second that this shard admits, a fraction
-- ARGV[4] stay_ms   how long an admission lasts
-- ARGV[5] free      units that are free for this shard's shoppers, a fraction
-- ARGV[6] room_max  how many may wait here
-- ARGV[7] its_room  the line that the shopper's ticket names, or empty
-- ARGV[8] its_place  the ticket's place in that line, or empty
-- ARGV[9] now_ms    for tests; absent: TIME
-- Returns {'ADMITTED', until_ms}
--         {'WAITING', place, ahead, waiting, room, rate}  rate: admitted lately, in thousandths of a shopper a second
--         {'FULL'}             room_max shoppers wait already
--         {'BANNED', until_s}  the account is banned until this Unix second; 4294967295 is for ever
--         {'NOT_OPEN', state}  closed, or draft while the shard is loading
-- Retry:  a shopper who waits or is admitted gets the same answer again. A ticket's place counts only if another line,
--         which was lost, gave it, and only once. A place of this line that is not in it has been used.
-- Caller: src/stock/door/room.rs (the packed layouts are written down in src/stock/record.rs)

local call, pack, read = redis.call, struct.pack, struct.unpack
local shard_key, room_key, admitted_key, door_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local returned_key, buyer_key = KEYS[5], KEYS[6]
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
if shard and shard:find('^[\4-\31]') then
  return redis.error_reply('NEWER shard')
elseif not shard or #shard < 45 then
  return redis.error_reply('MISSING shard')
end
local state, _, _, starts_at, ends_at = read('>BBI6I6I6', shard)
if state == 0 then
  return { 'NOT_OPEN', 'draft' }
elseif state == 3 or now >= ends_at then
  return { 'NOT_OPEN', 'closed' }
end

local row = call('GETRANGE', buyer_key, 0, 8)
local banned, _, _, items = 0, 0, 0, 0
if #row == 9 then
  banned, _, _, items = read('>I4I2BI2', row)
end
if items >= 4096 then
  return redis.error_reply('NEWER shopper')
elseif now < banned * 1000 then
  return { 'BANNED', banned }
end

-- The line's name is the time when it began. `level` is how many the rate lets in by now, in millionths of a shopper.
local room, at, level, bought, gone, span_at, span, span_before = now, now, 1000000, 0, 0, now, 0, 0
local door = call('GET', door_key)
if door and door:find('^[\16-\255]') then
  return redis.error_reply('NEWER door')
elseif door then
  room, at, level, bought, gone, span_at, span, span_before = read('>I6I6I6I6I6I6I4I4', door)
end

-- A score with half a millisecond marks a shopper who is admitted and has not asked since.
local admitted = tonumber(call('ZSCORE', admitted_key, member) or 0)
local admitted_until = math.floor(admitted)
local place = call('ZSCORE', room_key, member)
if admitted > 0 and (admitted_until > now or state == 2) then
  -- An admission lasts from the shopper's first question after it, and does not run during a pause.
  if admitted ~= admitted_until or state == 2 then
    admitted_until = now + stay_ms
    call('ZADD', admitted_key, admitted_until, member)
  end
elseif not place then
  if call('ZCARD', room_key) >= room_max then
    return { 'FULL' }
  end
  if ARGV[8] ~= '' and tonumber(ARGV[7]) ~= room and call('SADD', returned_key, member) == 1 then
    place = tonumber(ARGV[8])
  elseif now < starts_at then
    place = lot
  else
    place = 2 ^ 40 + now - starts_at
  end
  call('ZADD', room_key, place, member)
end

local let_in, late = 0, {}
local come = math.min(math.max(1, rate) * 1000000, level + math.max(0, now - at) * rate * 1000)
if now - span_at >= 10000 then
  span_before, span = now - span_at < 20000 and span or 0, 0
  span_at = now
end
if state == 1 and now >= starts_at then
  -- An admitted shopper who has not bought in time makes room. A hundred at a time, so that no call takes long.
  late = call('ZRANGEBYSCORE', admitted_key, '-inf', now, 'LIMIT', 0, 100)
  if #late > 0 then
    call('ZREM', admitted_key, unpack(late))
    gone = gone + #late
  end
  if free > 0 then
    -- Only a share of the admitted shoppers buys, so more are admitted than units are free: at most fifty times more.
    local share = math.max(0.02, (bought + 1) / (bought + gone + 1))
    local wanted = math.ceil(free / share) - call('ZCARD', admitted_key)
    let_in = math.min(math.floor(come / 1000000), wanted, 100)
  end
  if let_in > 0 then
    -- A shopper who does not ask within a minute after being admitted has gone, and makes room that much sooner.
    local invited_until = now + math.min(stay_ms, 60000) + 0.5
    local next_ones = call('ZPOPMIN', room_key, let_in)
    for i = 1, #next_ones, 2 do
      if next_ones[i] == member then
        admitted_until = now + stay_ms
        call('ZADD', admitted_key, admitted_until, member)
      else
        call('ZADD', admitted_key, invited_until, next_ones[i])
      end
    end
    let_in = #next_ones / 2
    come, span = come - let_in * 1000000, span + let_in
  end
end
-- Without a change, the door is written at most every 100 ms: the next write counts the time since the last one.
if not door or let_in > 0 or #late > 0 or now - at >= 100 then
  call('SET', door_key, pack('>I6I6I6I6I6I6I4I4',
    room, math.max(at, now), math.floor(come), bought, gone, span_at, span, span_before))
end

if admitted_until > now then
  return { 'ADMITTED', admitted_until }
end
-- The previous span counts for the part of it that lies within the last ten seconds.
local lately = span + span_before * math.max(0, 10000 - (now - span_at)) / 10000
return { 'WAITING', tonumber(place), call('ZRANK', room_key, member), call('ZCARD', room_key), room, lately * 100 }
