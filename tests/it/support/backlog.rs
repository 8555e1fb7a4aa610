//! Backlogs of many events without as many purchases: the shards' events, written all at once.

use super::crowd::World;
use super::raw::Raw;
use flashsale::domain::sale::Sale;
use flashsale::stock::keys::ShardKey;

/// Moves units of the sale's first item from free to held and writes an event for each, as `lua/sell/purchase.lua` does. A second
/// run goes on behind the first.
const RESERVE: &str = "
local item, events, buyers = KEYS[1], KEYS[2], tonumber(ARGV[1])
local count, created_at, shard = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local record = redis.call('GET', item)
local available, held = struct.unpack('>I6I6', record)
for n = 1, count do
  local user = string.format('shopper-%06d-%06d', shard, buyers + n)
  local order = struct.pack('>I4I4I4I4', tonumber(ARGV[6]), shard, buyers + n, 0)
  local head = struct.pack('>BI2I4I6I6', 0, 0, 1, created_at, 0)
  redis.call('XADD', events, ARGV[5] .. '-*', 'reserved',
    head .. order .. '00000000-0000-4000-8000-000000000000' .. '\\n' .. user)
end
redis.call('SET', item, struct.pack('>I6I6', available - count, held + count) .. record:sub(13))
return count";

/// So many units of the sale's first item are held on this shard, by events that were written at `created_at`.
pub fn reserve_many(raw: &Raw, sale: &Sale, shard: u16, after: u32, count: u32, created_at: i64) {
    let key = ShardKey { sale: sale.id, shard };
    let mut left = count;
    while left > 0 {
        // Redis is busy after 200 ms of a script, and then refuses the requests of all other tests.
        let some = left.min(500);
        let mut call = redis::cmd("EVAL");
        call.arg(RESERVE)
            .arg(2)
            .arg(key.item(&sale.items[0].sku))
            .arg(key.events());
        call.arg(after + count - left)
            .arg(some)
            .arg(created_at)
            .arg(shard)
            .arg(1)
            .arg(sale.number);
        let done: u32 = raw.call(&mut call);
        assert_eq!(done, some);
        left -= some;
    }
}

/// The same on every shard of a sale, a moment ago.
pub fn reserve_everywhere(world: &World, sale: &Sale, each: u32) {
    let raw = Raw::connect(&world.redis);
    for shard in 0..sale.shards {
        reserve_many(&raw, sale, shard, 0, each, chrono::Utc::now().timestamp_millis());
    }
}
