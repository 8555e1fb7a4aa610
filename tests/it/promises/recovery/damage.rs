//! One shard or one key is lost or changed while the rest is whole.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_shard_that_forgets_while_the_others_do_not_is_made_good_to_the_unit() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(24, 4)).await;
    let (one, other) = (shopper_at(&sale, 1), shopper_at(&sale, 2));
    bought(&world.app, &sale, &one, "early", 1).await;
    world.settled(&sale).await;
    for case in 0..5 {
        let before = dump(&world, key(&sale, 1));
        match case {
            // It sold; it lent; it borrowed; it got units back; all of it.
            0 => drop(bought(&world.app, &sale, &one, "c0", 2).await),
            1 => flow::sell::borrow::transfer(&world.app, &sale, &sku(), (1, 2), 2)
                .await
                .unwrap(),
            2 => flow::sell::borrow::transfer(&world.app, &sale, &sku(), (2, 1), 1)
                .await
                .unwrap(),
            3 => {
                let found = buy(&world.app, &sale, &one, "c0", 2).await;
                let PurchaseOutcome::Replayed(order) = found else {
                    panic!("{found:?}")
                };
                cancel(&world.app, order.id, &one).await;
            }
            _ => {
                bought(&world.app, &sale, &one, "c4", 8).await;
                bought(&world.app, &sale, &other, "c4", 6).await;
            }
        }
        world.settled(&sale).await;
        restore(&world, key(&sale, 1), &before);
        reconcile_unverified(&world, &sale, 1).await;
        let item = world.settled(&sale).await;
        let available = if case == 0 {
            21
        } else if case == 4 {
            9
        } else {
            [21, 21, 21, 23][case]
        };
        assert_eq!(item.stock.available, available, "case {case}: {item:?}");
    }
    let found = buy(&world.app, &sale, &one, "c4", 8).await;
    assert!(matches!(found, PurchaseOutcome::Replayed(_)), "{found:?}");
    world.sells_out(&sale).await;
    assert_eq!(lost_orders(&world, &sale).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_vanishes_or_becomes_something_else_is_made_good() {
    let names: [(&str, bool); 7] = [
        ("shard", true),
        ("item", true),
        ("events", true),
        ("buyer", false),
        ("transfers", false),
        ("applied", false),
        ("fences", false),
    ];
    for becomes_another in [false, true] {
        side_by_side(names.map(|(name, heals)| Box::pin(vanishes(name, heals, becomes_another)))).await;
    }
}

async fn vanishes(name: &str, heals: bool, becomes_another: bool) {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(16, 4)).await;
    let orders = of_every_kind(&world, &sale).await;
    let user = shopper_at(&sale, 2);
    let order = bought(&world.app, &sale, &user, "k", 1).await;
    drain_all(&world.app).await.unwrap();
    flow::sell::borrow::transfer(&world.app, &sale, &sku(), (0, 2), 1)
        .await
        .unwrap();
    send(&world, &sale, (2, Destination::Shard(1)), Uuid::now_v7(), 1).await;
    let shard = key(&sale, 2);
    let lost = match name {
        "shard" => shard.shard(),
        "item" => shard.item(&sku()),
        "events" => shard.events(),
        "buyer" => shard.buyer(&user.parse().unwrap()),
        "transfers" => shard.transfers(),
        "applied" => shard.applied(),
        _ => shard.fences(),
    };
    let before = rebuilds(&world, &sale).await;
    let raw = Raw::connect(&world.redis);
    let _gone: i64 = raw.call(redis::cmd("DEL").arg(&lost));
    if becomes_another {
        let _there: i64 = raw.call(redis::cmd("RPUSH").arg(&lost).arg("of another hand"));
    }
    if heals {
        within(PATIENCE, "the loss is noticed", async || {
            rebuilds(&world, &sale).await > before
        })
        .await;
    } else {
        let rebuilt = flow::recover::attend::rebuild_sale(&world.app, sale.id)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            (rebuilt.shards, rebuilt.orders, rebuilt.lost_orders),
            (4, 6, 0),
            "{name}"
        );
    }
    sells_again(&world.app, &sale).await;
    all_are_there(&world, &sale, &orders).await;
    let found = buy(&world.app, &sale, &user, "k", 1).await;
    assert!(
        matches!(&found, PurchaseOutcome::Replayed(it) if it.id == order.id),
        "{name}: {found:?}"
    );
    assert_eq!(world.settled(&sale).await.stock.available, 9, "{name}");
    world.sells_out(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shopper_whose_order_vanished_with_its_event_may_buy_again() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(8, 2)).await;
    let user = shopper_at(&sale, 1);
    let order = bought(&world.app, &sale, &user, "k", 3).await;
    let _gone: i64 = Raw::connect(&world.redis).call(redis::cmd("DEL").arg(key(&sale, 1).events()));
    within(PATIENCE, "the loss is noticed", async || {
        rebuilds(&world, &sale).await > 0
    })
    .await;
    sells_again(&world.app, &sale).await;
    // Not replayed: a payment for that order could never be applied.
    let again = buy(&world.app, &sale, &user, "k", 3).await;
    assert!(
        matches!(&again, PurchaseOutcome::Reserved(it) if it.id == order.id),
        "{again:?}"
    );
    assert_eq!(world.settled(&sale).await.stock.held, 3);
    world.sells_out(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_a_shard_did_not_know_is_settled_by_its_rebuilding() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(8, 2)).await;
    let user = shopper_at(&sale, 1);
    let order = bought(&world.app, &sale, &user, "k", 2).await;
    drain_all(&world.app).await.unwrap();
    let _gone: i64 =
        Raw::connect(&world.redis).call(redis::cmd("DEL").arg(key(&sale, 1).buyer(&user.parse().unwrap())));
    cancel(&world.app, order.id, &user).await;
    // The job `release` has tried it too often: an operator must act.
    let failed = "update outbox set failure = 'the shard does not know it', attempts = 6 \
                  where sale_id = $1 and message ->> 'kind' = 'resolve'";
    assert_eq!(world.execute(failed, sale.id).await.unwrap(), 1);
    flow::recover::attend::rebuild_sale(&world.app, sale.id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(world.settled(&sale).await.stock.available, 8);
    let stats = flow::watch::stats::stats(&world.app, sale.id).await.unwrap().unwrap();
    assert_eq!(stats.alerts.failed_releases, 0);
    world.sells_out(&sale).await;
}

/// Redis has lost a release while another decision is being delivered. Both are of one unit, so the sums agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_release_is_not_mistaken_for_one_that_was_just_delivered() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(8, 2)).await;
    let user = shopper_at(&sale, 1);
    let first = bought(&world.app, &sale, &user, "first", 1).await;
    let second = bought(&world.app, &sale, &user, "second", 1).await;
    world.settled(&sale).await;
    let before = dump(&world, key(&sale, 1));
    cancel(&world.app, first.id, &user).await;
    world.settled(&sale).await;
    restore(&world, key(&sale, 1), &before);
    // Decided and delivered, and the job `release` has not marked it yet.
    let user = user.parse().unwrap();
    let Cancellation::Now(decided) = world.app.ledger.cancel(second.id, &user).await.unwrap() else {
        panic!("it was reserved");
    };
    let mut release = world.pool.begin().await.unwrap();
    let held = sqlx::query("select 1 from outbox where sale_id = $1 for update").bind(sale.id.0);
    assert_eq!(held.fetch_all(&mut *release).await.unwrap().len(), 1);
    let stock = &world.app.stock;
    let resolved = stock
        .resolve(
            key(&sale, 1),
            &user,
            second.id,
            &sku(),
            OrderState::Cancelled,
            decided.at,
        )
        .await;
    assert_eq!(resolved.unwrap(), Resolved::Now);
    tokio::join!(
        mark_delivered_once_reconciled(&world, &sale, 1, release),
        reconcile_before_permit(&world, &sale, 1)
    );
    sells_again(&world.app, &sale).await;
    assert_eq!(world.settled(&sale).await.stock.available, 8);
    world.sells_out(&sale).await;
}

/// Redis has lost a unit that a restock granted while the unit of another restock is being delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_that_was_lost_is_not_taken_for_one_that_was_just_granted() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(8, 2)).await;
    let before = dump(&world, key(&sale, 0));
    flow::operate::restock::restock(&world.app, sale.id, &"first".parse().unwrap(), &sku(), 1)
        .await
        .unwrap();
    world.settled(&sale).await;
    restore(&world, key(&sale, 0), &before);
    // Granted and delivered, and the job `release` has not marked it yet.
    let ledger = &world.app.ledger;
    let (id, _) = ledger
        .begin_restock(sale.id, &"second".parse().unwrap(), &sku(), 1)
        .await
        .unwrap();
    let TakenRestock::Pending(pending) = ledger.take_restock(id).await.unwrap() else {
        panic!("somebody else has it");
    };
    assert!(pending.add(&sale).await.unwrap());
    let mut release = world.pool.begin().await.unwrap();
    let held = sqlx::query("select 1 from outbox where sale_id = $1 for update").bind(sale.id.0);
    assert_eq!(held.fetch_all(&mut *release).await.unwrap().len(), 1);
    let stock = &world.app.stock;
    let epoch = stock.epoch(key(&sale, 0)).await.unwrap();
    stock.restock(key(&sale, 0), id, &sku(), 1, epoch).await.unwrap();
    tokio::join!(
        mark_delivered_once_reconciled(&world, &sale, 0, release),
        reconcile_before_permit(&world, &sale, 0)
    );
    sells_again(&world.app, &sale).await;
    assert_eq!(world.settled(&sale).await.stock.available, 10);
    world.sells_out(&sale).await;
}

/// One shard has lost units that came in, while as many are in transit between two others, not yet marked delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_that_were_lost_are_not_taken_for_those_between_two_others() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(12, 3)).await;
    let before = dump(&world, key(&sale, 1));
    let lost = send(&world, &sale, (0, Destination::Shard(1)), Uuid::now_v7(), 2).await;
    assert!(flow::sell::borrow::finish(&world.app, &sale, 0, &lost).await.unwrap());
    restore(&world, key(&sale, 1), &before);
    let arrived = send(&world, &sale, (0, Destination::Shard(2)), Uuid::now_v7(), 2).await;
    let stock = &world.app.stock;
    stock.transfer_in(key(&sale, 2), 0, &arrived).await.unwrap();
    reconcile_before_permit(&world, &sale, 1).await;
    stock.transfer_done(key(&sale, 0), arrived.id).await.unwrap();
    sells_again(&world.app, &sale).await;
    assert_eq!(world.settled(&sale).await.stock.available, 12);
    world.sells_out(&sale).await;
}

/// One shard remembers fewer units sent to another than arrived there, while as many are between two others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_that_are_there_twice_are_not_taken_for_those_between_two_others() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(12, 3)).await;
    let before = dump(&world, key(&sale, 1));
    let forgotten = send(&world, &sale, (1, Destination::Shard(0)), Uuid::now_v7(), 2).await;
    assert!(
        flow::sell::borrow::finish(&world.app, &sale, 1, &forgotten)
            .await
            .unwrap()
    );
    restore(&world, key(&sale, 1), &before);
    let sent = send(&world, &sale, (0, Destination::Shard(2)), Uuid::now_v7(), 2).await;
    reconcile_before_permit(&world, &sale, 1).await;
    flow::sell::borrow::finish(&world.app, &sale, 0, &sent).await.unwrap();
    sells_again(&world.app, &sale).await;
    assert_eq!(world.settled(&sale).await.stock.available, 12);
    world.sells_out(&sale).await;
}

/// Units were taken out for a withdrawal that was refused. They are about to be sent back to a shard that has forgotten
/// the transfer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_that_never_left_by_what_redis_knows_do_not_come_back() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(8, 2)).await;
    let before = dump(&world, key(&sale, 1));
    let ledger = &world.app.ledger;
    let begun = ledger.begin_restock(sale.id, &"k".parse().unwrap(), &sku(), -100).await;
    let (id, _) = begun.unwrap();
    let sent = send(&world, &sale, (1, Destination::Ledger), withdrawal(id, 1, 0), 3).await;
    let TakenRestock::Pending(pending) = ledger.take_restock(id).await.unwrap() else {
        panic!("somebody else has it");
    };
    let taken = Taken {
        shard: 1,
        transfer: sent.id,
        units: 3,
        epoch: sent.epoch,
    };
    let server = world.app.stock.server(key(&sale, 1)).await.unwrap();
    pending.give_back(&[taken], &[server.clone(), server]).await.unwrap();
    restore(&world, key(&sale, 1), &before);
    reconcile_before_permit(&world, &sale, 1).await;
    sells_again(&world.app, &sale).await;
    assert_eq!(world.settled(&sale).await.stock.available, 8);
    world.sells_out(&sale).await;
}

/// An attempt of a withdrawal went on after another had begun: both took units, more than requested.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_withdrawal_that_took_too_much_gives_back_the_rest() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(40, 2)).await;
    let withdrawing = "k".parse().unwrap();
    let begun = world.app.ledger.begin_restock(sale.id, &withdrawing, &sku(), -10).await;
    let (id, _) = begun.unwrap();
    for (shard, units) in [(0, 4), (1, 10)] {
        send(
            &world,
            &sale,
            (shard, Destination::Ledger),
            withdrawal(id, shard, 0),
            units,
        )
        .await;
    }
    let outcome = flow::operate::restock::restock(&world.app, sale.id, &withdrawing, &sku(), -10).await;
    assert!(matches!(
        outcome.unwrap(),
        flow::operate::restock::RestockOutcome::Applied(_)
    ));
    let came_back = flow::operate::restock::give_back_orphans(&world.app, &sale, 0).await;
    assert_eq!(came_back.unwrap(), 1);
    assert_eq!(world.settled(&sale).await.stock.available, 30);
    world.sells_out(&sale).await;
}

/// One shard has forgotten units that it lent to another, which has sold them and forgotten the sale. The lender is
/// reconciled first: it must not sell the units as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_does_not_sell_what_another_has_sold_and_forgotten() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(8, 2)).await;
    let (lender, borrower) = (dump(&world, key(&sale, 0)), dump(&world, key(&sale, 1)));
    let lent = send(&world, &sale, (0, Destination::Shard(1)), Uuid::now_v7(), 4).await;
    assert!(flow::sell::borrow::finish(&world.app, &sale, 0, &lent).await.unwrap());
    for n in 0..8 {
        bought(&world.app, &sale, &shopper_at(&sale, 1), &format!("k{n}"), 1).await;
    }
    world.settled(&sale).await;
    restore(&world, key(&sale, 0), &lender);
    restore(&world, key(&sale, 1), &borrower);
    for shard in 0..2 {
        world.app.stock.stop(key(&sale, shard)).await.unwrap();
    }
    world.app.permits.mark_unverified(key(&sale, 0));
    let reconciled = flow::recover::attend::reconcile_all(&world.app).await;
    let reading = world.app.stock.read_shard(&sale, 0, 0).await.unwrap();
    let available = reading.counters(&sku()).available;
    assert!(
        reading.record.permit_until <= reading.now || available == 0,
        "{available} units of {reconciled:?}"
    );
    reconcile_before_permit(&world, &sale, 1).await;
    sells_again(&world.app, &sale).await;
    let item = world.settled(&sale).await;
    assert_eq!((item.stock.available, item.stock.held), (0, 8));
}
