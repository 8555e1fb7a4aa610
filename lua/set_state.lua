#!lua flags=allow-oom
-- Set state: open, pause or close one shard, with the sale's times.
-- Invariant: the shard follows the newest version that it was told; no counter changes.
--
-- KEYS[1] {sale:shard}:stock  hash  every item of the shard by SKU; never expires
-- ARGV[1] version    1.. the sale's state version in the ledger
-- ARGV[2] state      1 active, 2 paused, 3 closed
-- ARGV[3] starts_at  milliseconds since the epoch
-- ARGV[4] ends_at    milliseconds since the epoch
-- Returns {'SET'}    the shard follows this version
--         {'STALE'}  it already follows this one or a newer one
-- Retry:  the version makes the second run, and one that comes late, change nothing.
-- Caller: src/stock/set_state.rs

local pack, unpack = struct.pack, struct.unpack
local stock_key = KEYS[1]
local version, state = tonumber(ARGV[1]), tonumber(ARGV[2])
local starts_at, ends_at = tonumber(ARGV[3]), tonumber(ARGV[4])
if not (version and state and starts_at and ends_at) or not (state >= 1 and state <= 3) or state % 1 ~= 0 then
  return redis.error_reply('BADARG set_state')
end
-- Bounded by the items of a sale: at most 1000.
local fields = redis.call('HGETALL', stock_key)
local epoch, its_version
for at = 1, #fields, 2 do
  if fields[at] == ':shard' then
    epoch, its_version = unpack('>I6I6', fields[at + 1])
  elseif #fields[at + 1] < 81 then
    return redis.error_reply('INVARIANT set_state')
  end
end
if not epoch then
  return redis.error_reply('MISSING stock')
end
if version <= its_version then
  return { 'STALE' }
end

redis.call('HSET', stock_key, ':shard', pack('>I6I6', epoch, version))
for at = 1, #fields, 2 do
  if fields[at] ~= ':shard' then
    local stock = fields[at + 1]
    redis.call('HSET', stock_key, fields[at],
      stock:sub(1, 12) .. pack('>BI6I6', state, starts_at, ends_at) .. stock:sub(26))
  end
end
return { 'SET' }
