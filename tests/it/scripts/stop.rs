use super::permit::{record, stopped};
use super::{NOW, Shop, assert_refused, generous};
use crate::support::poll::{PATIENCE, within};
use flashsale::stock::recover::permit::Permitted;
use flashsale::stock::script::STOP;
use flashsale::stock::sell::purchase::ShardAnswer::{Halted, Reserved};

#[tokio::test]
async fn a_permit_is_revoked_at_once_at_any_epoch_and_any_number_of_times() {
    for epoch in [1, 5] {
        let shop = Shop::unloaded(&crate::support::servers::redis(), |_| {}).await;
        shop.stock.preload(&shop.sale, 0, epoch).await.unwrap();
        shop.follow().await;
        shop.permit().await;
        shop.reserve("ada", "k", 1).await;
        shop.damage(&shop.key.shard(), 1, &[1]);
        let mut expected = record(&shop).await;
        shop.stock.stop(shop.key).await.unwrap();
        expected.permit_until = 0;
        assert_eq!(record(&shop).await, expected);
        assert_eq!(shop.buy("bob", "k", 1, NOW).await, Halted);
        let before = shop.dump();
        shop.stock.stop(shop.key).await.unwrap();
        assert_eq!(shop.dump(), before);
        shop.stock.halt(shop.key).await.unwrap();
        shop.remove(&shop.key.halt());
        assert_eq!(shop.dump(), before);
    }
}

#[tokio::test]
async fn a_missing_shard_is_halted_and_not_created() {
    let shop = stopped().await;
    shop.remove(&shop.key.events());
    shop.stock.stop(shop.key).await.unwrap();
    shop.remove(&shop.key.shard());
    let before = shop.dump();
    shop.stock.stop(shop.key).await.unwrap();
    shop.stock.halt(shop.key).await.unwrap();
    shop.remove(&shop.key.halt());
    assert_eq!(shop.stock.epoch(shop.key).await.unwrap(), 0);
    assert_eq!(shop.dump(), before);
}

#[tokio::test]
async fn a_permit_for_a_halted_shard_waits_until_the_halt_is_over() {
    let shop = stopped().await;
    shop.permit().await;
    let server = shop.stock.server(shop.key).await.unwrap();
    let permit = async || {
        let permit = generous(1, &server);
        shop.stock.permit(&shop.sale, 0, &permit, Some(NOW)).await.unwrap()
    };
    shop.stock.halt(shop.key).await.unwrap();
    let before = shop.dump();
    assert_eq!(permit().await, Permitted::Halted);
    assert_eq!(shop.dump(), before);
    assert_eq!(shop.buy("ada", "k", 1, NOW).await, Halted);
    let left: i64 = shop.raw.call(redis::cmd("PTTL").arg(shop.key.halt()));
    assert!((1..=5000).contains(&left), "{left}");
    within(PATIENCE, "the halt ends by itself", async || {
        matches!(permit().await, Permitted::Yes { .. })
    })
    .await;
    assert!(matches!(shop.buy("ada", "k", 1, NOW).await, Reserved { .. }));
}

#[tokio::test]
async fn a_halt_ends_with_the_epoch_that_it_halts() {
    let shop = stopped().await;
    shop.stock.halt(shop.key).await.unwrap();
    shop.stock.begin_restore(&shop.sale, 0, (1, 2), 1, &[]).await.unwrap();
    let there: i64 = shop.raw.call(redis::cmd("EXISTS").arg(shop.key.halt()));
    assert_eq!(there, 0);
    assert_eq!(record(&shop).await.epoch, 2);
}

#[tokio::test]
async fn arguments_out_of_bounds_are_refused() {
    let shop = stopped().await;
    let keys = [shop.key.shard(), shop.key.halt()];
    assert_refused(
        &shop,
        &STOP,
        &keys,
        &[&[], &["soon"], &["-1"], &["60001"], &["1.5"], &["nan"]],
    );
}
