//! While Postgres is away, Redis sells on, and nobody loses an order because there was no time to pay.

use crate::support::backlog::reserve_many;
use crate::support::crowd::{Terms, World, ban, bought, buy, done, drain_all, payment, shopper_at, try_buy};
use crate::support::poll::{PATIENCE, Stopwatch, pass, within};
use crate::support::raw::Raw;
use crate::support::servers::{FreshPostgres, FreshRedis, Frozen, fresh_redis, fresh_redis_with, redis};
use flashsale::domain::fault::Fault;
use flashsale::domain::order::OrderState;
use flashsale::domain::order::payment::PaymentOutcome;
use flashsale::domain::order::purchase::{PurchaseOutcome, Refusal};
use flashsale::domain::sale::{Sale, SaleState, Transition};
use flashsale::flow;
use flashsale::flow::operate::transition::TransitionOutcome;
use flashsale::stock::keys::ShardKey;
use futures_util::FutureExt as _;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Runs a test, and once more if permits lapsed in it. They do if the machine stands still for as long as they hold, and
/// nobody grants them again without Postgres.
pub async fn unless_permits_lapse(test: impl AsyncFn() -> bool) {
    // Boxed, since the tests are large.
    assert!(Box::pin(test()).await || Box::pin(test()).await, "permits lapsed twice");
}

/// How long the machine must have stood still for a lapse to be its fault.
const STANDSTILL: Duration = Duration::from_millis(500);

/// Does this without Postgres. Returns nothing if it fails after permits have lapsed on a machine that stood still.
pub async fn without<T>(
    postgres: &mut FreshPostgres,
    have_lapsed: impl Future<Output = bool>,
    scenario: impl Future<Output = T>,
) -> Option<T> {
    postgres.stop();
    let watch = Stopwatch::start();
    match AssertUnwindSafe(scenario).catch_unwind().await {
        Ok(result) => Some(result),
        Err(failure) => {
            if watch.stood_still() < STANDSTILL || !have_lapsed.await {
                resume_unwind(failure);
            }
            None
        }
    }
}

/// Sells one unit. The first answer may have been lost.
async fn sells(world: &World, sale: &Sale, user: &str) {
    let outcome = buy(&world.app, sale, user, "k", 1).await;
    let is_sold = matches!(outcome, PurchaseOutcome::Reserved(_) | PurchaseOutcome::Replayed(_));
    assert!(is_sold, "{user}: {outcome:?}");
}

/// As on a network that drops a connection without a word. Then the instance reads changes more often.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_notices_that_postgres_cannot_notify_it() {
    let postgres = FreshPostgres::start().await;
    let world = World::with(redis(), postgres.url()).await;
    let app = Arc::clone(&world.app);
    let watching = tokio::spawn(async move { flow::sell::await_durability::watch(&app).await });
    within(PATIENCE, "it is notified", async || world.app.arrivals.hears()).await;
    let listens = "select pid from pg_stat_activity where query like 'LISTEN%'";
    let listens = sqlx::query_scalar::<_, i32>(listens).fetch_one(&world.pool);
    let frozen = Frozen::one(u32::try_from(listens.await.unwrap()).unwrap());
    within(PATIENCE, "it is not", async || !world.app.arrivals.hears()).await;
    drop(frozen);
    within(PATIENCE, "it is notified again", async || world.app.arrivals.hears()).await;
    watching.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_postgres_selling_goes_on_and_a_payment_is_taken_when_it_is_back() {
    unless_permits_lapse(selling_goes_on).await;
}

async fn selling_goes_on() -> bool {
    let mut postgres = FreshPostgres::start().await;
    let world = World::with(redis(), postgres.url()).await;
    let sale = world.sale(&Terms::of(20, 2)).await;
    let before = bought(&world.app, &sale, "before", "k", 1).await;
    world.settled(&sale).await;
    let shards = [0, 1].map(|shard| ShardKey { sale: sale.id, shard });
    let selling = Box::pin(async {
        for n in 0..10 {
            sells(&world, &sale, &format!("u{n}")).await;
        }
        let replayed = buy(&world.app, &sale, "before", "k", 1).await;
        assert!(matches!(&replayed, PurchaseOutcome::Replayed(it) if it.id == before.id));
        let paid = flow::settle::pay::pay(&world.app, &payment("early", before.id, 1)).await;
        assert!(matches!(paid, Err(Fault::Unavailable(_))), "{paid:?}");
        let cancelled = flow::settle::cancel::cancel(&world.app, before.id, &"before".parse().unwrap()).await;
        assert!(matches!(cancelled, Err(Fault::Unavailable(_))), "{cancelled:?}");
        // Permits need only Redis: they are renewed all the same.
        within(PATIENCE, "both permits are renewed", async || {
            done(flow::recover::renew::renew(&world.app).await) == 2
        })
        .await;
        let waiting: i64 = world.app.stock.undrained(&shards).await.unwrap().iter().sum();
        assert_eq!(waiting, 10);
    });
    let have_lapsed = async { world.app.permits.count_shards().halted > 0 };
    if without(&mut postgres, have_lapsed, selling).await.is_none() {
        return false;
    }

    postgres.restart();
    within(PATIENCE, "the ledger answers", async || {
        world.app.ledger.migrations_missing().await.is_ok()
    })
    .await;
    within(PATIENCE, "the ledger catches up", async || {
        // An earlier connection may still be in the pool.
        let _passing = drain_all(&world.app).await;
        world.app.stock.undrained(&shards).await.unwrap() == [0, 0]
    })
    .await;
    let paid = flow::settle::pay::pay(&world.app, &payment("early", before.id, 1))
        .await
        .unwrap();
    assert_eq!(paid, PaymentOutcome::Applied);
    let item = world.settled(&sale).await;
    assert_eq!((item.stock.held, item.stock.sold), (10, 1));
    world.sells_out(&sale).await;
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_whose_disk_is_full_is_as_one_that_is_away_and_catches_up() {
    let (postgres, disk) = FreshPostgres::on_weak_disk().await;
    let world = World::with(redis(), postgres.url()).await;
    let sale = world.sale(&Terms::of(400, 2)).await;
    let before = bought(&world.app, &sale, "before", "k", 1).await;
    world.settled(&sale).await;
    std::fs::write(&disk, "full").unwrap();
    // More than fit into the pages that the tables have.
    for n in 0..200 {
        bought(&world.app, &sale, &format!("u{n}"), "k", 1).await;
    }
    let drained = drain_all(&world.app).await;
    let is_full = |fault: &Fault| fault.is_passing() && fault.to_string().contains("No space left on device");
    assert!(matches!(&drained, Err(fault) if is_full(fault)), "{drained:?}");
    // A payment that still finds room is applied; any other is sent again by the provider.
    let paid = flow::settle::pay::pay(&world.app, &payment("p", before.id, 1)).await;
    assert!(
        matches!(&paid, Ok(PaymentOutcome::Applied) | Err(Fault::Unavailable(_))),
        "{paid:?}"
    );
    bought(&world.app, &sale, "meanwhile", "k", 1).await;
    std::fs::write(&disk, "").unwrap();
    within(PATIENCE, "the ledger catches up", async || {
        drain_all(&world.app).await.is_ok()
    })
    .await;
    let again = flow::settle::pay::pay(&world.app, &payment("p", before.id, 1))
        .await
        .unwrap();
    let expected = paid.map_or(PaymentOutcome::Applied, |_| PaymentOutcome::Duplicate);
    assert_eq!(again, expected);
    let item = world.settled(&sale).await;
    assert_eq!((item.stock.held, item.stock.sold), (201, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_postgres_a_redis_that_stands_still_for_a_moment_sells_on_again_and_again() {
    unless_permits_lapse(sells_on_while_redis_stands_still).await;
}

async fn sells_on_while_redis_stands_still() -> bool {
    let mut postgres = FreshPostgres::start().await;
    let redis = fresh_redis();
    let world = World::with(redis.server.url(), postgres.url()).await;
    let sale = world.sale(&Terms::of(20, 2)).await;
    let raw = Raw::connect(&redis.server.url());
    let selling = Box::pin(async {
        for n in 0..6 {
            // A fork or a slow disk does that. No process could grant an expired permit again meanwhile.
            let _paused: String = raw.call(redis::cmd("CLIENT").arg("PAUSE").arg(800).arg("ALL"));
            renewed(&world, 2).await;
            sells(&world, &sale, &format!("u{n}")).await;
        }
    });
    let have_lapsed = async { world.app.permits.count_shards().halted > 0 };
    without(&mut postgres, have_lapsed, selling).await.is_some()
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
    // While the process stands still, the ledger answers; the shopper may repeat the request under the same key.
    let frozen = Frozen::one(instance.pid());
    lock.rollback().await.unwrap();
    pass(Duration::from_millis(1_700)).await;
    drop(frozen);
    let answer = asked.await.unwrap().expect("an answer");
    assert_eq!((answer.status, answer.code()), (503, "unavailable"), "{answer:?}");
    // If it had sold all the same, this would be a replay.
    let again = instance.client().buy(id, "ada", "k", 1).await.expect("an answer");
    assert_eq!((again.status, again.replayed), (201, false), "{again:?}");
    assert_eq!(world.settled(&sale).await.stock.held, 1);
    world.sells_out(&sale).await;
    assert!(instance.errors().is_empty(), "{:#?}", instance.errors());
}

/// Records a worker, and forgets how long there was none: the database may be older than the test.
async fn no_outage_so_far(world: &World) {
    flow::settle::expire::beat(&world.app).await.unwrap();
    sqlx::query("delete from outages").execute(&world.pool).await.unwrap();
}

/// Records that the last worker came so long ago.
async fn silence(world: &World, seconds: i32) {
    let silence = "update heartbeat set beaten_at = now() - make_interval(secs => $1)";
    sqlx::query(silence)
        .bind(f64::from(seconds))
        .execute(&world.pool)
        .await
        .unwrap();
}

/// How long an order is held, in seconds, as its shopper reads it.
async fn holds_for(world: &World, order: flashsale::domain::ids::OrderId) -> f64 {
    let order = world.app.ledger.order(order).await.unwrap().unwrap();
    (order.expires_at - order.created_at).to_std().unwrap().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unpaid_orders_are_held_longer_by_the_time_in_which_nobody_could_pay() {
    let world = World::new().await;
    no_outage_so_far(&world).await;
    let terms = Terms {
        window_seconds: 60,
        ..Terms::of(20, 2)
    };
    let sale = world.sale(&terms).await;
    let old = bought(&world.app, &sale, "old", "k", 1).await;
    let middle = bought(&world.app, &sale, "middle", "k", 1).await;
    let paid = bought(&world.app, &sale, "paid", "k", 1).await;
    world.settled(&sale).await;
    flow::settle::pay::pay(&world.app, &payment("p", paid.id, 1))
        .await
        .unwrap();
    // One from before the outage, which would be overdue otherwise; one from its middle.
    for (user, age) in [("old", 130), ("paid", 130), ("middle", 40)] {
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
    // A second evaluation counts it no second time.
    for _ in 0..2 {
        flow::settle::expire::expire_due(&world.app).await.unwrap();
    }
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
        "a decided order is not held: {paid_holds}"
    );
    // Nor does a later one.
    for _ in 0..3 {
        silence(&world, 0).await;
        flow::settle::expire::expire_due(&world.app).await.unwrap();
    }
    assert!((holds_for(&world, old.id).await - old_holds).abs() < 0.001);
    let state = flow::settle::order::read_order(&world.app, old.id, &"old".parse().unwrap()).await;
    assert_eq!(state.unwrap().unwrap().state, OrderState::Reserved);
    assert_eq!(world.settled(&sale).await.stock.held, 4);

    // Another outage adds to the first; a silence of two seconds is none.
    silence(&world, 30).await;
    flow::settle::expire::expire_due(&world.app).await.unwrap();
    let twice = holds_for(&world, old.id).await;
    assert!(about(twice, 190.0), "{twice}");
    silence(&world, 2).await;
    flow::settle::expire::expire_due(&world.app).await.unwrap();
    assert!((holds_for(&world, old.id).await - twice).abs() < 0.001);
    let outages = "select count(*) from outages where $1 is not null";
    assert!(world.number(outages, sale.id).await >= 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_ends_with_the_outages_since_it_began_and_not_a_moment_before() {
    let world = World::new().await;
    no_outage_so_far(&world).await;
    let terms = Terms {
        window_seconds: 60,
        ..Terms::of(20, 1)
    };
    let sale = world.sale(&terms).await;
    // One is drained before the outage is noted, one after it.
    let early = bought(&world.app, &sale, "early", "k", 1).await.id;
    world.settled(&sale).await;
    let late = bought(&world.app, &sale, "late", "k", 1).await.id;
    let outages = "insert into outages (since, until) values (now() - interval '6 minutes', now() - interval '3 minutes'), \
         (now() - interval '150 seconds', now() - interval '30 seconds')";
    sqlx::query(outages).execute(&world.pool).await.unwrap();
    world.settled(&sale).await;
    // Workers came for 30 seconds since the second outage and for 30 between the two.
    let age = async |seconds: i32| {
        let age = "update orders set created_at = now() - make_interval(secs => $1), \
             expires_at = now() - make_interval(secs => $1 - 60) where state = 'reserved'";
        sqlx::query(age)
            .bind(f64::from(seconds))
            .execute(&world.pool)
            .await
            .unwrap();
    };
    age(160).await;
    // On a slow machine, the test itself would be another outage.
    silence(&world, 0).await;
    assert_eq!(flow::settle::expire::expire_due(&world.app).await.unwrap(), 0);
    for order in [early, late] {
        let holds = holds_for(&world, order).await;
        assert!((holds - 180.0).abs() < 1.0, "{holds}");
    }
    let lag = flow::settle::expire::lag(&world.app, Some(sale.id), chrono::Utc::now())
        .await
        .unwrap();
    assert!(lag.is_zero(), "{lag:?}");
    age(200).await;
    let beside = payment("beside", early, 1);
    let paid = flow::settle::pay::pay(&world.app, &beside).await;
    assert!(matches!(paid, Ok(PaymentOutcome::Applied)), "{paid:?}");
    // The job finds a deadline that has moved into the past with its next query for all holds.
    let mut expired = 0;
    within(PATIENCE, "the other order expires", async || {
        silence(&world, 0).await;
        expired += flow::settle::expire::expire_due(&world.app).await.unwrap();
        expired == 1
    })
    .await;
    // A decided order is held no longer, also after another outage.
    let holds = (holds_for(&world, early).await, holds_for(&world, late).await);
    assert!(
        (180.0..200.1).contains(&holds.0) && (180.0..200.1).contains(&holds.1),
        "{holds:?}"
    );
    let later = "insert into outages (since, until) values (now() - interval '20 seconds', now())";
    sqlx::query(later).execute(&world.pool).await.unwrap();
    assert_eq!((holds_for(&world, early).await, holds_for(&world, late).await), holds);
    world.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn much_to_do_is_no_outage() {
    let world = World::new().await;
    let outages = "select count(*) from outages where $1::uuid is not null";
    flow::settle::expire::beat(&world.app).await.unwrap();
    let sale = world.draft(&Terms::of(1, 1)).await;
    let before = world.number(outages, sale).await;
    silence(&world, 2).await;
    flow::settle::expire::beat(&world.app).await.unwrap();
    silence(&world, 2).await;
    flow::settle::expire::expire_due(&world.app).await.unwrap();
    assert_eq!(world.number(outages, sale).await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_long_at_expiring_holds_is_no_outage() {
    let world = World::new().await;
    flow::settle::expire::beat(&world.app).await.unwrap();
    let terms = Terms {
        window_seconds: 1,
        ..Terms::of(20, 2)
    };
    let sale = world.sale(&terms).await;
    for shard in [0, 1] {
        bought(&world.app, &sale, &shopper_at(&sale, shard), "k", 1).await;
    }
    drain_all(&world.app).await.unwrap();
    // Each shard's holds wait for these until the statement is given up, one after the other: that is ten seconds.
    let mut lock = world.pool.begin().await.unwrap();
    let grants = "select from grants where sale_id = $1 for update";
    sqlx::query(grants).bind(sale.id.0).execute(&mut *lock).await.unwrap();
    let began = "create table lock_began as select clock_timestamp() as at";
    sqlx::query(began).execute(&world.pool).await.unwrap();
    let _worker = world.start("worker").await;
    within(PATIENCE, "the worker's statement ends", async || {
        let late = "select count(*) from heartbeat, lock_began \
                    where beaten_at > at + interval '9 seconds' and $1 is not null";
        world.number(late, sale.id).await == 1
    })
    .await;
    let held = "select count(*) from orders where sale_id = $1 and state = 'reserved' and expires_at < now()";
    assert_eq!(world.number(held, sale.id).await, 2, "it had to wait");
    // On a slow machine, the time until the worker's first beat is an outage, too.
    let outages = "select count(*) from outages, lock_began where since > at and $1 is not null";
    assert_eq!(world.number(outages, sale.id).await, 0);
}

/// Waits until this process has asked each of so many shards again for its backlog.
async fn renewed(world: &World, shards: u64) {
    let renewed = world.app.metrics.permit_renewals.of(["renewed"]);
    // Those of a round that has begun may have been asked before.
    let before = renewed.get();
    within(PATIENCE, "the permits are renewed", async || {
        renewed.get() >= before + 2 * shards
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_of_which_an_order_waits_for_ten_minutes_sells_nothing_until_the_ledger_has_it() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(40, 2)).await;
    let [late, other] = [0, 1].map(|shard| shopper_at(&sale, shard));
    let raw = Raw::connect(&world.redis);
    let now = chrono::Utc::now().timestamp_millis();
    reserve_many(&raw, &sale, 0, 0, 1, now - 570_000);
    renewed(&world, 2).await;
    let first = bought(&world.app, &sale, &late, "k", 1).await;
    // The same order, thirty seconds later.
    drain_all(&world.app).await.unwrap();
    reserve_many(&raw, &sale, 0, 1, 1, now - 601_000);
    renewed(&world, 2).await;
    let refused = try_buy(&world.app, &sale, &late, "k2", 1).await;
    assert!(matches!(refused, Err(Fault::Overloaded(_))), "{refused:?}");
    let replayed = try_buy(&world.app, &sale, &late, "k", 1).await.unwrap();
    assert!(matches!(&replayed, PurchaseOutcome::Replayed(it) if it.id == first.id));
    bought(&world.app, &sale, &other, "k", 1).await;
    drain_all(&world.app).await.unwrap();
    // `bought` repeats a request that gets 503.
    bought(&world.app, &sale, &late, "k2", 1).await;
    world.settled(&sale).await;
    world.sells_out(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_shards_have_a_backlog_redis_has_memory_left() {
    const MAXMEMORY: i64 = 12 << 20;
    let redis = fresh_redis_with(&[
        ("maxmemory", &MAXMEMORY.to_string()),
        ("maxmemory-policy", "noeviction"),
    ]);
    let world = World::on(redis.server.url()).await;
    let sale = world.sale(&Terms::of(1_000_000, 256)).await;
    let raw = Raw::connect(&world.redis);
    let used = || {
        let memory: String = raw.call(redis::cmd("INFO").arg("memory"));
        let used = memory.lines().find_map(|line| line.strip_prefix("used_memory:"));
        used.unwrap().trim().parse::<i64>().unwrap()
    };
    let braked = || world.app.permits.count_shards().braked;
    // Nobody drains the events.
    let mut each = 0;
    while used() < MAXMEMORY * 3 / 4 {
        // The memory also swings with the buffers of connections, so the brake may hold a little early.
        assert!(braked() == 0 || used() >= MAXMEMORY * 7 / 10, "with {} bytes", used());
        for shard in 0..sale.shards {
            reserve_many(&raw, &sale, shard, each, 20, chrono::Utc::now().timestamp_millis());
        }
        each += 20;
    }
    // Shoppers go on buying until the brake holds everywhere.
    let mut buyers = 0;
    within(PATIENCE, "every shard is braked", async || {
        for _ in 0..20 {
            buyers += 1;
            let outcome = try_buy(&world.app, &sale, &format!("u{buyers}"), "k", 1).await;
            assert!(
                matches!(outcome, Ok(PurchaseOutcome::Reserved(_)) | Err(Fault::Overloaded(_))),
                "{outcome:?}"
            );
        }
        braked() == 256
    })
    .await;
    let refused = try_buy(&world.app, &sale, "late", "k", 1).await;
    assert!(matches!(refused, Err(Fault::Overloaded(_))), "{refused:?}");
    assert!(used() < MAXMEMORY, "{} bytes", used());
    within(PATIENCE * 4, "the ledger has everything", async || {
        let _passing = drain_all(&world.app).await;
        let keys: Vec<ShardKey> = (0..sale.shards)
            .map(|shard| ShardKey { sale: sale.id, shard })
            .collect();
        world
            .app
            .stock
            .undrained(&keys)
            .await
            .unwrap()
            .iter()
            .all(|waiting| *waiting == 0)
    })
    .await;
    bought(&world.app, &sale, "late", "k", 1).await;
    world.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outages_are_forgotten_after_a_month_in_which_workers_came() {
    let world = World::new().await;
    let sale = world.draft(&Terms::of(1, 1)).await;
    let outage = async |since: i32, until: i32| {
        let outage =
            "insert into outages values (now() - make_interval(days => $1), now() - make_interval(days => $2))";
        let outage = sqlx::query(outage).bind(since).bind(until);
        outage.execute(&world.pool).await.unwrap();
    };
    let outages = "select count(*) from outages where $1::uuid is not null";
    for (since, until) in [(40, 39), (34, 32), (29, 28)] {
        outage(since, until).await;
    }
    world.app.ledger.forget_outages().await.unwrap();
    // The second ended 32 days ago, one of which was an outage.
    assert_eq!(world.number(outages, sale).await, 1);
    // One ended 36 days ago, seven of which were outages.
    outage(40, 36).await;
    outage(36, 30).await;
    world.app.ledger.forget_outages().await.unwrap();
    assert_eq!(world.number(outages, sale).await, 3);
}

/// Decides something while a sale's only server hangs for longer than its permits hold, and postpones the messages for
/// its shard as after a minute of attempts. Returns once the server goes on.
async fn decided_while_it_hangs(world: &World, redis: &FreshRedis, sale: &Sale, decide: impl AsyncFnOnce()) {
    let frozen = Frozen::one(redis.server.pid());
    decide().await;
    let put_off = "update outbox set not_before = now() + interval '1 minute', attempts = 6 where sale_id = $1";
    assert!(world.execute(put_off, sale.id).await.unwrap() > 0);
    // The permits end after three seconds, and their server cannot be asked.
    pass(Duration::from_millis(3_500)).await;
    drop(frozen);
}

/// Lets one shopper after the other ask. None gets an order until the shards have got and renewed their permits and the
/// expected answer comes.
async fn nobody_buys(
    world: &World,
    sale: &Sale,
    user: impl Fn(usize) -> String,
    is_expected: impl Fn(&PurchaseOutcome) -> bool,
) {
    let renewed = world.app.metrics.permit_renewals.of(["renewed"]);
    let (before, mut asked) = (renewed.get(), 0);
    within(PATIENCE, "the shard sells to nobody", async || {
        let outcome = try_buy(&world.app, sale, &user(asked), "k", 1).await;
        assert!(!matches!(outcome, Ok(PurchaseOutcome::Reserved(_))), "{outcome:?}");
        asked += 1;
        // Two shards, twice each at the least.
        renewed.get() >= before + 6 && outcome.is_ok_and(|outcome| is_expected(&outcome))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_hung_during_a_pause_or_a_ban_learns_of_it_before_it_sells() {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let (sale, other) = (world.sale(&Terms::of(90, 1)).await, world.sale(&Terms::of(90, 1)).await);
    bought(&world.app, &sale, "before", "k", 1).await;
    let order = bought(&world.app, &other, "before", "k", 1).await;
    world.settled(&other).await;
    decided_while_it_hangs(&world, &redis, &sale, async || {
        // As if the deciding process could not reach the server at all: a hanging server still reads bytes sent to it.
        let now = chrono::Utc::now().timestamp_millis();
        let paused = world.app.ledger.transition(sale.id, Transition::Pause, now).await;
        assert!(matches!(paused, Ok(TransitionOutcome::Done(_))), "{paused:?}");
        world.app.ledger.ban(&ban("bot")).await.unwrap().unwrap();
        world
            .app
            .ledger
            .cancel(order.id, &"before".parse().unwrap())
            .await
            .unwrap();
        let put_off = "update outbox set not_before = now() + interval '1 minute', attempts = 6 where sale_id = $1";
        assert!(world.execute(put_off, other.id).await.unwrap() > 0);
    })
    .await;
    let is_paused = |it: &PurchaseOutcome| {
        matches!(
            it,
            PurchaseOutcome::Refused(Refusal::NotOpen {
                state: SaleState::Paused
            })
        )
    };
    let paused = nobody_buys(&world, &sale, |n| format!("u{n}"), is_paused);
    let is_banned = |it: &PurchaseOutcome| matches!(it, PurchaseOutcome::Refused(Refusal::Banned { .. }));
    let banned = nobody_buys(&world, &other, |_| "bot".to_owned(), is_banned);
    tokio::join!(paused, banned);
    // The other sale goes on, and all messages for its shard are due.
    within(PATIENCE, "others buy", async || {
        try_buy(&world.app, &other, "after", "k", 1).await.is_ok()
    })
    .await;
    let put_off = "select count(*) from outbox where sale_id = $1 and not_before > now() + interval '5 seconds'";
    for sale in [&sale, &other] {
        // A moment after the permit that let the shopper of the other sale buy.
        within(PATIENCE, "nothing is postponed", async || {
            world.number(put_off, sale.id).await == 0
        })
        .await;
        world.settled(sale).await;
    }
}
