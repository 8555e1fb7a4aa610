//! A Redis that has lost data oversells nothing: its stock is rebuilt from the ledger, and every order
//! of the ledger is there again under its key.

mod amid_trade;
mod claims;
mod damage;
mod loss;
mod reconciling;
mod transit;

use super::crowd::{LoadBalancer, all_is_well, rush};
use crate::support::crowd::{SKU, Terms, World, ban, bought, buy, cancel, drain_all, payment, shopper_at, try_buy};
use crate::support::poll::{PATIENCE, Patience, within};
use crate::support::raw::{Dump, Raw};
use crate::support::servers::{DurableRedis, FreshPostgres, Frozen, fresh_redis};
use flashsale::domain::deployment::server::Server;
use flashsale::domain::fault::Fault;
use flashsale::domain::ids::{Sku, UserId};
use flashsale::domain::order::payment::PaymentOutcome;
use flashsale::domain::order::purchase::{PurchaseOutcome, Refusal};
use flashsale::domain::order::{Order, OrderState};
use flashsale::domain::sale::shard::home_shard;
use flashsale::domain::sale::{Lifecycle, PurchaseRate, Sale, SaleState, Transition};
use flashsale::flow::operate::transition::TransitionOutcome;
use flashsale::flow::{self, App};
use flashsale::ledger::operate::restock::{PendingRestock, Taken, TakenRestock};
use flashsale::ledger::operate::sale::Loading;
use flashsale::ledger::outbox::Delivery;
use flashsale::ledger::recover::standing::MovedShard;
use flashsale::ledger::settle::order::Cancellation;
use flashsale::stock::keys::ShardKey;
use flashsale::stock::operate::read_shard::EVENTS_MAX;
use flashsale::stock::recover::permit::{Permit, Permitted};
use flashsale::stock::sell::transfer::{Destination, Sent, Transfer};
use flashsale::stock::settle::resolve::Resolved;
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

/// Four shoppers with two units each, whose orders have ended in four different states, and a fifth with an open
/// order. Both sides know all of them.
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

/// Every order is found under its key and by its id, in the state of the ledger.
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
        let Ok(server) = app.stock.server(key(sale, 0)).await else {
            return false;
        };
        // An earlier permit may still be in Redis.
        let standings = app.ledger.standings(&[sale.id]).await.unwrap();
        if standings.values().any(|it| !it.noted.is_reconciled_on(&server)) {
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
    // The rebuild would find it in a moment.
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

/// A transfer as its sender knows it.
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

/// Every key of one shard, byte for byte.
fn dump(world: &World, shard: ShardKey) -> Dump {
    Raw::connect(&world.redis).dump(&format!("{}*", shard.shard().trim_end_matches("shard")))
}

/// Restores a shard from its dump.
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

/// Reconciles this shard, as after a reply that it should not have given.
async fn reconcile_unverified(world: &World, sale: &Arc<Sale>, shard: u16) {
    world.app.stock.stop(key(sale, shard)).await.unwrap();
    sells_again(&world.app, sale).await;
    within(PATIENCE, "the unverified shard is reconciled", async || {
        world.app.permits.mark_unverified(key(sale, shard));
        // A round that began earlier may end first, and the shard still has its permit.
        flow::recover::attend::attend(&world.app, sale).await.is_ok()
    })
    .await;
    sells_again(&world.app, sale).await;
}

/// The id of the transfer by which a withdrawal takes units out of a shard, as `flow/operate/restock.rs` makes it.
fn withdrawal(restock: Uuid, shard: u16, attempt: u16) -> Uuid {
    Uuid::from_u128(restock.as_u128() ^ (u128::from(attempt) << 16 | u128::from(shard)))
}

/// Ends the transaction `release`, with its messages marked delivered, once another process waits for it or the shard
/// sells.
async fn mark_delivered_once_reconciled(
    world: &World,
    sale: &Sale,
    shard: u16,
    mut release: sqlx::Transaction<'_, sqlx::Postgres>,
) {
    let what = "the shard was found whole, or another process waits for the transaction";
    within(PATIENCE, what, async || {
        let waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
                       and datname = current_database() and $1::uuid is not null";
        let waits = world.number(waiting, sale.id).await > 0;
        let reading = world.app.stock.read_shard(sale, shard, 0).await.unwrap();
        waits || reading.record.permit_until > reading.now
    })
    .await;
    let delivered = sqlx::query("delete from outbox where sale_id = $1").bind(sale.id.0);
    delivered.execute(&mut *release).await.unwrap();
    release.commit().await.unwrap();
}

/// Halts a shard, and reconciles it before its next permit.
async fn reconcile_before_permit(world: &World, sale: &Sale, shard: u16) {
    world.app.stock.stop(key(sale, shard)).await.unwrap();
    world.app.permits.mark_unverified(key(sale, shard));
    within(PATIENCE, "the shard is reconciled", async || {
        flow::recover::attend::reconcile_all(&world.app).await.is_ok()
    })
    .await;
}

/// A withdrawal that is recorded and has taken units out of these shards.
async fn withdrawing(world: &World, sale: &Sale, units: &[(u16, i64)]) -> (Uuid, Vec<Taken>) {
    let wanted: i64 = units.iter().map(|(_, units)| units).sum();
    let request = Uuid::new_v4().to_string().parse().unwrap();
    let begun = world.app.ledger.begin_restock(sale.id, &request, &sku(), -wanted).await;
    let (id, _) = begun.unwrap();
    let mut taken = Vec::new();
    for (shard, units) in units {
        let sent = send(
            world,
            sale,
            (*shard, Destination::Ledger),
            withdrawal(id, *shard, 0),
            *units,
        )
        .await;
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
async fn servers(world: &World, sale: &Sale) -> Vec<Server> {
    let keys: Vec<ShardKey> = (0..sale.shards).map(|shard| key(sale, shard)).collect();
    let servers = world.app.stock.servers(&keys).await;
    servers.into_iter().map(|server| server.unwrap()).collect()
}

/// The same once its earlier owner has released it.
async fn patient_take(world: &World, id: Uuid) -> PendingRestock {
    let patience = Patience::of(PATIENCE);
    loop {
        match world.app.ledger.take_restock(id).await.unwrap() {
            TakenRestock::Pending(pending) => return pending,
            TakenRestock::Busy => patience.pause("the restock is free").await,
            TakenRestock::Decided { applied } => panic!("it is decided: {applied}"),
        }
    }
}

async fn take(world: &World, id: Uuid) -> PendingRestock {
    match world.app.ledger.take_restock(id).await.unwrap() {
        TakenRestock::Pending(pending) => pending,
        _ => panic!("the restock is not there"),
    }
}

/// A Redis that comes back with an earlier state. Only the ledger has the later orders.
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

    /// Forgets everything that `since` does, and waits until the sale sells again.
    async fn forgets<T>(&mut self, since: impl AsyncFnOnce(&World, &Sale) -> T) -> T {
        let copy = self.redis.copy();
        let happened = since(&self.world, &self.sale).await;
        self.redis.kill();
        self.redis.go_back_to(&copy);
        self.redis.restart();
        sells_again(&self.world.app, &self.sale).await;
        happened
    }

    /// The counts agree, nothing is oversold and the whole stock can be sold.
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
