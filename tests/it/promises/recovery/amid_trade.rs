//! Shards are rebuilt while a crowd buys, twice at once, and after any losses.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_are_back_within_a_moment_and_nothing_is_lost() {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let sale = world.sale(&Terms::of(400, 4)).await;
    let apps = [Arc::clone(&world.app), world.another().await];
    let crowd = (0..200usize).map(|n| {
        let (app, sale) = (Arc::clone(&apps[n % 2]), Arc::clone(&sale));
        tokio::spawn(async move { (format!("u{n}"), bought(&app, &sale, &format!("u{n}"), "k", 1).await) })
    });
    let crowd: Vec<_> = crowd.collect();
    let raw = Raw::connect(&world.redis);
    for _ in 0..3 {
        let _done: String = raw.call(redis::cmd("SCRIPT").arg("FLUSH").arg("SYNC"));
        let began = std::time::Instant::now();
        within(PATIENCE, "it sells again", async || {
            try_buy(&world.app, &sale, &Uuid::new_v4().to_string(), "k", 1)
                .await
                .is_ok()
        })
        .await;
        assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    }
    drop(raw);
    for shopper in join_all(crowd).await {
        let (user, order) = shopper.unwrap();
        let found = buy(&world.app, &sale, &user, "k", 1).await;
        assert!(
            matches!(&found, PurchaseOutcome::Replayed(it) if it.id == order.id),
            "{user}: {found:?}"
        );
    }
    world.settled(&sale).await;
    assert_eq!(lost_orders(&world, &sale).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_is_found_whole_without_reading_the_orders() {
    let mut world = World::new().await;
    let sale = world.sale(&Terms::of(8, 2)).await;
    bought(&world.app, &sale, "ada", "k", 1).await;
    world.settled(&sale).await;
    world.end_keeper().await;
    for shard in [0, 1] {
        world.app.stock.stop(key(&sale, shard)).await.unwrap();
    }
    let mut lock = world.pool.begin().await.unwrap();
    let orders = "lock table orders in access exclusive mode";
    sqlx::query(orders).execute(&mut *lock).await.unwrap();
    let reconciled = flow::recover::reconcile::reconcile(&world.app, &sale, &[0, 1]).await;
    assert!(reconciled.unwrap().left.is_none());
    lock.rollback().await.unwrap();
    assert_eq!(rebuilds(&world, &sale).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_undelivered_decisions_is_no_damage() {
    const HOLDS: usize = 300;
    let mut redis = DurableRedis::start();
    let world = World::on(redis.url()).await;
    let sale = world.sale(&Terms::of(1_000, 1)).await;
    let shoppers: Vec<String> = (0..HOLDS).map(|n| format!("u{n}")).collect();
    join_all(shoppers.iter().map(|user| bought(&world.app, &sale, user, "k", 1))).await;
    world.settled(&sale).await;
    let due = "update orders set created_at = created_at - interval '1 hour', \
               expires_at = expires_at - interval '1 hour' where sale_id = $1";
    world.execute(due, sale.id).await.unwrap();
    let expired = "select count(*) from orders where sale_id = $1 and state = 'expired'";
    within(PATIENCE, "every hold expires", async || {
        flow::settle::expire::expire_due(&world.app).await.unwrap();
        world.number(expired, sale.id).await == i64::try_from(HOLDS).unwrap()
    })
    .await;
    let postponed = "update outbox set not_before = now() + interval '1 minute' where sale_id = $1";
    assert_eq!(world.execute(postponed, sale.id).await.unwrap(), 300);
    redis.kill();
    redis.restart();
    sells_again(&world.app, &sale).await;
    assert_eq!(rebuilds(&world, &sale).await, 0);
    assert_eq!(world.settled(&sale).await.stock.available, 1_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_is_rebuilt_by_two_at_once_while_a_crowd_is_at_it_loses_no_order() {
    let world = World::new().await;
    let terms = Terms {
        limit: 2,
        ..Terms::of(120, 4)
    };
    let sale = world.sale(&terms).await;
    let instances = [world.start("all").await, world.start("all").await];
    let balancer = Arc::new(LoadBalancer::default());
    balancer.set(instances.iter().map(|it| it.client()).collect());
    let crowd = {
        let (balancer, sale) = (Arc::clone(&balancer), Arc::clone(&sale));
        tokio::spawn(async move { rush(&balancer, &sale, "meanwhile", 160, rand::random()).await })
    };
    let patience = Patience::of(PATIENCE);
    while balancer.answers.load(Ordering::Relaxed) < 20 {
        patience.pause("the crowd is at it").await;
    }
    let mut done = 0;
    for _ in 0..3 {
        let both = instances.iter().map(|it| async {
            let answer = it
                .client()
                .operate(sale.id, "rebuild", "k", &serde_json::json!({}))
                .await;
            // The other one may hold it, or a slow machine answer too late.
            let is_allowed = answer.as_ref().is_none_or(|it| [200, 503].contains(&it.status));
            assert!(is_allowed, "{answer:?}");
            usize::from(answer.is_some_and(|it| it.status == 200))
        });
        done += join_all(both).await.into_iter().sum::<usize>();
    }
    assert!(done > 0, "none came to an end");
    crowd.await.unwrap();
    all_is_well(&world, &sale).await;
    assert_eq!(lost_orders(&world, &sale).await, 0);
    let acknowledged = "select count(*) from orders where sale_id = $1 and state = 'revoked'";
    assert_eq!(world.number(acknowledged, sale.id).await, 0);
    for instance in &instances {
        assert_eq!(instance.errors(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_order_is_lost_between_two_processes_of_which_one_permits_and_one_rebuilds() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(100_000, 2)).await;
    let stop = Arc::new(AtomicBool::new(false));
    // The others do not know it, and let the shard sell on at full speed.
    let keeper = {
        let (app, stop) = (world.another().await, Arc::clone(&stop));
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                for kept in [
                    flow::recover::renew::renew(&app).await,
                    flow::recover::attend::reconcile_all(&app).await,
                ] {
                    if let Err(fault) = kept {
                        assert!(fault.is_passing(), "{fault}");
                    }
                }
            }
        })
    };
    let shoppers = (0..4).map(|n| {
        let (app, sale, stop) = (Arc::clone(&world.app), Arc::clone(&sale), Arc::clone(&stop));
        tokio::spawn(async move {
            let (mut acknowledged, patience) = (Vec::new(), Patience::of(PATIENCE * 4));
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                match buy(&app, &sale, &format!("u{n}-{round}"), "k", 1).await {
                    PurchaseOutcome::Reserved(order) | PurchaseOutcome::Replayed(order) => acknowledged.push(order.id),
                    other => panic!("{other:?}"),
                }
                patience.pause("the rebuildings come to an end").await;
            }
            acknowledged
        })
    });
    let shoppers: Vec<_> = shoppers.collect();
    let mut rebuilt = 0;
    for _ in 0..24 {
        match flow::recover::attend::rebuild_sale(&world.app, sale.id).await {
            Ok(_) => rebuilt += 1,
            Err(fault) => assert!(fault.is_passing(), "{fault}"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    keeper.await.unwrap();
    let mut acknowledged = Vec::new();
    for shopper in join_all(shoppers).await {
        acknowledged.extend(shopper.unwrap());
    }
    let item = world.settled(&sale).await;
    println!("{rebuilt} rebuildings, {} orders", acknowledged.len());
    assert!(rebuilt > 0 && !acknowledged.is_empty());
    assert_eq!(item.stock.held, i64::try_from(acknowledged.len()).unwrap());
    for order in acknowledged {
        assert!(world.app.ledger.order(order).await.unwrap().is_some(), "{order}");
    }
    assert_eq!(lost_orders(&world, &sale).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_is_about_to_leave_redis_is_not_rebuilt() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(4, 2)).await;
    let ended = "update sales set starts_at = now() - interval '50 hours', \
                 ends_at = now() - interval '24 hours 31 minutes' where sale_id = $1";
    world.execute(ended, sale.id).await.unwrap();
    assert_eq!(flow::operate::retire::retire_ended(&world.app).await.unwrap(), 0);
    let later = "update sales set over_at = over_at - interval '6 minutes' where sale_id = $1";
    world.execute(later, sale.id).await.unwrap();
    let app = world.another().await;
    within(PATIENCE, "no process attends to it any more", async || {
        flow::recover::attend::reconcile_all(&world.app).await.unwrap();
        flow::recover::renew::renew(&world.app).await.unwrap() == 0
    })
    .await;
    let raw = Raw::connect(&world.redis);
    let _gone: i64 = raw.call(redis::cmd("DEL").arg(key(&sale, 0).shard()).arg(key(&sale, 1).shard()));
    for app in [&world.app, &app] {
        assert_eq!(flow::recover::attend::reconcile_all(app).await.unwrap(), 0);
        assert_eq!(flow::recover::renew::renew(app).await.unwrap(), 0);
    }
    assert_eq!(rebuilds(&world, &sale).await, 0);
    let there: i64 = raw.call(redis::cmd("EXISTS").arg(key(&sale, 0).shard()));
    assert_eq!(there, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_any_losses_in_any_order_every_unit_is_sold_once() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let runs = [random.random(), random.random(), random.random()];
    side_by_side(runs.map(|seed| Box::pin(random_history(seed)))).await;
}

async fn random_history(seed: u64) {
    let random = &mut StdRng::seed_from_u64(seed);
    let world = World::new().await;
    let shards = random.random_range(2..=4);
    let sale = world.sale(&Terms::of(60, shards)).await;
    let mut orders: Vec<(String, Order)> = Vec::new();
    let mut older: Vec<(u16, Dump)> = Vec::new();
    for n in 0..50 {
        let (a, b) = (random.random_range(0..shards), random.random_range(0..shards));
        match random.random_range(0..14) {
            0..=3 => {
                let (user, quantity) = (format!("u{n}"), random.random_range(1..=3));
                if let PurchaseOutcome::Reserved(order) = buy(&world.app, &sale, &user, "k", quantity).await {
                    orders.push((user, order));
                }
            }
            4 if !orders.is_empty() => {
                let (_, order) = &orders[random.random_range(0..orders.len())];
                let payment = payment(&n.to_string(), order.id, order.quantity);
                flow::settle::pay::pay(&world.app, &payment).await.unwrap();
            }
            5 if !orders.is_empty() => {
                let (user, order) = &orders[random.random_range(0..orders.len())];
                cancel(&world.app, order.id, user).await;
            }
            6 => {
                let request = format!("r{n}").parse().unwrap();
                let quantity = random.random_range(-6..=6);
                if quantity != 0
                    && let Err(fault) =
                        flow::operate::restock::restock(&world.app, sale.id, &request, &sku(), quantity).await
                {
                    assert!(fault.is_passing(), "{fault}");
                }
            }
            7 if a != b => {
                let id = Uuid::now_v7();
                let (units, now) = (random.random_range(1..=3), chrono::Utc::now().timestamp_millis());
                let to = Destination::Shard(b);
                let to_epoch = world.app.stock.epoch(key(&sale, b)).await.unwrap();
                let sent = world
                    .app
                    .stock
                    .transfer_out(key(&sale, a), id, &sku(), to, units, now)
                    .await;
                let transfer = |units, epoch| Transfer {
                    id,
                    to,
                    units,
                    sent_at: now,
                    epoch,
                    to_epoch,
                    sku: sku(),
                    server: None,
                };
                if let Ok(Sent::Out { units, epoch }) = sent
                    && random.random_bool(0.6)
                    && world
                        .app
                        .stock
                        .transfer_in(key(&sale, b), a, &transfer(units, epoch))
                        .await
                        .is_ok()
                    && random.random_bool(0.5)
                {
                    world.app.stock.transfer_done(key(&sale, a), id).await.unwrap();
                }
            }
            8 => world.jobs(&world.app, &sale).await,
            9 => {
                drain_all(&world.app).await.unwrap();
            }
            10 => older.push((a, dump(&world, key(&sale, a)))),
            11 if !older.is_empty() => {
                let (shard, before) = &older[random.random_range(0..older.len())];
                // The ledger has all orders: a shopper could not ask for one that it lacks.
                drain_all(&world.app).await.unwrap();
                restore(&world, key(&sale, *shard), before);
                reconcile_unverified(&world, &sale, *shard).await;
            }
            12 => {
                drain_all(&world.app).await.unwrap();
                let lost = match random.random_range(0..4) {
                    0 => key(&sale, a).shard(),
                    1 => key(&sale, a).item(&sku()),
                    2 => key(&sale, a).events(),
                    _ => key(&sale, a).transfers(),
                };
                let _gone: i64 = Raw::connect(&world.redis).call(redis::cmd("DEL").arg(lost));
                reconcile_unverified(&world, &sale, a).await;
            }
            13 => {
                flow::recover::attend::rebuild_sale(&world.app, sale.id).await.unwrap();
            }
            _ => {}
        }
    }
    world.settled(&sale).await;
    for (user, order) in &orders {
        let found = buy(&world.app, &sale, user, "k", order.quantity).await;
        assert!(
            matches!(&found, PurchaseOutcome::Replayed(it) if it.id == order.id),
            "{user}: {found:?}"
        );
    }
    world.sells_out(&sale).await;
    let revoked = "select count(*) from orders where sale_id = $1 and state = 'revoked'";
    assert_eq!(world.number(revoked, sale.id).await, 0);
}
