use super::{NOW, Shop, assert_refused, on_its_way, sku, user};
use crate::support::trim;
use flashsale::domain::fault::Fault;
use flashsale::domain::ids::Sku;
use flashsale::domain::operator::report::Counters;
use flashsale::domain::order::OrderState::{Cancelled, Paid, Reserved};
use flashsale::domain::order::event::Position;
use flashsale::domain::sale::Lifecycle;
use flashsale::stock::script::{BEGIN_RESTORE, END_RESTORE, FORGET_BUYERS, RESTORE_BUYERS};
use flashsale::stock::sell::purchase::ShardAnswer;
use std::collections::BTreeMap;
use uuid::Uuid;

/// A shard of two shoppers and three orders in three states, whose events were drained.
async fn drained() -> Shop {
    let shop = Shop::open(|sale| sale.shards = 2).await;
    for (who, key, quantity) in [("ada", "k", 2), ("ada", "l", 1), ("bob", "k", 1)] {
        shop.reserve(who, key, quantity).await;
    }
    assert_eq!(
        shop.resolve("ada", "l", Paid).await,
        flashsale::stock::settle::resolve::Resolved::Now
    );
    assert_eq!(
        shop.resolve("bob", "k", Cancelled).await,
        flashsale::stock::settle::resolve::Resolved::Now
    );
    trim(&shop.stock, shop.key, 3).await;
    shop
}

async fn begin(shop: &Shop, epochs: (i64, i64)) -> Result<(), Fault> {
    shop.stock
        .begin_restore(&shop.sale, 0, epochs, epochs.0, &[(0, epochs.1), (1, 1)])
        .await
        .map(|_| ())
}

async fn end(shop: &Shop, epoch: i64, units: &BTreeMap<Sku, Counters>, applied: &[Uuid]) -> Result<(), Fault> {
    shop.stock.end_restore(&shop.sale, 0, epoch, units, applied).await
}

fn refused(answer: &Result<(), Fault>) -> bool {
    matches!(answer, Err(Fault::Unavailable(text)) if text.contains("has changed"))
}

#[tokio::test]
async fn a_restored_shard_is_byte_for_byte_as_the_scripts_had_written_it() {
    let shop = drained().await;
    let key = shop.key.buyer(&user("ada"));
    let (row, item) = (shop.bytes(&key), shop.bytes(&shop.key.item(&sku("A"))));
    let (ada, units) = (shop.buyer("ada").await, shop.read().await.items);
    assert_eq!(
        ada.orders.iter().map(|(_, it)| it.state).collect::<Vec<_>>(),
        [Reserved, Paid]
    );
    begin(&shop, (1, 2)).await.unwrap();
    shop.remove(&key);
    shop.remove(&shop.key.item(&sku("A")));
    let buyers = [(user("ada"), ada)];
    shop.stock.restore_buyers(shop.key, 2, &buyers).await.unwrap();
    end(&shop, 2, &units, &[]).await.unwrap();
    assert_eq!((shop.bytes(&key), shop.bytes(&shop.key.item(&sku("A")))), (row, item));
    let record = shop.read().await.record;
    assert_eq!(
        (
            record.epoch,
            record.lifecycle,
            record.permit_until,
            record.state_version
        ),
        (2, Lifecycle::Active, 0, 1)
    );
    // It knows its orders at once, and sells once it has a permit.
    assert!(matches!(
        shop.buy("ada", "k", 2, NOW).await,
        ShardAnswer::Replayed { drained: true, .. }
    ));
    assert_eq!(shop.buy("cyd", "k", 1, NOW).await, ShardAnswer::Halted);
    let server = shop.stock.server(shop.key).await.unwrap();
    shop.stock
        .permit(&shop.sale, 0, &super::generous(2, &server), Some(NOW))
        .await
        .unwrap();
    let ShardAnswer::Reserved { record: order, .. } = shop.buy("cyd", "k", 1, NOW).await else {
        panic!("a restored shard sells");
    };
    assert_eq!(order.event, Some(Position { epoch: 2, seq: 1 }));
}

#[tokio::test]
async fn an_epoch_begins_only_after_the_surveyed_one_and_fully_drained() {
    let shop = drained().await;
    let before = shop.dump();
    for epochs in [(0, 2), (2, 3)] {
        assert!(refused(&begin(&shop, epochs).await), "{epochs:?}");
    }
    assert_eq!(shop.dump(), before);
    shop.reserve("cyd", "k", 1).await;
    let before = shop.dump();
    assert!(
        refused(&begin(&shop, (1, 2)).await),
        "an event that nobody has drained is kept"
    );
    assert_eq!(shop.dump(), before);
    trim(&shop.stock, shop.key, 4).await;
    begin(&shop, (1, 2)).await.unwrap();
    let begun = shop.dump();
    assert!(refused(&begin(&shop, (1, 2)).await), "twice is once");
    assert_eq!(shop.dump(), begun);
}

#[tokio::test]
async fn events_of_epochs_before_the_ledgers_are_left_out() {
    let shop = drained().await;
    shop.reserve("cyd", "k", 1).await;
    let begin = async |known| shop.stock.begin_restore(&shop.sale, 0, (1, 4), known, &[]).await;
    assert!(begin(1).await.is_err(), "they may still be drained");
    assert!(begin(2).await.unwrap());
    assert_eq!(shop.read().await.undrained, 0);
    // No reply says that this order is in the ledger either, because its event is gone.
    assert_eq!(shop.buy("cyd", "k", 1, NOW).await, ShardAnswer::Halted);
}

#[tokio::test]
async fn a_shard_that_is_not_there_begins_from_nothing() {
    let shop = Shop::loaded(|_| {}).await;
    let key = shop.key;
    for key in [key.shard(), key.events(), key.item(&sku("A")), key.item(&sku("B"))] {
        shop.remove(&key);
    }
    assert!(refused(&begin(&shop, (1, 2)).await));
    begin(&shop, (0, 2)).await.unwrap();
    let units = BTreeMap::from([(
        sku("A"),
        Counters {
            available: 10,
            granted: 10,
            ..Counters::default()
        },
    )]);
    end(&shop, 2, &units, &[]).await.unwrap();
    assert_eq!(shop.counters().await.available, 10);
    assert_eq!(shop.read().await.counters(&sku("B")), Counters::default());
}

#[tokio::test]
async fn nothing_is_restored_on_a_shard_that_sells_or_has_another_epoch() {
    let shop = drained().await;
    let (ada, units) = (shop.buyer("ada").await, shop.read().await.items);
    let buyers = [(user("ada"), ada)];
    let none = async |epoch: i64| {
        let before = shop.dump();
        assert!(
            refused(&shop.stock.restore_buyers(shop.key, epoch, &buyers).await),
            "{epoch}"
        );
        assert!(refused(&end(&shop, epoch, &units, &[]).await), "{epoch}");
        assert_eq!(shop.dump(), before);
    };
    none(1).await;
    begin(&shop, (1, 2)).await.unwrap();
    for epoch in [1, 3] {
        none(epoch).await;
    }
    shop.stock.restore_buyers(shop.key, 2, &buyers).await.unwrap();
    end(&shop, 2, &units, &[]).await.unwrap();
    none(2).await;
}

#[tokio::test]
async fn counted_transfers_do_not_come_in_and_finished_ones_stay_finished() {
    let shop = drained().await;
    let (finished, counted) = (on_its_way(Uuid::now_v7(), 1), on_its_way(Uuid::now_v7(), 1));
    shop.stock.transfer_in(shop.key, 1, &finished).await.unwrap();
    let units = shop.read().await.items;
    begin(&shop, (1, 2)).await.unwrap();
    end(&shop, 2, &units, &[counted.id]).await.unwrap();
    let before = shop.dump();
    for transfer in [finished, counted] {
        shop.stock.transfer_in(shop.key, 1, &transfer).await.unwrap();
    }
    assert_eq!(shop.dump(), before);
}

#[tokio::test]
async fn a_new_epoch_forgets_earlier_transfers_and_sets_its_fences_again() {
    let shop = drained().await;
    shop.stock.fence(shop.key, &[(1, 9)]).await.unwrap();
    let to = flashsale::stock::sell::transfer::Destination::Shard(1);
    shop.stock
        .transfer_out(shop.key, Uuid::now_v7(), &sku("A"), to, 1, NOW)
        .await
        .unwrap();
    begin(&shop, (1, 2)).await.unwrap();
    assert!(shop.read().await.transfers.is_empty());
    let fences: BTreeMap<u16, i64> = shop.raw.call(redis::cmd("HGETALL").arg(shop.key.fences()));
    assert_eq!(fences, BTreeMap::from([(0, 2), (1, 1)]));
}

#[tokio::test]
async fn shoppers_are_forgotten_only_while_their_shard_is_rebuilt_to_that_epoch() {
    let shop = drained().await;
    let forget = async |epoch| shop.stock.forget_buyers(&[(shop.key, Some(epoch))]).await;
    let before = shop.dump();
    // It is not being rebuilt; then it is, to another epoch than that of the call.
    assert!(refused(&forget(1).await));
    assert_eq!(shop.dump(), before);
    begin(&shop, (1, 3)).await.unwrap();
    let before = shop.dump();
    for epoch in [1, 2, 4] {
        assert!(refused(&forget(epoch).await), "{epoch}");
    }
    assert_eq!(shop.dump(), before);
    forget(3).await.unwrap();
    for who in ["ada", "bob"] {
        let there: i64 = shop.raw.call(redis::cmd("EXISTS").arg(shop.key.buyer(&user(who))));
        assert_eq!(there, 0, "{who}");
    }
    // Rows of another shard are left alone.
    assert_eq!(forget(3).await.ok(), Some(()));
    let keys = [shop.key.shard(), shop.key.buyer(&user("ada"))];
    assert_refused(&shop, &FORGET_BUYERS, &keys, &[&[], &["soon"]]);
    assert_refused(&shop, &FORGET_BUYERS, &keys[..1], &[&["3"]]);
}

#[tokio::test]
async fn arguments_out_of_bounds_are_refused() {
    let shop = drained().await;
    let key = shop.key;
    let record = "x".repeat(45);
    let begins: &[&[&str]] = &[
        &["", "2", &record, "1"],
        &["1", "", &record, "1"],
        &["1", "1", &record, "1"],
        &["2", "1", &record, "1"],
        &["1", "2", &record[1..], "1"],
        &["1", "2", &record, ""],
        &["1", "2", &record],
        &["1", "2", &record, "1", "1"],
    ];
    let keys = [key.shard(), key.events(), key.transfers(), key.fences()];
    assert_refused(&shop, &BEGIN_RESTORE, &keys, begins);
    let buyers = [key.shard(), key.buyer(&user("ada"))];
    assert_refused(
        &shop,
        &RESTORE_BUYERS,
        &buyers,
        &[&["", "row"], &["2"], &["2", "row", "row"]],
    );
    assert_refused(&shop, &RESTORE_BUYERS, &buyers[..1], &[&["2"]]);
    let item = "x".repeat(60);
    let ends: &[&[&str]] = &[
        &["", &record, &item],
        &["2", &record[1..], &item],
        &["2", &record, &item[1..]],
        &["2", &record],
    ];
    let keys = [key.shard(), key.applied(), key.item(&sku("A"))];
    assert_refused(&shop, &END_RESTORE, &keys, ends);
}
