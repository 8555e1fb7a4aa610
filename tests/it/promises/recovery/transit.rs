//! Units between two shards, withdrawals and restocks are neither doubled nor lost by a rebuild.

use super::*;

/// How far a transfer had come when one of its shards was rebuilt.
#[derive(Debug, Clone, Copy)]
enum Step {
    Sent,
    Arrived,
    Delivered,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_between_two_shards_are_neither_doubled_nor_lost_when_either_or_both_are_rebuilt() {
    let runs = [Step::Sent, Step::Arrived, Step::Delivered]
        .into_iter()
        .flat_map(|step| [&[0u16][..], &[1], &[0, 1], &[2], &[0, 1, 2]].map(|shards| (step, shards)));
    side_by_side(runs.map(|(step, shards)| Box::pin(is_between(step, shards)))).await;
}

async fn is_between(step: Step, shards: &[u16]) {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(12, 3)).await;
    bought(&world.app, &sale, &shopper_at(&sale, 0), "k", 1).await;
    let transfer = send(&world, &sale, (0, Destination::Shard(1)), Uuid::now_v7(), 2).await;
    let stock = &world.app.stock;
    if !matches!(step, Step::Sent) {
        stock.transfer_in(key(&sale, 1), 0, &transfer).await.unwrap();
    }
    if matches!(step, Step::Delivered) {
        stock.transfer_done(key(&sale, 0), transfer.id).await.unwrap();
    }
    rebuild(&world.app, &sale, shards).await;
    // The interrupted transfer goes on late, and repeats steps that were done already.
    stock.transfer_in(key(&sale, 1), 0, &transfer).await.unwrap();
    stock.transfer_done(key(&sale, 0), transfer.id).await.unwrap();
    stock.transfer_in(key(&sale, 1), 0, &transfer).await.unwrap();
    let item = world.settled(&sale).await;
    assert_eq!(item.stock.available, 11, "{step:?} {shards:?}: {item:?}");
    world.sells_out(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_between_two_shards_that_stand_still_do_not_keep_a_third_from_being_rebuilt() {
    for step in [Step::Sent, Step::Arrived] {
        let world = World::new().await;
        let sale = world.sale(&Terms::of(12, 3)).await;
        bought(&world.app, &sale, &shopper_at(&sale, 0), "k", 1).await;
        let transfer = send(&world, &sale, (0, Destination::Shard(1)), Uuid::now_v7(), 2).await;
        let stock = &world.app.stock;
        if matches!(step, Step::Arrived) {
            stock.transfer_in(key(&sale, 1), 0, &transfer).await.unwrap();
        }
        for shard in 0..3 {
            stock.halt(key(&sale, shard)).await.unwrap();
        }
        let _gone: i64 = Raw::connect(&world.redis).call(redis::cmd("DEL").arg(key(&sale, 2).shard()));
        rebuild(&world.app, &sale, &[2]).await;
        // The interrupted transfer goes on late.
        stock.transfer_in(key(&sale, 1), 0, &transfer).await.unwrap();
        stock.transfer_done(key(&sale, 0), transfer.id).await.unwrap();
        let item = world.settled(&sale).await;
        assert_eq!(item.stock.available, 11, "{step:?}: {item:?}");
        world.sells_out(&sale).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_withdrawal_is_whole_after_a_rebuild_at_any_of_its_steps() {
    let runs = [&[0u16][..], &[1], &[0, 1], &[2], &[0, 1, 2]]
        .into_iter()
        .flat_map(|shards| {
            ["later", "applied", "refused", "half back"].map(|decision| Box::pin(is_withdrawn(decision, shards)))
        });
    side_by_side(runs).await;
}

async fn is_withdrawn(decision: &str, shards: &[u16]) {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(12, 3)).await;
    let (id, taken) = withdrawing(&world, &sale, &[(0, 4), (1, 2)]).await;
    match decision {
        "applied" => assert!(
            take(&world, id)
                .await
                .withdraw(&taken, &servers(&world, &sale).await)
                .await
                .unwrap()
        ),
        "refused" | "half back" => take(&world, id)
            .await
            .give_back(&taken, &servers(&world, &sale).await)
            .await
            .unwrap(),
        _ => {}
    }
    if decision == "half back" {
        // The units have come in, and the process that sent them died before it marked them delivered.
        for it in &taken {
            let back = Transfer {
                id: it.transfer,
                to: Destination::Shard(it.shard),
                units: it.units,
                sent_at: 0,
                epoch: it.epoch,
                to_epoch: it.epoch,
                sku: sku(),
                server: None,
            };
            world
                .app
                .stock
                .transfer_in(key(&sale, it.shard), it.shard, &back)
                .await
                .unwrap();
        }
    }
    rebuild(&world.app, &sale, shards).await;
    let item = world.settled(&sale).await;
    let total = if ["later", "applied"].contains(&decision) {
        6
    } else {
        12
    };
    assert_eq!(
        (item.total, item.stock.available),
        (total, total),
        "{decision} {shards:?}: {item:?}"
    );
    world.sells_out(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_taken_out_of_an_earlier_epoch_are_neither_withdrawn_nor_given_back() {
    for gives_back in [false, true] {
        let world = World::new().await;
        let sale = world.sale(&Terms::of(12, 3)).await;
        let (id, taken) = withdrawing(&world, &sale, &[(0, 4), (1, 2)]).await;
        rebuild(&world.app, &sale, &[0]).await;
        // The process that took them was suspended, and decides now.
        if gives_back {
            take(&world, id)
                .await
                .give_back(&taken, &servers(&world, &sale).await)
                .await
                .unwrap();
        } else {
            let refused = take(&world, id)
                .await
                .withdraw(&taken, &servers(&world, &sale).await)
                .await;
            assert!(matches!(refused, Err(Fault::Unavailable(_))), "{refused:?}");
        }
        let item = world.settled(&sale).await;
        let total = if gives_back { 12 } else { 6 };
        assert_eq!((item.total, item.stock.available), (total, total), "{item:?}");
        world.sells_out(&sale).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_that_were_taken_out_on_another_server_are_neither_withdrawn_nor_given_back() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(12, 3)).await;
    let (id, taken) = withdrawing(&world, &sale, &[(0, 4), (1, 2)]).await;
    let noted = servers(&world, &sale).await;
    for gives_back in [false, true] {
        let another = [noted[0].clone(), "another".into(), noted[2].clone()];
        let pending = patient_take(&world, id).await;
        let refused = if gives_back {
            pending.give_back(&taken, &another).await
        } else {
            pending.withdraw(&taken, &another).await.map(|_| ())
        };
        assert!(matches!(refused, Err(Fault::Unavailable(_))), "{refused:?}");
    }
    let pending = patient_take(&world, id).await;
    assert!(pending.withdraw(&taken, &noted).await.unwrap());
    assert_eq!(world.settled(&sale).await.total, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_called_sold_out_for_units_that_an_undecided_withdrawal_may_give_back() {
    for gives_back in [true, false] {
        let world = World::new().await;
        let sale = world.sale(&Terms::of(6, 3)).await;
        let (id, taken) = withdrawing(&world, &sale, &[(0, 2), (1, 2), (2, 2)]).await;
        let unknown = try_buy(&world.app, &sale, "a", "k", 1).await;
        assert!(matches!(unknown, Err(Fault::Unavailable(_))), "{unknown:?}");
        let too_many = try_buy(&world.app, &sale, "a", "too many", 7).await;
        assert_eq!(too_many.unwrap(), PurchaseOutcome::Refused(Refusal::SoldOut));
        if gives_back {
            take(&world, id)
                .await
                .give_back(&taken, &servers(&world, &sale).await)
                .await
                .unwrap();
            world.settled(&sale).await;
            bought(&world.app, &sale, "a", "k", 6).await;
        } else {
            assert!(
                take(&world, id)
                    .await
                    .withdraw(&taken, &servers(&world, &sale).await)
                    .await
                    .unwrap()
            );
            world.settled(&sale).await;
        }
        assert_eq!(
            buy(&world.app, &sale, "b", "k", 1).await,
            PurchaseOutcome::Refused(Refusal::SoldOut)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restock_counts_once_whether_or_not_its_shard_had_got_it() {
    let runs = [&[0u16][..], &[1, 2], &[0, 1, 2]].into_iter().flat_map(|shards| {
        [&[][..], &[0u16], &[1], &[0, 1, 2]].map(|delivered| Box::pin(is_restocked(delivered, shards)))
    });
    side_by_side(runs).await;
}

async fn is_restocked(delivered: &[u16], shards: &[u16]) {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(3, 3)).await;
    let request = "more".parse().unwrap();
    let (id, _) = world
        .app
        .ledger
        .begin_restock(sale.id, &request, &sku(), 6)
        .await
        .unwrap();
    assert!(take(&world, id).await.add(&sale).await.unwrap());
    for shard in delivered {
        world
            .app
            .stock
            .restock(key(&sale, *shard), id, &sku(), 2, 1)
            .await
            .unwrap();
    }
    if delivered.len() == 3 {
        // By then more is sold than the sale had before.
        bought(&world.app, &sale, &shopper_at(&sale, 1), "k", 8).await;
        drain_all(&world.app).await.unwrap();
    }
    rebuild(&world.app, &sale, shards).await;
    let item = world.settled(&sale).await;
    let held = if delivered.len() == 3 { 8 } else { 0 };
    assert_eq!(
        (item.total, item.stock.available),
        (9, 9 - held),
        "{shards:?} {delivered:?}: {item:?}"
    );
    world.sells_out(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_lent_on_what_it_had_borrowed_can_be_rebuilt() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 2)).await;
    flow::sell::borrow::transfer(&world.app, &sale, &sku(), (1, 0), 5)
        .await
        .unwrap();
    // Both its grant and its borrowed units leave the sale.
    let request = "fewer".parse().unwrap();
    flow::operate::restock::restock(&world.app, sale.id, &request, &sku(), -8)
        .await
        .unwrap();
    world.settled(&sale).await;
    rebuild(&world.app, &sale, &[0]).await;
    assert_eq!(world.settled(&sale).await.stock.available, 2);
    rebuild(&world.app, &sale, &[1]).await;
    assert_eq!(world.settled(&sale).await.stock.available, 2);
    world.sells_out(&sale).await;
}
