use super::{NOW, Shop, assert_refused, each_foreign_key_is_refused, each_missing_key_is_noticed, sku};
use flashsale::domain::fault::Fault;
use flashsale::domain::report::Counters;
use flashsale::stock::script::WITHDRAW_DONE;
use flashsale::stock::transfer::{Destination, Sent};
use uuid::Uuid;

const ID: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0002);

async fn take(shop: &Shop, wanted: i64) -> Result<Sent, Fault> {
    let to = Destination::Ledger;
    shop.stock.transfer_out(shop.key, ID, &sku("A"), to, wanted, NOW).await
}

/// A sale from whose ten units four are on their way to the ledger.
async fn taken() -> Shop {
    let shop = Shop::open(|_| {}).await;
    assert_eq!(take(&shop, 4).await.unwrap(), Sent::Out(4));
    shop
}

#[tokio::test]
async fn withdrawn_units_are_no_longer_the_shards_and_are_struck_once() {
    let shop = taken().await;
    assert_eq!(shop.read().await.transfers[0].to, Destination::Ledger);
    let on_their_way = Counters {
        available: 6,
        out: 4,
        granted: 10,
        version: 1,
        ..Counters::default()
    };
    assert_eq!(shop.counters().await, on_their_way);
    shop.stock.withdraw_done(shop.key, ID).await.unwrap();
    let struck = Counters {
        available: 6,
        granted: 6,
        version: 1,
        ..Counters::default()
    };
    assert_eq!(shop.counters().await, struck);
    let before = shop.dump();
    shop.stock.withdraw_done(shop.key, ID).await.unwrap();
    assert_eq!(take(&shop, 4).await.unwrap(), Sent::Done);
    shop.stock.transfer_done(shop.key, ID).await.unwrap();
    shop.stock.transfer_in(shop.key, ID, &sku("A"), 4).await.unwrap();
    assert_eq!(
        shop.dump(),
        before,
        "neither struck, taken nor given back a second time"
    );
}

#[tokio::test]
async fn units_that_the_ledger_refused_come_back_and_are_not_struck() {
    let shop = taken().await;
    shop.stock.transfer_in(shop.key, ID, &sku("A"), 4).await.unwrap();
    let back = Counters {
        available: 10,
        out: 4,
        r#in: 4,
        granted: 10,
        version: 2,
        ..Counters::default()
    };
    assert_eq!(shop.counters().await, back);
    shop.stock.withdraw_done(shop.key, ID).await.unwrap();
    assert_eq!(shop.counters().await, back);
    shop.stock.transfer_done(shop.key, ID).await.unwrap();
    assert_eq!(shop.counters().await, back);
    assert!(shop.read().await.transfers.is_empty());
    assert_eq!(take(&shop, 4).await.unwrap(), Sent::Done);
}

#[tokio::test]
async fn an_unknown_withdrawal_changes_nothing() {
    let shop = Shop::open(|_| {}).await;
    let before = shop.dump();
    shop.stock.withdraw_done(shop.key, ID).await.unwrap();
    assert_eq!(shop.dump(), before);
}

#[tokio::test]
async fn units_on_their_way_to_a_shard_are_not_struck_as_withdrawn() {
    let shop = Shop::open(|sale| sale.shards = 2).await;
    let to = Destination::Shard(1);
    let sent = shop.stock.transfer_out(shop.key, ID, &sku("A"), to, 2, NOW).await;
    assert_eq!(sent.unwrap(), Sent::Out(2));
    let before = shop.dump();
    assert!(shop.stock.withdraw_done(shop.key, ID).await.is_err());
    assert_eq!(shop.dump(), before);
}

#[tokio::test]
async fn more_than_the_shard_was_given_is_not_struck() {
    let shop = taken().await;
    let item: Vec<u8> = shop.raw.call(redis::cmd("HGET").arg(shop.key.stock()).arg("A"));
    for (offset, damaged) in [(59, 3), (71, 3)] {
        let mut record = item.clone();
        record[offset] = damaged;
        let _old: i64 = shop
            .raw
            .call(redis::cmd("HSET").arg(shop.key.stock()).arg("A").arg(record));
        let before = shop.dump();
        let answer = shop.stock.withdraw_done(shop.key, ID).await;
        assert!(
            matches!(&answer, Err(Fault::Bug(text)) if text.contains("INVARIANT")),
            "{answer:?}"
        );
        assert_eq!(shop.dump(), before);
    }
}

#[tokio::test]
async fn arguments_out_of_bounds_are_refused() {
    let shop = taken().await;
    let (id, key) = (ID.to_string(), shop.key);
    assert_refused(
        &shop,
        &WITHDRAW_DONE,
        &[key.stock(), key.transfers(), key.applied()],
        &[&[&id[1..]], &[&format!("{id}0")], &[""]],
    );
}

#[tokio::test]
async fn a_foreign_or_missing_key_changes_nothing() {
    each_foreign_key_is_refused!(
        taken().await,
        |shop| [shop.key.stock(), shop.key.transfers(), shop.key.applied()],
        shop.stock.withdraw_done(shop.key, ID).await
    );
    each_missing_key_is_noticed!(
        taken().await,
        |shop| [shop.key.stock()],
        shop.stock.withdraw_done(shop.key, ID).await
    );
}
