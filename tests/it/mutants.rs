//! Shows that the comparison with the model can see: each script is broken on purpose, in one place, and each time
//! the comparison must notice.

use crate::model::{Scripts, Step, Subject, compare, fixed_case};
use crate::support::servers;

/// Cases that a mutant may survive before it counts as unseen.
const CASES: u8 = 40;

/// What is broken, in which script, the text that stands there, and what stands there instead.
type Mutant = (&'static str, &'static str, &'static str, &'static str);

const MUTANTS: &[Mutant] = &[
    (
        "a repeated request is a new one",
        "purchase",
        "if record then",
        "if false then",
    ),
    (
        "a key may be used for another quantity",
        "purchase",
        "or its_quantity ~= quantity then",
        "then",
    ),
    (
        "a key may be used for another item",
        "purchase",
        "its_item ~= item or",
        "",
    ),
    (
        "a replay is always drained",
        "purchase",
        "== 0 and 1 or 0 }",
        "== 0 and 1 or 1 }",
    ),
    (
        "a window lets one more through",
        "purchase",
        "#window >= rate_limit * 12",
        "#window > rate_limit * 12",
    ),
    (
        "a window lets one less through",
        "purchase",
        "#window >= rate_limit * 12",
        "#window >= rate_limit * 12 - 12",
    ),
    (
        "an entry stays a millisecond too long",
        "purchase",
        "<= now - window_ms do",
        "< now - window_ms do",
    ),
    (
        "an entry leaves a millisecond too early",
        "purchase",
        "<= now - window_ms do",
        "<= now - window_ms + 1 do",
    ),
    (
        "the wait is a millisecond too short",
        "purchase",
        "+ window_ms - now }",
        "+ window_ms - now - 1 }",
    ),
    (
        "the window forgets whom it counted",
        "purchase",
        "pack('>I6', now) .. member",
        "pack('>I6', now) .. '      '",
    ),
    (
        "a repeated request counts again",
        "purchase",
        "if not counted then\n  if",
        "if true then\n  if",
    ),
    (
        "a refused request is not counted",
        "purchase",
        "call('HSET', buyer_key, 'w', window)",
        "counted = true",
    ),
    (
        "an accepted request is not counted",
        "purchase",
        "'w', window, units_field",
        "units_field",
    ),
    (
        "a sale sells in its last moment",
        "purchase",
        "now >= ends_at",
        "now > ends_at",
    ),
    (
        "a sale starts a millisecond late",
        "purchase",
        "now < starts_at",
        "now <= starts_at",
    ),
    ("a paused sale sells", "purchase", "state == 2", "state == 9"),
    ("a closed sale sells", "purchase", "state == 3 or", ""),
    (
        "a shopper may have one more",
        "purchase",
        "> unit_limit",
        "> unit_limit + 1",
    ),
    (
        "a shopper may have one less",
        "purchase",
        "units + quantity > unit_limit",
        "units + quantity >= unit_limit",
    ),
    (
        "one unit more is sold than there is",
        "purchase",
        "available < quantity",
        "available < quantity - 1",
    ),
    (
        "the last unit is not sold",
        "purchase",
        "available < quantity",
        "available <= quantity",
    ),
    (
        "available is not lowered",
        "purchase",
        "available - quantity",
        "available",
    ),
    ("held is not raised", "purchase", "held + quantity", "held"),
    (
        "the shopper's units are not raised",
        "purchase",
        "pack('>I4', units + quantity)",
        "pack('>I4', units)",
    ),
    (
        "there is no event",
        "purchase",
        "'NOMKSTREAM', stock:sub(79)",
        "'NOMKSTREAM', 'MAXLEN', 0, stock:sub(79)",
    ),
    (
        "there are two events",
        "purchase",
        "if not id then",
        "call('XADD', events_key, stock:sub(79), 'reserved', head .. order .. ARGV[4])\nif not id then",
    ),
    (
        "an order expires",
        "purchase",
        "call('PERSIST', buyer_key)",
        "call('EXISTS', buyer_key)",
    ),
    (
        "a window never expires",
        "purchase",
        "call('PEXPIRE', buyer_key, window_ms + 1000)",
        "call('EXISTS', buyer_key)",
    ),
    (
        "an order is resolved twice",
        "resolve",
        "elseif state ~= 0 then",
        "elseif false then",
    ),
    (
        "a repeated decision is a conflict",
        "resolve",
        "if state == target then",
        "if false then",
    ),
    (
        "sold units come back",
        "resolve",
        "if target == 1 then\n  sold = sold + quantity",
        "if target == 1 then\n  available = available + quantity",
    ),
    (
        "sold units no longer count for the shopper",
        "resolve",
        "sold = sold + quantity",
        "sold = sold + quantity\n  units = units - quantity",
    ),
    (
        "cancelled units stay held",
        "resolve",
        "held = held - quantity",
        "held = target == 2 and held or held - quantity",
    ),
    (
        "cancelled units are lost",
        "resolve",
        "available = available + quantity",
        "available = available + 0",
    ),
    (
        "revoked units are free",
        "resolve",
        "if target == 4 then",
        "if target == 5 then",
    ),
    (
        "returned units still count for the shopper",
        "resolve",
        "units = units - quantity",
        "units = units + 0",
    ),
    (
        "nobody hears of returned units",
        "resolve",
        "version = version + 1",
        "version = version + 0",
    ),
    (
        "the decision's moment is lost",
        "resolve",
        "created_at, at)",
        "created_at, 0)",
    ),
    (
        "units leave twice",
        "transfer_out",
        "elseif known then",
        "elseif false then",
    ),
    (
        "a finished transfer begins again",
        "transfer_out",
        "redis.call('SISMEMBER', applied_key, id) == 1",
        "false",
    ),
    (
        "more units leave than there are",
        "transfer_out",
        "math.min(available, wanted)",
        "wanted",
    ),
    (
        "what left is not written down",
        "transfer_out",
        "redis.call('HSET', transfers_key",
        "redis.call('HMGET', transfers_key",
    ),
    (
        "units arrive twice",
        "transfer_in",
        "redis.call('SADD', applied_key, id)",
        "redis.call('SCARD', applied_key)",
    ),
    (
        "arrived units are not free",
        "transfer_in",
        "pack('>I6', available + units)",
        "pack('>I6', available)",
    ),
    (
        "arrived units are not written down",
        "transfer_in",
        "came_in + units",
        "came_in",
    ),
    (
        "a struck transfer is forgotten",
        "transfer_done",
        "redis.call('SADD', applied_key, id)",
        "redis.call('SCARD', applied_key)",
    ),
    (
        "a transfer is never struck",
        "transfer_done",
        "redis.call('HDEL', transfers_key, id)",
        "redis.call('HLEN', transfers_key)",
    ),
    (
        "an unknown transfer is finished",
        "transfer_done",
        "if known == 1 then",
        "if true then",
    ),
    (
        "a restock counts every time",
        "restock",
        "redis.call('SADD', applied_key, id)",
        "redis.call('SCARD', applied_key)",
    ),
    ("a restock is not granted", "restock", "granted + units", "granted"),
    (
        "withdrawn units stay granted",
        "withdraw_done",
        "granted - units)",
        "granted)",
    ),
    (
        "withdrawn units stay on their way",
        "withdraw_done",
        "out - units,",
        "out,",
    ),
    (
        "units that were given back are struck",
        "withdraw_done",
        "redis.call('SISMEMBER', applied_key, id) == 1 or not known",
        "not known",
    ),
    (
        "a withdrawal is forgotten",
        "withdraw_done",
        "redis.call('SADD', applied_key, id)",
        "redis.call('SCARD', applied_key)",
    ),
    (
        "an old version is followed",
        "set_state",
        "version <= its_version",
        "version < its_version - 1",
    ),
    (
        "the same version is followed again",
        "set_state",
        "version <= its_version",
        "version < its_version",
    ),
    (
        "the version is not written down",
        "set_state",
        "pack('>I6I6', epoch, version)",
        "pack('>I6I6', epoch, its_version)",
    ),
    (
        "only one item follows",
        "set_state",
        "stock:sub(1, 12) .. pack('>BI6I6', state, starts_at, ends_at) .. stock:sub(26))",
        "stock:sub(1, 12) .. pack('>BI6I6', state, starts_at, ends_at) .. stock:sub(26))\n    break",
    ),
    (
        "the end does not change",
        "set_state",
        "pack('>BI6I6', state, starts_at, ends_at) .. stock:sub(26)",
        "pack('>BI6', state, starts_at) .. stock:sub(20)",
    ),
    (
        "a shard is created again",
        "preload",
        "if redis.call('EXISTS', events_key) == 1 then",
        "redis.call('DEL', events_key)\nthere = false\nif false then",
    ),
    (
        "all items have the first one's place",
        "preload",
        "item = item + 1",
        "item = item + 0",
    ),
    (
        "a limit is one too high",
        "preload",
        "window_ms, tonumber(ARGV[at + 2]))",
        "window_ms, tonumber(ARGV[at + 2]) + 1)",
    ),
];

fn difference(subject: &Subject, cases: &[Vec<Step>]) -> Option<String> {
    cases.iter().find_map(|steps| compare(subject, steps).err())
}

#[test]
fn every_broken_script_is_noticed_and_no_sound_one() {
    let cases: Vec<Vec<Step>> = (0..CASES).map(fixed_case).collect();
    let url = servers::redis();
    assert_eq!(difference(&Subject::new(&url, Scripts::real()), &cases), None);

    let mut unseen = Vec::new();
    for (what, name, old, new) in MUTANTS {
        let mut scripts = Scripts::real();
        let text = scripts.0.get_mut(name).unwrap();
        assert_eq!(
            text.matches(old).count(),
            1,
            "{what}: {old:?} stands in {name}.lua once"
        );
        *text = text.replace(old, new);
        if difference(&Subject::new(&url, scripts), &cases).is_none() {
            unseen.push(*what);
        }
    }
    assert!(unseen.is_empty(), "nobody noticed that {unseen:#?}");
}
