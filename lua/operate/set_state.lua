#!lua flags=allow-oom
-- Set state: open, pause or close one shard, with the sale's times.
-- Invariant: the shard follows the newest version that it received; no counter changes; a shard that is being rebuilt
--   stays as it is.
--
-- KEYS[1] {sale:shard}:shard  string  the shard; never expires
-- ARGV[1] version    1.. the sale's state version in the ledger
-- ARGV[2] state      1 active, 2 paused, 3 closed
-- ARGV[3] starts_at  Unix milliseconds
-- ARGV[4] ends_at    Unix milliseconds
-- Returns {'SET'}      the shard follows this version
--         {'STALE'}    the shard already follows this version or a newer one
--         {'LOADING'}  the shard is being rebuilt: its rows may be of an earlier generation
-- Retry:  the version makes the second run, and one that comes late, change nothing.
-- Caller: src/stock/operate/set_state.rs

local pack, unpack = struct.pack, struct.unpack
local shard_key = KEYS[1]
local version, state = tonumber(ARGV[1]), tonumber(ARGV[2])
local starts_at, ends_at = tonumber(ARGV[3]), tonumber(ARGV[4])
if not (version and state and starts_at and ends_at) or not (state >= 1 and state <= 3) or state % 1 ~= 0 then
  return redis.error_reply('BADARG set_state')
end
local shard = redis.call('GET', shard_key)
if shard and shard:find('^[\4-\31]') then
  return redis.error_reply('NEWER shard')
elseif not shard or #shard < 45 then
  return redis.error_reply('MISSING shard')
end
local its_state, its_version = unpack('>B', shard), unpack('>I6', shard, 31)
if version <= its_version then
  return { 'STALE' }
elseif its_state == 0 and its_version > 0 then
  return { 'LOADING' }
end

redis.call('SET', shard_key, pack('>B', state) .. shard:sub(2, 8) .. pack('>I6I6', starts_at, ends_at)
  .. shard:sub(21, 30) .. pack('>I6', version) .. shard:sub(37))
return { 'SET' }
