//! A Redis that has lost something sells nothing wrong: its stock is written anew from the ledger, and every order
//! that the ledger knows is there again under its key.

use super::crowd::{Doors, all_is_well, rush};
use crate::support::crowd::{
    PATIENCE, SKU, Terms, World, ban, bought, buy, cancel, drain_all, payment, shopper_at, try_buy,
};
use crate::support::poll::{Patience, within};
use crate::support::raw::{Dump, Raw};
use crate::support::servers::{DurableRedis, FreshPostgres, Frozen, fresh_redis};
use flashsale::domain::fault::Fault;
use flashsale::domain::ids::{Sku, UserId};
use flashsale::domain::order::{Order, OrderState};
use flashsale::domain::payment::PaymentOutcome;
use flashsale::domain::purchase::{PurchaseOutcome, Refusal};
use flashsale::domain::sale::{Lifecycle, PurchaseRate, Sale, SaleState, Transition};
use flashsale::domain::shard::home_shard;
use flashsale::flow::operate::transition::TransitionOutcome;
use flashsale::flow::{self, App};
use flashsale::ledger::order::Cancellation;
use flashsale::ledger::outbox::Delivery;
use flashsale::ledger::rebuild::Moved;
use flashsale::ledger::restock::{PendingRestock, Taken, TakenRestock};
use flashsale::ledger::sale::Loading;
use flashsale::stock::keys::ShardKey;
use flashsale::stock::permit::{Permit, Permitted};
use flashsale::stock::read_shard::EVENTS_MAX;
use flashsale::stock::resolve::Resolved;
use flashsale::stock::transfer::{Destination, Sent, Transfer};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uuid::Uuid;

fn sku() -> Sku {
    SKU.parse().unwrap()
}

const fn key(sale: &Sale, shard: u16) -> ShardKey {
    ShardKey { sale: sale.id, shard }
}

/// Four shoppers with two units each, whose orders have come to four different ends, and a fifth with an order that is
/// still open; all of it is known on both sides.
async fn of_every_kind(world: &World, sale: &Sale) -> Vec<(&'static str, Order)> {
    let mut orders = Vec::new();
    for user in ["holds", "pays", "cancels", "expires", "borrows"] {
        orders.push((user, bought(&world.app, sale, user, "k", 2).await));
    }
    drain_all(&world.app).await.unwrap();
    let paid = flow::settle::pay::pay(&world.app, &payment("of-every-kind", orders[1].1.id, 2)).await;
    assert_eq!(paid.unwrap(), PaymentOutcome::Applied);
    cancel(&world.app, orders[2].1.id, "cancels").await;
    let due = "update orders set created_at = created_at - interval '1 hour', \
               expires_at = expires_at - interval '1 hour' where sale_id = $1 and user_id = 'expires'";
    assert_eq!(world.execute(due, sale.id).await.unwrap(), 1);
    within(PATIENCE, "an order expires", async || {
        flow::settle::expire::expire_due(&world.app).await.unwrap();
        let expired = "select count(*) from orders where sale_id = $1 and state = 'expired'";
        world.number(expired, sale.id).await == 1
    })
    .await;
    world.settled(sale).await;
    orders
}

/// Every one of them is found under its key, by its id and as the ledger has decided.
async fn all_are_there(world: &World, sale: &Sale, orders: &[(&str, Order)]) {
    for (user, order) in orders {
        let expected = match *user {
            "pays" => OrderState::Paid,
            "cancels" => OrderState::Cancelled,
            "expires" => OrderState::Expired,
            _ => OrderState::Reserved,
        };
        let found = buy(&world.app, sale, user, "k", 2).await;
        let PurchaseOutcome::Replayed(found) = found else {
            panic!("{user}: {found:?}")
        };
        assert_eq!(
            (found.id, found.state, found.confirmed),
            (order.id, expected, true),
            "{user}"
        );
        if expected != OrderState::Expired {
            assert_eq!(found.created_at, order.created_at, "{user}");
        }
        let other = buy(&world.app, sale, user, "k", 1).await;
        assert_eq!(other, PurchaseOutcome::Refused(Refusal::KeyReused), "{user}");
    }
}

/// Waits until every shard sells again, or would if it had anything.
async fn sells_again(app: &App, sale: &Sale) {
    within(PATIENCE, "every shard may sell again", async || {
        let Ok(run_id) = app.stock.run_id(key(sale, 0)).await else {
            return false;
        };
        // A permit of the time before may still be in what Redis remembers.
        let standings = app.ledger.standings(&[sale.id]).await.unwrap();
        if standings.values().any(|it| it.run_id.as_ref() != Some(&run_id)) {
            return false;
        }
        let Ok(readings) = app.stock.read_shards(sale).await else {
            return false;
        };
        let now = chrono::Utc::now().timestamp_millis();
        readings.iter().all(|it| it.record.permit_until > now)
    })
    .await;
}

async fn rebuilds(world: &World, sale: &Sale) -> i64 {
    world
        .number("select sum(rebuilds)::int8 from shards where sale_id = $1", sale.id)
        .await
}

async fn lost_orders(world: &World, sale: &Sale) -> i64 {
    let stats = flow::watch::stats::stats(&world.app, sale.id).await.unwrap().unwrap();
    stats.alerts.lost_orders
}

/// Rebuilds these shards and no others, as the reconciling does.
async fn rebuild(app: &App, sale: &Sale, shards: &[u16]) {
    let patience = Patience::of(PATIENCE);
    loop {
        let rebuilt = async {
            let seen = flow::recover::rebuild::make_ready(app, sale, shards).await?;
            flow::recover::rebuild::rebuild(app, sale, &seen).await
        };
        match rebuilt.await {
            Ok(_) => break,
            Err(Fault::Unavailable(_)) => patience.pause("shards are rebuilt").await,
            Err(fault) => panic!("{fault}"),
        }
    }
    // It would be noticed in a moment.
    for kept in [
        flow::recover::renew::renew(app).await,
        flow::recover::attend::reconcile_all(app).await,
    ] {
        if let Err(fault) = kept {
            assert!(fault.is_passing(), "{fault}");
        }
    }
    sells_again(app, sale).await;
}

/// Runs cases side by side: each has a world of its own.
async fn side_by_side<F: Future<Output = ()>>(cases: impl IntoIterator<Item = F>) {
    futures_util::stream::iter(cases)
        .buffer_unordered(5)
        .collect::<()>()
        .await;
}

/// A transfer as whoever sent it knows it.
async fn send(world: &World, sale: &Sale, (from, to): (u16, Destination), id: Uuid, units: i64) -> Transfer {
    let patience = Patience::of(PATIENCE);
    loop {
        let to_epoch = match to {
            Destination::Shard(to) => world.app.stock.epoch(key(sale, to)).await.unwrap(),
            Destination::Ledger => 0,
        };
        let sent_at = chrono::Utc::now().timestamp_millis();
        let sent = world
            .app
            .stock
            .transfer_out(key(sale, from), id, &sku(), to, units, sent_at)
            .await;
        match sent {
            Ok(Sent::Out { units: sent, epoch }) => {
                assert_eq!(sent, units);
                return Transfer {
                    id,
                    to,
                    units,
                    sent_at,
                    epoch,
                    to_epoch,
                    sku: sku(),
                    server: None,
                };
            }
            Err(Fault::Incomplete(_)) => patience.pause("a shard lends").await,
            other => panic!("{other:?}"),
        }
    }
}

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
    // Whoever writes a shard anew wants to know who is banned, and stands still there.
    let mut lock = world.pool.begin().await.unwrap();
    let bans = "lock table bans in access exclusive mode";
    sqlx::query(bans).execute(&mut *lock).await.unwrap();
    let _ok: String = Raw::connect(&world.redis).call(&mut redis::cmd("FLUSHALL"));
    let waiting = "select count(*) from pg_stat_activity \
         where datname = current_database() and wait_event_type = 'Lock' and $1 is not null";
    let long = "select count(*) from pg_locks where not granted and $1::uuid is not null \
         and database = (select oid from pg_database where datname = current_database()) \
         and waitstart < clock_timestamp() - interval '1 second'";
    // As many as may are being written, and no more come within a second. The other jobs have connections all the same.
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
async fn a_server_is_admitted_once_also_those_shards_are_stopped_that_the_process_had_not_heard_of() {
    let mut redis = DurableRedis::start();
    let mut world = World::on(redis.url()).await;
    let heard_of = world.sale(&Terms::of(4, 1)).await;
    let other = world.another().await;
    assert_eq!(other.sales.live().await.unwrap().len(), 1);
    let new = world.sale(&Terms::of(4, 1)).await;
    world.end_keeper().await;
    // A permit that outlives the server's restart, as a short one does when that is quick.
    let permit = Permit {
        epoch: 1,
        run_id: &world.app.stock.run_id(key(&new, 0)).await.unwrap(),
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
    within(PATIENCE, "the sale that was heard of sells again", async || {
        flow::recover::attend::attend(&other, &heard_of).await.is_ok()
    })
    .await;
    bought(&other, &heard_of, "ada", "k", 1).await;
    let nobody_looked = try_buy(&other, &new, "ada", "k", 1).await;
    assert!(
        matches!(&nobody_looked, Err(fault) if fault.is_passing()),
        "{nobody_looked:?}"
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
            let (mut acknowledged, patience) = (Vec::new(), Patience::of(PATIENCE));
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

/// A Redis that comes back as it was at an earlier moment; what happened since, the ledger alone remembers.
struct Forgetful {
    redis: DurableRedis,
    world: World,
    sale: Arc<Sale>,
}

impl Forgetful {
    async fn with(terms: &Terms) -> Self {
        let redis = DurableRedis::start();
        let world = World::on(redis.url()).await;
        let sale = world.sale(terms).await;
        Self { redis, world, sale }
    }

    /// Forgets all that happens in `since`, and waits until it sells again.
    async fn forgets<T>(&mut self, since: impl AsyncFnOnce(&World, &Sale) -> T) -> T {
        let copy = self.redis.copy();
        let happened = since(&self.world, &self.sale).await;
        self.redis.kill();
        self.redis.go_back_to(&copy);
        self.redis.restart();
        sells_again(&self.world.app, &self.sale).await;
        happened
    }

    /// All is balanced, nothing is oversold and the whole stock can be sold.
    async fn is_right(&self, available: i64) {
        let item = self.world.settled(&self.sale).await;
        assert_eq!(item.stock.available, available, "{item:?}");
        self.world.sells_out(&self.sale).await;
        assert_eq!(self.revoked().await, 0);
    }

    async fn revoked(&self) -> i64 {
        let revoked = "select count(*) from orders where sale_id = $1 and state = 'revoked'";
        self.world.number(revoked, self.sale.id).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_redis_forgot_and_the_ledger_knows_come_back_and_are_not_sold_again() {
    let mut lab = Forgetful::with(&Terms::of(20, 4)).await;
    let orders = lab.forgets(of_every_kind).await;
    all_are_there(&lab.world, &lab.sale, &orders).await;
    assert_eq!(lost_orders(&lab.world, &lab.sale).await, 0);
    // Nothing was lost but what the ledger has; the second time, hardly anything was.
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
            // This process has heard of them; the ledger has not.
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
    // Whoever asks again gets what he was told, if it is still there.
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
async fn orders_of_a_life_that_is_over_are_never_taken_in_and_are_counted() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 1)).await;
    let order = bought(&world.app, &sale, "late", "k", 2).await;
    // Elsewhere the shard has begun another life, of which this Redis knows nothing.
    world
        .execute("update shards set epoch = epoch + 1 where sale_id = $1", sale.id)
        .await
        .unwrap();
    drain_all(&world.app).await.unwrap();
    let taken_in = "select count(*) from orders where sale_id = $1";
    assert_eq!(world.number(taken_in, sale.id).await, 0);
    // The shard may have been written anew by itself already; nobody says that the ledger has the order.
    let told = buy(&world.app, &sale, "late", "k", 2).await;
    assert!(
        matches!(&told, PurchaseOutcome::Replayed(it) | PurchaseOutcome::Reserved(it)
            if it.id == order.id && !it.confirmed),
        "{told:?}"
    );
    rebuild(&world.app, &sale, &[0]).await;
    assert_eq!(lost_orders(&world, &sale).await, 1);
    world.sells_out(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_the_ledger_knows_in_another_life_is_let_go_and_written_anew() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 2)).await;
    let before = rebuilds(&world, &sale).await;
    let another = "update shards set epoch = epoch + 1 where sale_id = $1 and shard = 0";
    world.execute(another, sale.id).await.unwrap();
    within(PATIENCE, "the shard is written anew", async || {
        rebuilds(&world, &sale).await > before
    })
    .await;
    sells_again(&world.app, &sale).await;
    world.sells_out(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_struck_only_if_the_shard_is_still_the_servers_that_was_told() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 1)).await;
    world.settled(&sale).await;
    let send = async || {
        let message = "insert into outbox (sale_id, shard, message) values ($1, 0, '{\"kind\": \"state\"}')";
        world.execute(message, sale.id).await.unwrap();
        let message = "select max(outbox_id) from outbox where sale_id = $1";
        world.number(message, sale.id).await
    };
    let message = send().await;
    let left = async || {
        world
            .number("select count(*) from outbox where sale_id = $1", sale.id)
            .await
    };
    let told = world.app.stock.run_id(key(&sale, 0)).await.unwrap();
    world
        .app
        .ledger
        .strike_outgoing(sale.id, message, "another server")
        .await
        .unwrap();
    assert_eq!(left().await, 1);
    world.app.ledger.strike_outgoing(sale.id, message, &told).await.unwrap();
    assert_eq!(left().await, 0);

    // The relay's as well; one that told another server has to wait before it tries again.
    let message = send().await;
    for (by, is_left) in [("another server", 1), (&told, 0)] {
        let again = "update outbox set not_before = now() where sale_id = $1";
        world.execute(again, sale.id).await.unwrap();
        let batch = world.app.ledger.take_outgoing(10, Some(sale.id), &[]).await.unwrap();
        assert_eq!(batch.messages.len(), 1);
        let by = Some(by.to_owned());
        batch.settle(vec![(message, Delivery::Applied { by })]).await.unwrap();
        assert_eq!(left().await, is_left);
        let due = world.app.ledger.take_outgoing(10, Some(sale.id), &[]).await.unwrap();
        assert_eq!(due.messages.len(), 0);
    }

    // And none goes to a shard that somebody else tells.
    send().await;
    let none = world.app.ledger.take_outgoing(10, None, &[(sale.id, 0)]).await.unwrap();
    assert_eq!(none.messages.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_a_shard_is_claimed_for_is_the_only_one_whose_messages_are_struck() {
    let world = World::new().await;
    // Nobody reconciles what is not loaded.
    let sale = world.draft(&Terms::of(10, 1)).await;
    let begun = world.app.ledger.begin_loading(sale).await.unwrap();
    assert!(matches!(begun, Loading::Begun(_)));
    let claim = async |before: Option<&str>, run_id: &str| {
        let moved = Moved {
            shard: 0,
            before: before.map(ToOwned::to_owned),
            run_id: run_id.to_owned(),
        };
        world.app.ledger.claim_for(sale, &[moved]).await
    };
    claim(None, "one").await.unwrap();
    // Who looked before that has seen less than there is.
    assert!(claim(None, "other").await.unwrap_err().is_passing());
    claim(Some("?one"), "other").await.unwrap();
    let message = "insert into outbox (sale_id, shard, message, not_before) \
                   values ($1, 0, '{}', now() + interval '1 hour')";
    world.execute(message, sale).await.unwrap();
    let message = "select max(outbox_id) from outbox where sale_id = $1";
    let message = world.number(message, sale).await;
    for (told, is_left) in [("one", 1), ("other", 0)] {
        world.app.ledger.strike_outgoing(sale, message, told).await.unwrap();
        let left = "select count(*) from outbox where sale_id = $1";
        assert_eq!(world.number(left, sale).await, is_left, "{told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_taken_over_from_is_claimed_for_only_after_it_has_followed_in_its_turn() {
    let world = World::new().await;
    let sale = world.draft(&Terms::of(10, 1)).await;
    let begun = world.app.ledger.begin_loading(sale).await.unwrap();
    assert!(matches!(begun, Loading::Begun(_)));
    let claim = async |before: Option<&str>, run_id: &str| {
        let moved = Moved {
            shard: 0,
            before: before.map(ToOwned::to_owned),
            run_id: run_id.to_owned(),
        };
        world.app.ledger.claim_for(sale, &[moved]).await
    };
    // Run ids do not repeat, and every test has its own.
    let [one, two, three] = [(); 3].map(|()| Uuid::new_v4().simple().to_string());
    let name = |process: &str, own: &str, before: &str| format!("{process}-{own}-{before}");
    claim(None, &name(&one, "aa", "00")).await.unwrap();
    claim(Some(&format!("?{}", name(&one, "aa", "00"))), &name(&two, "bb", "aa"))
        .await
        .unwrap();
    let noted = format!("?{}", name(&two, "bb", "aa"));
    // As long as it tells what it was, and once it has forgotten that.
    for own in ["aa", "cc"] {
        let refused = claim(Some(&noted), &name(&one, own, "00")).await.unwrap_err();
        assert!(
            refused.is_passing() && refused.to_string().contains("taken over"),
            "{refused}"
        );
    }
    // It became a replica of the other, and was promoted.
    claim(Some(&noted), &name(&one, "dd", "bb")).await.unwrap();
    let noted = format!("?{}", name(&one, "dd", "bb"));
    claim(Some(&noted), &name(&two, "ee", "00")).await.unwrap_err();
    // A server that nobody knows is one that was started anew.
    claim(Some(&noted), &name(&three, "ff", "00")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_is_closed_while_it_is_rebuilt_sells_no_more() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 2)).await;
    bought(&world.app, &sale, "ada", "k", 1).await;
    let seen = flow::recover::rebuild::make_ready(&world.app, &sale, &[0, 1])
        .await
        .unwrap();
    let closed = flow::operate::transition::transition(&world.app, sale.id, Transition::Close)
        .await
        .unwrap();
    assert!(matches!(closed, TransitionOutcome::Done(_)));
    // Whoever rebuilds goes by the sale as it was.
    flow::recover::rebuild::rebuild(&world.app, &sale, &seen).await.unwrap();
    flow::recover::attend::attend(&world.app, &sale).await.unwrap();
    assert_eq!(
        buy(&world.app, &sale, "bob", "k", 1).await,
        PurchaseOutcome::Refused(Refusal::NotOpen {
            state: SaleState::Closed
        })
    );
    world.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_being_written_anew_counts_as_stopped_when_its_sale_is_paused() {
    let mut world = World::new().await;
    let sale = world.sale(&Terms::of(4, 3)).await;
    world.end_keeper().await;
    let loading = world.app.stock.begin_restore(&sale, 1, (1, 2), 1, &[]).await;
    assert!(loading.is_ok(), "{loading:?}");
    let outcome = flow::operate::transition::transition(&world.app, sale.id, Transition::Pause).await;
    assert!(matches!(outcome, Ok(TransitionOutcome::Done(_))), "{outcome:?}");
    for (shard, state) in [(0, Lifecycle::Paused), (1, Lifecycle::Loading), (2, Lifecycle::Paused)] {
        let reading = world.app.stock.read_shard(&sale, shard, 0).await.unwrap();
        assert_eq!(reading.record.lifecycle, state, "shard {shard}");
    }
    // To sell, it must be there.
    let outcome = flow::operate::transition::transition(&world.app, sale.id, Transition::Resume).await;
    assert!(matches!(outcome, Err(Fault::Incomplete(_))), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_is_paused_also_while_its_only_server_is_silent() {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let sale = world.sale(&Terms::of(4, 2)).await;
    let frozen = Frozen::one(redis.server.pid());
    let outcome = flow::operate::transition::transition(&world.app, sale.id, Transition::Pause).await;
    assert!(matches!(&outcome, Err(fault) if fault.is_passing()), "{outcome:?}");
    let paused = "select count(*) from sales where sale_id = $1 and state = 'paused'";
    assert_eq!(world.number(paused, sale.id).await, 1);
    drop(frozen);
    world.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_looked_at_while_the_others_sell_is_not_rebuilt_for_nothing() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(100_000, 2)).await;
    let other = world.another().await;
    let stop = Arc::new(AtomicBool::new(false));
    // The other shard sells, and nobody drains it: what the ledger knows of it is of an earlier time.
    let shoppers = (0..8).map(|n| {
        let (app, sale, stop) = (Arc::clone(&other), Arc::clone(&sale), Arc::clone(&stop));
        tokio::spawn(async move {
            let names = (0..).map(|m| format!("u{n}-{m}"));
            let at_the_other = names.filter(|name| {
                let user: UserId = name.parse().unwrap();
                home_shard(&sale.secret.0, &user, sale.shards) == 1
            });
            for name in at_the_other {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                bought(&app, &sale, &name, "k", 1).await;
            }
        })
    });
    let shoppers: Vec<_> = shoppers.collect();
    let keeper = {
        let (app, stop) = (Arc::clone(&other), Arc::clone(&stop));
        tokio::spawn(async move {
            let patience = Patience::of(PATIENCE * 4);
            while !stop.load(Ordering::Relaxed) {
                for kept in [
                    flow::recover::renew::renew(&app).await,
                    flow::recover::attend::reconcile_all(&app).await,
                ] {
                    if let Err(fault) = kept {
                        assert!(fault.is_passing(), "{fault}");
                    }
                }
                patience.pause("the looks come to an end").await;
            }
        })
    };
    within(PATIENCE, "more events wait than one look reads", async || {
        let waiting = world.app.stock.undrained(&[key(&sale, 1)]).await.unwrap();
        waiting[0] > EVENTS_MAX as i64
    })
    .await;
    let began = rebuilds(&world, &sale).await;
    for _ in 0..5 {
        let before = world.app.metrics.reconciled_shards.of(["whole"]).get();
        world.app.permits.mark_unverified(key(&sale, 0));
        // After whoever looks at it now, and may have begun before.
        within(
            PATIENCE,
            "the shard is found whole",
            async || match flow::recover::attend::attend(&world.app, &sale).await {
                Ok(()) => world.app.metrics.reconciled_shards.of(["whole"]).get() > before,
                Err(fault) => {
                    assert!(fault.is_passing(), "{fault}");
                    false
                }
            },
        )
        .await;
    }
    stop.store(true, Ordering::Relaxed);
    join_all(shoppers)
        .await
        .into_iter()
        .for_each(|shopper| shopper.unwrap());
    keeper.await.unwrap();
    assert_eq!(rebuilds(&world, &sale).await, began);
    world.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_shard_is_claimed_for_a_server_that_takes_no_writes() {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let sale = world.sale(&Terms::of(4, 1)).await;
    let elsewhere = "update shards set run_id = 'a-b-c' where sale_id = $1";
    world.execute(elsewhere, sale.id).await.unwrap();
    let raw = Raw::connect(&world.redis);
    let _done: String = raw.call(&mut redis::cmd("FLUSHALL"));
    let mut setting = redis::cmd("CONFIG");
    setting.arg("SET").arg("min-replicas-to-write");
    let _done: String = raw.call(setting.clone().arg(1));
    let fault = flow::recover::reconcile::reconcile(&world.app, &sale, &[0])
        .await
        .unwrap_err();
    assert!(fault.is_passing(), "{fault}");
    let still = "select count(*) from shards where sale_id = $1 and run_id = 'a-b-c'";
    assert_eq!(world.number(still, sale.id).await, 1);
    let _done: String = raw.call(setting.arg(0));
    flow::recover::reconcile::reconcile(&world.app, &sale, &[0])
        .await
        .unwrap();
    assert_eq!(world.number(still, sale.id).await, 0);
}

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
async fn a_state_that_redis_forgot_is_told_again_before_the_shards_sell() {
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
        // From before it is there again, until every shard may sell.
        let stop = Arc::new(AtomicBool::new(false));
        let shoppers = (0..8usize).map(|n| {
            let (app, sale, stop) = (Arc::clone(&apps[n % 2]), Arc::clone(&lab.sale), Arc::clone(&stop));
            tokio::spawn(async move {
                let (mut told, patience) = (0, Patience::of(PATIENCE));
                while !stop.load(Ordering::Relaxed) {
                    match try_buy(&app, &sale, &format!("u{n}-{told}"), "k", 1).await {
                        Ok(outcome) => assert_eq!(outcome, PurchaseOutcome::Refused(Refusal::NotOpen { state })),
                        Err(fault) => assert!(fault.is_passing(), "{fault}"),
                    }
                    told += 1;
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

    // What follows, the backup does not have.
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
    // What was decided came back with the rows; the payment comes back when the provider sends it again.
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

/// Every key of one shard, byte for byte.
fn dump(world: &World, shard: ShardKey) -> Dump {
    Raw::connect(&world.redis).dump(&format!("{}*", shard.shard().trim_end_matches("shard")))
}

/// Makes a shard what it was.
fn restore(world: &World, shard: ShardKey, before: &Dump) {
    let raw = Raw::connect(&world.redis);
    for key in dump(world, shard).into_keys() {
        let _gone: i64 = raw.call(redis::cmd("DEL").arg(key));
    }
    // A halt is over in every copy that is old enough to be one: it ends by the clock.
    for (key, (content, _)) in before.iter().filter(|(key, _)| !key.ends_with(b":halt")) {
        let _ok: String = raw.call(redis::cmd("RESTORE").arg(key).arg(0).arg(content));
    }
}

/// This shard is looked at, as after an answer that it should not have given.
async fn is_suspected(world: &World, sale: &Arc<Sale>, shard: u16) {
    world.app.stock.stop(key(sale, shard)).await.unwrap();
    sells_again(&world.app, sale).await;
    within(PATIENCE, "a shard that is suspected was looked at", async || {
        world.app.permits.mark_unverified(key(sale, shard));
        // After whoever looks at it now, and may have begun before: it still has the permit of then.
        flow::recover::attend::attend(&world.app, sale).await.is_ok()
    })
    .await;
    sells_again(&world.app, sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_suspected_and_one_whose_permit_is_over_do_not_wait_for_each_other() {
    let mut world = World::new().await;
    let sale = world.sale(&Terms::of(8, 2)).await;
    world.end_keeper().await;
    for shard in [0, 1] {
        world.app.stock.stop(key(&sale, shard)).await.unwrap();
        world.app.permits.recheck(key(&sale, shard));
    }
    let reconciled = || world.app.metrics.reconciled_shards.of(["whole"]).get();
    let before = reconciled();
    // That it is in doubt already makes no difference.
    world.app.permits.mark_unverified(key(&sale, 0));
    flow::recover::attend::reconcile_all(&world.app).await.unwrap();
    assert_eq!(reconciled(), before + 1);
    for shard in [0, 1] {
        bought(&world.app, &sale, &shopper_at(&sale, shard), "k", 1).await;
    }
}

/// How many scripts a server has run.
fn scripts_run(raw: &Raw) -> u64 {
    let told: String = raw.call(redis::cmd("INFO").arg("commandstats"));
    let calls = |name: &str| {
        let line = told
            .lines()
            .find_map(|it| it.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.map_or(0, |it| it.split(',').next().unwrap().parse().unwrap())
    };
    calls("evalsha") + calls("eval")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_suspected_when_it_is_about_to_sell_is_given_no_permit_before_it_was_looked_at_again() {
    let redis = fresh_redis();
    let mut world = World::on(redis.server.url()).await;
    let sale = world.sale(&Terms::of(8, 1)).await;
    let (raw, shard) = (Raw::connect(&world.redis), key(&sale, 0));
    world.end_keeper().await;
    world.app.stock.stop(shard).await.unwrap();
    world.app.permits.recheck(shard);
    let whole = || world.app.metrics.reconciled_shards.of(["whole"]).get();
    let before = whole();
    // Whoever lets a shard sell that was found to be known wants to know who is banned, and stands still there.
    let mut lock = world.pool.begin().await.unwrap();
    let bans = "lock table bans in access exclusive mode";
    sqlx::query(bans).execute(&mut *lock).await.unwrap();
    let app = Arc::clone(&world.app);
    let looking = tokio::spawn(async move { flow::recover::attend::reconcile_all(&app).await });
    let waiting = "select count(*) from pg_stat_activity \
         where datname = current_database() and wait_event_type = 'Lock' and $1 is not null";
    within(PATIENCE, "it is about to sell", async || {
        world.number(waiting, sale.id).await > 0
    })
    .await;
    world.app.permits.mark_unverified(shard);
    let ran = scripts_run(&raw);
    lock.rollback().await.unwrap();
    let looked = looking.await.unwrap();
    assert!(matches!(looked, Err(Fault::Unavailable(_))), "{looked:?}");
    // It was told its sale's state, and nothing else.
    assert_eq!(scripts_run(&raw), ran + 1);
    let reading = world.app.stock.read_shard(&sale, 0, 0).await.unwrap();
    assert_eq!(reading.record.permit_until, 0);
    assert_eq!(whole(), before);
    flow::recover::attend::attend(&world.app, &sale).await.unwrap();
    assert_eq!(whole(), before + 1);
    bought(&world.app, &sale, "ada", "k", 1).await;
}

/// A shard that does not know an order is suspected when it is told what became of that; nobody tells it again while it is
/// reconciled for this very reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_suspected_before_it_is_judged_sells_once_it_is_found_whole() {
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
async fn a_shard_that_was_written_anew_is_suspected_in_its_new_life() {
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

/// A ban that a server has forgotten which took over shows in no counter, and nothing waits to tell it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_finds_a_shard_that_another_process_has_claimed_tells_it_of_recent_bans() {
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
    // Whoever claimed it for the server that took over came no further.
    let claimed = "update shards set run_id = '?' || run_id where sale_id = $1";
    assert_eq!(world.execute(claimed, sale.id).await.unwrap(), 1);
    flow::recover::attend::attend(&world.app, &sale).await.unwrap();
    let bought = buy(&world.app, &sale, "bot", "k", 1).await;
    assert_eq!(bought, PurchaseOutcome::Refused(Refusal::Banned));
}

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
            // It sold; it lent; it borrowed; it was given back; all of it.
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
        is_suspected(&world, &sale, 1).await;
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
async fn whoever_had_an_order_that_vanished_with_its_event_may_buy_again() {
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
    // Not replayed: nobody would ever take his money for it.
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
    // It was tried too often: an operator has to look.
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

/// Redis has lost a release, and is just being told of another decision: both are of one unit, so the sums agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_was_lost_is_not_taken_for_one_that_was_just_told() {
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
    // Decided and told, and whoever told it has not struck it yet.
    let user = user.parse().unwrap();
    let Cancellation::Now(decided) = world.app.ledger.cancel(second.id, &user).await.unwrap() else {
        panic!("it was reserved");
    };
    let mut relay = world.pool.begin().await.unwrap();
    let held = sqlx::query("select 1 from outbox where sale_id = $1 for update").bind(sale.id.0);
    assert_eq!(held.fetch_all(&mut *relay).await.unwrap().len(), 1);
    let stock = &world.app.stock;
    let told = stock
        .resolve(
            key(&sale, 1),
            &user,
            second.id,
            &sku(),
            OrderState::Cancelled,
            decided.at,
        )
        .await;
    assert_eq!(told.unwrap(), Resolved::Now);
    tokio::join!(
        strikes_once_judged(&world, &sale, 1, relay),
        is_looked_at(&world, &sale, 1)
    );
    sells_again(&world.app, &sale).await;
    assert_eq!(world.settled(&sale).await.stock.available, 8);
    world.sells_out(&sale).await;
}

/// Redis has lost a unit that a restock granted, and is just being told of one that another granted.
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
    // Granted and told, and whoever told it has not struck it yet.
    let ledger = &world.app.ledger;
    let (id, _) = ledger
        .begin_restock(sale.id, &"second".parse().unwrap(), &sku(), 1)
        .await
        .unwrap();
    let TakenRestock::Pending(pending) = ledger.take_restock(id).await.unwrap() else {
        panic!("somebody else has it");
    };
    assert!(pending.add(&sale).await.unwrap());
    let mut relay = world.pool.begin().await.unwrap();
    let held = sqlx::query("select 1 from outbox where sale_id = $1 for update").bind(sale.id.0);
    assert_eq!(held.fetch_all(&mut *relay).await.unwrap().len(), 1);
    let stock = &world.app.stock;
    let epoch = stock.epoch(key(&sale, 0)).await.unwrap();
    stock.restock(key(&sale, 0), id, &sku(), 1, epoch).await.unwrap();
    tokio::join!(
        strikes_once_judged(&world, &sale, 0, relay),
        is_looked_at(&world, &sale, 0)
    );
    sells_again(&world.app, &sale).await;
    assert_eq!(world.settled(&sale).await.stock.available, 10);
    world.sells_out(&sale).await;
}

/// One shard has lost units that came to it, while as many that have come from another to a third are not struck yet.
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
    is_looked_at(&world, &sale, 1).await;
    stock.transfer_done(key(&sale, 0), arrived.id).await.unwrap();
    sells_again(&world.app, &sale).await;
    assert_eq!(world.settled(&sale).await.stock.available, 12);
    world.sells_out(&sale).await;
}

/// One shard has told another more than it remembers, while as many units are between two others.
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
    is_looked_at(&world, &sale, 1).await;
    flow::sell::borrow::finish(&world.app, &sale, 0, &sent).await.unwrap();
    sells_again(&world.app, &sale).await;
    assert_eq!(world.settled(&sale).await.stock.available, 12);
    world.sells_out(&sale).await;
}

/// Units were taken out for a withdrawal that was refused, and are about to be sent back to a shard that has forgotten that
/// they ever left.
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
    let server = world.app.stock.run_id(key(&sale, 1)).await.unwrap();
    pending.give_back(&[taken], &[server.clone(), server]).await.unwrap();
    restore(&world, key(&sale, 1), &before);
    is_looked_at(&world, &sale, 1).await;
    sells_again(&world.app, &sale).await;
    assert_eq!(world.settled(&sale).await.stock.available, 8);
    world.sells_out(&sale).await;
}

/// The id of the transfer by which a withdrawal takes units out of a shard, as `flow/operate/restock.rs` makes it.
fn withdrawal(restock: Uuid, shard: u16, look: u16) -> Uuid {
    Uuid::from_u128(restock.as_u128() ^ (u128::from(look) << 16 | u128::from(shard)))
}

/// A try of a withdrawal went on after another had begun: both took units, more than were asked for.
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

/// One shard has forgotten what it lent to another, which has sold it, and has forgotten that. The lender is looked at
/// first: it must not sell the units as well.
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
    is_looked_at(&world, &sale, 1).await;
    sells_again(&world.app, &sale).await;
    let item = world.settled(&sale).await;
    assert_eq!((item.stock.available, item.stock.held), (0, 8));
}

/// Ends the transaction of one who holds what he told a shard, as told: once somebody waits for it, or the shard sells.
async fn strikes_once_judged(world: &World, sale: &Sale, shard: u16, mut relay: sqlx::Transaction<'_, sqlx::Postgres>) {
    let what = "the shard was found whole, or somebody waits for the relay";
    within(PATIENCE, what, async || {
        let waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
                       and datname = current_database() and $1::uuid is not null";
        let waits = world.number(waiting, sale.id).await > 0;
        let reading = world.app.stock.read_shard(sale, shard, 0).await.unwrap();
        waits || reading.record.permit_until > reading.now
    })
    .await;
    let struck = sqlx::query("delete from outbox where sale_id = $1").bind(sale.id.0);
    struck.execute(&mut *relay).await.unwrap();
    relay.commit().await.unwrap();
}

/// A shard has no permit any more, and is looked at before it gets another.
async fn is_looked_at(world: &World, sale: &Sale, shard: u16) {
    world.app.stock.stop(key(sale, shard)).await.unwrap();
    world.app.permits.mark_unverified(key(sale, shard));
    within(PATIENCE, "the shard is looked at", async || {
        flow::recover::attend::reconcile_all(&world.app).await.is_ok()
    })
    .await;
}

/// How far a transfer had come when one of its shards was rebuilt.
#[derive(Debug, Clone, Copy)]
enum Step {
    Sent,
    Arrived,
    Struck,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_between_two_shards_are_neither_doubled_nor_lost_when_either_or_both_are_rebuilt() {
    let runs = [Step::Sent, Step::Arrived, Step::Struck]
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
    if matches!(step, Step::Struck) {
        stock.transfer_done(key(&sale, 0), transfer.id).await.unwrap();
    }
    rebuild(&world.app, &sale, shards).await;
    // Whoever was at it comes late, and does what was left; also what had been done already.
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
        // Whoever was at it comes late, and does what was left.
        stock.transfer_in(key(&sale, 1), 0, &transfer).await.unwrap();
        stock.transfer_done(key(&sale, 0), transfer.id).await.unwrap();
        let item = world.settled(&sale).await;
        assert_eq!(item.stock.available, 11, "{step:?}: {item:?}");
        world.sells_out(&sale).await;
    }
}

/// The id of the transfer that takes units of a withdrawal out of a shard on the first look, as the restock names it.
fn taking(restock: Uuid, shard: u16) -> Uuid {
    Uuid::from_u128(restock.as_u128() ^ u128::from(shard))
}

/// A withdrawal that is written down and has taken units out of these shards.
async fn withdrawing(world: &World, sale: &Sale, units: &[(u16, i64)]) -> (Uuid, Vec<Taken>) {
    let wanted: i64 = units.iter().map(|(_, units)| units).sum();
    let request = Uuid::new_v4().to_string().parse().unwrap();
    let begun = world.app.ledger.begin_restock(sale.id, &request, &sku(), -wanted).await;
    let (id, _) = begun.unwrap();
    let mut taken = Vec::new();
    for (shard, units) in units {
        let sent = send(world, sale, (*shard, Destination::Ledger), taking(id, *shard), *units).await;
        taken.push(Taken {
            shard: *shard,
            transfer: sent.id,
            units: *units,
            epoch: sent.epoch,
        });
    }
    (id, taken)
}

/// The servers that have a sale's shards now.
async fn servers(world: &World, sale: &Sale) -> Vec<String> {
    let keys: Vec<ShardKey> = (0..sale.shards).map(|shard| key(sale, shard)).collect();
    let servers = world.app.stock.run_ids(&keys).await;
    servers.into_iter().map(|server| server.unwrap()).collect()
}

/// The same once whoever had it before has let go of it.
async fn patient_take(world: &World, id: Uuid) -> PendingRestock {
    let patience = Patience::of(PATIENCE);
    loop {
        match world.app.ledger.take_restock(id).await.unwrap() {
            TakenRestock::Pending(pending) => return *pending,
            TakenRestock::Busy => patience.pause("the restock is free").await,
            TakenRestock::Decided { applied } => panic!("it is decided: {applied}"),
        }
    }
}

async fn take(world: &World, id: Uuid) -> PendingRestock {
    match world.app.ledger.take_restock(id).await.unwrap() {
        TakenRestock::Pending(pending) => *pending,
        _ => panic!("the restock is not there"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_withdrawal_is_whole_whatever_was_done_of_it_when_its_shards_were_rebuilt() {
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
        // They have come in, and whoever brought them died before he struck them.
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
async fn units_that_were_taken_out_of_an_earlier_life_are_neither_withdrawn_nor_given_back() {
    for gives_back in [false, true] {
        let world = World::new().await;
        let sale = world.sale(&Terms::of(12, 3)).await;
        let (id, taken) = withdrawing(&world, &sale, &[(0, 4), (1, 2)]).await;
        rebuild(&world.app, &sale, &[0]).await;
        // Whoever took them has been asleep, and decides now.
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
        let another = [noted[0].clone(), "another".to_owned(), noted[2].clone()];
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
async fn a_restock_that_a_shard_had_been_told_or_not_counts_once() {
    let runs = [&[0u16][..], &[1, 2], &[0, 1, 2]]
        .into_iter()
        .flat_map(|shards| [&[][..], &[0u16], &[1], &[0, 1, 2]].map(|told| Box::pin(is_restocked(told, shards))));
    side_by_side(runs).await;
}

async fn is_restocked(told: &[u16], shards: &[u16]) {
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
    for shard in told {
        world
            .app
            .stock
            .restock(key(&sale, *shard), id, &sku(), 2, 1)
            .await
            .unwrap();
    }
    if told.len() == 3 {
        // More is sold by then than the sale had owned before.
        bought(&world.app, &sale, &shopper_at(&sale, 1), "k", 8).await;
        drain_all(&world.app).await.unwrap();
    }
    rebuild(&world.app, &sale, shards).await;
    let item = world.settled(&sale).await;
    let held = if told.len() == 3 { 8 } else { 0 };
    assert_eq!(
        (item.total, item.stock.available),
        (9, 9 - held),
        "{shards:?} {told:?}: {item:?}"
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
    // Both what it was granted and what it had borrowed leave the sale.
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
    flow::recover::reconcile::reconcile(&world.app, &sale, &[0, 1])
        .await
        .unwrap();
    lock.rollback().await.unwrap();
    assert_eq!(rebuilds(&world, &sale).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_that_no_shard_was_told_yet_are_no_damage_however_many_they_are() {
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
    let doors = Arc::new(Doors::default());
    doors.set(instances.iter().map(|it| it.client()).collect());
    let crowd = {
        let (doors, sale) = (Arc::clone(&doors), Arc::clone(&sale));
        tokio::spawn(async move { rush(&doors, &sale, "meanwhile", 160, rand::random()).await })
    };
    let patience = Patience::of(PATIENCE);
    while doors.answers.load(Ordering::Relaxed) < 20 {
        patience.pause("the crowd is at it").await;
    }
    let mut done = 0;
    for _ in 0..3 {
        let both = instances.iter().map(|it| async {
            let answer = it
                .client()
                .operate(sale.id, "rebuild", "k", &serde_json::json!({}))
                .await
                .unwrap();
            // The other one may be at it.
            assert!([200, 503].contains(&answer.status), "{answer:?}");
            usize::from(answer.status == 200)
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
    // The others do not know, and let it sell on as fast as they can.
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
            let (mut acknowledged, patience) = (Vec::new(), Patience::of(PATIENCE));
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                acknowledged.push(bought(&app, &sale, &format!("u{n}-{round}"), "k", 1).await.id);
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
async fn a_sale_that_is_about_to_leave_redis_is_not_written_anew() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(4, 2)).await;
    let ended = "update sales set starts_at = now() - interval '50 hours', \
                 ends_at = now() - interval '24 hours 31 minutes' where sale_id = $1";
    world.execute(ended, sale.id).await.unwrap();
    let app = world.another().await;
    within(PATIENCE, "nobody attends on it any more", async || {
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
async fn whatever_is_lost_in_whatever_order_every_unit_is_sold_once() {
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
                // The ledger has all orders: those that it had not, nobody could ask for here.
                drain_all(&world.app).await.unwrap();
                restore(&world, key(&sale, *shard), before);
                is_suspected(&world, &sale, *shard).await;
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
                is_suspected(&world, &sale, a).await;
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
