//! Streams whose numbers have a gap: Postgres has lost commits, or an operator has written into a stream by hand.

use crate::support::crowd::{Terms, World, bought, buy, cancel, drain_all, payment, shopper_at};
use crate::support::poll::{PATIENCE, answer, within};
use crate::support::raw::Raw;
use crate::support::servers::{FreshPostgres, FreshRedis, fresh_redis};
use flashsale::domain::fault::Fault;
use flashsale::domain::ids::OrderId;
use flashsale::domain::order::payment::PaymentOutcome;
use flashsale::domain::order::purchase::PurchaseOutcome;
use flashsale::domain::order::{Order, OrderState};
use flashsale::domain::sale::Sale;
use flashsale::flow;
use flashsale::scheduler::Keeper;
use flashsale::stock::keys::ShardKey;
use redis::streams::StreamRangeReply;
use serde_json::json;
use std::sync::Arc;
use tempfile::TempDir;

const fn key(sale: &Sale, shard: u16) -> ShardKey {
    ShardKey { sale: sale.id, shard }
}

/// A sale on servers of the test's own, and a copy of Postgres's files from a moment before the last commits.
struct Lab {
    redis: FreshRedis,
    postgres: FreshPostgres,
    world: World,
    sale: Arc<Sale>,
    copy: Option<TempDir>,
}

impl Lab {
    async fn start(terms: &Terms) -> Self {
        let (redis, postgres) = (fresh_redis(), FreshPostgres::start().await);
        let world = World::with(redis.server.url(), postgres.url()).await;
        let sale = world.sale(terms).await;
        Self {
            redis,
            postgres,
            world,
            sale,
            copy: None,
        }
    }

    /// Copies Postgres's files while it is stopped: the state of a standby that is behind.
    async fn standby(&mut self) {
        self.world.settled(&self.sale).await;
        self.postgres.stop();
        self.copy = Some(self.postgres.copy());
        self.postgres.restart();
        self.connected().await;
    }

    /// Stands for the promotion of an asynchronous standby: Postgres ends without warning, and goes on with the copy.
    /// Redis and the instances stay as they are.
    async fn promote_standby(&mut self) {
        self.postgres.kill();
        self.postgres.go_back_to(self.copy.as_ref().unwrap());
        self.postgres.restart();
        self.connected().await;
    }

    async fn connected(&self) {
        within(PATIENCE, "Postgres answers", async || {
            self.world.app.ledger.standings(&[self.sale.id]).await.is_ok()
        })
        .await;
    }

    /// Waits until the ledger has so many orders again.
    async fn has_orders(&self, expected: i64) {
        let count = "select count(*) from orders where sale_id = $1";
        within(PATIENCE, "the ledger has the orders again", async || {
            self.world.number(count, self.sale.id).await == expected
        })
        .await;
    }

    async fn lost_orders(&self) -> i64 {
        let stats = flow::watch::stats::stats(&self.world.app, self.sale.id)
            .await
            .unwrap()
            .unwrap();
        stats.alerts.lost_orders
    }

    /// The order of a shopper's key, as a repeated request finds it.
    async fn replayed(&self, user: &str) -> Order {
        match buy(&self.world.app, &self.sale, user, "k", 1).await {
            PurchaseOutcome::Replayed(order) => order,
            other => panic!("{user}: {other:?}"),
        }
    }
}

/// Makes a hold overdue, and waits until it has expired.
async fn expires(world: &World, sale: &Sale) {
    let due = "update orders set created_at = created_at - interval '1 hour', \
               expires_at = expires_at - interval '1 hour' where sale_id = $1 and state = 'reserved'";
    world.execute(due, sale.id).await.unwrap();
    within(PATIENCE, "no hold is left", async || {
        let _passing = flow::settle::expire::expire_due(&world.app).await;
        let held = "select count(*) from orders where sale_id = $1 and state = 'reserved'";
        world.number(held, sale.id).await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_of_commits_that_postgres_lost_come_back_into_the_ledger_and_hold_no_unit_for_ever() {
    let mut lab = Lab::start(&Terms::of(40, 2)).await;
    let early = bought(&lab.world.app, &lab.sale, "early", "k", 1).await;
    lab.standby().await;

    // The following orders are committed, trimmed, and lost with the primary.
    let (world, sale) = (&lab.world, &lab.sale);
    let mut later = Vec::new();
    for n in 0..12 {
        let user = format!("later-{n}");
        later.push((bought(&world.app, sale, &user, "k", 1).await, user));
    }
    drain_all(&world.app).await.unwrap();
    cancel(&world.app, later[0].0.id, &later[0].1).await;
    cancel(&world.app, early.id, "early").await;
    let paid = payment("later", later[1].0.id, 1);
    assert_eq!(
        flow::settle::pay::pay(&world.app, &paid).await.unwrap(),
        PaymentOutcome::Applied
    );
    world.settled(sale).await;
    lab.promote_standby().await;

    // Nobody buys, so no event shows the gap.
    lab.has_orders(13).await;
    // The provider sends the payments of that time again: they belong to their orders.
    assert_eq!(
        flow::settle::pay::pay(&lab.world.app, &paid).await.unwrap(),
        PaymentOutcome::Applied
    );
    assert_eq!(
        flow::settle::pay::pay(&lab.world.app, &paid).await.unwrap(),
        PaymentOutcome::Duplicate
    );
    let item = lab.world.settled(&lab.sale).await;
    assert_eq!(
        (item.stock.held, item.stock.sold, item.stock.available),
        (10, 1, 29),
        "{item:?}"
    );
    assert_eq!(lab.lost_orders().await, 0);
    for (n, (order, user)) in later.iter().enumerate() {
        let found = lab.replayed(user).await;
        let expected = match n {
            0 => OrderState::Cancelled,
            1 => OrderState::Paid,
            _ => OrderState::Reserved,
        };
        assert_eq!(
            (found.id, found.state, found.confirmed),
            (order.id, expected, true),
            "{user}"
        );
    }
    expires(&lab.world, &lab.sale).await;
    let item = lab.world.settled(&lab.sale).await;
    assert_eq!(
        (item.stock.held, item.stock.sold, item.stock.available),
        (0, 1, 39),
        "{item:?}"
    );
    lab.world.sells_out(&lab.sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_that_came_back_on_one_shard_and_was_sold_on_another_is_sold_once_after_lost_commits() {
    let mut lab = Lab::start(&Terms::of(2, 2)).await;
    let [giver, keeper] = [1, 0].map(|shard| shopper_at(&lab.sale, shard));
    let given = bought(&lab.world.app, &lab.sale, &giver, "k", 1).await;
    bought(&lab.world.app, &lab.sale, &keeper, "k", 1).await;
    lab.standby().await;
    let (world, sale) = (&lab.world, &lab.sale);
    cancel(&world.app, given.id, &giver).await;
    world.settled(sale).await;
    // Only this shard has written an event: the other one has no gap.
    bought(&world.app, sale, &keeper, "borrowed", 1).await;
    world.settled(sale).await;
    lab.promote_standby().await;
    lab.has_orders(3).await;
    let item = lab.world.settled(&lab.sale).await;
    assert_eq!((item.stock.held, item.stock.available), (2, 0), "{item:?}");
    let count = async |state: &'static str| lab.world.number(state, lab.sale.id).await;
    let revoked = "select count(*) from orders where sale_id = $1 and state = 'revoked'";
    assert_eq!(count(revoked).await, 0);
    let cancelled = "select count(*) from orders where sale_id = $1 and state = 'cancelled'";
    assert_eq!(count(cancelled).await, 1);
    assert_eq!(lab.lost_orders().await, 0);
}

/// A recovery that left such a row out would count its order as lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_commits_come_back_only_when_every_row_can_be_read() {
    let mut lab = Lab::start(&Terms::of(2, 1)).await;
    lab.standby().await;
    let order = bought(&lab.world.app, &lab.sale, "u", "k", 1).await;
    lab.world.settled(&lab.sale).await;
    let raw = Raw::connect(&lab.world.redis);
    let row = key(&lab.sale, 0).buyer(&"u".parse().unwrap());
    let set_version = |version: u8| {
        let mut change = redis::cmd("SETRANGE");
        let _length: i64 = raw.call(change.arg(&row).arg(7).arg(&[version << 4][..]));
    };
    set_version(1);
    lab.promote_standby().await;
    within(
        PATIENCE,
        "the recovery meets the row",
        async || match flow::recover::attend::rebuild_sale(&lab.world.app, lab.sale.id).await {
            Err(Fault::Newer(_)) => true,
            Err(_) => false,
            Ok(rebuilt) => panic!("{rebuilt:?}"),
        },
    )
    .await;
    assert_eq!(lab.lost_orders().await, 0);

    set_version(0);
    lab.has_orders(1).await;
    assert_eq!(lab.replayed("u").await.id, order.id);
    assert_eq!(lab.lost_orders().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_is_over_leaves_once_its_lost_orders_are_back_and_their_payments_settled() {
    let mut lab = Lab::start(&Terms::of(10, 2)).await;
    lab.standby().await;
    let (world, sale) = (&lab.world, &lab.sale);
    let order = bought(&world.app, sale, "late", "k", 1).await;
    bought(&world.app, sale, "unpaid", "k", 1).await;
    world.settled(sale).await;
    // Nobody reconciles it yet.
    lab.world.end_keeper().await;
    lab.promote_standby().await;
    // The sale was over long ago, and nobody asked for it since.
    let over = "update sales set closed_at = now() - interval '26 hours', over_at = now() - interval '1 hour', \
                state = 'closed' where sale_id = $1";
    lab.world.execute(over, lab.sale.id).await.unwrap();
    let app = lab.world.another().await;
    let paid = flow::settle::pay::pay(&app, &payment("late", order.id, 1))
        .await
        .unwrap();
    assert_eq!(paid, PaymentOutcome::Pending);
    assert!(
        app.permits
            .unverified()
            .iter()
            .any(|it| it.contains(&lab.sale.id.to_string())),
        "its shard is to be reconciled"
    );
    assert_eq!(
        flow::operate::retire::retire_ended(&app).await.unwrap(),
        0,
        "its rows are all that has the orders"
    );
    let keeper = Keeper::start(&app);
    lab.has_orders(2).await;
    within(PATIENCE, "the order is paid", async || {
        let _passing = flow::settle::pay::settle_pending(&app).await;
        let paid = "select count(*) from orders where sale_id = $1 and state = 'paid'";
        lab.world.number(paid, lab.sale.id).await == 1
    })
    .await;
    expires(&lab.world, &lab.sale).await;
    let later = "update sales set over_at = over_at - interval '31 minutes' where sale_id = $1";
    lab.world.execute(later, lab.sale.id).await.unwrap();
    within(PATIENCE, "now that nothing is open, the sale retires", async || {
        let _passing = flow::settle::release::release_waiting(&app).await;
        let retired = flow::operate::retire::retire_ended(&app).await;
        retired.is_ok_and(|sales| sales == 1)
    })
    .await;
    keeper.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_behind_a_gap_wait_until_the_orders_before_them_are_in_the_ledger() {
    let mut lab = Lab::start(&Terms::of(3, 1)).await;
    lab.standby().await;
    let (world, sale) = (&lab.world, &lab.sale);
    bought(&world.app, sale, "before", "k", 1).await;
    let returned = bought(&world.app, sale, "returned", "k", 1).await;
    drain_all(&world.app).await.unwrap();
    cancel(&world.app, returned.id, "returned").await;
    world.settled(sale).await;
    // Postgres is gone when these come, and another one when they are drained.
    lab.postgres.kill();
    for user in ["first", "second"] {
        bought(&lab.world.app, &lab.sale, user, "k", 1).await;
    }
    lab.promote_standby().await;
    within(PATIENCE, "every order is in the ledger", async || {
        let _waits = drain_all(&lab.world.app).await;
        let count = "select count(*) from orders where sale_id = $1";
        lab.world.number(count, lab.sale.id).await == 4
    })
    .await;
    let item = lab.world.settled(&lab.sale).await;
    assert_eq!((item.stock.held, item.stock.available), (3, 0), "{item:?}");
    let revoked = "select count(*) from orders where sale_id = $1 and state = 'revoked'";
    assert_eq!(
        lab.world.number(revoked, lab.sale.id).await,
        0,
        "the unit that came back was sold once"
    );
    assert_eq!(lab.lost_orders().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_of_a_gap_that_no_row_knows_is_counted_and_its_unit_is_free_again() {
    let mut lab = Lab::start(&Terms::of(10, 1)).await;
    lab.standby().await;
    for user in ["stays", "vanishes"] {
        bought(&lab.world.app, &lab.sale, user, "k", 1).await;
    }
    lab.world.settled(&lab.sale).await;
    let row = key(&lab.sale, 0).buyer(&"vanishes".parse().unwrap());
    let _gone: i64 = Raw::connect(&lab.redis.server.url()).call(redis::cmd("DEL").arg(row));
    lab.promote_standby().await;
    lab.has_orders(1).await;
    let item = lab.world.settled(&lab.sale).await;
    assert_eq!((item.stock.held, item.stock.available), (1, 9), "{item:?}");
    assert_eq!(lab.lost_orders().await, 1);
    lab.world.sells_out(&lab.sale).await;
}

/// Twelve orders on both shards: drained, the first of them cancelled, and nothing left to do.
async fn twelve_orders(lab: &Lab) -> Vec<(Order, String)> {
    let (world, sale) = (&lab.world, &lab.sale);
    let mut orders = Vec::new();
    for n in 0..12 {
        let user = format!("later-{n}");
        orders.push((bought(&world.app, sale, &user, "k", 1).await, user));
    }
    drain_all(&world.app).await.unwrap();
    cancel(&world.app, orders[0].0.id, &orders[0].1).await;
    world.settled(sale).await;
    orders
}

/// Starts processes on the restored servers, and waits until every order is back in its state: one from before, the
/// twelve, and `others` since.
async fn come_back(lab: &mut Lab, orders: &[(Order, String)], others: i64, case: &str) {
    lab.world = World::with(lab.redis.server.url(), lab.postgres.url()).await;
    within(PATIENCE, "the ledger has the orders again", async || {
        let _waits = drain_all(&lab.world.app).await;
        let count = "select count(*) from orders where sale_id = $1";
        lab.world.number(count, lab.sale.id).await == 13 + others
    })
    .await;
    let item = lab.world.settled(&lab.sale).await;
    assert_eq!(
        (item.stock.held, item.stock.available),
        (12 + others, 28 - others),
        "{case}: {item:?}"
    );
    for (n, (order, user)) in orders.iter().enumerate() {
        let found = lab.replayed(user).await;
        let expected = if n == 0 {
            OrderState::Cancelled
        } else {
            OrderState::Reserved
        };
        assert_eq!(
            (found.id, found.state, found.confirmed),
            (order.id, expected, true),
            "{case}: {user}"
        );
    }
    assert_eq!(lab.lost_orders().await, 0, "{case}");
    let named = lab.world.app.metrics.unverified_shards.of(["lost_commits"]);
    assert!(named.get() > 0, "{case}: the loss is named");
    lab.world.sells_out(&lab.sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_of_commits_that_were_lost_together_with_a_rebuild_come_back_into_the_ledger() {
    for since in ["nothing was sold", "an order was drained", "an order waits"] {
        let mut lab = Lab::start(&Terms::of(40, 2)).await;
        bought(&lab.world.app, &lab.sale, "early", "k", 1).await;
        lab.standby().await;
        let orders = twelve_orders(&lab).await;
        let rebuilt = flow::recover::attend::rebuild_sale(&lab.world.app, lab.sale.id).await;
        assert_eq!(rebuilt.unwrap().unwrap().orders, 13);
        lab.world.settled(&lab.sale).await;
        let others = i64::from(since != "nothing was sold");
        if since == "an order waits" {
            lab.postgres.kill();
        }
        if others > 0 {
            bought(&lab.world.app, &lab.sale, "after", "k", 1).await;
        }
        if since == "an order was drained" {
            lab.world.settled(&lab.sale).await;
        }
        // Nobody reconciles the shards yet.
        lab.world.end_keeper().await;
        lab.promote_standby().await;
        let _waits = drain_all(&lab.world.app).await;
        let count = "select count(*) from orders where sale_id = $1";
        assert_eq!(
            lab.world.number(count, lab.sale.id).await,
            1,
            "{since}: no event of a rebuilt shard is drained before the orders of its rows"
        );
        come_back(&mut lab, &orders, others, since).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_of_commits_that_were_lost_in_the_middle_of_a_rebuild_come_back_into_the_ledger() {
    for point in ["rebuild.after_begin", "rebuild.after_buyers", "rebuild.before_commit"] {
        let mut lab = Lab::start(&Terms::of(40, 2)).await;
        bought(&lab.world.app, &lab.sale, "early", "k", 1).await;
        lab.standby().await;
        let orders = twelve_orders(&lab).await;
        lab.world.end_keeper().await;
        let mut doomed = lab.world.start_to_crash("api", point).await;
        let answer = doomed.client().operate(lab.sale.id, "rebuild", "k", &json!({})).await;
        assert!(answer.is_none(), "{point}");
        doomed.crashed().await;
        lab.promote_standby().await;
        come_back(&mut lab, &orders, 0, point).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_that_broke_off_is_not_taken_for_lost_commits() {
    for point in ["rebuild.after_begin", "rebuild.before_commit"] {
        let mut world = World::new().await;
        let sale = world.sale(&Terms::of(12, 2)).await;
        for n in 0..5 {
            bought(&world.app, &sale, &format!("shopper-{n}"), "k", 1).await;
        }
        world.settled(&sale).await;
        world.end_keeper().await;
        let mut doomed = world.start_to_crash("api", point).await;
        let answer = doomed.client().operate(sale.id, "rebuild", "k", &json!({})).await;
        assert!(answer.is_none(), "{point}");
        doomed.crashed().await;
        let app = world.another().await;
        // The shards have an epoch that the ledger does not know. No order is missing, so this one never was.
        let (user, key) = ("nobody".parse().unwrap(), "k".parse().unwrap());
        let unknown = OrderId::derive(sale.number, &sale.secret.0, &user, &key);
        let paid = flow::settle::pay::pay(&app, &payment("unknown", unknown, 1)).await;
        assert_eq!(paid.unwrap(), PaymentOutcome::Unmatched, "{point}");
        within(PATIENCE, "the shards are rebuilt once more", async || {
            let _later = flow::recover::attend::reconcile_all(&app).await;
            let standings = app.ledger.standings(&[sale.id]).await.unwrap();
            standings.values().all(|it| it.epoch >= 3)
        })
        .await;
        let item = world.settled(&sale).await;
        assert_eq!((item.stock.held, item.stock.available), (5, 7), "{point}: {item:?}");
        let named = app.metrics.unverified_shards.of(["lost_commits"]);
        assert_eq!(named.get(), 0, "{point}");
        let lost = "select sum(lost_orders)::int8 from shards where sale_id = $1";
        assert_eq!(world.number(lost, sale.id).await, 0, "{point}");
    }
}

/// The warning of readiness about a sale. There is no verdict yet while a slow machine keeps a server from answering.
async fn warning(world: &World, sale: &Sale) -> Option<String> {
    let id = sale.id.to_string();
    answer("readiness has a verdict", || async {
        let verdict = flow::watch::readiness::readiness(&world.app).await;
        let warnings = Result::as_ref(&verdict).ok()?;
        Some(warnings.iter().find(|it| it.contains(&id)).cloned())
    })
    .await
}

/// Puts an entry into a shard's stream that no script wrote.
fn add_entry(world: &World, shard: ShardKey, id: &str) {
    let mut add = redis::cmd("XADD");
    let _id: String = Raw::connect(&world.redis).call(add.arg(shard.events()).arg(id).arg("note").arg("by hand"));
}

/// Settles the one dead letter of a sale, as an operator does, and removes it.
async fn remove_dead_letter(world: &World, sale: &Sale) {
    let settle = "update dead_letters set settled_at = now(), note = 'by hand' where sale_id = $1";
    assert_eq!(world.execute(settle, sale.id).await.unwrap(), 1);
    let remove = "delete from dead_letters where sale_id = $1";
    world.execute(remove, sale.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_no_script_wrote_halts_its_shard_for_a_moment_only_and_is_named() {
    for id in ["99-1", "1-5000", "1-18446744073709551615", "18446744073709551615-7"] {
        let world = World::new().await;
        let sale = world.sale(&Terms::of(12, 2)).await;
        let user = shopper_at(&sale, 0);
        bought(&world.app, &sale, &user, "before", 1).await;
        add_entry(&world, key(&sale, 0), id);
        let counted = || {
            let found = world.app.metrics.unverified_shards.of(["foreign_entry"]);
            found.get()
        };
        bought(&world.app, &sale, &user, "after", 1).await;
        within(PATIENCE, "the entry is put aside", async || {
            let _waits = drain_all(&world.app).await;
            let aside = "select count(*) from dead_letters where sale_id = $1";
            world.number(aside, sale.id).await == 1
        })
        .await;
        bought(&world.app, &sale, &user, "later", 1).await;
        assert_eq!(counted(), 1, "{id}");
        remove_dead_letter(&world, &sale).await;
        let item = world.settled(&sale).await;
        assert_eq!((item.stock.held, item.stock.available), (3, 9), "{id}: {item:?}");
        world.sells_out(&sale).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_whose_stream_has_a_foreign_entry_is_named_by_readiness_until_it_is_healed() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(12, 1)).await;
    // A process that reconciles a shard waits for its row.
    let mut lock = world.pool.begin().await.unwrap();
    let shard = sqlx::query("select from shards where sale_id = $1 for update").bind(sale.id.0);
    shard.execute(&mut *lock).await.unwrap();
    add_entry(&world, key(&sale, 0), "99-1");
    within(PATIENCE, "readiness names the shard", async || {
        warning(&world, &sale)
            .await
            .is_some_and(|it| it.contains("shard 0") && it.contains("flashsaleforeignentry"))
    })
    .await;
    lock.rollback().await.unwrap();
    bought(&world.app, &sale, "ada", "k", 1).await;
    within(PATIENCE, "readiness names it no more", async || {
        warning(&world, &sale).await.is_none()
    })
    .await;
}

/// The value of the first event in a shard's stream.
fn first_event(world: &World, shard: ShardKey) -> Vec<u8> {
    let mut range = redis::cmd("XRANGE");
    range.arg(shard.events()).arg("-").arg("+").arg("COUNT").arg(1);
    let found: StreamRangeReply = Raw::connect(&world.redis).call(&mut range);
    found.ids[0].get("reserved").unwrap()
}

fn add_copy(world: &World, shard: ShardKey, id: &str, event: &[u8]) {
    let mut add = redis::cmd("XADD");
    add.arg(shard.events()).arg(id).arg("reserved").arg(event);
    let _id: String = Raw::connect(&world.redis).call(&mut add);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_an_event_at_a_far_number_is_named_and_counts_no_order_as_lost() {
    for copied in [
        "an event that waits",
        "an event that was drained",
        "an event of another shard",
    ] {
        let world = World::new().await;
        let sale = world.sale(&Terms::of(12, 2)).await;
        let [user, other] = [0, 1].map(|shard| shopper_at(&sale, shard));
        for user in [&user, &other] {
            bought(&world.app, &sale, user, "before", 1).await;
        }
        let from = u16::from(copied == "an event of another shard");
        let event = first_event(&world, key(&sale, from));
        if copied == "an event that was drained" {
            world.settled(&sale).await;
        }
        add_copy(&world, key(&sale, 0), "1-5000", &event);
        within(PATIENCE, "the entry is put aside", async || {
            let _waits = drain_all(&world.app).await;
            let aside = "select count(*) from dead_letters where sale_id = $1";
            world.number(aside, sale.id).await == 1
        })
        .await;
        bought(&world.app, &sale, &user, "after", 1).await;
        let count = |finding| world.app.metrics.unverified_shards.of([finding]).get();
        assert_eq!((count("foreign_entry"), count("lost_commits")), (1, 0), "{copied}");
        remove_dead_letter(&world, &sale).await;
        let item = world.settled(&sale).await;
        assert_eq!((item.stock.held, item.stock.available), (3, 9), "{copied}: {item:?}");
        let lost = "select sum(lost_orders)::int8 from shards where sale_id = $1";
        assert_eq!(world.number(lost, sale.id).await, 0, "{copied}");
        world.sells_out(&sale).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_entry_among_a_shards_own_numbers_is_named_by_readiness_until_the_shard_is_reconciled() {
    for is_copy in [false, true] {
        let mut world = World::new().await;
        let sale = world.sale(&Terms::of(12, 1)).await;
        bought(&world.app, &sale, "ada", "k", 1).await;
        // Nobody reconciles the shard until then.
        world.end_keeper().await;
        if is_copy {
            add_copy(&world, key(&sale, 0), "1-5000", &first_event(&world, key(&sale, 0)));
        } else {
            add_entry(&world, key(&sale, 0), "1-5000");
        }
        drain_all(&world.app).await.unwrap();
        let named = async || {
            let warning = warning(&world, &sale).await;
            warning.is_some_and(|it| it.contains("flashsaleforeignentry"))
        };
        assert!(named().await, "a copy: {is_copy}");
        within(PATIENCE, "the shard is reconciled", async || {
            let _later = flow::recover::attend::reconcile_all(&world.app).await;
            world.app.permits.count_shards().selling == 1
        })
        .await;
        within(PATIENCE, "readiness names it no more", async || !named().await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_was_missing_when_others_were_reconciled_is_reconciled_before_it_sells() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(12, 2)).await;
    let user = shopper_at(&sale, 1);
    bought(&world.app, &sale, &user, "before", 1).await;
    world.settled(&sale).await;
    // The shard has units that were never granted to it: a reconciliation without it does not see them.
    let item = key(&sale, 1).item(&"mug".parse().unwrap());
    let raw = Raw::connect(&world.redis);
    let mut record: Vec<u8> = raw.call(redis::cmd("GET").arg(&item));
    // Available and incoming units.
    record[5] += 2;
    record[41] += 2;
    let _ok: String = raw.call(redis::cmd("SET").arg(&item).arg(record));
    assert_eq!(world.app.ledger.mark_unverified(sale.id, &[1]).await.unwrap(), [1]);
    assert_eq!(
        world.app.ledger.mark_unverified(sale.id, &[1]).await.unwrap(),
        [0_u16; 0]
    );
    let standing = async || {
        let standings = world.app.ledger.standings(&[sale.id]).await.unwrap();
        standings[&(sale.id, 1)].noted.clone()
    };
    within(PATIENCE, "the shard is reconciled", async || {
        let noted = standing().await;
        noted.is_reconciled_on(&noted.server().unwrap())
    })
    .await;
    bought(&world.app, &sale, &user, "after", 1).await;
    let item = world.settled(&sale).await;
    assert_eq!((item.stock.available, item.stock.held), (10, 2), "{item:?}");
    world.sells_out(&sale).await;
}
