//! Restocks and withdrawals: the ledger's side. Units come into the sale's books before they reach the stock, and
//! leave the stock before they leave the books; so the stock never offers what the ledger does not own.

use super::outbox::{Message, send_all, settled_servers};
use super::{Ledger, Tx, begin, commit, is_about_data, small, unsigned};
use crate::domain::fault::Fault;
use crate::domain::ids::{IdempotencyKey, SaleId, Sku};
use crate::domain::sale::Sale;
use crate::domain::shard::part;
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

/// A restock or, with a negative quantity, a withdrawal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restock {
    pub id: Uuid,
    pub sale: SaleId,
    pub sku: Sku,
    /// How many units come or, below zero, go.
    pub quantity: i64,
}

/// A pending restock that nobody else decides until this is dropped or decided.
pub struct PendingRestock {
    tx: Tx,
    pub restock: Restock,
}

/// What was found when a restock was taken.
pub enum TakenRestock {
    /// It is to be decided.
    Pending(Box<PendingRestock>),
    /// Somebody else is deciding it.
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
    /// The shard's generation at that time.
    pub epoch: i64,
}

impl Ledger {
    /// Writes down what is asked for, or finds it.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer; asking again under the same key is safe.
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
            match row.state.as_str() {
                "pending" => RestockState::Pending,
                "applied" => RestockState::Applied,
                _ => RestockState::Refused,
            }
        };
        Ok((row.restock_id, state))
    }

    /// The ids of restocks that nobody has decided.
    pub async fn pending_restocks(&self, max: i64) -> Result<Vec<Uuid>, Fault> {
        let ids = sqlx::query_scalar!(
            "select restock_id from restocks where state = 'pending' order by created_at limit $1",
            max
        );
        ids.fetch_all(&self.jobs).await.map_err(Fault::from)
    }

    /// Takes a pending restock to decide it.
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
        if row.state != "pending" {
            return Ok(TakenRestock::Decided {
                applied: row.state == "applied",
            });
        }
        let sku = row
            .sku
            .parse()
            .map_err(|error| Fault::Bug(format!("in the ledger: {error}")))?;
        let restock = Restock {
            id,
            sale: SaleId(row.sale_id),
            sku,
            quantity: row.quantity,
        };
        Ok(TakenRestock::Pending(Box::new(PendingRestock { tx, restock })))
    }

    /// Of these transfers out of a sale, each with its shard and restock, those that nobody needs any more: their
    /// restock is decided, and no message about them is waiting.
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
    /// Adds the units to the sale's books and sends each shard its part. Returns whether that was possible.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer: it stays pending.
    pub async fn add(mut self, sale: &Sale) -> Result<bool, Fault> {
        let restock = self.restock.clone();
        self.lock_item().await?;
        if !self.change_stock(restock.quantity).await? {
            self.decide("refused").await?;
            commit(self.tx).await?;
            return Ok(false);
        }
        let mut messages = Vec::new();
        for shard in 0..sale.shards {
            let units = part(restock.quantity, sale.shards, shard);
            if units > 0 {
                self.grant(shard, units).await?;
                let sku = restock.sku.to_string();
                messages.push((
                    shard,
                    Message::Restock {
                        id: restock.id,
                        sku,
                        units,
                    },
                ));
            }
        }
        send_all(&mut self.tx, restock.sale, &messages).await?;
        self.decide("applied").await?;
        commit(self.tx).await?;
        Ok(true)
    }

    /// Takes the units, which have been taken out of the stock, off the sale's books. Returns whether the ledger
    /// agreed; otherwise they go back.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer: it stays pending.
    pub async fn withdraw(mut self, taken: &[Taken], servers: &[String]) -> Result<bool, Fault> {
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
        let messages: Vec<_> = taken
            .iter()
            .map(|taken| {
                (
                    taken.shard,
                    Message::Withdrawn {
                        transfer: taken.transfer,
                    },
                )
            })
            .collect();
        send_all(&mut self.tx, restock.sale, &messages).await?;
        self.decide("applied").await?;
        commit(self.tx).await?;
        Ok(true)
    }

    /// Refuses it, and tells no shard.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer: it stays pending.
    pub async fn refuse(mut self) -> Result<(), Fault> {
        self.decide("refused").await?;
        commit(self.tx).await
    }

    /// Refuses the withdrawal and sends back what was taken out.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer: it stays pending.
    pub async fn give_back(mut self, taken: &[Taken], servers: &[String]) -> Result<(), Fault> {
        self.check_servers(taken, servers).await?;
        let sku = self.restock.sku.to_string();
        let messages: Vec<_> = taken
            .iter()
            .map(|taken| {
                let (transfer, units, epoch) = (taken.transfer, taken.units, taken.epoch);
                (
                    taken.shard,
                    Message::GiveBack {
                        transfer,
                        sku: sku.clone(),
                        units,
                        epoch,
                    },
                )
            })
            .collect();
        send_all(&mut self.tx, self.restock.sale, &messages).await?;
        self.decide("refused").await?;
        commit(self.tx).await
    }

    /// Locks the item and then all its grants in the order of their shards, as everybody does who needs several;
    /// returns what each has free.
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

    /// Units that were taken out of a shard are its own again once it has been rebuilt, which the locks forbid now.
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

    /// Units that were taken out of a shard are in it after all, if another server has taken over from the one that was
    /// asked; `servers` are those that had the sale's shards before anything was taken.
    async fn check_servers(&mut self, taken: &[Taken], servers: &[String]) -> Result<(), Fault> {
        let sale = self.restock.sale;
        let settled = settled_servers(&mut self.tx, &[sale]).await?;
        let shards: Vec<i16> = taken.iter().map(|it| small(it.shard)).collect();
        let asked = taken
            .iter()
            .map(|it| servers.get(usize::from(it.shard)).cloned().unwrap_or_default());
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

    /// Changes the item's stock; `false`, with nothing changed, when it cannot be that many.
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

    async fn decide(&mut self, state: &str) -> Result<(), Fault> {
        sqlx::query!(
            "update restocks set state = $2, decided_at = now() where restock_id = $1",
            self.restock.id,
            state
        )
        .execute(&mut *self.tx)
        .await?;
        Ok(())
    }
}
