use super::{NOW, Shop, assert_refused, each_foreign_key_is_refused, on_its_way, sku};
use crate::support::raw::arg;
use flashsale::domain::fault::Fault;
use flashsale::stock::script::{FENCE, TRANSFER_IN};
use flashsale::stock::sell::transfer::Transfer;
use uuid::Uuid;

/// The lowest epoch that a shard accepts, by lender.
fn fences(shop: &Shop) -> Vec<(String, i64)> {
    let mut fences: Vec<(String, i64)> = shop.raw.call(redis::cmd("HGETALL").arg(shop.key.fences()));
    fences.sort();
    fences
}

/// Units that a lender sent in one of its epochs come in, or the script says why not.
fn come_in(shop: &Shop, lender: u16, epoch: i64) -> String {
    let key = shop.key;
    let keys = [key.item(&sku("A")), key.shard(), key.fences(), key.applied()];
    let args = [
        arg(Uuid::now_v7().to_string()),
        arg(1),
        arg(lender),
        arg(epoch),
        arg(1),
        arg(""),
        arg(NOW),
    ];
    shop.raw.script(&TRANSFER_IN, &keys, &args)
}

#[tokio::test]
async fn a_fence_keeps_out_what_was_sent_before_its_epoch_by_that_lender() {
    let shop = Shop::open(|sale| sale.shards = 3).await;
    shop.stock.fence(shop.key, &[(1, 4)]).await.unwrap();
    let before = shop.dump();
    for epoch in [-1, 0, 1, 3] {
        assert_eq!(come_in(&shop, 1, epoch), "FENCED", "{epoch}");
    }
    assert_eq!(shop.dump(), before, "no trace of fenced units is kept");
    assert_eq!(shop.counters().await.available, 4);
    for (lender, epoch) in [(1, 4), (1, 5), (2, 1), (11, 1)] {
        assert_eq!(come_in(&shop, lender, epoch), "IN", "{lender} {epoch}");
    }
    assert_eq!(shop.counters().await.available, 8);
}

#[tokio::test]
async fn units_that_came_in_before_the_fence_stay_and_fenced_ones_are_no_fault() {
    let shop = Shop::open(|sale| sale.shards = 2).await;
    let (there, late) = (on_its_way(Uuid::now_v7(), 2), on_its_way(Uuid::now_v7(), 3));
    shop.stock.transfer_in(shop.key, 1, &there).await.unwrap();
    shop.stock.fence(shop.key, &[(1, 2)]).await.unwrap();
    let before = shop.dump();
    shop.stock.transfer_in(shop.key, 1, &there).await.unwrap();
    shop.stock.transfer_in(shop.key, 1, &late).await.unwrap();
    assert_eq!(shop.dump(), before);
    assert_eq!(shop.counters().await.available, 7);
    let later = Transfer { epoch: 2, ..late };
    shop.stock.transfer_in(shop.key, 1, &later).await.unwrap();
    assert_eq!(shop.counters().await.available, 10);
}

#[tokio::test]
async fn a_shard_without_a_permit_also_answers_that_it_is_fenced() {
    let shop = Shop::open(|sale| sale.shards = 2).await;
    shop.stock.stop(shop.key).await.unwrap();
    shop.stock.fence(shop.key, &[(1, 2)]).await.unwrap();
    assert_eq!(
        (come_in(&shop, 1, 1), come_in(&shop, 1, 2)),
        ("FENCED".into(), "HALTED".into())
    );
}

#[tokio::test]
async fn a_fence_only_ever_rises() {
    let shop = Shop::open(|_| {}).await;
    let at = |epochs: &[(u16, i64)]| -> Vec<(String, i64)> {
        epochs
            .iter()
            .map(|(lender, epoch)| (lender.to_string(), *epoch))
            .collect()
    };
    shop.stock.fence(shop.key, &[(1, 3), (2, 7)]).await.unwrap();
    assert_eq!(fences(&shop), at(&[(1, 3), (2, 7)]));
    let before = shop.dump();
    shop.stock.fence(shop.key, &[(1, 3), (2, 7)]).await.unwrap();
    shop.stock.fence(shop.key, &[(1, 2), (2, 6)]).await.unwrap();
    assert_eq!(shop.dump(), before);
    // As numbers, not as words.
    shop.stock.fence(shop.key, &[(1, 10), (3, 1), (2, 8)]).await.unwrap();
    shop.stock.fence(shop.key, &[(1, 9)]).await.unwrap();
    assert_eq!(fences(&shop), at(&[(1, 10), (2, 8), (3, 1)]));
    assert_eq!(shop.raw.call::<i64>(redis::cmd("PTTL").arg(shop.key.fences())), -1);
}

#[tokio::test]
async fn arguments_out_of_bounds_are_refused() {
    let shop = Shop::open(|_| {}).await;
    let keys = [shop.key.fences()];
    let many: Vec<String> = (0..514).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_refused(
        &shop,
        &FENCE,
        &keys,
        &[
            &[],
            &["1"],
            &["1", "2", "3"],
            &["one", "2"],
            &["1", "two"],
            &["1", "2", "3", "four"],
            &many,
        ],
    );
    let args: Vec<Vec<u8>> = many[..512].iter().map(arg).collect();
    assert_eq!(shop.raw.script(&FENCE, &keys, &args), "FENCED");
    assert_eq!(fences(&shop).len(), 256);
}

#[tokio::test]
async fn a_foreign_type_in_its_key_is_a_defect_and_changes_nothing() {
    each_foreign_key_is_refused!(
        Shop::open(|_| {}).await,
        |shop| [shop.key.fences()],
        shop.stock.fence(shop.key, &[(1, 2)]).await
    );
}
