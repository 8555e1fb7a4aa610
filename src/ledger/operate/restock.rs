//! Restocks and withdrawals: the ledger's side. Units enter the sale's books before they reach the stock, and leave the
//! stock before they leave the books. So the stock never offers units that the ledger does not own. A crash leaves the
//! restock pending.

use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::ids::{IdempotencyKey, SaleId, Sku};
use crate::domain::sale::Sale;
use crate::domain::sale::shard::part;
use crate::ledger::news::notify_changed;
use crate::ledger::outbox::{Message, send_all, settled_servers};
use crate::ledger::{Ledger, Tx, begin, commit, is_about_data, small, unsigned, word};
use uuid::Uuid;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestockState {
    Pending,
    Applied,
    /// There were not enough free units, or there would be too many.
    Refused,
    /// The key belongs to another restock.
    KeyReused,
}

/// The state that a row has in SQL.
fn stored(state: &str) -> Result<RestockState, Fault> {
    match state {
        "pending" => Ok(RestockState::Pending),
        "applied" => Ok(RestockState::Applied),
        "refused" => Ok(RestockState::Refused),
        other => Err(Fault::Bug(format!(
            "in the ledger: no state of a restock is called {other:?}"
        ))),
    }
}

/// A restock or, with a negative quantity, a withdrawal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restock {
    pub id: Uuid,
    pub sale: SaleId,
    pub sku: Sku,
    /// How many units come or, below zero, go.
    pub quantity: i64,
}

/// A pending restock that no other process decides until this is dropped or decided.
pub struct PendingRestock {
    tx: Tx,
    pub restock: Restock,
}

/// The outcome of taking a restock.
pub enum TakenRestock {
    /// The caller decides it.
    Pending(PendingRestock),
    /// Another process is deciding it.
    Busy,
    Decided {
        applied: bool,
    },
}

/// Units that were taken out of one shard for a withdrawal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    pub shard: u16,
    /// The transfer that took them.
    pub transfer: Uuid,
    pub units: i64,
    /// The shard's epoch at that time.
    pub epoch: i64,
}

impl Ledger {
    /// Stores the restock as pending, or finds the one with this key. Fails with `Unavailable` when Postgres does not
    /// answer; a repeated call with the same key is safe.
    pub async fn begin_restock(
        &self,
        sale: SaleId,
        key: &IdempotencyKey,
        sku: &Sku,
        quantity: i64,
    ) -> Result<(Uuid, RestockState), Fault> {
        sqlx::query!(
            "insert into restocks (sale_id, idempotency_key, restock_id, sku, quantity, state) \
             values ($1, $2, $3, $4, $5, 'pending') on conflict do nothing",
            sale.0,
            key.as_str(),
            Uuid::now_v7(),
            sku.as_str(),
            quantity
        )
        .execute(&self.api)
        .await?;
        let row = sqlx::query!(
            "select restock_id, sku, quantity, state from restocks where sale_id = $1 and idempotency_key = $2",
            sale.0,
            key.as_str()
        )
        .fetch_one(&self.api)
        .await?;
        let state = if row.sku != sku.as_str() || row.quantity != quantity {
            RestockState::KeyReused
        } else {
            stored(&row.state)?
        };
        Ok((row.restock_id, state))
    }

    /// The ids of undecided restocks, in no order: those that wait for silent shards keep no other from its turn.
    pub async fn pending_restocks(&self, max: i64) -> Result<Vec<Uuid>, Fault> {
        let ids = sqlx::query_scalar!(
            "select restock_id from restocks where state = 'pending' order by random() limit $1",
            max
        );
        ids.fetch_all(&self.jobs).await.map_err(Fault::from)
    }

    /// Locks a pending restock for a decision.
    pub async fn take_restock(&self, id: Uuid) -> Result<TakenRestock, Fault> {
        let mut tx = begin(&self.jobs).await?;
        let row = sqlx::query!(
            "select sale_id, sku, quantity, state from restocks where restock_id = $1 for update skip locked",
            id
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else {
            return Ok(TakenRestock::Busy);
        };
        match stored(&row.state)? {
            RestockState::Pending => {}
            RestockState::Applied => return Ok(TakenRestock::Decided { applied: true }),
            RestockState::Refused | RestockState::KeyReused => return Ok(TakenRestock::Decided { applied: false }),
        }
        let restock = Restock {
            id,
            sale: SaleId(row.sale_id),
            sku: word(&row.sku)?,
            quantity: row.quantity,
        };
        Ok(TakenRestock::Pending(PendingRestock { tx, restock }))
    }

    /// The transfers out of a sale, given with their restocks, that are no longer needed: their restock is decided, and
    /// no message about them is waiting.
    pub async fn orphans(&self, sale: SaleId, transfers: &[(Uuid, Uuid)]) -> Result<Vec<Uuid>, Fault> {
        let (ids, restocks): (Vec<Uuid>, Vec<Uuid>) = transfers.iter().copied().unzip();
        let orphans = sqlx::query_scalar!(
            "select t.id as \"id!\" from unnest($2::uuid[], $3::uuid[]) as t (id, restock) \
             where not exists (select from restocks r where r.restock_id = t.restock and r.state = 'pending') \
             and not exists (select from outbox o where o.sale_id = $1 and o.message ->> 'transfer' = t.id::text)",
            sale.0,
            &ids,
            &restocks
        );
        orphans.fetch_all(&self.jobs).await.map_err(Fault::from)
    }
}

impl PendingRestock {
    /// Adds the units to the sale's books and sends each shard its part. Returns whether that was possible. Fails with
    /// `Unavailable` when Postgres does not answer: the restock stays pending.
    pub async fn add(mut self, sale: &Sale) -> Result<bool, Fault> {
        let restock = self.restock.clone();
        self.lock_item().await?;
        if !self.change_stock(restock.quantity).await? {
            return self.refuse().await.map(|()| false);
        }
        let mut messages = Vec::new();
        for shard in 0..sale.shards {
            let units = part(restock.quantity, sale.shards, shard);
            if units > 0 {
                self.grant(shard, units).await?;
                let (id, sku) = (restock.id, restock.sku.to_string());
                messages.push((shard, Message::Restock { id, sku, units }));
            }
        }
        send_all(&mut self.tx, restock.sale, &messages).await?;
        self.decide("applied").await.map(|()| true)
    }

    /// Takes units that have left the stock off the sale's books. Returns whether the ledger agreed; otherwise the
    /// units go back. Fails with `Unavailable` when Postgres does not answer: the restock stays pending.
    pub async fn withdraw(mut self, taken: &[Taken], servers: &[Server]) -> Result<bool, Fault> {
        let restock = self.restock.clone();
        let mut left = -restock.quantity;
        let rows = self.lock_item().await?;
        self.check_lives(taken).await?;
        self.check_servers(taken, servers).await?;
        let owned: i64 = rows.iter().map(|(_, free)| free).sum();
        if owned < left || !self.change_stock(restock.quantity).await? {
            return self.give_back(taken, servers).await.map(|()| false);
        }
        for (shard, free) in rows {
            let units = left.min(free);
            if units > 0 {
                self.grant(shard, -units).await?;
                left -= units;
            }
        }
        let withdrawn = |&Taken { shard, transfer, .. }: &Taken| (shard, Message::Withdrawn { transfer });
        let messages: Vec<_> = taken.iter().map(withdrawn).collect();
        send_all(&mut self.tx, restock.sale, &messages).await?;
        self.decide("applied").await.map(|()| true)
    }

    /// Refuses the restock, without a message to a shard. Fails with `Unavailable` when Postgres does not answer: the
    /// restock stays pending.
    pub async fn refuse(self) -> Result<(), Fault> {
        self.decide("refused").await
    }

    /// Refuses the withdrawal, and sends the units back to their shards. Fails with `Unavailable` when Postgres does
    /// not answer: the restock stays pending.
    pub async fn give_back(mut self, taken: &[Taken], servers: &[Server]) -> Result<(), Fault> {
        self.check_servers(taken, servers).await?;
        let sku = self.restock.sku.to_string();
        let given_back = |taken: &Taken| {
            let message = Message::GiveBack {
                transfer: taken.transfer,
                sku: sku.clone(),
                units: taken.units,
                epoch: taken.epoch,
            };
            (taken.shard, message)
        };
        let messages: Vec<_> = taken.iter().map(given_back).collect();
        send_all(&mut self.tx, self.restock.sale, &messages).await?;
        self.decide("refused").await
    }

    /// Locks the item and then all its grants in the order of their shards, as every transaction does that needs
    /// several. Returns the free units of each grant.
    async fn lock_item(&mut self) -> Result<Vec<(u16, i64)>, Fault> {
        let (sale, sku) = (self.restock.sale.0, self.restock.sku.to_string());
        sqlx::query!(
            "select 1 as one from items where sale_id = $1 and sku = $2 for no key update",
            sale,
            sku
        )
        .fetch_optional(&mut *self.tx)
        .await?;
        let rows = sqlx::query!(
            "select shard, granted - held - sold as \"free!\" from grants where sale_id = $1 and sku = $2 \
             order by shard for no key update",
            sale,
            sku
        )
        .fetch_all(&mut *self.tx)
        .await?;
        rows.into_iter()
            .map(|row| Ok((unsigned(i64::from(row.shard))?, row.free)))
            .collect()
    }

    /// Fails if a shard was rebuilt since units were taken out of it: then the units are its own again. From here on,
    /// the locks prevent a rebuild.
    async fn check_lives(&mut self, taken: &[Taken]) -> Result<(), Fault> {
        let (shards, epochs): (Vec<i16>, Vec<i64>) = taken.iter().map(|it| (small(it.shard), it.epoch)).unzip();
        let rebuilt = sqlx::query_scalar!(
            "select count(*) as \"count!\" from unnest($2::int2[], $3::int8[]) as t (shard, epoch) \
             join shards s on s.sale_id = $1 and s.shard = t.shard where s.epoch <> t.epoch",
            self.restock.sale.0,
            &shards,
            &epochs
        );
        match rebuilt.fetch_one(&mut *self.tx).await? {
            0 => Ok(()),
            _ => Err(Fault::Unavailable(
                "units were taken out of a shard that has been rebuilt since".to_owned(),
            )),
        }
    }

    /// Fails if a shard is on another server by now, where the units may still be in the shard. `servers` are those
    /// that had the sale's shards before any unit was taken.
    async fn check_servers(&mut self, taken: &[Taken], servers: &[Server]) -> Result<(), Fault> {
        let sale = self.restock.sale;
        let settled = settled_servers(&mut self.tx, &[sale]).await?;
        let shards: Vec<i16> = taken.iter().map(|it| small(it.shard)).collect();
        let asked = taken.iter().map(|it| {
            servers
                .get(usize::from(it.shard))
                .map(Server::to_string)
                .unwrap_or_default()
        });
        let asked: Vec<String> = asked.collect();
        let moved = sqlx::query_scalar!(
            "select count(*) as \"count!\" from unnest($2::int2[], $3::text[]) as t (shard, server) \
             join shards s on s.sale_id = $1 and s.shard = t.shard \
             where s.run_id is not null and ltrim(s.run_id, '?') <> t.server",
            sale.0,
            &shards,
            &asked
        );
        let moved = moved.fetch_one(&mut *self.tx).await?;
        if settled.is_empty() || moved > 0 {
            return Err(Fault::Unavailable(
                "units were taken out of a shard that is on another server by now".to_owned(),
            ));
        }
        Ok(())
    }

    /// Changes the item's stock; `false`, and nothing changes, when a constraint forbids that number.
    async fn change_stock(&mut self, by: i64) -> Result<bool, Fault> {
        let mut savepoint = sqlx::Connection::begin(&mut *self.tx).await?;
        let changed = sqlx::query!(
            "update items set stock = stock + $3 where sale_id = $1 and sku = $2",
            self.restock.sale.0,
            self.restock.sku.as_str(),
            by
        )
        .execute(&mut *savepoint)
        .await;
        match changed {
            Ok(_) => {
                savepoint.commit().await?;
                // Instances keep the sale with its stock, and no bulletin reports a stock.
                notify_changed(&mut self.tx).await?;
                Ok(true)
            }
            Err(error) if is_about_data(&error) => {
                savepoint.rollback().await?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn grant(&mut self, shard: u16, units: i64) -> Result<(), Fault> {
        sqlx::query!(
            "update grants set granted = granted + $4 where sale_id = $1 and sku = $2 and shard = $3",
            self.restock.sale.0,
            self.restock.sku.as_str(),
            small(shard),
            units
        )
        .execute(&mut *self.tx)
        .await?;
        Ok(())
    }

    /// Stores the decision and commits.
    async fn decide(mut self, state: &str) -> Result<(), Fault> {
        sqlx::query!(
            "update restocks set state = $2, decided_at = now() where restock_id = $1",
            self.restock.id,
            state
        )
        .execute(&mut *self.tx)
        .await?;
        commit(self.tx).await
    }
}
