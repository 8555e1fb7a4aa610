//! Inspect: what Redis holds of a sale, decoded for people. Reads only.

use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, UserId};
use crate::domain::operator::report::{Counters, ShardStats};
use crate::domain::order::Order;
use crate::domain::sale::Lifecycle;
use crate::domain::time::{self, Millis};
use crate::flow::App;
use crate::flow::settle::order::find_in_stock;
use crate::flow::watch::stats::shard_stats;
use crate::stock::keys::ShardKey;
use crate::stock::operate::read_shard::ShardReading;
use serde::Serialize;
use std::collections::BTreeMap;

/// A sale as Redis holds it.
#[derive(Serialize)]
pub struct Inspection {
    shards: Vec<Shard>,
    #[serde(skip_serializing_if = "Option::is_none")]
    buyer: Option<Buyer>,
}

#[derive(Serialize)]
struct Shard {
    #[serde(flatten)]
    stats: ShardStats,
    state: &'static str,
    state_version: i64,
    /// Until when the shard may sell; null without a permit.
    permitted_until: Option<String>,
    /// Whether the shard may sell now, by its server's clock.
    permitted: bool,
    /// Whether the brake holds: too much waits for the ledger.
    braked: bool,
    counters: BTreeMap<String, Counters>,
    transfers: Vec<String>,
}

#[derive(Serialize)]
struct Buyer {
    home_shard: u16,
    window: Vec<String>,
    orders: Vec<Order>,
}

pub enum Inspected {
    /// Redis holds this.
    Found(Inspection),
    /// The sale is a draft, of which Redis has nothing yet.
    Draft,
    /// There is no such sale.
    NotFound,
}

/// Decodes a sale's shards and, if one is named, a shopper.
pub async fn inspect(app: &App, id: SaleId, user: Option<&UserId>) -> Result<Inspected, Fault> {
    let Some(sale) = app.ledger.sale(id).await? else {
        return Ok(Inspected::NotFound);
    };
    if sale.lifecycle == Lifecycle::Draft {
        return Ok(Inspected::Draft);
    }
    let readings = app.stock.read_shards(&sale).await?;
    let buyer = match user {
        Some(user) => {
            let home = ShardKey::home(&sale, user);
            let buyer = app.stock.read_buyer(home, user).await?;
            let window = buyer.window.into_iter().map(|(at, _)| shown(at));
            Some(Buyer {
                home_shard: home.shard,
                window: window.collect(),
                orders: find_in_stock(app, &sale, user, None).await?,
            })
        }
        None => None,
    };
    Ok(Inspected::Found(Inspection {
        shards: readings.iter().map(shard).collect(),
        buyer,
    }))
}

fn shard(reading: &ShardReading) -> Shard {
    let record = &reading.record;
    let counters = reading.items.iter().map(|(sku, it)| (sku.to_string(), *it));
    let transfers = reading.transfers.iter().map(|it| {
        let sent = shown(it.sent_at);
        format!("{} {} of {} to {:?}, sent {sent}", it.id, it.units, it.sku, it.to)
    });
    Shard {
        stats: shard_stats(reading),
        state: record.lifecycle.as_str(),
        state_version: record.state_version,
        permitted_until: (record.permit_until > 0).then(|| shown(record.permit_until)),
        permitted: record.permit_until > reading.now,
        braked: record.brake,
        counters: counters.collect(),
        transfers: transfers.collect(),
    }
}

fn shown(at: Millis) -> String {
    time::format(&time::from_millis(at))
}
