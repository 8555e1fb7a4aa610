use super::{END, NOW, START, Shop, assert_refused, each_missing_key_is_noticed, sku};
use crate::support::raw::arg;
use crate::support::servers;
use flashsale::domain::event::Position;
use flashsale::domain::fault::Fault;
use flashsale::domain::report::Counters;
use flashsale::domain::sale::Lifecycle;
use flashsale::stock::script::PRELOAD;

async fn unloaded() -> Shop {
    Shop::unloaded(&servers::redis(), |_| {}).await
}

#[tokio::test]
async fn a_new_shard_has_its_part_of_every_item_and_sells_nothing_yet() {
    let shop = Shop::loaded(|_| {}).await;
    let reading = shop.read().await;
    assert_eq!((reading.epoch, reading.state_version), (1, 0));
    assert_eq!(reading.state, (Lifecycle::Loading, START, END));
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
    assert_eq!(shop.stock.last_event(shop.key).await.unwrap(), None);
    for key in [shop.key.stock(), shop.key.events()] {
        assert_eq!(shop.raw.call::<i64>(redis::cmd("PTTL").arg(key)), -1);
    }
}

#[tokio::test]
async fn the_parts_of_all_shards_are_the_whole_stock() {
    let shop = Shop::loaded(|sale| sale.shards = 3).await;
    let readings = shop.stock.read_shards(shop.sale.id, 3).await.unwrap();
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
    shop.stock
        .trim_events(shop.key, Position { epoch: 1, seq: 1 })
        .await
        .unwrap();
    let before = shop.dump();
    shop.stock.preload(&shop.sale, 0, 1).await.unwrap();
    assert_eq!(shop.dump(), before, "also when every event was drained");
}

#[tokio::test]
async fn events_carry_the_shards_epoch() {
    let shop = unloaded().await;
    shop.stock.preload(&shop.sale, 0, 281_474_976).await.unwrap();
    shop.follow().await;
    shop.reserve("ada", "k", 1).await;
    shop.reserve("bob", "k", 1).await;
    let reading = shop.read().await;
    assert_eq!(reading.epoch, 281_474_976);
    let positions: Vec<_> = reading.events.iter().map(|event| event.position).collect();
    let at = |seq| Position {
        epoch: 281_474_976,
        seq,
    };
    assert_eq!(positions, [at(1), at(2)]);
}

#[tokio::test]
async fn a_half_of_a_shard_is_a_loss_and_is_not_completed() {
    each_missing_key_is_noticed!(
        Shop::loaded(|_| {}).await,
        |shop| [shop.key.stock(), shop.key.events()],
        shop.stock.preload(&shop.sale, 0, 1).await
    );
}

#[tokio::test]
async fn a_foreign_type_in_the_stocks_place_changes_nothing() {
    for loaded in [false, true] {
        let shop = if loaded {
            Shop::loaded(|_| {}).await
        } else {
            unloaded().await
        };
        shop.plant(&shop.key.stock());
        let before = shop.dump();
        let answer = shop.stock.preload(&shop.sale, 0, 1).await;
        assert!(matches!(answer, Err(Fault::Bug(_))), "{answer:?}");
        assert_eq!(shop.dump(), before);
    }
}

#[tokio::test]
async fn a_foreign_type_in_the_events_place_is_not_written_over() {
    let shop = unloaded().await;
    shop.plant(&shop.key.events());
    let before = shop.dump();
    let answer = shop.stock.preload(&shop.sale, 0, 1).await;
    assert!(matches!(answer, Err(Fault::Incomplete(_))), "{answer:?}");
    assert_eq!(shop.dump(), before);
}

#[tokio::test]
async fn a_sale_may_have_a_thousand_items_and_not_one_more() {
    let mut shop = unloaded().await;
    let item = shop.sale.items[0].clone();
    shop.sale.items = (0..1000)
        .map(|n| flashsale::domain::sale::Item {
            sku: sku(&format!("item-{n}")),
            ..item.clone()
        })
        .collect();
    shop.stock.preload(&shop.sale, 0, 1).await.unwrap();
    shop.follow().await;
    assert_eq!(shop.read().await.items.len(), 1000);
    let last = shop.try_buy_item("item-999", "ada", "k", 1, NOW).await.unwrap();
    assert!(
        matches!(&last, flashsale::stock::purchase::ShardAnswer::Reserved(record) if record.item == 999),
        "{last:?}"
    );

    let mut shop = unloaded().await;
    shop.sale.items = vec![item; 1001];
    let answer = shop.stock.preload(&shop.sale, 0, 1).await;
    assert!(matches!(answer, Err(Fault::Bug(_))), "{answer:?}");
    assert!(shop.dump().is_empty());
}

#[tokio::test]
async fn arguments_out_of_bounds_are_refused() {
    let shop = unloaded().await;
    let keys = [shop.key.stock(), shop.key.events()];
    assert_refused(
        &shop,
        &PRELOAD,
        &keys,
        &[
            &["1", "5", "9", "2", "1000"],
            &["1", "5", "9", "2", "1000", "A"],
            &["1", "5", "9", "2", "1000", "A", "1"],
            &["1", "5", "9", "2", "1000", "A", "1", "1", "B"],
            &["one", "5", "9", "2", "1000", "A", "1", "1"],
            &["1", "soon", "9", "2", "1000", "A", "1", "1"],
            &["1", "5", "late", "2", "1000", "A", "1", "1"],
            &["1", "5", "9", "few", "1000", "A", "1", "1"],
            &["1", "5", "9", "2", "long", "A", "1", "1"],
            &["1", "5", "9", "2", "1000", "A", "-1", "1"],
            &["1", "5", "9", "2", "1000", "A", "1.5", "1"],
            &["1", "5", "9", "2", "1000", "A", "all", "1"],
            &["1", "5", "9", "2", "1000", "A", "1", "none"],
            &["1", "5", "9", "2", "1000", "A", "1", "1", "B", "-1", "1"],
        ],
    );
    let good: Vec<Vec<u8>> = ["1", "5", "9", "2", "1000", "A", "0", "1"].iter().map(arg).collect();
    assert_eq!(shop.raw.script(&PRELOAD, &keys, &good), "LOADED");
    assert_eq!(shop.raw.script(&PRELOAD, &keys, &good), "ALREADY");
}
