//! The state of a sale in Redis and Postgres once everything is at rest.

use super::history::{Buyer, Final, Grant, LedgerOrder, LedgerPayment, LedgerRestock, Op, Request, Shard, Terms};
use super::world::World;
use crate::support::poll::pass;
use chrono::{DateTime, Utc};
use flashsale::domain::fault::Fault;
use flashsale::domain::ids::{SaleId, UserId};
use flashsale::domain::sale::Sale;
use flashsale::domain::sale::shard::home_shard;
use flashsale::flow;
use flashsale::stock::keys::ShardKey;
use flashsale::stock::operate::read_shard::ShardReading;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How often the shards are read until nothing moves between them.
const ATTEMPTS_MAX: u32 = 200;
/// How often an audit is repeated that could not count: beside other tests, it may wait too long for a connection.
const AUDITED_AGAIN: u32 = 5;

/// Pending and undecided work, in words; empty at rest. Holds that have not expired count as pending.
pub async fn pending_work(world: &World, sale: &Sale) -> String {
    let counts: (i64, i64, i64) = match sqlx::query_as(
        "select (select count(*) from orders where sale_id = $1 and state = 'reserved'), \
         (select count(*) from outbox where sale_id = $1), \
         (select count(*) from restocks where sale_id = $1 and state = 'pending') \
         + (select count(*) from payments where outcome = 'pending')",
    )
    .bind(sale.id.0)
    .fetch_one(&world.pool)
    .await
    {
        Ok(counts) => counts,
        Err(error) => return error.to_string(),
    };
    let readings = match world.app.stock.read_shards(sale).await {
        Ok(readings) => readings,
        Err(fault) => return fault.to_string(),
    };
    let undrained: i64 = readings.iter().map(|reading| reading.undrained).sum();
    let transfers: usize = readings.iter().map(|reading| reading.transfers.len()).sum();
    let stopped = readings.iter().filter(|it| it.record.permit_until <= it.now).count();
    if counts == (0, 0, 0) && (undrained, transfers, stopped) == (0, 0, 0) {
        return String::new();
    }
    format!(
        "{} reserved orders, {} messages, {} payments or restocks, {undrained} events, {transfers} transfers, \
         {stopped} shards without a permit",
        counts.0, counts.1, counts.2
    )
}

/// Reads everything.
pub async fn read(world: &World, sale: &Sale, terms: &Terms, ops: &[Op]) -> Final {
    let mut end = read_ledger(world, sale.id).await;
    // Payments that could not be matched name no sale; those of other rounds are not this one's.
    let own: BTreeSet<&String> = ops
        .iter()
        .filter_map(|op| match &op.request {
            Request::Pay { payment, .. } => Some(payment),
            _ => None,
        })
        .collect();
    end.payments
        .retain(|it| own.contains(&it.payment) || it.matched.is_some());
    let readings = read_shards(world, sale).await;
    let (readings, trouble) = match readings {
        Ok(readings) => (readings, None),
        Err(fault) => (Vec::new(), Some(format!("the shards cannot be read: {fault}"))),
    };
    for reading in readings {
        end.shards.push(Shard {
            shard: reading.shard,
            epoch: reading.record.epoch,
            in_transit: reading.transfers.iter().map(|transfer| transfer.units).sum(),
            undrained: reading.undrained,
            items: reading.items,
        });
    }
    let users: BTreeSet<&String> = ops
        .iter()
        .filter_map(|op| match &op.request {
            Request::Buy { user, .. } => Some(user),
            _ => None,
        })
        .collect();
    for user in users {
        end.buyers
            .insert(user.clone(), read_buyer(world, sale, terms, user).await);
    }
    let mut audit = flow::watch::audit::audit(&world.app, sale.id).await;
    for _ in 0..AUDITED_AGAIN {
        if audit.as_ref().is_err_and(Fault::is_passing) {
            audit = flow::watch::audit::audit(&world.app, sale.id).await;
        }
    }
    match audit {
        Ok(audit) => {
            let audit = audit.unwrap();
            if !audit.balanced {
                end.audit = audit.differences;
                end.audit.push(format!("{:?}", audit.items));
            }
        }
        Err(fault) => end.audit.push(format!("no audit: {fault}")),
    }
    end.audit.extend(trouble);
    end
}

/// Units that the last buyers did not pay in time, and that others bought once more: units released after the last
/// of them had asked are free.
pub async fn sold_twice(world: &World, sale: SaleId, sku: &str) -> i64 {
    sqlx::query_scalar(
        "select greatest(0, (select coalesce(sum(quantity), 0) from orders where sale_id = $1 and sku = $2 \
             and state = 'expired' and user_id like 'newcomer-%') \
         - (select sum(granted - held - sold) from grants where sale_id = $1 and sku = $2))::int8",
    )
    .bind(sale.0)
    .bind(sku)
    .fetch_one(&world.pool)
    .await
    .unwrap()
}

/// Every shard as of one moment: a job rebalances free units now and then, also at rest.
async fn read_shards(world: &World, sale: &Sale) -> Result<Vec<ShardReading>, Fault> {
    let read = async || world.app.stock.read_shards(sale).await;
    let versions = |readings: &[ShardReading]| -> Vec<i64> {
        let items = readings.iter().flat_map(|reading| reading.items.values());
        items.map(|counters| counters.version).collect()
    };
    let mut before = read().await?;
    for _ in 0..ATTEMPTS_MAX {
        let now = read().await?;
        if versions(&now) == versions(&before) && now.iter().all(|reading| reading.transfers.is_empty()) {
            return Ok(now);
        }
        pass(Duration::from_millis(20)).await;
        before = now;
    }
    Ok(before)
}

async fn read_buyer(world: &World, sale: &Sale, terms: &Terms, user: &str) -> Option<Buyer> {
    let id: UserId = user.parse().unwrap();
    let shard = ShardKey {
        sale: sale.id,
        shard: home_shard(&sale.secret.0, &id, sale.shards),
    };
    let record = world.app.stock.read_buyer(shard, &id).await.unwrap();
    if record.units.is_empty() && record.orders.is_empty() && record.window.is_empty() {
        return None;
    }
    let units = record.units.iter();
    Some(Buyer {
        units: units
            .map(|(item, units)| (terms.items[usize::from(*item)].sku.clone(), i64::from(*units)))
            .collect(),
        orders: record
            .orders
            .iter()
            .map(|(id, order)| (id.to_string(), order.state.to_string()))
            .collect(),
    })
}

async fn rows(world: &World, sql: &'static str, sale: SaleId) -> Vec<PgRow> {
    sqlx::query(sql).bind(sale.0).fetch_all(&world.pool).await.unwrap()
}

async fn read_ledger(world: &World, sale: SaleId) -> Final {
    let millis = |row: &PgRow, name: &str| row.get::<DateTime<Utc>, _>(name).timestamp_millis();
    let maybe = |row: &PgRow, name: &str| {
        row.get::<Option<DateTime<Utc>>, _>(name)
            .map(|at| at.timestamp_millis())
    };
    let orders = rows(
        world,
        "select order_id::text id, shard, epoch, seq, user_id, idempotency_key, sku, quantity, amount_minor, state, \
         created_at, expires_at, resolved_at from orders where sale_id = $1",
        sale,
    );
    let orders = orders.await.into_iter().map(|row| LedgerOrder {
        id: row.get("id"),
        shard: u16::try_from(row.get::<i16, _>("shard")).unwrap(),
        epoch: row.get("epoch"),
        seq: row.get("seq"),
        user: row.get("user_id"),
        key: row.get("idempotency_key"),
        sku: row.get("sku"),
        quantity: i64::from(row.get::<i32, _>("quantity")),
        amount: row.get("amount_minor"),
        state: row.get("state"),
        created_at: millis(&row, "created_at"),
        expires_at: millis(&row, "expires_at"),
        resolved_at: maybe(&row, "resolved_at"),
    });
    let payments = rows(
        world,
        "select payment_id, webhook_id, p.order_id, p.amount_minor, outcome, matched_order_id::text matched \
         from payments p left join orders o on o.order_id = p.matched_order_id \
         where o.sale_id = $1 or o.sale_id is null",
        sale,
    );
    let payments = payments.await.into_iter().map(|row| LedgerPayment {
        payment: row.get("payment_id"),
        webhook: row.get("webhook_id"),
        order: row.get("order_id"),
        amount: row.get("amount_minor"),
        outcome: row.get("outcome"),
        matched: row.get("matched"),
    });
    let restocks = rows(
        world,
        "select idempotency_key, sku, quantity, state, created_at, decided_at from restocks where sale_id = $1",
        sale,
    );
    let restocks = restocks.await.into_iter().map(|row| LedgerRestock {
        key: row.get("idempotency_key"),
        sku: row.get("sku"),
        quantity: row.get("quantity"),
        state: row.get("state"),
        created_at: millis(&row, "created_at"),
        decided_at: maybe(&row, "decided_at"),
    });
    let grants = rows(
        world,
        "select sku, shard, granted, held, sold from grants where sale_id = $1",
        sale,
    );
    let grants = grants.await.into_iter().map(|row| Grant {
        sku: row.get("sku"),
        shard: u16::try_from(row.get::<i16, _>("shard")).unwrap(),
        granted: row.get("granted"),
        held: row.get("held"),
        sold: row.get("sold"),
    });
    let stock = rows(world, "select sku, stock from items where sale_id = $1", sale);
    let stock = stock.await.into_iter().map(|row| (row.get("sku"), row.get("stock")));
    let counts: (i64, i64) = sqlx::query_as(
        "select (select count(*) from dead_letters where sale_id = $1), \
         (select count(*) from outbox where sale_id = $1) \
         + (select count(*) from restocks where sale_id = $1 and state = 'pending') \
         + (select count(*) from payments where outcome = 'pending')",
    )
    .bind(sale.0)
    .fetch_one(&world.pool)
    .await
    .unwrap();
    Final {
        orders: orders.collect(),
        payments: payments.collect(),
        restocks: restocks.collect(),
        stock: stock.collect::<BTreeMap<String, i64>>(),
        grants: grants.collect(),
        dead_letters: counts.0,
        waiting: counts.1,
        ..Final::default()
    }
}
