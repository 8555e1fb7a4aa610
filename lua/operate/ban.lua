#!lua flags=allow-oom
-- Ban: keep a shopper from buying until a moment, or lift the ban.
-- Invariant: the newest decision about the account counts, in whatever order decisions arrive; no unit moves.
-- allow-oom: a ban must take effect also when memory is short.
--
-- KEYS[1] {sale:shard}:shard         string  the shard; never expires
-- KEYS[2] {sale:shard}:buyer:<user>  string  the shopper; expires only while it has no order
-- ARGV[1] until_s   Unix seconds; 0 is no ban, 4294967295 is for ever
-- ARGV[2] revision  1..32767, and then 1 again: counts the decisions about this account
-- ARGV[3] epoch     the epoch to which the shard is being rebuilt; 0 for a shard that is not being rebuilt
-- Returns {'NOTED'}    the shard follows this decision
--         {'STALE'}    the shard has a newer decision
--         {'LOADING'}  the shard is loading, at another epoch: the caller tries again later
-- Retry:  the revision makes the second run, and one that comes late, change nothing.
-- Caller: src/stock/operate/ban.rs (the packed layouts are written down in src/stock/record.rs)

local pack, unpack = struct.pack, struct.unpack
local shard_key, buyer_key = KEYS[1], KEYS[2]
local until_s, revision, epoch = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if not (until_s and revision and epoch) or not (until_s >= 0 and until_s <= 4294967295) or until_s % 1 ~= 0
  or not (revision >= 1 and revision <= 32767) or revision % 1 ~= 0 then
  return redis.error_reply('BADARG ban')
end
local shard = redis.call('GET', shard_key)
if shard and shard:find('^[\4-\31]') then
  return redis.error_reply('NEWER shard')
elseif not shard or #shard < 45 then
  return redis.error_reply('MISSING shard')
end
if unpack('>B', shard) == 0 and unpack('>I6', shard, 37) ~= epoch then
  return { 'LOADING' }
end
local buyer = redis.call('GET', buyer_key)
if not buyer and until_s == 0 and revision == 1 then
  -- The account's first decision is no ban, so no earlier ban can arrive late.
  return { 'NOTED' }
end
local row = buyer or pack('>I4I2BI2I3', 0, 0, 0, 0, 0)
local _, its_revision, elsewhere, items, entries = unpack('>I4I2BI2I3', row)
if items >= 4096 then
  return redis.error_reply('NEWER shopper')
end
local newer = (revision - its_revision) % 32767
if its_revision ~= 0 and newer == 0 then
  return { 'NOTED' }
elseif its_revision ~= 0 and newer > 16383 then
  return { 'STALE' }
end

row = pack('>I4I2', until_s, revision) .. row:sub(7)
if elsewhere ~= 0 or #row > 12 + items * 6 + entries * 12 then
  redis.call('SET', buyer_key, row)
elseif not buyer and until_s == 0 then
  -- The lifted ban may still be on its way. For ten minutes, this row makes it stale.
  redis.call('SET', buyer_key, row, 'PX', 600000)
else
  -- A row without orders expires with its window, but not before the ban or the sale has ended.
  local ends_at = unpack('>I6', shard, 15)
  local expires_at = math.min(until_s * 1000, ends_at) + 1000
  if buyer then
    expires_at = math.max(expires_at, redis.call('PEXPIRETIME', buyer_key))
  end
  redis.call('SET', buyer_key, row, 'PXAT', math.max(expires_at, 1))
end
return { 'NOTED' }
