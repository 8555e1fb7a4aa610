//! While Postgres is away, Redis sells on, and nobody loses an order for want of time to pay it.

use crate::support::crowd::{PATIENCE, Terms, World, ban, bought, drain_all, payment, shopper_at, try_buy};
use crate::support::poll::{pass, within};
use crate::support::raw::Raw;
use crate::support::servers::{FreshPostgres, FreshRedis, Frozen, fresh_redis, redis};
use flashsale::domain::fault::Fault;
use flashsale::domain::order::OrderState;
use flashsale::domain::payment::PaymentOutcome;
use flashsale::domain::purchase::PurchaseOutcome;
use flashsale::domain::sale::{Sale, Transition};
use flashsale::flow;
use flashsale::flow::transition::TransitionOutcome;
use flashsale::stock::keys::ShardKey;
use flashsale::stock::permit::{Permit, Permitted};
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_postgres_selling_goes_on_and_a_payment_is_taken_when_it_is_back() {
    let mut postgres = FreshPostgres::start().await;
    let world = World::with(redis(), postgres.url()).await;
    let sale = world.sale(&Terms::of(20, 2)).await;
    let before = bought(&world.app, &sale, "before", "k", 1).await;
    world.settled(&sale).await;
    postgres.stop();

    let mut orders = Vec::new();
    for n in 0..10 {
        orders.push(bought(&world.app, &sale, &format!("u{n}"), "k", 1).await);
    }
    let replayed = try_buy(&world.app, &sale, "before", "k", 1).await.unwrap();
    assert!(matches!(&replayed, PurchaseOutcome::Replayed(it) if it.id == before.id));
    let paid = flow::pay::pay(&world.app, &payment("early", before.id, 1)).await;
    assert!(matches!(paid, Err(Fault::Unavailable(_))), "{paid:?}");
    let cancelled = flow::cancel::cancel(&world.app, before.id, &"before".parse().unwrap()).await;
    assert!(matches!(cancelled, Err(Fault::Unavailable(_))), "{cancelled:?}");
    // Permits are Redis's affair: they are renewed all the same.
    assert_eq!(flow::permit::renew(&world.app).await.unwrap(), 2);
    let shards = [0, 1].map(|shard| ShardKey { sale: sale.id, shard });
    let waiting: i64 = world.app.stock.undrained(&shards).await.unwrap().iter().sum();
    assert_eq!(waiting, 10);

    postgres.restart();
    within(PATIENCE, "the ledger answers", async || {
        world.app.ledger.migrations_missing().await.is_ok()
    })
    .await;
    within(PATIENCE, "the ledger catches up", async || {
        // A connection of the time before may still be in the pool.
        let _passing = drain_all(&world.app).await;
        world.app.stock.undrained(&shards).await.unwrap() == [0, 0]
    })
    .await;
    let paid = flow::pay::pay(&world.app, &payment("early", before.id, 1))
        .await
        .unwrap();
    assert_eq!(paid, PaymentOutcome::Applied);
    let item = world.settled(&sale).await;
    assert_eq!((item.stock.held, item.stock.sold), (10, 1));
    world.sells_out(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_postgres_a_redis_that_stands_still_for_a_moment_sells_on_again_and_again() {
    let mut postgres = FreshPostgres::start().await;
    let redis = fresh_redis();
    let world = World::with(redis.server.url(), postgres.url()).await;
    let sale = world.sale(&Terms::of(20, 2)).await;
    postgres.stop();
    let raw = Raw::connect(&redis.server.url());
    for n in 0..6 {
        // A fork or a slow disk does that. A permit that ran out meanwhile could be given again by nobody.
        let _paused: String = raw.call(redis::cmd("CLIENT").arg("PAUSE").arg(1_200).arg("ALL"));
        let renewed = world.app.metrics.permit_renewals.of(["renewed"]);
        let before = renewed.get();
        within(PATIENCE, "the permits are renewed", async || {
            renewed.get() >= before + 4
        })
        .await;
        bought(&world.app, &sale, &format!("u{n}"), "k", 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purchase_that_was_held_up_too_long_asks_for_nothing_any_more() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(2, 1)).await;
    // A process that does not know the sale yet asks the ledger for it first, and has to wait there.
    let mut lock = world.pool.begin().await.unwrap();
    let sales = "lock table sales in access exclusive mode";
    sqlx::query(sales).execute(&mut *lock).await.unwrap();
    let instance = world.start("api").await;
    let (client, id) = (instance.client(), sale.id);
    let asked = tokio::spawn(async move { client.buy(id, "ada", "k", 1).await });
    within(PATIENCE, "the purchase waits for its sale", async || {
        let reading = "select count(*) from pg_stat_activity where datname = current_database() \
             and wait_event_type = 'Lock' and query like '%where sale_id = $1' and $1::uuid is not null";
        world.number(reading, id).await > 0
    })
    .await;
    // While the process stands still, the ledger answers; and whoever asked may ask again under the same key.
    let frozen = Frozen::one(instance.pid());
    lock.rollback().await.unwrap();
    pass(Duration::from_millis(1_700)).await;
    drop(frozen);
    let answer = asked.await.unwrap().expect("an answer");
    assert_eq!((answer.status, answer.code()), (503, "unavailable"), "{answer:?}");
    // Had it sold all the same, this would be that order again.
    let again = instance.client().buy(id, "ada", "k", 1).await.expect("an answer");
    assert_eq!((again.status, again.replayed), (201, false), "{again:?}");
    assert_eq!(world.settled(&sale).await.stock.held, 1);
    world.sells_out(&sale).await;
    assert!(instance.errors().is_empty(), "{:#?}", instance.errors());
}

/// Says that the last worker came so long ago.
async fn silence(world: &World, seconds: i32) {
    let silence = "update heartbeat set beaten_at = now() - make_interval(secs => $1)";
    sqlx::query(silence)
        .bind(f64::from(seconds))
        .execute(&world.pool)
        .await
        .unwrap();
}

/// When an order's hold ends, in seconds after its beginning.
async fn holds_for(world: &World, order: flashsale::domain::ids::OrderId) -> f64 {
    let held = "select extract(epoch from expires_at - created_at)::float8 from orders where order_id = $1";
    sqlx::query_scalar(held)
        .bind(order.0)
        .fetch_one(&world.pool)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unpaid_orders_are_held_longer_by_the_time_in_which_nobody_could_pay() {
    let world = World::new().await;
    flow::expire::expire_due(&world.app).await.unwrap();
    let terms = Terms {
        window_seconds: 60,
        ..Terms::of(20, 2)
    };
    let sale = world.sale(&terms).await;
    let old = bought(&world.app, &sale, "old", "k", 1).await;
    let middle = bought(&world.app, &sale, "middle", "k", 1).await;
    let paid = bought(&world.app, &sale, "paid", "k", 1).await;
    world.settled(&sale).await;
    flow::pay::pay(&world.app, &payment("p", paid.id, 1)).await.unwrap();
    // One from before the outage, overdue by now but for it; one from its middle.
    for (user, age) in [("old", 150), ("paid", 150), ("middle", 40)] {
        let aged = "update orders set created_at = created_at - make_interval(secs => $1), \
                    expires_at = expires_at - make_interval(secs => $1) where user_id = $2";
        sqlx::query(aged)
            .bind(f64::from(age))
            .bind(user)
            .execute(&world.pool)
            .await
            .unwrap();
    }
    silence(&world, 100).await;
    let undrained = bought(&world.app, &sale, "undrained", "k", 1).await;
    flow::expire::expire_due(&world.app).await.unwrap();
    let later = bought(&world.app, &sale, "later", "k", 1).await;
    world.settled(&sale).await;

    let about = |seconds: f64, expected: f64| (seconds - expected).abs() < 5.0;
    let old_holds = holds_for(&world, old.id).await;
    assert!(about(old_holds, 160.0), "{old_holds}");
    let middle_holds = holds_for(&world, middle.id).await;
    assert!(about(middle_holds, 100.0), "{middle_holds}");
    let undrained_holds = holds_for(&world, undrained.id).await;
    assert!(
        undrained_holds >= 60.0 && about(undrained_holds, 60.0),
        "{undrained_holds}"
    );
    let later_holds = holds_for(&world, later.id).await;
    assert!((later_holds - 60.0).abs() < 0.001, "{later_holds}");
    let paid_holds = holds_for(&world, paid.id).await;
    assert!(
        (paid_holds - 60.0).abs() < 0.001,
        "what is decided is not held: {paid_holds}"
    );
    // It is counted once, however often one looks.
    for _ in 0..3 {
        flow::expire::expire_due(&world.app).await.unwrap();
    }
    assert!((holds_for(&world, old.id).await - old_holds).abs() < 0.001);
    let state = flow::order::read_order(&world.app, old.id, &"old".parse().unwrap()).await;
    assert_eq!(state.unwrap().unwrap().state, OrderState::Reserved);
    assert_eq!(world.settled(&sale).await.stock.held, 4);

    // Another outage adds to the first; a silence of four seconds is none.
    silence(&world, 30).await;
    flow::expire::expire_due(&world.app).await.unwrap();
    let twice = holds_for(&world, old.id).await;
    assert!(about(twice, 190.0), "{twice}");
    silence(&world, 4).await;
    flow::expire::expire_due(&world.app).await.unwrap();
    assert!((holds_for(&world, old.id).await - twice).abs() < 0.001);
    let outages = "select count(*) from outages where $1 is not null";
    assert!(world.number(outages, sale.id).await >= 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_comes_in_after_an_outage_has_its_extension_too() {
    let world = World::new().await;
    flow::expire::expire_due(&world.app).await.unwrap();
    let terms = Terms {
        window_seconds: 60,
        ..Terms::of(20, 2)
    };
    let sale = world.sale(&terms).await;
    let first = bought(&world.app, &sale, "first", "k", 1).await;
    let second = bought(&world.app, &sale, "second", "k", 1).await;
    // As if the outage had begun long before both and ended a minute from now: one is taken in before it is noted that
    // holds were extended by it, one after.
    let outage = "insert into outages (since, until) values (now() - interval '1 hour', now() + interval '1 minute')";
    sqlx::query(outage).execute(&world.pool).await.unwrap();
    let home = |user: &str| flashsale::domain::shard::home_shard(&sale.secret.0, &user.parse().unwrap(), sale.shards);
    assert!(
        world
            .app
            .ledger
            .extend_holds(sale.id, home("first"), 100)
            .await
            .unwrap()
    );
    drain_all(&world.app).await.unwrap();
    for (shard, _) in [(0, ()), (1, ())] {
        assert!(world.app.ledger.extend_holds(sale.id, shard, 100).await.unwrap());
    }
    for order in [first, second] {
        let holds = holds_for(&world, order.id).await;
        assert!((holds - 120.0).abs() < 5.0, "{holds}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_are_extended_page_by_page_once_each_also_by_an_outage_in_the_middle() {
    let world = World::new().await;
    flow::expire::expire_due(&world.app).await.unwrap();
    let terms = Terms {
        window_seconds: 60,
        ..Terms::of(40, 1)
    };
    let sale = world.sale(&terms).await;
    let mut before = Vec::new();
    for n in 0..7 {
        before.push(bought(&world.app, &sale, &format!("u{n}"), "k", 1).await.id);
    }
    world.settled(&sale).await;
    let outage =
        "insert into outages (since, until) values (now() - interval '1 hour', now() + make_interval(secs => $1))";
    let outage = async |seconds: f64| {
        sqlx::query(outage).bind(seconds).execute(&world.pool).await.unwrap();
    };
    let page = async || world.app.ledger.extend_holds(sale.id, 0, 3).await.unwrap();
    let waiting = async || world.app.ledger.shards_to_extend().await.unwrap();
    let about = |seconds: f64, expected: f64| (seconds - expected).abs() < 10.0;

    outage(100.0).await;
    assert!(!page().await, "three of seven");
    // Nothing of a shard expires that is not extended yet, and what comes in meanwhile has its share at once.
    let meanwhile = bought(&world.app, &sale, "meanwhile", "k", 1).await.id;
    world.settled(&sale).await;
    assert!(about(holds_for(&world, meanwhile).await, 160.0));
    outage(200.0).await;
    assert!(!page().await, "six of seven");
    assert_eq!(waiting().await, [(sale.id, 0)]);
    assert!(!page().await, "seven, but the second outage is left");
    for order in before.iter().chain([&meanwhile]) {
        let holds = holds_for(&world, *order).await;
        assert!(about(holds, 160.0), "{holds}: the second outage comes after the first");
    }
    assert_eq!(waiting().await, [(sale.id, 0)], "the second one is left");
    let mut pages = 1;
    while !page().await {
        pages += 1;
    }
    assert_eq!(pages, 3, "eight orders");
    for order in before.iter().chain([&meanwhile]) {
        let holds = holds_for(&world, *order).await;
        assert!(about(holds, 360.0), "{holds}");
    }
    assert!(waiting().await.is_empty() && page().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_extended_yet_does_not_expire_and_much_to_do_is_no_outage() {
    let world = World::new().await;
    flow::expire::expire_due(&world.app).await.unwrap();
    let terms = Terms {
        window_seconds: 60,
        ..Terms::of(20, 1)
    };
    let sale = world.sale(&terms).await;
    bought(&world.app, &sale, "u", "k", 1).await;
    world.settled(&sale).await;
    let overdue = "update orders set created_at = created_at - interval '5 minutes', \
                   expires_at = expires_at - interval '5 minutes' where sale_id = $1";
    sqlx::query(overdue).bind(sale.id.0).execute(&world.pool).await.unwrap();
    // Another worker has begun with the shard and is not done: this one does what is left before anything expires.
    let outage = "insert into outages (since, until) values (now() - interval '1 hour', now())";
    sqlx::query(outage).execute(&world.pool).await.unwrap();
    let begun = "update shards set extending_since = extended_until, extended_until = (select max(until) from outages), \
                 extending_to_epoch = drained_epoch, extending_to_seq = drained_seq where sale_id = $1";
    sqlx::query(begun).bind(sale.id.0).execute(&world.pool).await.unwrap();
    assert_eq!(flow::expire::expire_due(&world.app).await.unwrap(), 0);
    assert_eq!(world.settled(&sale).await.stock.held, 1);

    // The same, and another outage since: both are counted before anything expires, in one run.
    let begun = "update shards set extending_since = extended_until, \
                 extending_to_epoch = drained_epoch, extending_to_seq = drained_seq where sale_id = $1";
    sqlx::query(begun).bind(sale.id.0).execute(&world.pool).await.unwrap();
    let overdue = "update orders set created_at = created_at - interval '5 minutes', \
                   expires_at = now() - interval '1 minute' where sale_id = $1";
    sqlx::query(overdue).bind(sale.id.0).execute(&world.pool).await.unwrap();
    silence(&world, 120).await;
    assert_eq!(flow::expire::expire_due(&world.app).await.unwrap(), 0);
    assert!(world.app.ledger.shards_to_extend().await.unwrap().is_empty());
    assert_eq!(world.settled(&sale).await.stock.held, 1);

    // Whoever notes that he can come, while he is busy otherwise, is no outage.
    let outages = "select count(*) from outages where $1 is not null";
    let before = world.number(outages, sale.id).await;
    silence(&world, 4).await;
    flow::expire::beat(&world.app).await.unwrap();
    silence(&world, 4).await;
    flow::expire::expire_due(&world.app).await.unwrap();
    assert_eq!(world.number(outages, sale.id).await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_long_at_expiring_holds_is_no_outage() {
    let world = World::new().await;
    flow::expire::beat(&world.app).await.unwrap();
    let terms = Terms {
        window_seconds: 1,
        ..Terms::of(20, 2)
    };
    let sale = world.sale(&terms).await;
    for shard in [0, 1] {
        bought(&world.app, &sale, &shopper_at(&sale, shard), "k", 1).await;
    }
    drain_all(&world.app).await.unwrap();
    let outages = "select count(*) from outages where $1 is not null";
    let before = world.number(outages, sale.id).await;
    // Each shard's holds wait for these until the statement is given up, one after the other: that is ten seconds.
    let mut lock = world.pool.begin().await.unwrap();
    let grants = "select from grants where sale_id = $1 for update";
    sqlx::query(grants).bind(sale.id.0).execute(&mut *lock).await.unwrap();
    let began = "create table lock_began as select clock_timestamp() as at";
    sqlx::query(began).execute(&world.pool).await.unwrap();
    let _worker = world.start("worker").await;
    within(PATIENCE, "the worker comes back from what it waits for", async || {
        let late = "select count(*) from heartbeat, lock_began \
                    where beaten_at > at + interval '9 seconds' and $1 is not null";
        world.number(late, sale.id).await == 1
    })
    .await;
    let held = "select count(*) from orders where sale_id = $1 and state = 'reserved' and expires_at < now()";
    assert_eq!(world.number(held, sale.id).await, 2, "it had to wait");
    assert_eq!(world.number(outages, sale.id).await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_of_which_too_much_waits_sells_nothing_until_the_ledger_has_caught_up() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(20, 1)).await;
    let first = bought(&world.app, &sale, "first", "k", 1).await;
    bought(&world.app, &sale, "second", "k", 1).await;
    let run_id = world
        .app
        .stock
        .run_id(ShardKey {
            sale: sale.id,
            shard: 0,
        })
        .await
        .unwrap();
    let permit = Permit {
        epoch: 1,
        run_id: &run_id,
        holds: Duration::from_secs(3),
        events_max: 2,
        age_max: Duration::from_secs(600),
        renewal: false,
    };
    // The process itself knows a larger bound, and lets go when it renews: so it is asked until both meet.
    within(PATIENCE, "the brake is felt", async || {
        let held = world.app.stock.permit(&sale, 0, &permit, None).await.unwrap();
        assert!(matches!(held, Permitted::Yes { brake: true, .. }), "{held:?}");
        let refused = try_buy(&world.app, &sale, "third", "k", 1).await;
        let replayed = try_buy(&world.app, &sale, "first", "k", 1).await.unwrap();
        assert!(matches!(&replayed, PurchaseOutcome::Replayed(it) if it.id == first.id));
        matches!(refused, Err(Fault::Overloaded(_)))
    })
    .await;
    drain_all(&world.app).await.unwrap();
    let free = world.app.stock.permit(&sale, 0, &permit, None).await.unwrap();
    assert!(
        matches!(
            free,
            Permitted::Yes {
                brake: false,
                waiting: 0,
                ..
            }
        ),
        "{free:?}"
    );
    bought(&world.app, &sale, "fourth", "k", 1).await;
    world.settled(&sale).await;
    world.sells_out(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outages_of_more_than_a_month_ago_are_forgotten_once_every_hold_has_had_its_share() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(4, 2)).await;
    for (since, until) in [(40_i32, 39_i32), (32, 31), (29, 28)] {
        let outage =
            "insert into outages values (now() - make_interval(days => $1), now() - make_interval(days => $2))";
        let outage = sqlx::query(outage).bind(since).bind(until);
        outage.execute(&world.pool).await.unwrap();
    }
    let behind = "update shards set extended_until = now() - interval '35 days' where sale_id = $1 and shard = 1";
    world.execute(behind, sale.id).await.unwrap();
    let outages = "select count(*) from outages where $1::uuid is not null";
    world.app.ledger.forget_outages().await.unwrap();
    // The second ended after what the shard has been extended by.
    assert_eq!(world.number(outages, sale.id).await, 2);
    while !world.app.ledger.extend_holds(sale.id, 1, 10).await.unwrap() {}
    world.app.ledger.forget_outages().await.unwrap();
    assert_eq!(world.number(outages, sale.id).await, 1);
}

/// Decides something while a sale's only server hangs for longer than its permits hold, and puts off what the shard is to
/// be told as if it had been tried for a minute; returns once the server goes on.
async fn decided_while_it_hangs(world: &World, redis: &FreshRedis, sale: &Sale, decide: impl AsyncFnOnce()) {
    let frozen = Frozen::one(redis.server.pid());
    decide().await;
    let put_off = "update outbox set not_before = now() + interval '1 minute', attempts = 6 where sale_id = $1";
    assert!(world.execute(put_off, sale.id).await.unwrap() > 0);
    let since = Instant::now();
    within(PATIENCE, "the permits are over", async || {
        since.elapsed() > Duration::from_millis(3_500)
    })
    .await;
    drop(frozen);
}

/// What shoppers are told for a while, one after the other, and that it is no order.
async fn nobody_buys(world: &World, sale: &Sale, user: impl Fn(usize) -> String) {
    let since = Instant::now();
    let mut answers = 0;
    while since.elapsed() < Duration::from_secs(3) {
        let outcome = try_buy(&world.app, sale, &user(answers), "k", 1).await;
        assert!(
            !matches!(outcome, Ok(PurchaseOutcome::Reserved(_))),
            "{outcome:?} after {:?}",
            since.elapsed()
        );
        answers += 1;
    }
    assert!(answers > 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_hung_while_its_sale_was_paused_or_a_shopper_banned_is_told_before_it_sells() {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let (sale, other) = (world.sale(&Terms::of(90, 1)).await, world.sale(&Terms::of(90, 1)).await);
    bought(&world.app, &sale, "before", "k", 1).await;
    let order = bought(&world.app, &other, "before", "k", 1).await;
    world.settled(&other).await;
    decided_while_it_hangs(&world, &redis, &sale, async || {
        // As if whoever decides could not reach the server at all: what hangs may still read what it was sent.
        let now = chrono::Utc::now().timestamp_millis();
        let paused = world.app.ledger.transition(sale.id, Transition::Pause, now).await;
        assert!(matches!(paused, Ok(TransitionOutcome::Done(_))), "{paused:?}");
        world.app.ledger.ban(&ban("bot")).await.unwrap().unwrap();
        world
            .app
            .ledger
            .cancel(order.id, &"before".parse().unwrap(), now)
            .await
            .unwrap();
        let put_off = "update outbox set not_before = now() + interval '1 minute', attempts = 6 where sale_id = $1";
        assert!(world.execute(put_off, other.id).await.unwrap() > 0);
    })
    .await;
    let paused = nobody_buys(&world, &sale, |n| format!("u{n}"));
    let banned = nobody_buys(&world, &other, |_| "bot".to_owned());
    tokio::join!(paused, banned);
    // The other sale goes on, and everything that its shard could not be told is due.
    within(PATIENCE, "others buy", async || {
        try_buy(&world.app, &other, "after", "k", 1).await.is_ok()
    })
    .await;
    let put_off = "select count(*) from outbox where sale_id = $1 and not_before > now() + interval '5 seconds'";
    for sale in [&sale, &other] {
        // A moment after the permit that let the other one buy.
        within(PATIENCE, "nothing is put off", async || {
            world.number(put_off, sale.id).await == 0
        })
        .await;
        world.settled(sale).await;
    }
}
