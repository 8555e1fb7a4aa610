use super::{END, ITEM_CUT, NOW, PERMITTED, START, Shop, assert_refused, each_bad_key_is_noticed, sku, user};
use crate::support::raw::arg;
use crate::support::servers;
use flashsale::domain::fault::Fault;
use flashsale::domain::ids::Sku;
use flashsale::domain::sale::Lifecycle;
use flashsale::stock::record::{BuyerRecord, ShardRecord};
use flashsale::stock::script::READ_SHARD;
use flashsale::stock::sell::survey::Surveyed;
use flashsale::stock::sell::transfer::Destination;
use uuid::Uuid;

#[tokio::test]
async fn items_that_are_surveyed_together_are_as_each_by_itself() {
    let shop = Shop::open(|sale| sale.shards = 2).await;
    shop.reserve("ada", "k", 3).await;
    let (of, shards, skus) = (shop.sale.id, shop.sale.shards, [sku("B"), sku("none"), sku("A")]);
    let wanted: Vec<&Sku> = skus.iter().collect();
    let together = shop.stock.survey_items_soon(of, shards, &wanted, i64::MAX).await;
    assert_eq!(together.len(), skus.len());
    let units = |surveyed: &[Result<Surveyed, Fault>]| -> Vec<Option<i64>> {
        let available = |it: &Result<Surveyed, Fault>| it.as_ref().ok().map(|it| it.counters.available);
        surveyed.iter().map(available).collect()
    };
    for (sku, together) in skus.iter().zip(&together) {
        let alone = shop.stock.survey(of, shards, sku).await;
        assert_eq!(units(together), units(&alone), "{sku}");
    }
    assert_eq!(units(&together[0]), [Some(2), Some(2)]);
    assert_eq!(units(&together[1]), [None, None]);
    assert_eq!(units(&together[2]), [Some(2), Some(5)]);
}

#[tokio::test]
async fn a_reading_has_everything_that_the_shard_knows() {
    let shop = Shop::open(|sale| sale.state_version = 3).await;
    for n in 0..5 {
        shop.reserve(&format!("shopper {n}"), "k", 1).await;
    }
    let id = Uuid::now_v7();
    let to = Destination::Shard(9);
    shop.stock
        .transfer_out(shop.key, id, &sku("B"), to, 1, NOW)
        .await
        .unwrap();
    let before = shop.dump();
    let clock = shop.stock.now().await.unwrap();
    let reading = shop.stock.read_shard(&shop.sale, 0, 3).await.unwrap();
    assert!(reading.now >= clock && reading.now <= shop.stock.now().await.unwrap());
    let record = ShardRecord {
        lifecycle: Lifecycle::Active,
        brake: false,
        permit_until: PERMITTED + 60_000,
        starts_at: START,
        ends_at: END,
        state_version: 3,
        epoch: 1,
    };
    assert_eq!((reading.shard, &reading.record), (0, &record));
    assert_eq!(reading.counters(&sku("A")).held, 5);
    assert_eq!(reading.counters(&sku("B")).out, 1);
    assert_eq!((reading.transfers[0].id, reading.transfers[0].to), (id, to));
    assert_eq!(reading.undrained, 5);
    let seqs: Vec<i64> = reading.events.iter().map(|event| event.position.seq).collect();
    assert_eq!(seqs, [1, 2, 3], "the oldest, as many as were asked for");
    assert!(shop.stock.read_shard(&shop.sale, 0, 0).await.unwrap().events.is_empty());
    assert_eq!(shop.dump(), before);
}

#[tokio::test]
async fn a_shard_that_is_not_there_is_not_empty_but_missing() {
    let shop = Shop::unloaded(&servers::redis(), |_| {}).await;
    let answer = shop.stock.read_shard(&shop.sale, 0, 0).await;
    assert!(matches!(answer, Err(Fault::Incomplete(_))), "{answer:?}");
    assert!(shop.dump().is_empty());
}

#[tokio::test]
async fn arguments_out_of_bounds_are_refused() {
    let shop = Shop::open(|_| {}).await;
    let key = shop.key;
    let mut keys = vec![key.shard(), key.transfers(), key.events(), key.item(&sku("A"))];
    assert_refused(&shop, &READ_SHARD, &keys, &[&["-1"], &["1001"], &["all"], &[]]);
    for allowed in ["0", "1000"] {
        let answer = shop.raw.call::<redis::Value>(
            redis::cmd("EVAL")
                .arg(include_str!("../../../lua/operate/read_shard.lua"))
                .arg(4)
                .arg(&keys)
                .arg(allowed),
        );
        assert!(
            matches!(&answer, redis::Value::Array(fields) if fields.len() == 6),
            "{answer:?}"
        );
    }
    keys.resize(1003, key.item(&sku("B")));
    assert!(!shop.raw.script(&READ_SHARD, &keys, &[arg("0")]).starts_with("ERR"));
    keys.push(key.item(&sku("B")));
    assert_refused(&shop, &READ_SHARD, &keys, &[&["0"]]);
}

#[tokio::test]
async fn a_foreign_missing_or_cut_off_key_is_noticed() {
    each_bad_key_is_noticed!(
        Shop::open(|_| {}).await,
        |shop| shop.stock.read_shard(&shop.sale, 0, 5).await,
        foreign: [shop.key.shard(), shop.key.transfers(), shop.key.events(), shop.key.item(&sku("B"))],
        missing: [shop.key.shard(), shop.key.events(), shop.key.item(&sku("A")), shop.key.item(&sku("B"))],
        cut_off: [
            (shop.key.shard(), [0, 1, 41, 42]),
            (shop.key.item(&sku("A")), ITEM_CUT),
            (shop.key.item(&sku("B")), ITEM_CUT)
        ]
    );
}

#[tokio::test]
async fn a_shoppers_orders_are_read_oldest_first() {
    let shop = Shop::open(|_| {}).await;
    assert_eq!(shop.buyer("ada").await, BuyerRecord::default());
    let keys = ["a", "b", "c"];
    for (n, key) in keys.iter().enumerate() {
        let now = NOW + i64::try_from(n).unwrap();
        shop.buy("ada", key, 1, now).await;
    }
    let ada = shop.buyer("ada").await;
    let times: Vec<_> = ada.window.iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [NOW, NOW + 1, NOW + 2]);
    for ((_, member), key) in ada.window.iter().zip(keys) {
        assert_eq!(member, &shop.order("ada", key).0.as_bytes()[10..]);
    }
    assert_eq!(ada.units, [(0, 3)]);
    let orders: Vec<_> = ada.orders.iter().map(|(id, _)| *id).collect();
    assert_eq!(orders, keys.map(|key| shop.order("ada", key)));
    assert_eq!(shop.buyer("bob").await, BuyerRecord::default());
}

#[tokio::test]
async fn a_shopper_that_is_cut_off_is_a_defect_and_not_half_a_shopper() {
    let shop = Shop::open(|_| {}).await;
    shop.reserve("ada", "a", 1).await;
    shop.try_buy_item("B", "ada", "b", 1, NOW).await.unwrap();
    let (key, ada) = (shop.key.buyer(&user("ada")), shop.buyer("ada").await);
    let bytes = shop.bytes(&key);
    // Where the row may end: before its orders, and after each.
    let whole = [12 + 12 + 24, 12 + 12 + 24 + 39, bytes.len()];
    assert_eq!(bytes.len(), 12 + 12 + 24 + 39 + 39);
    for length in 0..=bytes.len() {
        shop.put(&key, &bytes[..length]);
        let answer = shop.stock.read_buyer(shop.key, &user("ada")).await;
        if let Some(orders) = whole.iter().position(|whole| *whole == length) {
            assert_eq!(answer.unwrap().orders, ada.orders[..orders]);
        } else {
            assert!(matches!(answer, Err(Fault::Bug(_))), "{length}: {answer:?}");
        }
    }
}
