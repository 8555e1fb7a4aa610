use super::{ITEM_CUT, NOW, Shop, assert_refused, each_bad_key_is_noticed, on_its_way, sent, sku};
use crate::support::raw::arg;
use flashsale::domain::fault::Fault;
use flashsale::domain::operator::report::Counters;
use flashsale::stock::script::WITHDRAW_DONE;
use flashsale::stock::sell::transfer::{Destination, Sent, Transfer};
use uuid::Uuid;

const ID: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0002);

async fn take(shop: &Shop, wanted: i64) -> Result<Sent, Fault> {
    let to = Destination::Ledger;
    shop.stock.transfer_out(shop.key, ID, &sku("A"), to, wanted, NOW).await
}

/// The same units on their way back.
fn back() -> Transfer {
    on_its_way(ID, 4)
}

/// A sale from whose ten units four are on their way to the ledger.
async fn taken() -> Shop {
    let shop = Shop::open(|_| {}).await;
    assert_eq!(take(&shop, 4).await.unwrap(), sent(4));
    shop
}

#[tokio::test]
async fn withdrawn_units_leave_the_shards_grant_once() {
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
    let withdrawn = Counters {
        available: 6,
        out: 4,
        withdrawn: 4,
        granted: 10,
        version: 1,
        ..Counters::default()
    };
    assert_eq!(shop.counters().await, withdrawn);
    let before = shop.dump();
    shop.stock.withdraw_done(shop.key, ID).await.unwrap();
    assert_eq!(take(&shop, 4).await.unwrap(), Sent::Done);
    shop.stock.transfer_done(shop.key, ID).await.unwrap();
    shop.stock.transfer_in(shop.key, 0, &back()).await.unwrap();
    assert_eq!(
        shop.dump(),
        before,
        "neither withdrawn, taken nor given back a second time"
    );
}

#[tokio::test]
async fn units_that_the_ledger_refused_come_back_and_stay_granted() {
    let shop = taken().await;
    shop.stock.transfer_in(shop.key, 0, &back()).await.unwrap();
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
async fn units_on_their_way_to_a_shard_do_not_count_as_withdrawn() {
    let shop = Shop::open(|sale| sale.shards = 2).await;
    let to = Destination::Shard(1);
    let out = shop.stock.transfer_out(shop.key, ID, &sku("A"), to, 2, NOW).await;
    assert_eq!(out.unwrap(), sent(2));
    let before = shop.dump();
    let answer = shop.stock.withdraw_done(shop.key, ID).await;
    assert!(
        matches!(&answer, Err(Fault::Bug(text)) if text.contains("INVARIANT")),
        "{answer:?}"
    );
    assert_eq!(shop.dump(), before);
}

#[tokio::test]
async fn a_withdrawal_of_more_than_the_shard_has_sent_is_refused() {
    let shop = taken().await;
    let (item, whole) = (shop.key.item(&sku("A")), shop.bytes(&shop.key.item(&sku("A"))));
    // Fewer units in `out`, more in `withdrawn`.
    for (offset, damaged) in [(35, 3), (59, 1)] {
        shop.put(&item, &whole);
        shop.damage(&item, offset, &[damaged]);
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
async fn units_of_one_item_are_not_withdrawn_from_another() {
    let shop = taken().await;
    let (id, key) = (ID.to_string(), shop.key);
    let before = shop.dump();
    for (of, named) in [("B", "B"), ("A", "B"), ("A", ""), ("A", "A ")] {
        let keys = [key.item(&sku(of)), key.transfers(), key.applied()];
        let answer = shop.raw.script(&WITHDRAW_DONE, &keys, &[arg(&id), arg(named)]);
        assert!(answer.starts_with("ERR INVARIANT"), "{of}, {named}: {answer}");
    }
    assert_eq!(shop.dump(), before);
    let keys = [key.item(&sku("A")), key.transfers(), key.applied()];
    let answer = shop.raw.script(&WITHDRAW_DONE, &keys, &[arg(&id), arg("A")]);
    assert_eq!(answer, "DONE");
}

#[tokio::test]
async fn arguments_out_of_bounds_are_refused() {
    let shop = taken().await;
    let (id, key) = (ID.to_string(), shop.key);
    assert_refused(
        &shop,
        &WITHDRAW_DONE,
        &[key.item(&sku("A")), key.transfers(), key.applied()],
        &[&[&id[1..], "A"], &[&format!("{id}0"), "A"], &["", "A"]],
    );
}

#[tokio::test]
async fn a_foreign_missing_or_cut_off_key_changes_nothing() {
    each_bad_key_is_noticed!(
        taken().await,
        |shop| shop.stock.withdraw_done(shop.key, ID).await,
        foreign: [shop.key.item(&sku("A")), shop.key.transfers(), shop.key.applied()],
        missing: [shop.key.item(&sku("A"))],
        cut_off: [(shop.key.item(&sku("A")), ITEM_CUT)]
    );
}

#[tokio::test]
async fn units_that_a_shard_had_borrowed_can_be_withdrawn_too() {
    let shop = Shop::open(|_| {}).await;
    let borrowed = Uuid::now_v7();
    shop.stock
        .transfer_in(shop.key, 1, &on_its_way(borrowed, 7))
        .await
        .unwrap();
    assert_eq!(take(&shop, 17).await.unwrap(), sent(17));
    shop.stock.withdraw_done(shop.key, ID).await.unwrap();
    let withdrawn = Counters {
        out: 17,
        r#in: 7,
        withdrawn: 17,
        granted: 10,
        version: 2,
        ..Counters::default()
    };
    assert_eq!(shop.counters().await, withdrawn);
}
