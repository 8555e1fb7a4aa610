use super::{END, NOW, START, Shop, assert_refused, each_foreign_key_is_refused, each_missing_key_is_noticed, sku};
use crate::support::raw::arg;
use crate::support::servers;
use crate::support::trim;
use flashsale::domain::fault::Fault;
use flashsale::domain::operator::report::Counters;
use flashsale::domain::order::event::Position;
use flashsale::domain::sale::{Item, Lifecycle};
use flashsale::stock::record::ShardRecord;
use flashsale::stock::script::PRELOAD;

async fn unloaded() -> Shop {
    Shop::unloaded(&servers::redis(), |_| {}).await
}

/// Every key that preloading creates.
fn keys(shop: &Shop) -> [String; 4] {
    let key = shop.key;
    [key.shard(), key.events(), key.item(&sku("A")), key.item(&sku("B"))]
}

#[tokio::test]
async fn a_new_shard_has_its_part_of_every_item_and_sells_nothing_yet() {
    let shop = Shop::loaded(|_| {}).await;
    let reading = shop.read().await;
    let record = ShardRecord {
        lifecycle: Lifecycle::Loading,
        brake: false,
        permit_until: 0,
        starts_at: START,
        ends_at: END,
        state_version: 0,
        epoch: 1,
    };
    assert_eq!(reading.record, record);
    for (item, units) in [("A", 10), ("B", 4)] {
        let expected = Counters {
            available: units,
            granted: units,
            ..Counters::default()
        };
        assert_eq!(reading.counters(&sku(item)), expected);
    }
    assert_eq!(
        (reading.undrained, reading.transfers.len(), reading.items.len()),
        (0, 0, 2)
    );
    assert_eq!(shop.stock.undrained(&[shop.key]).await.unwrap(), [0]);
    for key in keys(&shop) {
        assert_eq!(shop.raw.call::<i64>(redis::cmd("PTTL").arg(key)), -1);
    }
}

#[tokio::test]
async fn the_parts_of_all_shards_are_the_whole_stock() {
    let shop = Shop::loaded(|sale| sale.shards = 3).await;
    let readings = shop.stock.read_shards(&shop.sale).await.unwrap();
    let units = |item: &str| -> Vec<i64> {
        readings
            .iter()
            .map(|reading| reading.counters(&sku(item)).available)
            .collect()
    };
    assert_eq!(units("A"), [4, 3, 3]);
    assert_eq!(units("B"), [2, 1, 1]);
}

#[tokio::test]
async fn a_shard_that_is_there_is_left_as_it_is() {
    let mut shop = Shop::open(|_| {}).await;
    shop.reserve("ada", "k", 3).await;
    let before = shop.dump();
    shop.stock.preload(&shop.sale, 0, 1).await.unwrap();
    shop.stock.preload(&shop.sale, 0, 2).await.unwrap();
    shop.sale.items[0].stock = 1_000;
    shop.stock.preload(&shop.sale, 0, 1).await.unwrap();
    assert_eq!(shop.dump(), before);
    trim(&shop.stock, shop.key, 1).await;
    let before = shop.dump();
    shop.stock.preload(&shop.sale, 0, 1).await.unwrap();
    assert_eq!(shop.dump(), before, "also when every event was drained");
}

#[tokio::test]
async fn events_carry_the_shards_epoch() {
    let shop = unloaded().await;
    shop.stock.preload(&shop.sale, 0, 281_474_976).await.unwrap();
    shop.follow().await;
    shop.permit().await;
    shop.reserve("ada", "k", 1).await;
    shop.reserve("bob", "k", 1).await;
    let reading = shop.read().await;
    assert_eq!(reading.record.epoch, 281_474_976);
    let positions: Vec<_> = reading.events.iter().map(|event| event.position).collect();
    let at = |seq| Position {
        epoch: 281_474_976,
        seq,
    };
    assert_eq!(positions, [at(1), at(2)]);
}

#[tokio::test]
async fn a_part_of_a_shard_is_a_loss_and_is_not_completed() {
    each_missing_key_is_noticed!(
        Shop::loaded(|_| {}).await,
        |shop| [
            shop.key.shard(),
            shop.key.events(),
            shop.key.item(&sku("A")),
            shop.key.item(&sku("B"))
        ],
        shop.stock.preload(&shop.sale, 0, 1).await
    );
}

#[tokio::test]
async fn an_existing_key_is_never_overwritten() {
    each_foreign_key_is_refused!(
        unloaded().await,
        |shop| [
            shop.key.shard(),
            shop.key.events(),
            shop.key.item(&sku("A")),
            shop.key.item(&sku("B"))
        ],
        shop.stock.preload(&shop.sale, 0, 1).await,
        Incomplete,
        "keys"
    );
    for at in 0..4 {
        let shop = Shop::loaded(|_| {}).await;
        shop.plant(&keys(&shop)[at]);
        let before = shop.dump();
        shop.stock.preload(&shop.sale, 0, 1).await.unwrap();
        assert_eq!(shop.dump(), before);
    }
}

#[tokio::test]
async fn a_sale_may_have_a_thousand_items_and_not_one_more() {
    let mut shop = unloaded().await;
    let item = shop.sale.items[0].clone();
    let items = (0..1000).map(|n| Item {
        sku: sku(&format!("item-{n}")),
        ..item.clone()
    });
    shop.sale.items = items.collect::<Vec<_>>().into();
    shop.stock.preload(&shop.sale, 0, 1).await.unwrap();
    shop.follow().await;
    shop.permit().await;
    assert_eq!(shop.read().await.items.len(), 1000);
    let last = shop.try_buy_item("item-999", "ada", "k", 1, NOW).await.unwrap();
    assert!(
        matches!(&last, flashsale::stock::sell::purchase::ShardAnswer::Reserved { record, .. } if record.item == 999),
        "{last:?}"
    );

    let mut shop = unloaded().await;
    shop.sale.items = vec![item; 1001].into();
    let answer = shop.stock.preload(&shop.sale, 0, 1).await;
    assert!(matches!(answer, Err(Fault::Bug(_))), "{answer:?}");
    assert!(shop.dump().is_empty());
}

#[tokio::test]
async fn arguments_out_of_bounds_are_refused() {
    let shop = unloaded().await;
    let keys = keys(&shop);
    let one = keys[..3].to_vec();
    assert_refused(
        &shop,
        &PRELOAD,
        &one,
        &[
            &["1", "5", "9", "2", "1000"],
            &["1", "5", "9", "2", "1000", "1"],
            &["1", "5", "9", "2", "1000", "1", "1", "1"],
            &["1", "5", "9", "2", "1000", "1", "1", "1", "1"],
            &["one", "5", "9", "2", "1000", "1", "1"],
            &["1", "soon", "9", "2", "1000", "1", "1"],
            &["1", "5", "late", "2", "1000", "1", "1"],
            &["1", "5", "9", "few", "1000", "1", "1"],
            &["1", "5", "9", "2", "long", "1", "1"],
            &["1", "5", "9", "2", "1000", "-1", "1"],
            &["1", "5", "9", "2", "1000", "1.5", "1"],
            &["1", "5", "9", "2", "1000", "all", "1"],
            &["1", "5", "9", "2", "1000", "1", "none"],
        ],
    );
    assert_refused(&shop, &PRELOAD, &keys[..2], &[&["1", "5", "9", "2", "1000"]]);
    assert_refused(
        &shop,
        &PRELOAD,
        &keys,
        &[
            &["1", "5", "9", "2", "1000", "1", "1"],
            &["1", "5", "9", "2", "1000", "1", "1", "-1", "1"],
        ],
    );
    let good: Vec<Vec<u8>> = ["1", "5", "9", "2", "1000", "0", "1"].iter().map(arg).collect();
    assert_eq!(shop.raw.script(&PRELOAD, &one, &good), "LOADED");
    assert_eq!(shop.raw.script(&PRELOAD, &one, &good), "ALREADY");
}
