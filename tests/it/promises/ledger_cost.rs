//! The cost of the ledger's work, of page views and of a proof that nothing is left, in figures that no machine changes: statements sent to
//! Postgres, commands run by Redis. A change that makes them dearer, or lets them grow with orders or waiting requests, fails
//! here; times are measured elsewhere.

use crate::support::crowd::{Terms, World, bought, payment, shopper_at};
use crate::support::poll::{PATIENCE, within};
use crate::support::raw::Raw;
use crate::support::servers::{FreshPostgres, FreshRedis, fresh_redis};
use flashsale::domain::ids::{OrderId, SaleId};
use flashsale::domain::order::payment::{Payment, PaymentOutcome};
use flashsale::domain::order::wanted::{OrdersOf, Stretch, WantedPayments};
use flashsale::domain::sale::Sale;
use flashsale::flow;
use flashsale::flow::sell::shortage::{Cover, Shortage};
use flashsale::flow::settle::drain::DrainOutcome;
use flashsale::ledger::operate::archive::{ArchiveOutcome, archive};
use flashsale::ledger::outbox::Delivery;
use flashsale::ledger::settle::payment::Settlement;
use futures_util::future::join_all;
use sqlx::PgConnection;
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// Every statement since the last reset, but for the question itself, and how often it was sent. By its number: whether the text
/// has its constants in it differs from time to time. Without the settings of each new connection.
const SENT: &str = "select left(query, 40) || ' ' || queryid, calls from pg_stat_statements \
    where query not like '%pg_stat_statements%' and query !~ '^set (?!local)'";

/// Servers of this test alone, and their counters.
struct Counting {
    world: World,
    raw: Raw,
    connection: PgConnection,
    _redis: FreshRedis,
    postgres: FreshPostgres,
}

impl Counting {
    async fn start() -> Self {
        let postgres = FreshPostgres::counting().await;
        let redis = fresh_redis();
        let world = World::with(redis.server.url(), postgres.url()).await;
        let mut connection = <PgConnection as sqlx::Connection>::connect(&postgres.url())
            .await
            .unwrap();
        sqlx::raw_sql("create extension pg_stat_statements")
            .execute(&mut connection)
            .await
            .unwrap();
        Self {
            world,
            raw: Raw::connect(&redis.server.url()),
            connection,
            _redis: redis,
            postgres,
        }
    }

    /// The statements that Postgres gets while this is done.
    async fn statements<T>(&mut self, work: impl Future<Output = T>) -> (T, BTreeMap<String, i64>) {
        sqlx::raw_sql("select pg_stat_statements_reset()")
            .execute(&mut self.connection)
            .await
            .unwrap();
        let done = work.await;
        let sent: Vec<(String, i64)> = sqlx::query_as(SENT).fetch_all(&mut self.connection).await.unwrap();
        (done, sent.into_iter().collect())
    }

    /// A connection whose snapshot sees what is there now, as that of `pg_dump` does until it ends.
    async fn dump(&self) -> PgConnection {
        let url = self.postgres.url();
        let mut dump = <PgConnection as sqlx::Connection>::connect(&url).await.unwrap();
        let snapshot = sqlx::raw_sql("begin isolation level repeatable read; select count(*) from outbox");
        snapshot.execute(&mut dump).await.unwrap();
        dump
    }

    /// How many pages the statements like this have read since the last reset.
    async fn pages_of(&mut self, like: &str) -> i64 {
        let pages = "select coalesce(sum(shared_blks_hit + shared_blks_read), 0)::int8 from pg_stat_statements \
             where query like $1 and query not like '%pg_stat_statements%'";
        let pages = sqlx::query_scalar(pages).bind(like);
        pages.fetch_one(&mut self.connection).await.unwrap()
    }

    /// How often statements like this were sent since the last reset.
    async fn calls_of(&mut self, like: &str) -> i64 {
        let calls = "select coalesce(sum(calls), 0)::int8 from pg_stat_statements \
             where query like $1 and query not like '%pg_stat_statements%'";
        let calls = sqlx::query_scalar(calls).bind(like);
        calls.fetch_one(&mut self.connection).await.unwrap()
    }

    /// The commands that Redis runs while this is done.
    async fn commands<T>(&self, work: impl Future<Output = T>) -> (T, BTreeMap<String, i64>) {
        let before = self.raw.command_counts();
        let done = work.await;
        let mut used = self.raw.command_counts();
        for (name, count) in &mut used {
            *count -= before.get(name).copied().unwrap_or(0);
        }
        used.retain(|_, count| *count > 0);
        (done, used)
    }
}

/// How many statements these are.
fn sum(sent: &BTreeMap<String, i64>) -> i64 {
    sent.values().sum()
}

/// So many orders of one unit each.
async fn orders(world: &World, sale: &Sale, count: usize) -> Vec<OrderId> {
    let mut orders = Vec::new();
    for n in 0..count {
        orders.push(bought(&world.app, sale, &format!("u{n}"), "k", 1).await.id);
    }
    orders
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_the_drain_a_payment_and_a_batch_of_releases_are_so_many_statements_each() {
    let mut counting = Counting::start().await;
    let mut sales = Vec::new();
    for count in [1, 2, 61] {
        let sale = counting.world.sale(&Terms::of(100, 1)).await;
        let orders = orders(&counting.world, &sale, count).await;
        sales.push((sale, orders));
    }
    counting.world.end_keeper().await;
    let app = Arc::clone(&counting.world.app);

    // The first of each has a connection to open.
    let mut batches = Vec::new();
    for (sale, orders) in &sales {
        let drain = Box::pin(flow::settle::drain::drain_batch(&app, sale, 0));
        let (outcome, sent) = counting.statements(drain).await;
        match outcome.unwrap() {
            DrainOutcome::Drained { drained, .. } => assert_eq!(drained.inserted, orders.len()),
            other => panic!("{other:?}"),
        }
        batches.push(sent);
    }
    assert_eq!(batches[1], batches[2], "it grows with the orders");
    assert_eq!(sum(&batches[2]), DRAIN, "{:#?}", batches[2]);
    // The count covers all statements.
    let (_, one_more) = counting.statements(app.ledger.sale(sales[0].0.id)).await;
    assert!(sum(&one_more) >= 1, "{one_more:?}");

    let pay = |name: &str, order: OrderId| {
        let (app, payment) = (Arc::clone(&app), payment(name, order, 1));
        Box::pin(async move { flow::settle::pay::pay(&app, &payment).await.unwrap() })
    };
    assert_eq!(pay("first", sales[0].1[0]).await, PaymentOutcome::Applied);
    let (outcome, sent) = counting.statements(pay("one", sales[1].1[0])).await;
    assert_eq!(outcome, PaymentOutcome::Applied);
    assert_eq!(sum(&sent), PAYMENT, "{sent:#?}");
    let (outcome, sent) = counting.statements(pay("one", sales[1].1[0])).await;
    assert_eq!(outcome, PaymentOutcome::Duplicate);
    assert!(sum(&sent) <= PAYMENT_AGAIN_MAX, "{sent:#?}");

    // The ledger has decided, and no message has been delivered.
    let (mut groups, mut releases) = (Vec::new(), Vec::new());
    for (at, orders) in [&sales[1].1[1..], &sales[2].1[..40]].into_iter().enumerate() {
        let payments = orders.iter().map(|order| payment(&order.to_string(), *order, 1));
        let payments: Vec<Payment> = payments.collect();
        let group = Box::pin(app.ledger.settle_payments(&payments));
        let (settled, sent) = counting.statements(group).await;
        let is_applied = |it: &Settlement| matches!(it, Settlement::Settled(PaymentOutcome::Applied, Some(_)));
        assert!(settled.unwrap().iter().all(is_applied));
        groups.push(sent);
        let release = Box::pin(flow::settle::release::release_of(&app, sales[at + 1].0.id));
        let (outcome, sent) = counting.statements(release).await;
        outcome.unwrap();
        releases.push(sent);
    }
    let left = counting
        .world
        .number("select count(*) from outbox where sale_id = $1", sales[2].0.id)
        .await;
    assert_eq!(left, 0, "all were delivered");
    assert_eq!(groups[0], groups[1], "it grows with the payments");
    assert_eq!(releases[0], releases[1], "it grows with the messages");
    assert_eq!(sum(&releases[1]), RELEASES, "{:#?}", releases[1]);

    // The first is alone, and the others form groups.
    let at_once = join_all(sales[2].1[40..60].iter().map(|order| pay(&order.to_string(), *order)));
    let (outcomes, sent) = counting.statements(at_once).await;
    assert_eq!(outcomes, [PaymentOutcome::Applied; 20]);
    assert!(sum(&sent) <= 5 * PAYMENT, "{sent:#?}");

    // A run ends with a batch of all that were due. It begins in the order of the queue, which is two statements more.
    let last = payment("last", sales[2].1[60], 1);
    app.ledger.settle_payments(&[last]).await.unwrap();
    let run = Box::pin(flow::settle::release::release_waiting(&app));
    let (released, sent) = counting.statements(run).await;
    assert_eq!(released.unwrap(), 1);
    assert_eq!(sum(&sent), RELEASES + 2, "{sent:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proof_that_nothing_is_left_costs_the_same_however_many_wait_for_it() {
    let mut counting = Counting::start().await;
    let mut sales = Vec::new();
    for _ in 0..2 {
        let sale = counting.world.sale(&Terms::of(4, 4)).await;
        for shard in 0..4 {
            bought(&counting.world.app, &sale, &shopper_at(&sale, shard), "k", 1).await;
        }
        sales.push(sale);
    }
    counting.world.end_keeper().await;
    let app = &counting.world.app;
    let mut costs = Vec::new();
    for (sale, waiters) in sales.iter().zip([1_u16, 64]) {
        let arrival = app.shortages.arrival();
        let shortages = (0..waiters).map(|waiter| Shortage {
            sale,
            item: 0,
            sku: &sale.items[0].sku,
            home: waiter % 4,
            quantity: 1,
            arrival,
        });
        let shortages: Vec<Shortage<'_>> = shortages.collect();
        let asking = join_all(
            shortages
                .iter()
                .map(|shortage| flow::sell::shortage::cover(app, shortage)),
        );
        let (answers, used) = counting.commands(Box::pin(asking)).await;
        assert_eq!(answers.len(), usize::from(waiters));
        for answer in answers {
            assert_eq!(answer.unwrap(), Cover::SoldOut);
        }
        costs.push(used);
    }
    assert_eq!(costs[0], costs[1], "it grows with those who wait");
    let expected: BTreeMap<String, i64> = READING.map(|(name, count)| (name.to_owned(), count)).into();
    assert_eq!(costs[1], expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_found_by_index_after_a_wave_of_ended_orders() {
    let mut counting = Counting::start().await;
    // Only the test updates statistics.
    let quiet = "alter table outbox set (autovacuum_enabled = false)";
    sqlx::raw_sql(quiet).execute(&mut counting.connection).await.unwrap();
    let sale = counting.world.sale(&Terms::of(10, 4)).await;
    // A keeper that reconciles, as on a slow machine, reads messages, too.
    counting.world.end_keeper().await;
    let mut pages = Vec::new();
    // Both after many executions, when the plan ignores the parameters, and before.
    // The first waves come when Postgres has statistics of an empty queue only.
    for (plan, wave, is_known) in [
        ("generic", 1_000, false),
        ("generic", 100_000, false),
        ("custom", 100_000, false),
        ("generic", 100_000, true),
    ] {
        let plan = format!("alter system set plan_cache_mode = force_{plan}_plan");
        for statement in [&plan, "select pg_reload_conf()"] {
            let statement = sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()));
            statement.execute(&mut counting.connection).await.unwrap();
        }
        let resolve = "insert into outbox (sale_id, shard, message) select $1, n % 4, \
             jsonb_build_object('kind', 'resolve', 'order', gen_random_uuid(), 'user', 'u' || n, 'sku', 'mug', \
                 'quantity', 1, 'state', 'expired', 'at', 0) from generate_series(1, $2::int4) as n";
        let resolve = sqlx::query(resolve).bind(sale.id.0).bind(wave);
        if !is_known {
            for statement in ["delete from outbox", "vacuum analyze outbox"] {
                sqlx::raw_sql(statement)
                    .execute(&mut counting.connection)
                    .await
                    .unwrap();
            }
        }
        resolve.execute(&mut counting.connection).await.unwrap();
        if is_known {
            let seen = sqlx::raw_sql("vacuum analyze outbox");
            seen.execute(&mut counting.connection).await.unwrap();
        }
        let ledger = counting.world.app.ledger.clone();
        let (taken, _sent) = counting
            .statements(async {
                let taken = ledger.take_outgoing(500, None, &[]).await.unwrap();
                assert!(!ledger.is_restock_on_its_way(sale.id, Uuid::nil()).await.unwrap());
                taken
            })
            .await;
        assert_eq!(taken.messages.len(), 500);
        drop(taken);
        pages.push(counting.pages_of("%from outbox%").await);
    }
    assert!(pages[0] > 0, "{pages:?}");
    // A few more levels of an index, and perhaps a page for each message; the table itself has grown by thousands.
    assert!(pages[1..].iter().all(|it| *it <= pages[0] + 700), "{pages:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_found_as_quickly_while_a_snapshot_sees_those_that_are_deleted() {
    const BATCHES: usize = 24;
    let mut counting = Counting::start().await;
    let sale = counting.world.sale(&Terms::of(10, 4)).await;
    // A keeper that reconciles, as on a slow machine, reads messages, too.
    counting.world.end_keeper().await;
    let send = "insert into outbox (sale_id, shard, message, not_before) select $1, n % 4, \
         jsonb_build_object('kind', 'resolve', 'order', gen_random_uuid(), 'user', 'u' || n, 'sku', 'mug', \
             'quantity', 1, 'state', 'expired', 'at', 0), now() - interval '1 hour' + n * interval '1 millisecond' \
         from generate_series(1, $2::int4) as n";
    let send = |count: usize| sqlx::query(send).bind(sale.id.0).bind(i32::try_from(count).unwrap());
    send(500 * BATCHES).execute(&mut counting.connection).await.unwrap();
    let _dump = counting.dump().await;
    let ledger = counting.world.app.ledger.clone();
    let take = async || {
        let batch = ledger.take_outgoing(500, None, &[]).await.unwrap();
        let ids: Vec<i64> = batch.messages.iter().map(|it| it.id).collect();
        let outcomes = ids.iter().map(|id| (*id, Delivery::Applied { by: None })).collect();
        batch.settle(outcomes).await.unwrap();
        ids
    };
    let mut pages = Vec::new();
    for _ in 0..BATCHES {
        let (ids, _sent) = counting.statements(take()).await;
        assert_eq!(ids.len(), 500);
        pages.push(counting.pages_of("%from outbox%").await);
    }
    // Now and then a batch begins at the oldest message, on a slow machine even one of the last. A batch that passed over
    // all deleted messages would read a dozen pages more than the one before.
    let last = pages[BATCHES - 6..].iter().min().unwrap();
    assert!(*last <= pages[2] + 50, "{pages:?}");

    // A message that was left behind is found by such a batch.
    let (none, _sent) = counting.statements(take()).await;
    assert!(none.is_empty());
    send(1).execute(&mut counting.connection).await.unwrap();
    within(PATIENCE, "the message is taken", async || take().await.len() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_holds_are_found_as_quickly_while_a_snapshot_sees_those_that_have_expired() {
    const BATCHES: usize = 40;
    let mut counting = Counting::start().await;
    let sale = counting.world.sale(&Terms::of(10_000, 1)).await;
    counting.world.end_keeper().await;
    let ended = "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, amount_minor, \
         currency, created_at, expires_at, epoch, seq) \
         select gen_random_uuid(), $1, 0, 'mug', 'u' || n, 'k', 1, 0, 'EUR', now() - interval '2 hours', \
         now() - interval '1 hour' + n * interval '10 milliseconds', 1, n from generate_series(1, 8000) as n";
    let held = "update grants set held = 8000 where sale_id = $1";
    for statement in [ended, held] {
        counting.world.execute(statement, sale.id).await.unwrap();
    }
    let _dump = counting.dump().await;
    let ledger = counting.world.app.ledger.clone();
    let now = chrono::Utc::now().timestamp_millis();
    let (mut queries, mut batches) = (Vec::new(), Vec::new());
    for _ in 0..BATCHES {
        let expire = async {
            let due = ledger.shards_with_due_orders(Some(now)).await.unwrap();
            ledger.expire_due(&due[0], now, now, 200).await.unwrap()
        };
        let (expired, _sent) = counting.statements(expire).await;
        assert_eq!(expired, 200);
        queries.push(
            counting
                .pages_of("select s.sale_id, s.shard, sales.payment_window_seconds%")
                .await,
        );
        batches.push(
            counting
                .pages_of("update orders set state = %resolved_at = now()%")
                .await,
        );
    }
    // Now and then a query begins at the oldest hold, on a slow machine even one of the last.
    for pages in [&queries, &batches] {
        let last = pages[BATCHES - 6..].iter().min().unwrap();
        assert!(*last <= pages[BATCHES / 2] + 20, "{queries:?} {batches:?}");
    }
}

/// Pages of a process share a reading, so this is the cost of a reading.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_views_read_all_shards_with_one_command_and_ask_the_ledger_nothing() {
    const ASKED: &str = "select sale_id, number, name%from sales where sale_id = %";
    let mut counting = Counting::start().await;
    let sale = counting.world.sale(&Terms::of(100, 64)).await;
    let app = Arc::clone(&counting.world.app);
    let read = async || {
        let glance = flow::sell::glance::fresh_glance(&app, sale.id).await.unwrap().unwrap();
        assert_eq!(glance.free.values().sum::<i64>(), 100);
    };
    within(PATIENCE, "the ledger is not asked for the sale", async || {
        counting.statements(Box::pin(read())).await;
        counting.calls_of(ASKED).await == 0
    })
    .await;
    counting.world.end_keeper().await;
    let ((), used) = counting.commands(Box::pin(read())).await;
    assert_eq!(
        used,
        BTreeMap::from(READING.map(|(name, count)| (name.to_owned(), count)))
    );
}

/// To begin, claim the shard, save, insert the orders, hold their units, move the position, commit.
const DRAIN: i64 = 7;
/// To begin, wait briefly for locks, find whether it is known, lock the order, record the payment, change the order, its message
/// and its units, commit; then, after the delivery, to begin, verify the server, mark the message delivered, commit.
const PAYMENT: i64 = 13;
/// To begin, wait briefly for locks, find whether it is known, and leave it at that, which may be sent a moment later. Then
/// to compare it with what is recorded.
const PAYMENT_AGAIN_MAX: i64 = 5;
/// To begin, take the messages, verify the servers, mark them delivered, commit.
const RELEASES: i64 = 5;
/// One reading of all shards.
const READING: [(&str, i64); 3] = [("mget", 1), ("script|exists", 1), ("time", 1)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recent_bans_are_asked_for_once_a_sale_and_cost_the_same_however_many_old_ones_there_are() {
    const RECENT: &str = "%greatest(%banned_at%";
    let mut counting = Counting::start().await;
    let sale = counting.world.sale(&Terms::of(80, 8)).await;
    counting.world.end_keeper().await;
    let old = "insert into bans (user_id, reason, banned_by, banned_at, change) \
               select 'bot-' || n, 'a bot', 'browsing', now() - interval '1 day', nextval('ban_changes') \
               from generate_series(1, 50000) n";
    sqlx::raw_sql(old).execute(&mut counting.connection).await.unwrap();
    sqlx::raw_sql("analyze bans")
        .execute(&mut counting.connection)
        .await
        .unwrap();
    let bot = crate::support::crowd::ban("bot");
    flow::operate::bans::ban(&counting.world.app, &bot)
        .await
        .unwrap()
        .unwrap();
    let elsewhere = "update shards set run_id = 'a-b-c' where sale_id = $1";
    counting.world.execute(elsewhere, sale.id).await.unwrap();
    let app = Arc::clone(&counting.world.app);
    let shards: Vec<u16> = (0..sale.shards).collect();
    let reconciled = Box::pin(flow::recover::reconcile::reconcile(&app, &sale, &shards));
    assert!(counting.statements(reconciled).await.0.unwrap().left.is_none());
    assert_eq!(counting.calls_of(RECENT).await, 1);
    let pages = counting.pages_of(RECENT).await;
    assert!(pages < 20, "{pages} pages");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_ask_once_when_the_held_units_of_all_their_sales_may_come_back() {
    let mut counting = Counting::start().await;
    let mut sales = Vec::new();
    for _ in 0..3 {
        let sale = counting.world.sale(&Terms::of(1, 1)).await;
        orders(&counting.world, &sale, 1).await;
        sales.push(sale);
    }
    counting.world.end_keeper().await;
    let app = Arc::clone(&counting.world.app);
    for sale in &sales {
        Box::pin(flow::settle::drain::drain_batch(&app, sale, 0)).await.unwrap();
    }
    let ids: Vec<SaleId> = sales.iter().map(|sale| sale.id).collect();
    let releases = app.ledger.next_releases(&ids).await.unwrap();
    assert!(ids.iter().all(|id| releases[id].len() == 1), "{releases:?}");
    let (glances, _) = Box::pin(flow::sell::glance::glances(&app, 10, None)).await.unwrap();
    assert_eq!(glances.len(), 3);
    let lists = join_all((0..10).map(|_| flow::sell::glance::next_releases_each(&app, &glances)));
    counting.statements(lists).await;
    assert_eq!(counting.calls_of("select s.sale_id, held.sku%").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_reads_a_few_pages_an_order_however_many_payments_and_items_there_are() {
    const ORDERS: i64 = 2_000;
    let mut counting = Counting::start().await;
    let sale = counting.world.sale(&Terms::of(10, 1)).await;
    let other = counting.world.sale(&Terms::of(10, 1)).await;
    counting.world.end_keeper().await;
    let orders = "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, amount_minor, \
         currency, state, created_at, expires_at, resolved_at, epoch, seq) \
         select gen_random_uuid(), $1, 0, 'mug', 'u' || n, 'k', 1, 0, 'EUR', 'cancelled', now(), \
         now() + interval '1 hour', now(), 1, n from generate_series(1, 2000) n";
    let payments = "insert into payments (payment_id, webhook_id, order_id, amount_minor, currency, outcome, \
         matched_order_id, settled_at) select seq || '-' || n, 'w', order_id, 1, 'EUR', 'refund_due', order_id, now() \
         from orders cross join generate_series(1, 5) n where sale_id = $1";
    let items = "insert into items (sale_id, sku, position, name, price_minor, currency, stock, per_user_limit) \
         select $1, 'extra-' || n, n, 'extra', 0, 'EUR', 0, 1 from generate_series(1, 200) n";
    let grants = "insert into grants (sale_id, sku, shard, granted) \
         select sale_id, sku, 0, 0 from items where sale_id = $1 and stock = 0";
    let delivered = "delete from outbox where sale_id = $1";
    let retired = "update sales set retired_at = now() where sale_id = $1";
    for (statement, of) in [
        (orders, sale.id),
        (orders, other.id),
        (payments, other.id),
        (items, sale.id),
        (grants, sale.id),
        (delivered, sale.id),
        (retired, sale.id),
    ] {
        counting.world.execute(statement, of).await.unwrap();
    }
    sqlx::raw_sql("analyze")
        .execute(&mut counting.connection)
        .await
        .unwrap();
    let (database, file) = (counting.world.database.clone(), tempfile::tempfile().unwrap());
    let (archived, _) = counting.statements(Box::pin(archive(&database, sale.id, file))).await;
    assert!(matches!(archived, Ok(ArchiveOutcome::Archived(_))), "{archived:?}");
    // The order's own page, and a few of the index that shows that no payment needs it.
    let pages = counting.pages_of("delete from orders%").await;
    assert!((ORDERS..20 * ORDERS).contains(&pages), "{pages}");
    // One check for all grants, which reads the deleted orders once.
    let pages = counting.pages_of("delete from grants%").await;
    assert!((1..3 * ORDERS).contains(&pages), "{pages}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_list_a_few_of_many_payments_by_reading_few_pages() {
    let mut counting = Counting::start().await;
    let few = counting.world.sale(&Terms::of(10, 1)).await;
    let many = counting.world.sale(&Terms::of(10, 1)).await;
    counting.world.end_keeper().await;
    // The ids of a sale's orders begin with its number.
    let orders = "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, amount_minor, \
         currency, state, created_at, expires_at, resolved_at, epoch, seq) \
         select (lpad(to_hex(number), 8, '0') || substr(gen_random_uuid()::text, 9))::uuid, sale_id, 0, 'mug', 'u' || n, \
         'k', 1, 0, 'EUR', 'cancelled', now(), now() + interval '1 hour', now(), 1, n \
         from sales cross join generate_series(1, 20000) n where sale_id = $1";
    let all_but_twenty = "delete from orders where sale_id = $1 and seq > 20";
    // So the few are old.
    let payments = "insert into payments (payment_id, webhook_id, order_id, amount_minor, currency, outcome, \
         matched_order_id, settled_at, received_at) select order_id::text, 'w', order_id::text, 1, 'EUR', 'applied', \
         order_id, now(), now() + seq * interval '1 second' from orders where sale_id = $1 order by seq";
    for (statement, of) in [
        (orders, few.id),
        (all_but_twenty, few.id),
        (orders, many.id),
        (payments, few.id),
        (payments, many.id),
    ] {
        counting.world.execute(statement, of).await.unwrap();
    }
    sqlx::raw_sql("analyze")
        .execute(&mut counting.connection)
        .await
        .unwrap();
    let app = Arc::clone(&counting.world.app);
    for (of, count) in [
        (None, 100),
        (Some(OrdersOf::Sale(many.id)), 100),
        (Some(OrdersOf::Sale(few.id)), 20),
        (Some(OrdersOf::User("u7".parse().unwrap(), None)), 2),
    ] {
        let wanted = WantedPayments {
            outcome: PaymentOutcome::Applied,
            settled: None,
            of,
            stretch: Stretch::between(None, None),
        };
        let list = Box::pin(app.ledger.newest_payments(&wanted, 100));
        let (listed, _) = counting.statements(list).await;
        assert_eq!(listed.unwrap().len(), count, "{wanted:?}");
        let pages = counting.pages_of("select payment_id, order_id,%").await;
        assert!((1..200).contains(&pages), "{pages} pages: {wanted:?}");
    }
}
