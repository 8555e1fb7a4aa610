use super::{
    END, NOW, SHARD_CUT, START, Shop, assert_refused, each_cut_off_key_is_noticed, each_foreign_key_is_refused,
    each_missing_key_is_noticed, on_its_way, sent, sku, user,
};
use crate::support::raw::arg;
use crate::support::servers::redis;
use flashsale::domain::event::Position;
use flashsale::domain::fault::Fault;
use flashsale::domain::order::OrderState;
use flashsale::domain::report::Counters;
use flashsale::domain::sale::Lifecycle;
use flashsale::stock::purchase::ShardAnswer::{Replayed, Reserved, Stopped};
use flashsale::stock::record::BuyerRecord;
use flashsale::stock::restore::Begun;
use flashsale::stock::script::{BEGIN_RESTORE, RESTORE};
use flashsale::stock::transfer::Destination;
use std::collections::BTreeMap;
use uuid::Uuid;

const WHOLE: Begun = Begun::Yes { lost_events: false };

/// A sale that has sold, lent and borrowed, and of which the ledger has taken in everything.
async fn old() -> Shop {
    let shop = Shop::open(|sale| sale.shards = 2).await;
    shop.reserve("ada", "k", 2).await;
    shop.resolve("ada", "k", OrderState::Paid).await;
    let (to, sku) = (Destination::Shard(1), sku("A"));
    let out = shop.stock.transfer_out(shop.key, Uuid::now_v7(), &sku, to, 1, NOW);
    assert_eq!(out.await.unwrap(), sent(1));
    shop.stock
        .transfer_in(shop.key, 1, &on_its_way(Uuid::from_u128(5), 1))
        .await
        .unwrap();
    shop.stock.fence(shop.key, &[(1, 1)]).await.unwrap();
    shop.stock
        .trim_events(shop.key, Position { epoch: 1, seq: 1 })
        .await
        .unwrap();
    shop
}

async fn begin(shop: &Shop, epoch: i64) -> Result<Begun, Fault> {
    shop.stock
        .begin_restore(&shop.sale, 0, epoch, &[(0, epoch), (1, 1)])
        .await
}

async fn end(shop: &Shop, epoch: i64, applied: &[Uuid]) -> Result<(), Fault> {
    let units = Counters {
        available: 3,
        held: 1,
        sold: 2,
        granted: 6,
        version: epoch << 28,
        ..Counters::default()
    };
    let units = BTreeMap::from([(sku("A"), units)]);
    shop.stock.end_restore(&shop.sale, 0, epoch, &units, applied).await
}

fn set(shop: &Shop) -> Vec<String> {
    let mut ids: Vec<String> = shop.raw.call(redis::cmd("SMEMBERS").arg(shop.key.applied()));
    ids.sort();
    ids
}

#[tokio::test]
async fn a_shards_next_life_begins_with_nothing_on_its_way_and_sells_when_it_is_permitted() {
    let shop = old().await;
    let (struck, id) = (set(&shop), Uuid::from_u128(7));
    assert_eq!(begin(&shop, 2).await.unwrap(), WHOLE);
    let reading = shop.stock.read_shard(&shop.sale, 0, 10).await.unwrap();
    assert_eq!(
        (reading.record.lifecycle, reading.record.epoch),
        (Lifecycle::Loading, 2)
    );
    assert_eq!((reading.record.permit_until, reading.record.brake), (0, false));
    assert_eq!((reading.undrained, reading.transfers.len()), (0, 0));
    assert_eq!(set(&shop), struck, "what was finished stays finished");
    assert_eq!(shop.buy("bob", "k", 1, NOW).await, Stopped);

    let ada = shop.buyer("ada").await;
    let users = [(user("ada"), ada.clone()), (user("bob"), BuyerRecord::default())];
    shop.stock.restore_buyers(shop.key, 2, &users).await.unwrap();
    end(&shop, 2, &[id]).await.unwrap();
    let reading = shop.read().await;
    let mut expected = reading.record.clone();
    expected.lifecycle = Lifecycle::Active;
    (expected.starts_at, expected.ends_at, expected.epoch) = (START, END, 2);
    assert_eq!(reading.record, expected);
    assert_eq!(shop.counters().await.version, 2 << 28);
    assert_eq!(reading.counters(&sku("B")), Counters::default());
    assert_eq!(set(&shop), [struck, vec![id.to_string()]].concat());
    assert_eq!(shop.buyer("ada").await, ada);
    assert_eq!(shop.buy("bob", "k", 1, NOW).await, Stopped);

    shop.permit().await;
    let Reserved(record) = shop.buy("bob", "k", 1, NOW).await else {
        panic!("it does not sell")
    };
    assert_eq!(record.event, Some(Position { epoch: 2, seq: 1 }));
    assert!(matches!(
        shop.buy("ada", "k", 2, NOW).await,
        Replayed { drained: true, .. }
    ));
    // A fence against its own earlier life, and none against what the others send now.
    let mut fences: Vec<(u16, i64)> = shop.raw.call(redis::cmd("HGETALL").arg(shop.key.fences()));
    fences.sort_unstable();
    assert_eq!(fences, [(0, 2), (1, 1)]);
    for key in [
        shop.key.shard(),
        shop.key.events(),
        shop.key.applied(),
        shop.key.fences(),
    ] {
        assert_eq!(shop.raw.call::<i64>(redis::cmd("PTTL").arg(key)), -1);
    }
}

#[tokio::test]
async fn a_life_does_not_end_while_the_ledger_lacks_one_of_its_events() {
    let shop = old().await;
    shop.reserve("bob", "k", 1).await;
    shop.reserve("cyd", "k", 1).await;
    let before = shop.dump();
    assert_eq!(begin(&shop, 2).await.unwrap(), Begun::Events(2));
    assert_eq!(shop.dump(), before);
    shop.stock
        .trim_events(shop.key, Position { epoch: 1, seq: 3 })
        .await
        .unwrap();
    assert_eq!(begin(&shop, 2).await.unwrap(), WHOLE);
}

#[tokio::test]
async fn an_epoch_begins_once_and_never_after_a_later_one() {
    let shop = old().await;
    begin(&shop, 3).await.unwrap();
    let before = shop.dump();
    for epoch in [3, 2, 1] {
        assert!(
            matches!(begin(&shop, epoch).await, Err(Fault::Unavailable(_))),
            "{epoch}"
        );
    }
    assert_eq!(shop.dump(), before);
    assert_eq!(begin(&shop, 4).await.unwrap(), WHOLE);
}

#[tokio::test]
async fn whoever_comes_late_writes_nothing_to_a_shard_that_is_another_ones_or_done() {
    let shop = old().await;
    let ada = [(user("ada"), BuyerRecord::default())];
    let late = async |epoch| {
        let before = shop.dump();
        let answers = [
            shop.stock.restore_buyers(shop.key, epoch, &ada).await,
            end(&shop, epoch, &[Uuid::from_u128(9)]).await,
        ];
        for answer in answers {
            assert!(matches!(answer, Err(Fault::Unavailable(_))), "{epoch}: {answer:?}");
        }
        assert_eq!(shop.dump(), before);
    };
    late(1).await;
    late(2).await;
    begin(&shop, 3).await.unwrap();
    late(2).await;
    late(4).await;
    end(&shop, 3, &[]).await.unwrap();
    late(3).await;
    shop.permit().await;
    late(3).await;
}

#[tokio::test]
async fn a_shard_of_which_nothing_or_something_else_is_left_can_begin_anew() {
    let names = |shop: &Shop| {
        let key = shop.key;
        [key.shard(), key.events(), key.transfers(), key.applied(), key.fences()]
    };
    let shop = old().await;
    for key in names(&shop) {
        shop.remove(&key);
    }
    assert_eq!(begin(&shop, 2).await.unwrap(), Begun::Yes { lost_events: true });
    end(&shop, 2, &[]).await.unwrap();
    shop.permit().await;
    assert!(matches!(shop.buy("bob", "k", 1, NOW).await, Reserved(_)));
    for at in 0..5 {
        let shop = old().await;
        let planted = names(&shop)[at].clone();
        shop.plant(&planted);
        assert_eq!(shop.stock.epoch(shop.key).await.unwrap(), i64::from(at != 0));
        shop.stock.stop(shop.key).await.unwrap();
        let lost_events = at == 1;
        assert_eq!(begin(&shop, 2).await.unwrap(), Begun::Yes { lost_events }, "{planted}");
        end(&shop, 2, &[Uuid::from_u128(9)]).await.unwrap();
        shop.permit().await;
        assert!(matches!(shop.buy("bob", "k", 1, NOW).await, Reserved(_)), "{planted}");
    }
}

#[tokio::test]
async fn the_shoppers_of_a_shard_are_forgotten_and_nobody_elses() {
    let shop = Shop::open(|sale| sale.shards = 12).await;
    let other = Shop::open(|_| {}).await;
    let buyer = |shop: &Shop, shard: u16, who: &str| shop.shard(shard).buyer(&user(who));
    let keys: Vec<String> = [1, 2, 11]
        .into_iter()
        .flat_map(|shard| ["ada", "}:0:buyer:", "x:buyer:y"].map(|who| buyer(&shop, shard, who)))
        .chain([buyer(&other, 1, "ada")])
        .collect();
    for key in &keys {
        shop.put(key, &[0; 11]);
    }
    let before = shop.dump();
    shop.stock.forget_buyers(shop.sale.id, &[1]).await.unwrap();
    let mut expected = before;
    for key in &keys[..3] {
        assert!(expected.remove(key.as_bytes()).is_some());
    }
    assert_eq!(shop.dump(), expected);
    let there: i64 = other.raw.call(redis::cmd("EXISTS").arg(&keys[9]));
    assert_eq!(there, 1);
    shop.stock.forget_buyers(shop.sale.id, &[2, 11]).await.unwrap();
    let there: i64 = shop.raw.call(redis::cmd("EXISTS").arg(&keys[..9]));
    assert_eq!(there, 0);
}

#[tokio::test]
async fn records_are_written_by_the_scripts_and_by_us_byte_for_byte_alike() {
    let shop = Shop::open(|_| {}).await;
    shop.reserve("ada", "one", 2).await;
    shop.try_buy_item("B", "ada", "two", 1, NOW + 5).await.unwrap();
    shop.buy("ada", "refused", 50, NOW + 7).await;
    shop.resolve("ada", "one", OrderState::Paid).await;
    let row = shop.bytes(&shop.key.buyer(&user("ada")));
    assert_eq!(shop.buyer("ada").await.encode(9), row);
    let reading = shop.read().await;
    let shard = shop.bytes(&shop.key.shard());
    assert_eq!(reading.record.encode(&shop.sale.purchase_rate), shard);
    for (item, position) in shop.sale.items.iter().zip(0..) {
        let bytes = shop.bytes(&shop.key.item(&item.sku));
        let counters = reading.counters(&item.sku);
        let encoded = flashsale::stock::record::encode_item(&counters, item.per_user_limit, position);
        assert_eq!(encoded, bytes);
    }
}

#[tokio::test]
async fn arguments_out_of_bounds_are_refused() {
    let shop = old().await;
    let key = shop.key;
    let keys = [key.shard(), key.events(), key.transfers(), key.applied(), key.fences()];
    let record = "r".repeat(45);
    let short = &record[1..];
    let mut many = vec!["2", &record];
    many.resize(516, "1");
    assert_refused(
        &shop,
        &BEGIN_RESTORE,
        &keys,
        &[
            &["two", &record],
            &["0", &record],
            &["1.5", &record],
            &["2"],
            &["2", short],
            &["2", &record, "1"],
            &many,
        ],
    );
    begin(&shop, 2).await.unwrap();
    let keys = [key.shard(), key.applied(), key.item(&sku("A"))];
    assert_refused(
        &shop,
        &RESTORE,
        &keys,
        &[
            &["two", "", "0", "v"],
            &["2", "", "some", "v"],
            &["2", "", "-1", "v"],
            &["2", "", "0.5", "v"],
            &["2", "", "0"],
            &["2", "", "0", "v", "w"],
            &["2", "", "1", "v"],
            &["2", short, "0", "v"],
        ],
    );
    let mut keys = vec![key.shard(), key.applied()];
    keys.resize(1003, key.item(&sku("A")));
    let mut args = vec!["2", "", "0"];
    args.resize(1004, "v");
    assert_refused(&shop, &RESTORE, &keys, &[&args]);
    let args: Vec<Vec<u8>> = args[..1003].iter().map(arg).collect();
    assert_eq!(shop.raw.script(&RESTORE, &keys[..1002], &args), "RESTORED");
    assert_eq!(
        shop.raw.script(&RESTORE, &keys[..2], &["1", "", "0"].map(arg)),
        "STALE 2"
    );
}

#[tokio::test]
async fn a_foreign_missing_or_cut_off_shard_is_not_written_to() {
    let begun = || async {
        let shop = old().await;
        begin(&shop, 2).await.unwrap();
        shop
    };
    each_foreign_key_is_refused!(begun().await, |shop| [shop.key.shard()], end(&shop, 2, &[]).await);
    each_missing_key_is_noticed!(begun().await, |shop| [shop.key.shard()], end(&shop, 2, &[]).await);
    each_cut_off_key_is_noticed!(
        begun().await,
        |shop| [(shop.key.shard(), SHARD_CUT)],
        end(&shop, 2, &[]).await
    );
    let nowhere = Shop::unloaded(&redis(), |_| {}).await;
    assert!(matches!(end(&nowhere, 2, &[]).await, Err(Fault::Incomplete(_))));
    assert!(nowhere.dump().is_empty());
}
