//! Shows that the comparison with the model can see: each script is broken on purpose, in one place, and the comparison
//! must notice it.

use crate::model::{NOT_EXPECTED, Scripts, Step, Subject, compare, fixed_case, results};
use crate::support::servers;
use std::collections::BTreeSet;

/// Cases that a mutant may survive before it counts as unseen.
const CASES: u8 = 200;
/// The cases that noticed the mutants of today. They come first, to save time; the others stand by for new mutants.
const NOTICED_BY: [u8; 15] = [0, 1, 2, 5, 6, 9, 10, 11, 12, 17, 24, 29, 45, 120, 144];

/// The mutant's name, the script, the present text, and its replacement.
type Mutant = (&'static str, &'static str, &'static str, &'static str);

const MUTANTS: &[Mutant] = &[
    (
        "a repeated request is a new one",
        "purchase",
        "  if at then",
        "  if false then",
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
        "if not counted then\n  if #window",
        "if true then\n  if #window",
    ),
    (
        "a refused request is not counted",
        "purchase",
        "if refusal then\n  if not counted then",
        "if refusal then\n  if false then",
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
    (
        "a paused sale sells",
        "purchase",
        "elseif state == 2",
        "elseif state == 9",
    ),
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
        "mine + quantity > unit_limit",
        "mine + quantity >= unit_limit",
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
        "pack('>I2I4', item, mine + quantity)",
        "pack('>I2I4', item, mine)",
    ),
    (
        "there is no event",
        "purchase",
        "next_id, 'reserved', event)",
        "'MAXLEN', 0, next_id, 'reserved', event)",
    ),
    (
        "there are two events",
        "purchase",
        "if not id then",
        "call('XADD', events_key, shard:sub(43), 'reserved', head .. order .. ARGV[3])\nif not id then",
    ),
    (
        "a refused shopper with an order expires",
        "purchase",
        "if #orders + elsewhere > 0 then",
        "if elsewhere > 0 then",
    ),
    (
        "a refused shopper whose orders were left expires",
        "purchase",
        "if #orders + elsewhere > 0 then",
        "if elsewhere == 0 and #orders > 0 then",
    ),
    (
        "a window never expires",
        "purchase",
        ", 'PX', window_ms + 600000 + math.floor(order:byte(16) * window_ms / 2560))",
        ")",
    ),
    (
        "an id that lies across two entries of the window counts as counted",
        "purchase",
        "while counted and counted % 12 ~= 7 do",
        "while false do",
    ),
    (
        "an id that is in the window is not found there",
        "purchase",
        "counted % 12 ~= 7",
        "counted % 12 ~= 1",
    ),
    (
        "the search stops at an id that lies across two entries",
        "purchase",
        "counted = window:find(member, counted + 1, true)",
        "counted = nil",
    ),
    (
        "a shopper's units of all items count together",
        "purchase",
        "if its_item == item then",
        "if true then",
    ),
    (
        "a shopper's units of an item are not found again",
        "purchase",
        "if its_item == item then",
        "if false then",
    ),
    (
        "a shopper's units of the second item are not found",
        "purchase",
        "for at = 1, #limits, 6 do",
        "for at = 1, math.min(#limits, 6), 6 do",
    ),
    (
        "units of an item are written over those of another",
        "purchase",
        "mine, mine_at = its_units, at\n",
        "mine, mine_at = its_units, 1\n",
    ),
    (
        "a shopper's units of other items are lost",
        "purchase",
        "limits = limits:sub(1, mine_at - 1) .. pack",
        "limits = pack",
    ),
    (
        "a shopper's units of later items are lost",
        "purchase",
        " .. limits:sub(mine_at + 6)",
        "",
    ),
    (
        "the replay probe is never asked for",
        "purchase",
        "elseif elsewhere ~= 0 and tonumber(ARGV[4]) ~= elsewhere then",
        "elseif false then",
    ),
    (
        "any replay probe is good enough",
        "purchase",
        "tonumber(ARGV[4]) ~= elsewhere",
        "not tonumber(ARGV[4])",
    ),
    (
        "a replay probe is never good enough",
        "purchase",
        "elsewhere ~= 0 and tonumber(ARGV[4]) ~= elsewhere",
        "elsewhere ~= 0",
    ),
    (
        "a purchase forgets that orders were left",
        "purchase",
        "  pack('>I6BI2I3', banned, elsewhere, #limits / 6, #window / 12) .. limits .. window .. orders .. order",
        "  pack('>I6BI2I3', banned, 0, #limits / 6, #window / 12) .. limits .. window .. orders .. order",
    ),
    (
        "a refusal forgets that orders were left",
        "purchase",
        "local row = pack('>I6BI2I3', banned, elsewhere,",
        "local row = pack('>I6BI2I3', banned, 0,",
    ),
    (
        "a refusal forgets the orders",
        "purchase",
        "limits .. window .. orders\n    if",
        "limits .. window\n    if",
    ),
    (
        "a purchase forgets the orders before",
        "purchase",
        "limits .. window .. orders .. order .. head",
        "limits .. window .. order .. head",
    ),
    (
        "an accepted request is not counted",
        "purchase",
        "#window / 12) .. limits .. window .. orders .. order .. head",
        "0) .. limits .. orders .. order .. head",
    ),
    (
        "a purchase is not written at all",
        "purchase",
        "call('MSET', item_key",
        "call('MGET', item_key",
    ),
    (
        "the shopper is written and the item is not",
        "purchase",
        "call('MSET', item_key, pack('>I6I6', available - quantity, held + quantity) .. units:sub(13), buyer_key,",
        "call('MSET', buyer_key,",
    ),
    (
        "the item is written and the shopper is not",
        "purchase",
        "pack('>I6I6', available - quantity, held + quantity) .. units:sub(13), buyer_key,",
        "pack('>I6I6', available - quantity, held + quantity) .. units:sub(13), events_key,",
    ),
    (
        "the other members of the item are lost",
        "purchase",
        "held + quantity) .. units:sub(13), buyer_key",
        "held + quantity) .. units:sub(13, 18) .. string.rep('\\0', 42), buyer_key",
    ),
    (
        "the event's id is cut off",
        "purchase",
        "string.char(#id) .. id)",
        "string.char(#id - 1) .. id:sub(1, -2))",
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
        "sold = sold + quantity\n  mine = mine - quantity",
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
        "mine = mine - quantity",
        "mine = mine + 0",
    ),
    (
        "the counters miss returned units",
        "resolve",
        "version = version + 1",
        "version = version + 0",
    ),
    (
        "the decision's moment is lost",
        "resolve",
        "created_at, decided_at)",
        "created_at, 0)",
    ),
    (
        "units of another item come back to the shopper",
        "resolve",
        "if of == item then",
        "if true then",
    ),
    (
        "the rest of the row behind the item is lost",
        "resolve",
        "buyer:sub(mine_at + 6, first - 1)",
        "buyer:sub(first, first - 1)",
    ),
    (
        "the orders before are lost",
        "resolve",
        "buyer:sub(mine_at + 6, first - 1)",
        "buyer:sub(mine_at + 6, 11 + items * 6 + entries * 12)",
    ),
    (
        "the orders after are lost",
        "resolve",
        " .. buyer:sub(at + 21 + length))",
        ")",
    ),
    (
        "the event of a decided order is lost",
        "resolve",
        "decided .. buyer:sub(at + 20, at + 20 + length)",
        "decided .. '\\0'",
    ),
    (
        "an order is left to the ledger a byte too early",
        "resolve",
        "if #buyer > ROW_MAX then",
        "if #buyer >= ROW_MAX then",
    ),
    (
        "an order is left to the ledger too late",
        "resolve",
        "if #buyer > ROW_MAX then",
        "if #buyer > ROW_MAX + 6 then",
    ),
    (
        "a row grows without end",
        "resolve",
        "if #buyer > ROW_MAX then",
        "if false then",
    ),
    (
        "no answer says that an order was left",
        "resolve",
        "kept, elsewhere = '', elsewhere % 255 + 1",
        "kept = ''",
    ),
    (
        "no answer says that one more order was left",
        "resolve",
        "kept, elsewhere = '', elsewhere % 255 + 1",
        "kept, elsewhere = '', 1",
    ),
    (
        "an order that was left is unknown",
        "resolve",
        "elsewhere ~= 0 and 'ALREADY' or 'UNKNOWN'",
        "'UNKNOWN'",
    ),
    (
        "every unknown order was left",
        "resolve",
        "elsewhere ~= 0 and 'ALREADY' or 'UNKNOWN'",
        "'ALREADY'",
    ),
    (
        "a decision forgets that orders were left",
        "resolve",
        "pack('>I6BI2I3', banned, elsewhere, items, entries)",
        "pack('>I6BI2I3', banned, 0, items, entries)",
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
        "pack('>I6', available + added)",
        "pack('>I6', available)",
    ),
    (
        "arrived units are not written down",
        "transfer_in",
        "came_in + added",
        "came_in",
    ),
    (
        "a delivered transfer is forgotten",
        "transfer_done",
        "redis.call('SADD', applied_key, id)",
        "redis.call('SCARD', applied_key)",
    ),
    (
        "a transfer is never marked delivered",
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
    ("a restock is not granted", "restock", "granted + added", "granted"),
    (
        "withdrawn units stay on their way",
        "withdraw_done",
        "withdrawn + sent)",
        "withdrawn)",
    ),
    (
        "units that were given back are withdrawn",
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
        "units of one item are withdrawn from another",
        "withdraw_done",
        "its_sku ~= ARGV[2] or",
        "not its_sku or",
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
        "pack('>I6', version) .. shard:sub(37)",
        "shard:sub(31)",
    ),
    (
        "the state does not change",
        "set_state",
        "pack('>B', state) .. shard:sub(2, 8)",
        "shard:sub(1, 8)",
    ),
    (
        "the end does not change",
        "set_state",
        "pack('>I6I6', starts_at, ends_at)",
        "pack('>I6', starts_at) .. shard:sub(15, 20)",
    ),
    (
        "the limits change with the state",
        "set_state",
        "shard:sub(21, 30)",
        "string.rep('\\255', 10)",
    ),
    (
        "the brake is released with the state",
        "set_state",
        "shard:sub(2, 8) ..",
        "'\\0' .. shard:sub(3, 8) ..",
    ),
    (
        "the permit goes with the state",
        "set_state",
        "shard:sub(2, 8) ..",
        "shard:sub(2, 2) .. string.rep('\\0', 6) ..",
    ),
    (
        "a shard sells without a permit",
        "purchase",
        "if now >= permit_until then",
        "if false then",
    ),
    (
        "a permit holds a millisecond too long",
        "purchase",
        "now >= permit_until",
        "now > permit_until",
    ),
    (
        "a permit ends a millisecond too early",
        "purchase",
        "now >= permit_until",
        "now >= permit_until - 1",
    ),
    (
        "a stopped shard repeats no answer",
        "purchase",
        "if buyer then\n",
        "if now >= permit_until then return { 'HALTED' } end\nif buyer then\n",
    ),
    (
        "the brake does not hold",
        "purchase",
        "elseif brake == 1 then",
        "elseif false then",
    ),
    (
        "a braked shard repeats no answer",
        "purchase",
        "if buyer then\n",
        "if brake == 1 and now < permit_until then return { 'OVERLOADED' } end\nif buyer then\n",
    ),
    (
        "a shard lends without a permit",
        "transfer_out",
        "now >= unpack('>I6', shard, 3)",
        "false",
    ),
    (
        "a permit to lend holds a millisecond too long",
        "transfer_out",
        "now >= unpack('>I6', shard, 3)",
        "now > unpack('>I6', shard, 3)",
    ),
    (
        "a transfer is not found without a permit",
        "transfer_out",
        "elseif known then",
        "elseif known and tonumber(ARGV[6]) < unpack('>I6', redis.call('GET', shard_key), 3) then",
    ),
    (
        "a lender says another epoch",
        "transfer_out",
        "return { 'OUT', sent, epoch }",
        "return { 'OUT', sent, epoch + 1 }",
    ),
    (
        "a lender writes down another epoch",
        "transfer_out",
        "local epoch = unpack('>I6', shard, 37)",
        "local epoch = unpack('>I6', shard, 31)",
    ),
    (
        "a shard borrows without a permit",
        "transfer_in",
        "now >= unpack('>I6', shard, 3)",
        "false",
    ),
    (
        "a permit to borrow holds a millisecond too long",
        "transfer_in",
        "now >= unpack('>I6', shard, 3)",
        "now > unpack('>I6', shard, 3)",
    ),
    (
        "a fence lets everything in",
        "transfer_in",
        "fence and epoch < tonumber(fence)",
        "false",
    ),
    (
        "a fence keeps out its own epoch",
        "transfer_in",
        "epoch < tonumber(fence)",
        "epoch <= tonumber(fence)",
    ),
    (
        "a fence lets in the epoch before",
        "transfer_in",
        "epoch < tonumber(fence)",
        "epoch < tonumber(fence) - 1",
    ),
    (
        "a fence holds for every lender",
        "transfer_in",
        "redis.call('HGET', fences_key, lender)",
        "redis.call('HGETALL', fences_key)[2]",
    ),
    (
        "a fence falls",
        "fence",
        "if not fence or tonumber(fence) < tonumber(ARGV[at + 1]) then",
        "if true then",
    ),
    (
        "a fence never rises",
        "fence",
        "not fence or tonumber(fence) < tonumber(ARGV[at + 1])",
        "not fence",
    ),
    (
        "only the first lender is fenced",
        "fence",
        "  local fence = redis",
        "  if at > 1 then break end\n  local fence = redis",
    ),
    (
        "a permit cannot be taken away",
        "stop",
        "struct.pack('>I6', 0)",
        "shard:sub(3, 8)",
    ),
    (
        "every permit releases the brake",
        "stop",
        "shard:sub(1, 2) .. struct.pack('>I6', 0)",
        "shard:sub(1, 1) .. '\\0' .. struct.pack('>I6', 0)",
    ),
    ("nobody is halted", "stop", "if halt_ms > 0 then", "if false then"),
    (
        "everybody is halted",
        "stop",
        "if halt_ms > 0 then",
        "halt_ms = 60000\nif true then",
    ),
    (
        "a halted shard is permitted to sell",
        "permit",
        "redis.call('EXISTS', halt_key) == 1",
        "false",
    ),
    (
        "any epoch is permitted",
        "permit",
        "if its_epoch ~= epoch then",
        "if false then",
    ),
    (
        "any server is permitted",
        "permit",
        "if not (named",
        "if not (true or named",
    ),
    (
        "events wait as long as ever while memory is short",
        "permit",
        "age_max = age_max / 300",
        "age_max = age_max / 1",
    ),
    (
        "an event may wait for ever",
        "permit",
        "> age_max then",
        "> age_max + 1e9 then",
    ),
    (
        "an event may wait a moment less",
        "permit",
        "> age_max then",
        ">= age_max then",
    ),
    (
        "the newest event counts, not the oldest",
        "permit",
        "'XRANGE', events_key, '-', '+'",
        "'XREVRANGE', events_key, '+', '-'",
    ),
    (
        "the brake stays as it was",
        "permit",
        "if its_brake ~= brake or (permit_until",
        "if (permit_until",
    ),
    (
        "the brake is not written down",
        "permit",
        "pack('>BI6', brake, now + for_ms)",
        "pack('>BI6', its_brake, now + for_ms)",
    ),
    (
        "a permit is never renewed",
        "permit",
        "(permit_until - now) * 5 < for_ms * 4 then",
        "permit_until == 0 then",
    ),
    (
        "a permit that is over is renewed",
        "permit",
        "if ARGV[6] == '1' and now >= permit_until then",
        "if false then",
    ),
    (
        "a permit is renewed a millisecond after its end",
        "permit",
        "ARGV[6] == '1' and now >= permit_until",
        "ARGV[6] == '1' and now > permit_until",
    ),
    (
        "an expired permit is never granted again",
        "permit",
        "if ARGV[6] == '1' and now >= permit_until then",
        "if now >= permit_until then",
    ),
    (
        "a permit is renewed too late",
        "permit",
        "(permit_until - now) * 5 < for_ms * 4",
        "(permit_until - now) * 5 < for_ms * 3",
    ),
    (
        "a permit is written every time",
        "permit",
        "if its_brake ~= brake or (permit_until - now) * 5 < for_ms * 4 then",
        "if true then",
    ),
    (
        "a permit holds for longer than it says",
        "permit",
        "pack('>BI6', brake, now + for_ms)",
        "pack('>BI6', brake, now + for_ms + 1)",
    ),
    (
        "no answer names the last event",
        "permit",
        "stream[at] == 'last-generated-id'",
        "stream[at] == 'max-deleted-entry-id'",
    ),
    (
        "a shard is created again",
        "preload",
        "if there == #KEYS then",
        "redis.call('DEL', events_key)\nthere = 0\nif false then",
    ),
    (
        "a part of a shard counts as the whole",
        "preload",
        "if there == #KEYS then",
        "if there > 0 then",
    ),
    (
        "a shard without its last item counts as the whole",
        "preload",
        "for at = 1, #KEYS do",
        "there = 1\nfor at = 1, #KEYS - 1 do",
    ),
    (
        "a lost key is created again",
        "preload",
        "elseif there > 0 then",
        "elseif there < 0 then\nelse\n  redis.call('DEL', events_key)\nend\nif false then",
    ),
    (
        "all items have the first one's place",
        "preload",
        "unit_limit, item, 0, 0, 0, 0, units",
        "unit_limit, 0, 0, 0, 0, 0, units",
    ),
    (
        "a limit is one too high",
        "preload",
        "units, 0, unit_limit, item",
        "units, 0, unit_limit + 1, item",
    ),
];

#[test]
fn every_broken_script_is_noticed_and_no_sound_one() {
    // Nothing here outlives its Redis, so nothing needs the disk.
    let redis = servers::fresh_redis_with(&[("appendonly", "no")]);
    let url = redis.server.url();
    let others = (0..CASES).filter(|number| !NOTICED_BY.contains(number));
    let numbers = NOTICED_BY.into_iter().chain(others);
    let mut cases: Vec<(u8, Vec<Step>)> = numbers.map(|number| (number, fixed_case(number))).collect();
    let mut noticed_by = BTreeSet::new();
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
        let subject = Subject::new(&url, scripts);
        match cases.iter().position(|(_, steps)| compare(&subject, steps).is_err()) {
            Some(at) => {
                noticed_by.insert(cases[at].0);
                // A case that notices one mutant is likely to notice the next one, too.
                cases[..=at].rotate_right(1);
            }
            None => unseen.push(*what),
        }
    }
    assert!(unseen.is_empty(), "nobody noticed that {unseen:#?}");

    let sound = Subject::new(&url, Scripts::real());
    for number in noticed_by {
        compare(&sound, &fixed_case(number)).unwrap_or_else(|wrong| panic!("case {number}: {wrong}"));
    }
}

/// Without a mutant, nobody knows that the comparison checks the condition.
#[test]
fn each_refusal_of_a_purchase_that_the_model_knows_is_broken_by_a_mutant() {
    let scripts = Scripts::real();
    let text = scripts.0["purchase"].as_str();
    let line = |at: usize| text[..at].matches('\n').count();
    let mutants = MUTANTS.iter().filter(|(_, script, ..)| *script == "purchase");
    let broken: BTreeSet<usize> = mutants
        .flat_map(|(_, _, old, _)| {
            let at = text.find(old).unwrap();
            line(at)..=line(at + old.len() - 1)
        })
        .collect();
    for result in results(text) {
        if result == "RESERVED" || NOT_EXPECTED.contains(&format!("purchase {result}").as_str()) {
            continue;
        }
        // The condition stands on the line above.
        let start = format!("{{ '{result}'");
        let mut places = text.match_indices(&start).map(|(at, _)| line(at));
        let is_broken = places.any(|at| broken.contains(&at) || broken.contains(&(at - 1)));
        assert!(is_broken, "no mutant of purchase.lua breaks {result}");
    }
}
