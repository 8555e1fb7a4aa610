//! While nobody buys, an instance reads nothing again that has not changed. A change ends that.

use crate::support::crowd::{Client, Terms, World, answered, bought, done};
use crate::support::poll::{PATIENCE, within};
use crate::support::raw::Raw;
use crate::support::servers::{FreshPostgres, FreshRedis, Frozen, fresh_redis};
use flashsale::domain::ids::SaleId;
use flashsale::flow;
use flashsale::flow::recover::bulletin::wait_for_news;
use sqlx::postgres::PgListener;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::timeout;
use uuid::Uuid;

const SHARDS: u16 = 24;
/// How long lengths of streams are counted for one figure.
const WINDOW: Duration = Duration::from_secs(3);
/// A change is known sooner. A list without one is read again after three times as long.
const SOON: Duration = Duration::from_secs(5);

/// A task that nothing notifies of a change asks the ledger sooner. A process that notifications reach asks after three
/// seconds.
const UNTOLD: Duration = Duration::from_millis(2_500);

/// All statements since the last reset, but for those of this test.
const SENT: &str = "select query, calls from pg_stat_statements where query not like '%pg_stat_statements%'";
/// Part of the bulletin, and of no other statement.
const BULLETIN: &str = "guard_settings";
/// The same of the question whether the connection for notifications still lives.
const LIVES: &str = "as \"listens!\"";

/// A world on servers of its own, whose Postgres counts statements.
async fn counted() -> ((FreshPostgres, FreshRedis), World) {
    let (postgres, redis) = (FreshPostgres::counting().await, fresh_redis());
    let world = World::with(redis.server.url(), postgres.url()).await;
    let extension = sqlx::raw_sql("create extension pg_stat_statements");
    extension.execute(&world.pool).await.unwrap();
    ((postgres, redis), world)
}

/// The statements while the ledger is asked for so many bulletins, with the number of calls.
async fn sent_in(world: &World, bulletins: i64) -> Vec<(String, i64)> {
    let reset = sqlx::raw_sql("select pg_stat_statements_reset()");
    reset.execute(&world.pool).await.unwrap();
    let sent = async || -> Vec<(String, i64)> { sqlx::query_as(SENT).fetch_all(&world.pool).await.unwrap() };
    within(PATIENCE, "there are bulletins", async || {
        let asked = sent().await.into_iter().filter(|(query, _)| query.contains(BULLETIN));
        asked.map(|(_, calls)| calls).sum::<i64>() >= bulletins
    })
    .await;
    sent().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_asks_the_ledger_one_question_in_each_round_and_reads_nothing() {
    let (_servers, world) = counted().await;
    let _sale = world.sale(&Terms::of(80, 8)).await;
    // The list of sales is read now and then all the same.
    within(
        PATIENCE,
        "there are five rounds without another statement",
        async || {
            let sent = sent_in(&world, 5).await;
            sent.iter().all(|(query, _)| query.contains(BULLETIN))
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_bulletins_report_changes_the_connection_for_notifications_is_rarely_asked() {
    let (_servers, world) = counted().await;
    // An instance that renews permits reads the bulletin in each round.
    let _sale = world.sale(&Terms::of(80, 8)).await;
    let app = Arc::clone(&world.app);
    let watching = tokio::spawn(async move { flow::sell::await_durability::watch(&app).await });
    within(PATIENCE, "it is notified", async || world.app.arrivals.hears()).await;
    within(PATIENCE, "there are four rounds without the question", async || {
        let sent = sent_in(&world, 4).await;
        !sent.iter().any(|(query, _)| query.contains(LIVES))
    })
    .await;
    watching.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_reads_few_bulletins_often_asks_whether_postgres_can_notify_it() {
    let (_servers, world) = counted().await;
    let app = Arc::clone(&world.app);
    let watching = tokio::spawn(async move { flow::sell::await_durability::watch(&app).await });
    // Without a permit to renew, five bulletins take it eight seconds. An instance that reads them all asks once in ten.
    within(PATIENCE, "the connection is asked twice", async || {
        let sent = sent_in(&world, 5).await;
        let asked = sent.iter().filter(|(query, _)| query.contains(LIVES));
        asked.map(|(_, calls)| calls).sum::<i64>() >= 2
    })
    .await;
    watching.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_soon_lists_a_sale_as_another_process_has_changed_it() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 2)).await;
    for name in ["first", "second"] {
        within(PATIENCE, "the instance knows the sale", async || {
            let listed = answered("the sales are listed", || world.app.sales.live()).await;
            world.app.bulletins.are_fresh() && listed.iter().any(|it| it.id == sale.id)
        })
        .await;
        let _before = timeout(Duration::ZERO, world.app.settings_changed.notified()).await;
        // Nothing notifies the instance.
        let change = sqlx::query("update sales set name = $2, state_version = state_version + 1 where sale_id = $1");
        change.bind(sale.id.0).bind(name).execute(&world.pool).await.unwrap();
        within(SOON, "the instance has the change", async || {
            let listed = answered("the sales are listed", || world.app.sales.live()).await;
            listed.iter().any(|it| it.name == name)
        })
        .await;
        let followed = timeout(SOON, world.app.settings_changed.notified()).await;
        assert!(followed.is_ok(), "the change may be one of its guards");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_instance_is_notified_of_a_restock_which_no_bulletin_reports() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 2)).await;
    let mut news = PgListener::connect(&world.database).await.unwrap();
    news.listen("flashsale_changed").await.unwrap();
    let (key, sku) = ("more".parse().unwrap(), &sale.items[0].sku);
    let restock = || flow::operate::restock::restock(&world.app, sale.id, &key, sku, 5);
    answered("the item is restocked", restock).await;
    timeout(PATIENCE, news.recv()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_soon_asks_by_itself_once_its_process_has_neither_notifications_nor_bulletins() {
    // This process does not listen.
    let world = World::new().await;
    within(PATIENCE, "the task soon asks", async || {
        within(PATIENCE, "there are bulletins", async || {
            world.app.bulletins.are_fresh()
        })
        .await;
        let mut lock = world.pool.begin().await.unwrap();
        // Each bulletin reads this table.
        sqlx::query("lock table bans in access exclusive mode")
            .execute(&mut *lock)
            .await
            .unwrap();
        let began = Instant::now();
        assert!(!wait_for_news(&world.app, &Notify::new(), true).await);
        let took = began.elapsed();
        lock.rollback().await.unwrap();
        took < UNTOLD
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_stores_a_heartbeat_only_if_none_has_just_been_stored() {
    let world = World::new().await;
    let nothing = SaleId(Uuid::nil());
    let last = "select (extract(epoch from beaten_at) * 1000000)::int8 from heartbeat where $1::uuid is not null";
    within(PATIENCE, "another worker's heartbeat is enough", async || {
        world.app.ledger.beat().await.unwrap();
        let before = world.number(last, nothing).await;
        within(PATIENCE, "a bulletin says so", async || {
            let since = world.app.bulletins.since_beat();
            since.is_some_and(|since| since < Duration::from_secs(1))
        })
        .await;
        done(flow::settle::expire::beat_if_due(&world.app).await);
        world.number(last, nothing).await == before
    })
    .await;
    let old = "update heartbeat set beaten_at = now() - interval '4 seconds' where $1::uuid is not null";
    world.execute(old, nothing).await.unwrap();
    within(PATIENCE, "an old one is not", async || {
        done(flow::settle::expire::beat_if_due(&world.app).await);
        let is_new = "select (beaten_at > now() - interval '3 seconds')::int::int8 from heartbeat \
                      where $1::uuid is not null";
        world.number(is_new, nothing).await == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_note_shows_that_redis_is_up_until_redis_falls_silent() {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let raw = Raw::connect(&world.redis);
    let pings = || raw.command_counts().get("ping").copied().unwrap_or_default();
    let up = world.app.metrics.up.of(["redis"]);
    within(PATIENCE, "it is up, and was not asked", async || {
        let before = pings();
        Box::pin(flow::watch::gauges::measure_process(&world.app)).await;
        up.get() == 1 && pings() == before
    })
    .await;
    let frozen = Frozen::one(redis.server.pid());
    within(PATIENCE, "it is not up", async || up.get() == 0).await;
    drop(frozen);
    within(PATIENCE, "it is up again", async || up.get() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn even_shards_are_not_surveyed_until_something_is_sold() {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let sale = world.sale(&Terms::of(4_000, 8)).await;
    let raw = Raw::connect(&world.redis);
    let surveys = || raw.command_counts().get("mget").copied().unwrap_or_default();
    let surveys_again = async || {
        let before = surveys();
        done(flow::recover::upkeep::rebalance(&world.app).await);
        surveys() > before
    };
    assert!(surveys_again().await, "the first time");
    within(PATIENCE, "two surveys have found the same", async || {
        !surveys_again().await
    })
    .await;
    bought(&world.app, &sale, "ada", "k", 1).await;
    within(PATIENCE, "the shards are surveyed", surveys_again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_command_shows_that_nothing_is_in_transit() {
    let redis = fresh_redis();
    let mut world = World::on(redis.server.url()).await;
    let sale = world.sale(&Terms::of(80, 8)).await;
    world.end_keeper().await;
    let raw = Raw::connect(&world.redis);
    let before = raw.command_counts();
    assert_eq!(flow::sell::borrow::finish_left(&world.app, &sale, 0).await.unwrap(), 0);
    let mut used = raw.command_counts();
    used.retain(|name, count| {
        *count -= before.get(name).copied().unwrap_or_default();
        *count > 0
    });
    assert_eq!(used.into_iter().collect::<Vec<_>>(), [("exists".to_owned(), 1)]);
}

/// Waits until each stream is asked for its length so often a second, besides by its renewals.
async fn are_polled(redis: &Raw, what: &str, is_so: impl Fn(f64) -> bool) {
    let lengths = || {
        let counts = redis.command_counts();
        let count = |name: &str| counts.get(name).copied().unwrap_or_default();
        // Only a renewal asks for the last id.
        count("xlen") - count("xinfo|stream")
    };
    let mut window = (Instant::now(), lengths());
    within(PATIENCE, what, async || {
        let took = window.0.elapsed();
        if took < WINDOW {
            return false;
        }
        let asked = u32::try_from(lengths() - window.1).unwrap();
        window = (Instant::now(), lengths());
        is_so(f64::from(asked) / f64::from(SHARDS) / took.as_secs_f64())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_polled_less_often_while_every_instance_drains_what_it_sells() {
    let redis = fresh_redis();
    let mut world = World::on(redis.server.url()).await;
    let sale = world.sale(&Terms::of(100, SHARDS)).await;
    let both = [world.start("all").await, world.start("all").await];
    world.end_keeper().await;
    let raw = Raw::connect(&world.redis);
    are_polled(&raw, "the streams are polled once a second", |times| times < 3.5).await;
    let sells = async |client: Client, key: &str| {
        within(PATIENCE, "the shard sells", async || {
            let answer = client.buy(sale.id, "ada", key, 1).await;
            answer.is_some_and(|answer| matches!(answer.status, 200 | 201))
        })
        .await;
        world.rested(&sale).await;
    };
    sells(both[0].client(), "k").await;
    // It has no drain of its own.
    let api = world.start("api").await;
    are_polled(&raw, "the streams are polled five times a second", |times| times > 4.0).await;
    sells(api.client(), "another").await;
}
