use super::{ITEM_CUT, NOW, Shop, assert_refused, each_bad_key_is_noticed, sku};
use crate::support::raw::arg;
use flashsale::domain::fault::Fault;
use flashsale::domain::operator::report::Counters;
use flashsale::stock::script::RESTOCK;
use flashsale::stock::sell::purchase::ShardAnswer;
use uuid::Uuid;

async fn restock(shop: &Shop, id: Uuid, units: i64) -> Result<(), Fault> {
    shop.stock.restock(shop.key, id, &sku("A"), units, 1).await
}

#[tokio::test]
async fn new_units_are_free_and_granted_once_for_each_id() {
    let shop = Shop::open(|_| {}).await;
    let (one, two) = (Uuid::now_v7(), Uuid::now_v7());
    restock(&shop, one, 7).await.unwrap();
    let expected = Counters {
        available: 17,
        granted: 17,
        version: 1,
        ..Counters::default()
    };
    assert_eq!(shop.counters().await, expected);
    let before = shop.dump();
    restock(&shop, one, 7).await.unwrap();
    restock(&shop, one, 9).await.unwrap();
    assert_eq!(shop.dump(), before);
    restock(&shop, two, 1).await.unwrap();
    let counters = shop.counters().await;
    assert_eq!((counters.available, counters.granted, counters.version), (18, 18, 2));
    assert_eq!(shop.read().await.counters(&sku("B")).granted, 4);
}

#[tokio::test]
async fn the_answer_distinguishes_the_first_call_from_repeats() {
    let shop = Shop::open(|_| {}).await;
    let keys = [shop.key.item(&sku("A")), shop.key.shard(), shop.key.applied()];
    let args = |epoch: &str| [arg(Uuid::from_u128(1).to_string()), arg("1000000000"), arg(epoch)];
    // Of another epoch of the shard: its count may include the units.
    assert_eq!(shop.raw.script(&RESTOCK, &keys, &args("2")), "STALE");
    let args = args("1");
    assert_eq!(shop.raw.script(&RESTOCK, &keys, &args), "ADDED");
    assert_eq!(shop.raw.script(&RESTOCK, &keys, &args), "ALREADY");
    assert_eq!(shop.counters().await.granted, 1_000_000_010);
}

#[tokio::test]
async fn units_that_were_added_can_be_bought() {
    let shop = Shop::open(|sale| sale.items[0].stock = 0).await;
    assert_eq!(shop.buy("ada", "k", 1, NOW).await, ShardAnswer::Short { available: 0 });
    restock(&shop, Uuid::now_v7(), 1).await.unwrap();
    shop.reserve("ada", "k", 1).await;
    assert_eq!(shop.buy("bob", "k", 1, NOW).await, ShardAnswer::Short { available: 0 });
}

#[tokio::test]
async fn arguments_out_of_bounds_are_refused() {
    let shop = Shop::open(|_| {}).await;
    let id = Uuid::now_v7().to_string();
    assert_refused(
        &shop,
        &RESTOCK,
        &[shop.key.item(&sku("A")), shop.key.applied()],
        &[
            &[&id, "0"],
            &[&id, "-1"],
            &[&id, "1.5"],
            &[&id, "nan"],
            &[&id, "some"],
            &[&id, "1000000001"],
            &[&id[1..], "1"],
            &[&format!("{id}0"), "1"],
        ],
    );
}

#[tokio::test]
async fn a_foreign_missing_or_cut_off_key_changes_nothing() {
    each_bad_key_is_noticed!(
        Shop::open(|_| {}).await,
        |shop| restock(&shop, Uuid::now_v7(), 1).await,
        foreign: [shop.key.item(&sku("A")), shop.key.applied()],
        missing: [shop.key.item(&sku("A"))],
        cut_off: [(shop.key.item(&sku("A")), ITEM_CUT)]
    );
    let shop = Shop::open(|_| {}).await;
    let before = shop.dump();
    let answer = shop.stock.restock(shop.key, Uuid::now_v7(), &sku("C"), 1, 1).await;
    assert!(matches!(answer, Err(Fault::Incomplete(_))), "{answer:?}");
    assert_eq!(shop.dump(), before);
}
