//! Shards are reconciled before they get a permit, and unverified ones halt.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restocks_withdrawals_and_borrowings_that_redis_forgot_keep_every_unit() {
    let mut lab = Forgetful::with(&Terms::of(10, 4)).await;
    bought(&lab.world.app, &lab.sale, "first", "k", 1).await;
    lab.world.settled(&lab.sale).await;
    for (round, (quantity, left)) in [(5, 14), (-6, 8), (9, 17)].into_iter().enumerate() {
        lab.forgets(async |world, sale| {
            let request = format!("r{round}").parse().unwrap();
            flow::operate::restock::restock(&world.app, sale.id, &request, &sku(), quantity)
                .await
                .unwrap();
            world.settled(sale).await;
        })
        .await;
        assert_eq!(lab.world.settled(&lab.sale).await.stock.available, left, "{quantity}");
    }
    lab.forgets(async |world, sale| {
        for (from, to) in [(0, 1), (1, 2), (3, 2)] {
            flow::sell::borrow::transfer(&world.app, sale, &sku(), (from, to), 1)
                .await
                .unwrap();
        }
        // One has not arrived.
        send(world, sale, (2, Destination::Shard(0)), Uuid::now_v7(), 2).await;
        bought(&world.app, sale, "last", "k", 7).await;
        drain_all(&world.app).await.unwrap();
    })
    .await;
    lab.is_right(10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_redis_forgot_is_delivered_again_before_the_shards_sell() {
    for (transition, state) in [
        (Transition::Pause, SaleState::Paused),
        (Transition::Close, SaleState::Closed),
    ] {
        let mut lab = Forgetful::with(&Terms::of(50, 4)).await;
        bought(&lab.world.app, &lab.sale, "before", "k", 1).await;
        lab.world.settled(&lab.sale).await;
        let copy = lab.redis.copy();
        let changed = flow::operate::transition::transition(&lab.world.app, lab.sale.id, transition).await;
        assert!(matches!(changed, Ok(TransitionOutcome::Done(_))), "{changed:?}");
        lab.world.settled(&lab.sale).await;
        let apps = [Arc::clone(&lab.world.app), lab.world.another().await];
        lab.redis.kill();
        lab.redis.go_back_to(&copy);
        // From before the server is back until every shard may sell.
        let stop = Arc::new(AtomicBool::new(false));
        let shoppers = (0..8usize).map(|n| {
            let (app, sale, stop) = (Arc::clone(&apps[n % 2]), Arc::clone(&lab.sale), Arc::clone(&stop));
            tokio::spawn(async move {
                let (mut asked, patience) = (0, Patience::of(PATIENCE * 4));
                while !stop.load(Ordering::Relaxed) {
                    match try_buy(&app, &sale, &format!("u{n}-{asked}"), "k", 1).await {
                        Ok(outcome) => assert_eq!(outcome, PurchaseOutcome::Refused(Refusal::NotOpen { state })),
                        Err(fault) => assert!(fault.is_passing(), "{fault}"),
                    }
                    asked += 1;
                    patience.pause("the shards have permits").await;
                }
            })
        });
        let shoppers: Vec<_> = shoppers.collect();
        lab.redis.restart();
        sells_again(&lab.world.app, &lab.sale).await;
        let outcome = buy(&lab.world.app, &lab.sale, "after", "k", 1).await;
        assert_eq!(outcome, PurchaseOutcome::Refused(Refusal::NotOpen { state }));
        stop.store(true, Ordering::Relaxed);
        for shopper in join_all(shoppers).await {
            shopper.unwrap();
        }
        let item = lab.world.settled(&lab.sale).await;
        assert_eq!((item.stock.available, item.stock.held), (49, 1), "{item:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_of_an_earlier_day_and_a_rebuilding_end_balanced_with_the_orders_that_the_rows_know() {
    let redis = fresh_redis();
    let mut postgres = FreshPostgres::start().await;
    let world = World::with(redis.server.url(), postgres.url()).await;
    let sale = world.sale(&Terms::of(40, 4)).await;
    let orders = of_every_kind(&world, &sale).await;
    drop(world);
    postgres.stop();
    let copy = postgres.copy();
    postgres.restart();

    // The backup does not have the following changes.
    let world = World::with(redis.server.url(), postgres.url()).await;
    let later: Vec<String> = (0..12).map(|n| format!("later-{n}")).collect();
    for user in &later {
        bought(&world.app, &sale, user, "k", 1).await;
    }
    world.settled(&sale).await;
    let paid = payment("later", orders[0].1.id, 2);
    flow::settle::pay::pay(&world.app, &paid).await.unwrap();
    cancel(&world.app, orders[4].1.id, "borrows").await;
    let request = "later".parse().unwrap();
    flow::operate::restock::restock(&world.app, sale.id, &request, &sku(), 7)
        .await
        .unwrap();
    flow::operate::transition::transition(&world.app, sale.id, Transition::Pause)
        .await
        .unwrap();
    world.settled(&sale).await;
    drop(world);
    postgres.stop();
    postgres.go_back_to(&copy);
    postgres.restart();

    let world = World::with(redis.server.url(), postgres.url()).await;
    flow::recover::attend::rebuild_sale(&world.app, sale.id)
        .await
        .unwrap()
        .unwrap();
    // The decisions came back with the rows. The payment comes back when the provider repeats it.
    let again = flow::settle::pay::pay(&world.app, &paid).await.unwrap();
    assert_eq!(again, PaymentOutcome::Applied);
    let item = world.settled(&sale).await;
    assert_eq!(
        (item.total, item.stock.available, item.stock.held, item.stock.sold),
        (40, 24, 12, 4),
        "{item:?}"
    );
    all_are_there(&world, &sale, &orders[1..4]).await;
    for (user, expected) in [("holds", OrderState::Paid), ("borrows", OrderState::Cancelled)] {
        let found = buy(&world.app, &sale, user, "k", 2).await;
        assert!(
            matches!(&found, PurchaseOutcome::Replayed(it) if it.state == expected),
            "{user}: {found:?}"
        );
    }
    for user in &later {
        let found = buy(&world.app, &sale, user, "k", 1).await;
        assert!(
            matches!(&found, PurchaseOutcome::Replayed(it) if it.confirmed),
            "{user}: {found:?}"
        );
    }
    world.settled(&sale).await;
    world.sells_out(&sale).await;
    let revoked = "select count(*) from orders where sale_id = $1 and state = 'revoked'";
    assert_eq!(world.number(revoked, sale.id).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unverified_shard_and_one_without_permit_do_not_wait_for_each_other() {
    let mut world = World::new().await;
    let sale = world.sale(&Terms::of(8, 2)).await;
    world.end_keeper().await;
    for shard in [0, 1] {
        world.app.stock.stop(key(&sale, shard)).await.unwrap();
        world.app.permits.recheck(key(&sale, shard));
    }
    let reconciled = || world.app.metrics.reconciled_shards.of(["whole"]).get();
    let before = reconciled();
    // An unverified mark that was set before makes no difference.
    world.app.permits.mark_unverified(key(&sale, 0));
    flow::recover::attend::reconcile_all(&world.app).await.unwrap();
    assert_eq!(reconciled(), before + 1);
    for shard in [0, 1] {
        bought(&world.app, &sale, &shopper_at(&sale, shard), "k", 1).await;
    }
}

/// How many scripts a server has run.
fn scripts_run(raw: &Raw) -> u64 {
    let stats: String = raw.call(redis::cmd("INFO").arg("commandstats"));
    let calls = |name: &str| {
        let line = stats
            .lines()
            .find_map(|it| it.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.map_or(0, |it| it.split(',').next().unwrap().parse().unwrap())
    };
    calls("evalsha") + calls("eval")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_becomes_unverified_before_its_permit_is_reconciled_first() {
    let redis = fresh_redis();
    let mut world = World::on(redis.server.url()).await;
    let sale = world.sale(&Terms::of(8, 1)).await;
    let (raw, shard) = (Raw::connect(&world.redis), key(&sale, 0));
    world.end_keeper().await;
    world.app.stock.stop(shard).await.unwrap();
    world.app.permits.recheck(shard);
    let whole = || world.app.metrics.reconciled_shards.of(["whole"]).get();
    let before = whole();
    // Before a known shard may sell again, its process reads the bans, and waits there.
    let mut lock = world.pool.begin().await.unwrap();
    let bans = "lock table bans in access exclusive mode";
    sqlx::query(bans).execute(&mut *lock).await.unwrap();
    let app = Arc::clone(&world.app);
    let reconciling = tokio::spawn(async move { flow::recover::attend::reconcile_all(&app).await });
    let waiting = "select count(*) from pg_stat_activity \
         where datname = current_database() and wait_event_type = 'Lock' and $1 is not null";
    within(PATIENCE, "it is about to sell", async || {
        world.number(waiting, sale.id).await > 0
    })
    .await;
    world.app.permits.mark_unverified(shard);
    let ran = scripts_run(&raw);
    lock.rollback().await.unwrap();
    let reconciled = reconciling.await.unwrap();
    assert!(matches!(reconciled, Err(Fault::Unavailable(_))), "{reconciled:?}");
    // It got its sale's state, and nothing else.
    assert_eq!(scripts_run(&raw), ran + 1);
    let reading = world.app.stock.read_shard(&sale, 0, 0).await.unwrap();
    assert_eq!(reading.record.permit_until, 0);
    assert_eq!(whole(), before);
    flow::recover::attend::attend(&world.app, &sale).await.unwrap();
    assert_eq!(whole(), before + 1);
    bought(&world.app, &sale, "ada", "k", 1).await;
}

/// A shard that rejects the decision about an unknown order becomes unverified. While it is reconciled, no message is
/// delivered to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_unverified_before_it_is_reconciled_sells_once_found_whole() {
    let mut world = World::new().await;
    let sale = world.sale(&Terms::of(8, 1)).await;
    let order = bought(&world.app, &sale, "ada", "k", 2).await;
    drain_all(&world.app).await.unwrap();
    world.end_keeper().await;
    let (raw, shard) = (Raw::connect(&world.redis), key(&sale, 0));
    let _gone: i64 = raw.call(redis::cmd("DEL").arg(shard.buyer(&"ada".parse().unwrap())));
    cancel(&world.app, order.id, "ada").await;
    world.app.stock.stop(shard).await.unwrap();
    world.app.permits.mark_unverified(shard);
    flow::recover::attend::reconcile_all(&world.app).await.unwrap();
    bought(&world.app, &sale, "bob", "k", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuilt_shard_is_unverified_in_its_new_epoch() {
    let mut world = World::new().await;
    let sale = world.sale(&Terms::of(8, 1)).await;
    world.end_keeper().await;
    let seen = flow::recover::rebuild::make_ready(&world.app, &sale, &[0])
        .await
        .unwrap();
    flow::recover::rebuild::rebuild(&world.app, &sale, &seen).await.unwrap();
    let whole = || world.app.metrics.reconciled_shards.of(["whole"]).get();
    let before = whole();
    world.app.permits.mark_unverified(key(&sale, 0));
    flow::recover::attend::attend(&world.app, &sale).await.unwrap();
    assert_eq!(whole(), before + 1);
    bought(&world.app, &sale, "ada", "k", 1).await;
}

/// No counter shows a ban that the promoted server has lost, and no message waits to deliver it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_takes_over_a_claimed_shard_delivers_recent_bans() {
    let mut world = World::new().await;
    let sale = world.sale(&Terms::of(8, 1)).await;
    world.settled(&sale).await;
    world.end_keeper().await;
    let before = dump(&world, key(&sale, 0));
    flow::operate::bans::ban(&world.app, &ban("bot"))
        .await
        .unwrap()
        .unwrap();
    world.settled(&sale).await;
    restore(&world, key(&sale, 0), &before);
    world.app.stock.stop(key(&sale, 0)).await.unwrap();
    world.app.permits.recheck(key(&sale, 0));
    // The process that claimed the shard for the promoted server died at that point.
    let claimed = "update shards set run_id = '?' || run_id where sale_id = $1";
    assert_eq!(world.execute(claimed, sale.id).await.unwrap(), 1);
    flow::recover::attend::attend(&world.app, &sale).await.unwrap();
    let bought = buy(&world.app, &sale, "bot", "k", 1).await;
    assert_eq!(bought, PurchaseOutcome::Refused(Refusal::Banned { until: None }));
}
