#!lua flags=allow-oom
-- Trim: remove the events that the ledger has stored from the start of a shard's stream.
-- Invariant: an event that its reader has not seen stays. After a failover, another event may have the last one's id.
-- Then the events before it may differ too.
-- allow-oom: the script frees memory.
--
-- KEYS[1] {sale:shard}:events  stream  what the ledger has not stored; never expires
-- ARGV[1] last     the id of the last stored event
-- ARGV[2] value    that event's value, as it was read
-- ARGV[3] next_id  the id behind it: events before this id are removed. Empty if only foreign entries can be behind:
--                  then the stream's last entry is compared, from `last` on, and every event is removed
-- Returns {'TRIMMED'}  the events up to the last one are gone
--         {'LEFT'}     that event is not here, so nothing was removed
-- Retry:  the second run finds the last event gone and removes nothing.
-- Caller: src/stock/settle/events.rs

local events_key, last, value, next_id = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if not value or not next_id then
  return redis.error_reply('BADARG trim')
end
local entry
if next_id == '' then
  entry = redis.call('XREVRANGE', events_key, '+', last, 'COUNT', 1)[1]
else
  entry = redis.call('XRANGE', events_key, last, last)[1]
end
if not entry or entry[2][2] ~= value then
  return { 'LEFT' }
end
if next_id == '' then
  redis.call('XTRIM', events_key, 'MAXLEN', 0)
else
  redis.call('XTRIM', events_key, 'MINID', next_id)
end
return { 'TRIMMED' }
