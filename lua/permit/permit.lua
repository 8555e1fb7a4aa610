#!lua flags=allow-oom
-- Permit: give one shard the right to sell for a moment.
-- Invariant: only the epoch that was reconciled with the ledger, on the server of that reconcile, gets a permit. An
--   expired permit is not renewed, because the shard must first get the sale's state. No counter changes.
-- allow-oom: the script must be able to set and to release the brake when memory is short.
--
-- KEYS[1]   {sale:shard}:shard       string  the shard; never expires
-- KEYS[2]   {sale:shard}:events      stream  trimmed by the drain after its commit; never expires
-- KEYS[3]   {sale:shard}:halt        string  while it exists, no permit is given; expires by itself
-- KEYS[4..] {sale:shard}:item:<sku>  string  the items' units on this shard, at most 1000
-- ARGV[1] epoch       the epoch that was reconciled
-- ARGV[2] for_ms      1..60000 milliseconds
-- ARGV[3] memory_max  0..1000 thousandths of the memory that Redis may use: maxmemory, or without it half of the
--                     machine's memory. From this use on, events may wait for a 300th of age_max_ms, and an event whose
--                     age cannot be read sets the brake
-- ARGV[4] age_max_ms  how long events may wait for the ledger; the brake holds while one waits longer
-- ARGV[5] run_id      the server of the reconcile: its run id, its replication id, and the one that it had as a
--                     replica, joined by hyphens
-- ARGV[6] renewal     1: only a permit that still holds is extended; anything else: a new one may be given
-- ARGV[7] now_ms      for tests; absent: TIME
-- Returns {'PERMITTED', waiting, last_id, brake}  waiting: events in the stream; last_id: the last id it ever had;
--                                                 brake: 1 while it holds
--         {'STALE', epoch}                        the shard has this epoch instead
--         {'MOVED'}                               the shard is on another server
--         {'HALTED'}                              a process reconciles the shard, or is about to rebuild it
--         {'LAPSED'}                              the shard has no permit that could be renewed
-- Retry:  the second run gives the permit again.
-- Caller: src/stock/recover/permit.rs

local pack, unpack = struct.pack, struct.unpack
local shard_key, events_key, halt_key = KEYS[1], KEYS[2], KEYS[3]
local epoch, for_ms, memory_max = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local age_max, run_id, now = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[7])
if not (epoch and for_ms and memory_max and age_max) or not (memory_max >= 0 and memory_max <= 1000)
  or #KEYS > 1003 or not (for_ms >= 1 and for_ms <= 60000) or for_ms % 1 ~= 0 then
  return redis.error_reply('BADARG permit')
end
local shard = redis.call('GET', shard_key)
if shard and shard:find('^[\4-\31]') then
  return redis.error_reply('NEWER shard')
elseif not shard or #shard < 45 then
  return redis.error_reply('MISSING shard')
end
local its_epoch = unpack('>I6', shard, 37)
if its_epoch ~= epoch then
  return { 'STALE', its_epoch }
end
-- Plain texts are found much sooner than patterns, and idle shards cost Redis little else than this.
local info = redis.call('INFO', 'server', 'replication')
local named, own, earlier = run_id:match('^(%x+)%-(%x+)%-(%x+)$')
local function has(field, value)
  return info:find(field .. value .. '\r\n', 1, true)
end
if not (named and has('run_id:', named) and has('master_replid:', own) and has('master_replid2:', earlier)) then
  return { 'MOVED' }
elseif redis.call('EXISTS', events_key) == 0 then
  return redis.error_reply('MISSING events')
elseif redis.call('EXISTS', halt_key) == 1 then
  return { 'HALTED' }
end
for at = 4, #KEYS do
  if redis.call('TYPE', KEYS[at]).ok ~= 'string' then
    return redis.error_reply('MISSING item')
  end
end
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local its_brake, permit_until = unpack('>BI6', shard, 2)
if ARGV[6] == '1' and now >= permit_until then
  return { 'LAPSED' }
end
local waiting, brake = redis.call('XLEN', events_key), 0
-- Without an event that waits, neither its age nor the memory matters.
if waiting > 0 then
  local memory = redis.call('INFO', 'memory')
  local used, most = tonumber(memory:match('used_memory:(%d+)')), tonumber(memory:match('maxmemory:(%d+)'))
  if most == 0 then
    most = tonumber(memory:match('total_system_memory:(%d+)')) / 2
  end
  local is_full = used * 1000 >= most * memory_max
  if is_full then
    age_max = age_max / 300
  end
  local oldest = redis.call('XRANGE', events_key, '-', '+', 'COUNT', 1)[1]
  if oldest[2][1] == 'reserved' and #oldest[2][2] >= 13 and oldest[2][2]:byte() == 0 then
    if now - unpack('>I6', oldest[2][2], 8) > age_max then
      brake = 1
    end
  elseif is_full then
    -- The event's age cannot be read.
    brake = 1
  end
end
local stream, last_id = redis.call('XINFO', 'STREAM', events_key), nil
for at = 1, #stream, 2 do
  if stream[at] == 'last-generated-id' then
    last_id = stream[at + 1]
  end
end
-- Several processes may renew. One that comes just after another writes nothing. A later one writes, so that a permit
-- outlives failed renewals.
if its_brake ~= brake or (permit_until - now) * 5 < for_ms * 4 then
  redis.call('SET', shard_key, shard:sub(1, 1) .. pack('>BI6', brake, now + for_ms) .. shard:sub(9))
end
return { 'PERMITTED', waiting, last_id, brake }
