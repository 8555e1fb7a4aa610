//! Redis has lost orders, whole or in part: what the ledger knows comes back, and the rest is counted.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_redis_sells_again_by_itself_with_every_order_and_limit_as_before() {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let terms = Terms {
        limit: 4,
        rate: PurchaseRate {
            limit: 3,
            window_ms: 600_000,
        },
        ..Terms::of(60, 4)
    };
    let sale = world.sale(&terms).await;
    let orders = of_every_kind(&world, &sale).await;
    for key in ["one", "two", "three"] {
        bought(&world.app, &sale, "hurries", key, 1).await;
    }
    world.settled(&sale).await;

    // Everything goes while a crowd buys.
    let apps = [Arc::clone(&world.app), world.another().await];
    let crowd = (0..24usize).map(|n| {
        let (app, sale) = (Arc::clone(&apps[n % 2]), Arc::clone(&sale));
        tokio::spawn(async move {
            let outcome = buy(&app, &sale, &format!("crowd-{n}"), "k", 1).await;
            assert!(matches!(
                outcome,
                PurchaseOutcome::Reserved(_) | PurchaseOutcome::Replayed(_)
            ));
        })
    });
    let crowd: Vec<_> = crowd.collect();
    let () = Raw::connect(&world.redis).call(&mut redis::cmd("FLUSHALL"));
    for shopper in join_all(crowd).await {
        shopper.unwrap();
    }
    sells_again(&world.app, &sale).await;
    all_are_there(&world, &sale, &orders).await;
    let item = world.settled(&sale).await;
    assert_eq!((item.stock.sold, item.total), (2, 60), "{item:?}");

    let hurries = buy(&world.app, &sale, "hurries", "four", 1).await;
    assert!(
        matches!(hurries, PurchaseOutcome::Refused(Refusal::RateLimited { .. })),
        "{hurries:?}"
    );
    for user in ["holds", "pays"] {
        let more = buy(&world.app, &sale, user, "too many", 3).await;
        assert!(
            matches!(more, PurchaseOutcome::Refused(Refusal::LimitReached { .. })),
            "{user}: {more:?}"
        );
    }
    bought(&world.app, &sale, "cancels", "more", 4).await;
    bought(&world.app, &sale, "holds", "more", 2).await;
    world.sells_out(&sale).await;
    assert!(rebuilds(&world, &sale).await >= 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sales_that_are_lost_at_once_all_sell_again() {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let mut sales = Vec::new();
    for _ in 0..24 {
        sales.push(world.sale(&Terms::of(4, 2)).await);
    }
    for sale in &sales {
        bought(&world.app, sale, "ada", "k", 1).await;
    }
    drain_all(&world.app).await.unwrap();
    // A rebuild reads the bans, and waits there.
    let mut lock = world.pool.begin().await.unwrap();
    let bans = "lock table bans in access exclusive mode";
    sqlx::query(bans).execute(&mut *lock).await.unwrap();
    let _ok: String = Raw::connect(&world.redis).call(&mut redis::cmd("FLUSHALL"));
    // In each round of renewals, the bulletin waits a moment for the bans, too.
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() \
         and wait_event_type = 'Lock' and query not like '%superseded_servers%' and $1 is not null";
    let long = "select count(*) from pg_locks where not granted and $1::uuid is not null \
         and database = (select oid from pg_database where datname = current_database()) \
         and waitstart < clock_timestamp() - interval '1 second'";
    // As many shards as allowed are being rebuilt, and no more begin within a second. The other jobs still get connections.
    within(PATIENCE, "four have waited for a second", async || {
        world.app.ledger.pending_restocks(1).await.unwrap();
        assert!(world.number(waiting, sales[0].id).await <= 4);
        world.number(long, sales[0].id).await == 4
    })
    .await;
    lock.rollback().await.unwrap();
    for sale in &sales {
        sells_again(&world.app, sale).await;
    }
    for sale in &sales {
        assert_eq!(world.settled(sale).await.stock.held, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_a_server_is_admitted_shards_unknown_to_the_process_are_halted_too() {
    let mut redis = DurableRedis::start();
    let mut world = World::on(redis.url()).await;
    let heard_of = world.sale(&Terms::of(4, 1)).await;
    let other = world.another().await;
    assert_eq!(other.sales.live().await.unwrap().len(), 1);
    let new = world.sale(&Terms::of(4, 1)).await;
    world.end_keeper().await;
    // A permit that outlives a quick restart of the server, as a short one can.
    let permit = Permit {
        epoch: 1,
        server: &world.app.stock.server(key(&new, 0)).await.unwrap(),
        holds: PATIENCE * 2,
        memory_max: 1000,
        age_max: PATIENCE * 2,
        renewal: false,
    };
    let permitted = world.app.stock.permit(&new, 0, &permit, None).await.unwrap();
    assert!(matches!(permitted, Permitted::Yes { .. }), "{permitted:?}");
    bought(&other, &new, "before", "k", 1).await;
    redis.kill();
    redis.restart();
    within(PATIENCE, "the known sale sells again", async || {
        flow::recover::attend::attend(&other, &heard_of).await.is_ok()
    })
    .await;
    bought(&other, &heard_of, "ada", "k", 1).await;
    let unreconciled = try_buy(&other, &new, "ada", "k", 1).await;
    assert!(
        matches!(&unreconciled, Err(fault) if fault.is_passing()),
        "{unreconciled:?}"
    );
    flow::recover::attend::attend(&other, &new).await.unwrap();
    bought(&other, &new, "ada", "k", 1).await;
    let orders = "select count(*) from orders where sale_id = $1";
    within(PATIENCE, "both orders are in the ledger, and no other", async || {
        drain_all(&other).await.is_ok() && world.number(orders, new.id).await == 2
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_twice_under_load_loses_no_order_that_it_acknowledged() {
    let mut redis = DurableRedis::start();
    let world = World::on(redis.url()).await;
    let sale = world.sale(&Terms::of(100_000, 4)).await;
    let orders = of_every_kind(&world, &sale).await;
    let apps = [Arc::clone(&world.app), world.another().await];
    let stop = Arc::new(AtomicBool::new(false));
    let shoppers = (0..6usize).map(|n| {
        let (app, sale, stop) = (Arc::clone(&apps[n % 2]), Arc::clone(&sale), Arc::clone(&stop));
        tokio::spawn(async move {
            let (mut acknowledged, patience) = (Vec::new(), Patience::of(PATIENCE * 4));
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let user = format!("u{n}-{round}");
                match buy(&app, &sale, &user, "k", 1).await {
                    PurchaseOutcome::Reserved(order) | PurchaseOutcome::Replayed(order) => {
                        acknowledged.push((user, order.id));
                    }
                    other => panic!("{other:?}"),
                }
                patience.pause("the restarts come to an end").await;
                if round % 8 == 0
                    && let Err(fault) = drain_all(&app).await
                {
                    assert!(fault.is_passing(), "{fault}");
                }
            }
            acknowledged
        })
    });
    let shoppers: Vec<_> = shoppers.collect();
    for round in 0..2 {
        let reached = format!("in-between-{round}");
        for n in 0..20 {
            buy(&world.app, &sale, &format!("{reached}-{n}"), "k", 1).await;
        }
        redis.kill();
        redis.restart();
        sells_again(&world.app, &sale).await;
        bought(&world.app, &sale, &format!("after-{round}"), "k", 1).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut acknowledged = Vec::new();
    for shopper in join_all(shoppers).await {
        acknowledged.extend(shopper.unwrap());
    }
    all_are_there(&world, &sale, &orders).await;
    world.settled(&sale).await;
    for (user, order) in &acknowledged {
        let found = buy(&world.app, &sale, user, "k", 1).await;
        assert!(
            matches!(&found, PurchaseOutcome::Replayed(it) if it.id == *order),
            "{user}: {found:?}"
        );
        let in_ledger = world.app.ledger.order(*order).await.unwrap();
        assert!(in_ledger.is_some(), "{user}");
    }
    assert_eq!(lost_orders(&world, &sale).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_redis_forgot_and_the_ledger_knows_come_back_and_are_not_sold_again() {
    let mut lab = Forgetful::with(&Terms::of(20, 4)).await;
    let orders = lab.forgets(of_every_kind).await;
    all_are_there(&lab.world, &lab.sale, &orders).await;
    assert_eq!(lost_orders(&lab.world, &lab.sale).await, 0);
    // Redis lost only orders that the ledger has. The second time it lost hardly any.
    let decided = lab
        .forgets(async |world, sale| {
            let paid = flow::settle::pay::pay(&world.app, &payment("later", orders[0].1.id, 2))
                .await
                .unwrap();
            cancel(&world.app, orders[4].1.id, "borrows").await;
            world.settled(sale).await;
            paid
        })
        .await;
    assert_eq!(decided, PaymentOutcome::Applied);
    for (user, state) in [("holds", OrderState::Paid), ("borrows", OrderState::Cancelled)] {
        let found = buy(&lab.world.app, &lab.sale, user, "k", 2).await;
        assert!(
            matches!(&found, PurchaseOutcome::Replayed(it) if it.state == state),
            "{user}: {found:?}"
        );
    }
    lab.is_right(16).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_nobody_knows_any_more_are_counted_and_their_units_sold_once() {
    let mut lab = Forgetful::with(&Terms::of(12, 2)).await;
    let kept = bought(&lab.world.app, &lab.sale, "kept", "k", 2).await;
    lab.world.settled(&lab.sale).await;
    let lost = lab
        .forgets(async |world, sale| {
            let mut lost = Vec::new();
            for user in ["a", "b", "c"] {
                lost.push((user, bought(&world.app, sale, user, "k", 2).await));
            }
            // This process knows them, the ledger does not.
            flow::recover::renew::renew(&world.app).await.unwrap();
            lost
        })
        .await;
    assert_eq!(lost_orders(&lab.world, &lab.sale).await, 3);
    for (user, order) in &lost {
        let user = user.parse().unwrap();
        let found = flow::settle::order::read_order(&lab.world.app, order.id, &user)
            .await
            .unwrap();
        assert_eq!(found, None);
        let paid = flow::settle::pay::pay(&lab.world.app, &payment(user.as_str(), order.id, 2))
            .await
            .unwrap();
        assert_eq!(paid, PaymentOutcome::Unmatched);
    }
    // A shopper who repeats the request gets the same order, if the units are still there.
    let again = buy(&lab.world.app, &lab.sale, "a", "k", 2).await;
    assert!(
        matches!(&again, PurchaseOutcome::Reserved(it) if it.id == lost[0].1.id),
        "{again:?}"
    );
    let found = buy(&lab.world.app, &lab.sale, "kept", "k", 2).await;
    assert!(
        matches!(&found, PurchaseOutcome::Replayed(it) if it.id == kept.id),
        "{found:?}"
    );
    lab.is_right(8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_of_an_ended_epoch_are_counted_and_never_drained() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 1)).await;
    let order = bought(&world.app, &sale, "late", "k", 2).await;
    // The ledger has raised the epoch, and this Redis does not know it.
    world
        .execute("update shards set epoch = epoch + 1 where sale_id = $1", sale.id)
        .await
        .unwrap();
    drain_all(&world.app).await.unwrap();
    let drained = "select count(*) from orders where sale_id = $1";
    assert_eq!(world.number(drained, sale.id).await, 0);
    // The shard may have been rebuilt already; no reply says that the ledger has the order.
    let outcome = buy(&world.app, &sale, "late", "k", 2).await;
    assert!(
        matches!(&outcome, PurchaseOutcome::Replayed(it) | PurchaseOutcome::Reserved(it)
            if it.id == order.id && !it.confirmed),
        "{outcome:?}"
    );
    rebuild(&world.app, &sale, &[0]).await;
    assert_eq!(lost_orders(&world, &sale).await, 1);
    world.sells_out(&sale).await;
}
