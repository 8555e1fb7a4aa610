use super::{
    END, NOW, START, Shop, assert_refused, each_foreign_key_is_refused, each_missing_key_is_noticed, sku, user,
};
use crate::support::servers;
use flashsale::domain::fault::Fault;
use flashsale::domain::sale::Lifecycle;
use flashsale::stock::script::READ_SHARD;
use flashsale::stock::transfer::Destination;
use uuid::Uuid;

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
    let reading = shop.stock.read_shard(shop.key, 3).await.unwrap();
    assert!(reading.now >= clock && reading.now <= shop.stock.now().await.unwrap());
    assert_eq!((reading.shard, reading.epoch, reading.state_version), (0, 1, 3));
    assert_eq!(reading.state, (Lifecycle::Active, START, END));
    assert_eq!(reading.counters(&sku("A")).held, 5);
    assert_eq!(reading.counters(&sku("B")).out, 1);
    assert_eq!((reading.transfers[0].id, reading.transfers[0].to), (id, to));
    assert_eq!(reading.undrained, 5);
    let seqs: Vec<i64> = reading.events.iter().map(|event| event.position.seq).collect();
    assert_eq!(seqs, [1, 2, 3], "the oldest, as many as were asked for");
    assert!(shop.stock.read_shard(shop.key, 0).await.unwrap().events.is_empty());
    assert_eq!(shop.dump(), before);
}

#[tokio::test]
async fn a_shard_that_is_not_there_is_not_empty_but_missing() {
    let shop = Shop::unloaded(&servers::redis(), |_| {}).await;
    let answer = shop.stock.read_shard(shop.key, 0).await;
    assert!(matches!(answer, Err(Fault::Incomplete(_))), "{answer:?}");
    assert!(shop.dump().is_empty());
}

#[tokio::test]
async fn arguments_out_of_bounds_are_refused() {
    let shop = Shop::open(|_| {}).await;
    let keys = [shop.key.stock(), shop.key.transfers(), shop.key.events()];
    assert_refused(&shop, &READ_SHARD, &keys, &[&["-1"], &["1001"], &["all"], &[]]);
    for allowed in ["0", "1000"] {
        let answer = shop.raw.call::<redis::Value>(
            redis::cmd("EVAL")
                .arg(include_str!("../../../lua/read_shard.lua"))
                .arg(3)
                .arg(&keys)
                .arg(allowed),
        );
        assert!(
            matches!(&answer, redis::Value::Array(fields) if fields.len() == 5),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn a_foreign_or_missing_key_is_noticed() {
    each_foreign_key_is_refused!(
        Shop::open(|_| {}).await,
        |shop| [shop.key.stock(), shop.key.transfers(), shop.key.events()],
        shop.stock.read_shard(shop.key, 5).await
    );
    each_missing_key_is_noticed!(
        Shop::open(|_| {}).await,
        |shop| [shop.key.stock(), shop.key.events()],
        shop.stock.read_shard(shop.key, 5).await
    );
}

#[tokio::test]
async fn a_shoppers_window_is_read_oldest_first() {
    let shop = Shop::open(|_| {}).await;
    assert!(shop.stock.read_window(shop.key, &user("ada")).await.unwrap().is_empty());
    for (n, key) in ["a", "b", "c"].iter().enumerate() {
        let now = NOW + i64::try_from(n).unwrap();
        shop.buy("ada", key, 1, now).await;
    }
    let window = shop.stock.read_window(shop.key, &user("ada")).await.unwrap();
    assert_eq!(window, [NOW, NOW + 1, NOW + 2]);
    assert!(shop.stock.read_window(shop.key, &user("bob")).await.unwrap().is_empty());
}
