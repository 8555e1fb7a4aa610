//! Sales: created, loaded, opened, paused, closed, retired. Each step but retiring is one transaction, so a crash
//! leaves the sale before the step or after it. Retiring goes page by page, and the next run goes on.

use super::ban::lock_changes;
use super::news::CHANGED;
use super::outbox::{Message, send_all};
use super::{Ledger, Tx, acquire, begin, commit, small, unsigned, word};
use crate::domain::amendment::{Amendment, CannotAmend};
use crate::domain::fault::Fault;
use crate::domain::ids::{IdempotencyKey, SaleId, UserId};
use crate::domain::sale::{Item, Lifecycle, NewSale, PurchaseRate, Sale, SaleSecret, SaleState, Step, Transition};
use crate::domain::sale_guards::{SaleGuards, SaleStages};
use crate::domain::sale_message::SaleMessage;
use crate::domain::shard::part;
use crate::domain::time::{Millis, from_millis};
use chrono::{DateTime, Utc};
use serde_json::json;
use sqlx::PgConnection;
use std::collections::HashMap;
use uuid::Uuid;

/// The outcome of a transition.
#[derive(Debug, Clone)]
pub enum TransitionOutcome {
    /// The sale is now, or was already, in the state asked for.
    Done(Sale),
    /// A sale in this state cannot make the transition.
    Invalid(SaleState),
    /// There is no such sale.
    NotFound,
}

/// The outcome of creating a sale under a key.
#[derive(Debug, Clone)]
pub enum CreateOutcome {
    Created(Sale),
    /// The sale was created before, and is like this by now.
    Replayed(Sale),
    /// The key belongs to a sale that was created by another request.
    KeyReused,
}

/// The outcome of changing a draft.
#[derive(Debug, Clone)]
pub enum ChangeOutcome {
    /// The draft is as requested.
    Changed(Sale),
    /// The draft has none of the given versions.
    Stale,
    /// The sale is no draft any more; this is how it is stored.
    NoDraft(Sale),
    /// There is no such sale.
    NotFound,
}

/// The outcome of deleting a draft.
#[derive(Debug, Clone)]
pub enum DeleteOutcome {
    Deleted,
    /// The sale is no draft any more; this is how it is stored.
    NoDraft(Sale),
    /// There is no such sale.
    NotFound,
}

/// The progress of a sale's loading.
#[derive(Debug, Clone)]
pub enum Loading {
    /// The shards have to be created, for the first time or after an attempt that broke off.
    Begun(Sale),
    Finished(Sale),
    /// There is no such sale.
    NotFound,
}

struct Row {
    sale_id: Uuid,
    number: i32,
    name: String,
    description: Option<String>,
    image_url: Option<String>,
    state: String,
    state_version: i64,
    starts_at: DateTime<Utc>,
    ends_at: DateTime<Utc>,
    shards: i16,
    payment_window_seconds: i32,
    rate_limit: i32,
    rate_window_ms: i64,
    durability: String,
    guards: serde_json::Value,
    message: Option<serde_json::Value>,
    secret: Vec<u8>,
    created_at: DateTime<Utc>,
    retired: bool,
    leaving: bool,
}

impl Row {
    fn into_sale(self, items: Vec<Item>) -> Result<Sale, Fault> {
        let secret = self.secret.try_into();
        Ok(Sale {
            id: SaleId(self.sale_id),
            number: unsigned(i64::from(self.number))?,
            name: self.name,
            description: self.description,
            image_url: self.image_url,
            lifecycle: word(&self.state)?,
            state_version: self.state_version,
            starts_at: self.starts_at,
            ends_at: self.ends_at,
            shards: unsigned(i64::from(self.shards))?,
            payment_window_seconds: unsigned(i64::from(self.payment_window_seconds))?,
            purchase_rate: PurchaseRate {
                limit: unsigned(i64::from(self.rate_limit))?,
                window_ms: self.rate_window_ms,
            },
            durability: word(&self.durability)?,
            staged_guards: SaleStages::from_stored(&self.guards),
            guards: SaleGuards::from_stored(self.guards)
                .map_err(|error| Fault::Bug(format!("in the ledger: a sale's guards: {error}")))?,
            items,
            message: serde_json::from_value(self.message.unwrap_or_else(|| json!({})))
                .map_err(|error| Fault::Bug(format!("in the ledger: a sale's message: {error}")))?,
            secret: SaleSecret(secret.map_err(|_| Fault::Bug("a sale's secret has 32 bytes".to_owned()))?),
            created_at: self.created_at,
            retired: self.retired,
            leaving: self.leaving,
        })
    }
}

/// Selects sales by a condition.
macro_rules! select_sales {
    ($condition:literal, $($argument:expr),*) => {
        sqlx::query_as!(Row, "select sale_id, number, name, description, image_url, state, state_version, starts_at, \
            ends_at, shards, payment_window_seconds, rate_limit, rate_window_ms, durability, guards, secret, \
            created_at, (select texts from sale_messages m where m.sale_id = sales.sale_id) as message, \
            retired_at is not null as \"retired!\", \
            coalesce(over_at < now() - interval '5 minutes', false) \
                and least(ends_at, closed_at) < now() - interval '24 hours 30 minutes' as \"leaving!\" \
            from sales where " + $condition,
            $($argument),*)
    };
}

impl Ledger {
    /// Creates a sale as a draft.
    pub async fn create_sale(&self, new: &NewSale) -> Result<Sale, Fault> {
        let created = self.insert_sale(new, None).await?;
        created.ok_or_else(|| Fault::Bug("a sale without a key was there before".to_owned()))
    }

    /// Creates a sale as a draft, once for each key.
    pub async fn create_sale_once(&self, new: &NewSale, key: &IdempotencyKey) -> Result<CreateOutcome, Fault> {
        // The key is searched first, because each insert takes a sale number.
        if let Some(outcome) = self.created_under(new, key).await? {
            return Ok(outcome);
        }
        if let Some(sale) = self.insert_sale(new, Some(key)).await? {
            return Ok(CreateOutcome::Created(sale));
        }
        // Another request was faster.
        let outcome = self.created_under(new, key).await?;
        outcome.ok_or_else(|| Fault::Bug("a sale vanished".to_owned()))
    }

    /// What this key has created before.
    async fn created_under(&self, new: &NewSale, key: &IdempotencyKey) -> Result<Option<CreateOutcome>, Fault> {
        let found = sqlx::query!(
            "select sale_id, request_digest from sales where idempotency_key = $1",
            key.as_str()
        );
        let Some(found) = found.fetch_optional(&self.api).await? else {
            return Ok(None);
        };
        if found.request_digest.as_deref() != Some(new.digest().as_slice()) {
            return Ok(Some(CreateOutcome::KeyReused));
        }
        Ok(self.sale(SaleId(found.sale_id)).await?.map(CreateOutcome::Replayed))
    }

    /// Creates a sale as a draft; `None` if a sale with this key exists.
    async fn insert_sale(&self, new: &NewSale, key: Option<&IdempotencyKey>) -> Result<Option<Sale>, Fault> {
        let id = Uuid::now_v7();
        let secret: [u8; 32] = rand::random();
        let mut tx = begin(&self.api).await?;
        let inserted = sqlx::query!(
            "insert into sales (sale_id, name, starts_at, ends_at, shards, payment_window_seconds, rate_limit, \
             rate_window_ms, durability, secret, guards, idempotency_key, request_digest, description, image_url) \
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) \
             on conflict (idempotency_key) do nothing",
            id,
            new.name,
            new.starts_at,
            new.ends_at,
            small(new.shards),
            i32::try_from(new.payment_window_seconds).unwrap_or(i32::MAX),
            i32::try_from(new.purchase_rate.limit).unwrap_or(i32::MAX),
            new.purchase_rate.window_ms,
            new.durability.as_str(),
            secret.as_slice(),
            new.guards.stored(),
            key.map(IdempotencyKey::as_str),
            key.map(|_| new.digest().to_vec()),
            new.description.as_deref(),
            new.image_url.as_deref(),
        )
        .execute(&mut *tx)
        .await?;
        if inserted.rows_affected() == 0 {
            return Ok(None);
        }
        insert_items(&mut tx, id, &new.items).await?;
        sqlx::query!("select pg_notify($1, '') as told", CHANGED)
            .fetch_one(&mut *tx)
            .await?;
        commit(tx).await?;
        let sale = self.sale(SaleId(id)).await?;
        sale.map(Some).ok_or_else(|| Fault::Bug("a sale vanished".to_owned()))
    }

    /// Replaces a draft, except for its id, number, secret and time of creation. With `versions`, the draft must have
    /// one of them.
    pub async fn change_draft(
        &self,
        id: SaleId,
        new: &NewSale,
        versions: Option<&[String]>,
    ) -> Result<ChangeOutcome, Fault> {
        let mut tx = begin(&self.api).await?;
        let Some(sale) = self.lock(&mut tx, id).await? else {
            return Ok(ChangeOutcome::NotFound);
        };
        if sale.lifecycle != Lifecycle::Draft {
            return Ok(ChangeOutcome::NoDraft(sale));
        }
        if versions.is_some_and(|versions| !versions.contains(&sale.version())) {
            return Ok(ChangeOutcome::Stale);
        }
        sqlx::query!(
            "update sales set name = $2, starts_at = $3, ends_at = $4, shards = $5, payment_window_seconds = $6, \
             rate_limit = $7, rate_window_ms = $8, durability = $9, guards = $10, description = $11, image_url = $12 \
             where sale_id = $1",
            id.0,
            new.name,
            new.starts_at,
            new.ends_at,
            small(new.shards),
            i32::try_from(new.payment_window_seconds).unwrap_or(i32::MAX),
            i32::try_from(new.purchase_rate.limit).unwrap_or(i32::MAX),
            new.purchase_rate.window_ms,
            new.durability.as_str(),
            new.guards.stored(),
            new.description.as_deref(),
            new.image_url.as_deref(),
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!("delete from items where sale_id = $1", id.0)
            .execute(&mut *tx)
            .await?;
        insert_items(&mut tx, id.0, &new.items).await?;
        commit(tx).await?;
        let sale = self.sale(id).await?;
        Ok(sale.map_or(ChangeOutcome::NotFound, ChangeOutcome::Changed))
    }

    /// Deletes a draft with all its rows. No shopper has bought from it, and Redis has never had it.
    pub async fn delete_draft(&self, id: SaleId) -> Result<DeleteOutcome, Fault> {
        let mut tx = begin(&self.api).await?;
        // A stronger lock than that of a change: no other transaction can store anything about the sale between these
        // statements.
        sqlx::query_scalar!("select 1 as one from sales where sale_id = $1 for update", id.0)
            .fetch_optional(&mut *tx)
            .await?;
        let Some(sale) = self.lock(&mut tx, id).await? else {
            return Ok(DeleteOutcome::NotFound);
        };
        if sale.lifecycle != Lifecycle::Draft {
            return Ok(DeleteOutcome::NoDraft(sale));
        }
        sqlx::query!("delete from items where sale_id = $1", id.0)
            .execute(&mut *tx)
            .await?;
        sqlx::query!("delete from guard_stopped where sale_id = $1", id.0)
            .execute(&mut *tx)
            .await?;
        sqlx::query!("delete from sales where sale_id = $1", id.0)
            .execute(&mut *tx)
            .await?;
        commit(tx).await?;
        Ok(DeleteOutcome::Deleted)
    }

    /// Replaces the message to a sale's shoppers; an empty one is removed. `None` if there is no such sale.
    pub async fn set_message(&self, id: SaleId, message: &SaleMessage) -> Result<Option<Sale>, Fault> {
        let mut tx = begin(&self.api).await?;
        if self.lock(&mut tx, id).await?.is_none() {
            return Ok(None);
        }
        if message.is_empty() {
            sqlx::query!("delete from sale_messages where sale_id = $1", id.0)
                .execute(&mut *tx)
                .await?;
        } else {
            sqlx::query!(
                "insert into sale_messages (sale_id, texts) values ($1, $2) \
                 on conflict (sale_id) do update set texts = excluded.texts, changed_at = now()",
                id.0,
                json!(message)
            )
            .execute(&mut *tx)
            .await?;
        }
        commit(tx).await?;
        self.sale(id).await
    }

    pub async fn sale(&self, id: SaleId) -> Result<Option<Sale>, Fault> {
        let mut connection = acquire(&self.api).await?;
        let rows = select_sales!("sale_id = $1", id.0).fetch_all(&mut *connection).await?;
        Ok(with_items(&mut connection, rows).await?.pop())
    }

    pub async fn sale_by_number(&self, number: u32) -> Result<Option<Sale>, Fault> {
        let Ok(number) = i32::try_from(number) else {
            return Ok(None);
        };
        let mut connection = acquire(&self.api).await?;
        let rows = select_sales!("number = $1", number).fetch_all(&mut *connection).await?;
        Ok(with_items(&mut connection, rows).await?.pop())
    }

    /// The ids and numbers of all sales, or of those with a greater number than this.
    pub async fn sale_ids(&self, after: Option<u32>) -> Result<Vec<(SaleId, u32)>, Fault> {
        let after = after.and_then(|number| i32::try_from(number).ok()).unwrap_or(i32::MIN);
        let rows = sqlx::query!("select sale_id, number from sales where number > $1", after)
            .fetch_all(&self.api)
            .await?;
        rows.into_iter()
            .map(|row| Ok((SaleId(row.sale_id), unsigned(i64::from(row.number))?)))
            .collect()
    }

    /// Up to `max` sales, newest first, older than the one given. With `drafts`, also drafts and sales that are
    /// loading.
    pub async fn sales(&self, max: i64, after: Option<SaleId>, drafts: bool) -> Result<Vec<Sale>, Fault> {
        let mut connection = acquire(&self.api).await?;
        let rows = select_sales!(
            "($2::uuid is null or number < (select number from sales where sale_id = $2)) \
             and ($3 or state not in ('draft', 'loading')) order by number desc limit $1",
            max,
            after.map(|sale| sale.0),
            drafts
        )
        .fetch_all(&mut *connection)
        .await?;
        with_items(&mut connection, rows).await
    }

    /// Every sale whose keys are in Redis.
    pub async fn live_sales(&self) -> Result<Vec<Sale>, Fault> {
        let mut connection = acquire(&self.jobs).await?;
        let rows = select_sales!("state <> 'draft' and retired_at is null order by number",)
            .fetch_all(&mut *connection)
            .await?;
        with_items(&mut connection, rows).await
    }

    /// Gives each shard its part of the stock, once. No shard sells before [`Ledger::finish_loading`].
    pub async fn begin_loading(&self, id: SaleId) -> Result<Loading, Fault> {
        let mut tx = begin(&self.api).await?;
        lock_changes(&mut tx).await?;
        let Some(sale) = self.lock(&mut tx, id).await? else {
            return Ok(Loading::NotFound);
        };
        match sale.lifecycle {
            Lifecycle::Draft => {}
            Lifecycle::Loading => return Ok(Loading::Begun(sale)),
            Lifecycle::Active | Lifecycle::Paused | Lifecycle::Closed => return Ok(Loading::Finished(sale)),
        }
        sqlx::query!("update sales set state = 'loading' where sale_id = $1", id.0)
            .execute(&mut *tx)
            .await?;
        sqlx::query!(
            "insert into shards (sale_id, shard) select $1, generate_series(0, $2::int4 - 1)",
            id.0,
            i32::from(sale.shards)
        )
        .execute(&mut *tx)
        .await?;
        let cells = sale
            .items
            .iter()
            .flat_map(|item| (0..sale.shards).map(move |shard| (item, shard)));
        let (mut skus, mut shards, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for (item, shard) in cells {
            skus.push(item.sku.to_string());
            shards.push(small(shard));
            parts.push(part(item.stock, sale.shards, shard));
        }
        sqlx::query!(
            "insert into grants (sale_id, sku, shard, granted) \
             select $1, * from unnest($2::text[], $3::int2[], $4::int8[])",
            id.0,
            &skus,
            &shards,
            &parts
        )
        .execute(&mut *tx)
        .await?;
        commit(tx).await?;
        Ok(Loading::Begun(sale))
    }

    /// Activates a sale whose shards have all been created.
    pub async fn finish_loading(&self, id: SaleId) -> Result<Option<Sale>, Fault> {
        let mut tx = begin(&self.api).await?;
        let Some(sale) = self.lock(&mut tx, id).await? else {
            return Ok(None);
        };
        if sale.lifecycle == Lifecycle::Loading {
            set_state(&mut tx, &sale, Lifecycle::Active, sale.starts_at).await?;
            commit(tx).await?;
        }
        self.sale(id).await
    }

    /// Changes a sale's state, if its state at `now` by Redis's clock allows that.
    pub async fn transition(
        &self,
        id: SaleId,
        transition: Transition,
        now: Millis,
    ) -> Result<TransitionOutcome, Fault> {
        let mut tx = begin(&self.api).await?;
        let Some(sale) = self.lock(&mut tx, id).await? else {
            return Ok(TransitionOutcome::NotFound);
        };
        let seen = sale.state_at(now);
        match transition.from(seen) {
            Step::Invalid => return Ok(TransitionOutcome::Invalid(seen)),
            Step::Already => return Ok(TransitionOutcome::Done(sale)),
            Step::To(lifecycle) => {
                // Opening ahead of time moves the start: it stays the moment from which the sale sells.
                let early = transition == Transition::Open && from_millis(now) < sale.starts_at;
                let starts_at = if early { from_millis(now) } else { sale.starts_at };
                set_state(&mut tx, &sale, lifecycle, starts_at).await?;
            }
        }
        commit(tx).await?;
        let sale = self.sale(id).await?;
        Ok(sale.map_or(TransitionOutcome::NotFound, TransitionOutcome::Done))
    }

    /// Amends a published sale, if that is possible at `now` by Redis's clock. With `versions`, the
    /// sale must have one of them. `None` if there is no such sale.
    pub async fn amend(
        &self,
        id: SaleId,
        amendment: &Amendment,
        versions: Option<&[String]>,
        now: Millis,
    ) -> Result<Option<Result<Sale, CannotAmend>>, Fault> {
        let mut tx = begin(&self.api).await?;
        let Some(mut sale) = self.lock(&mut tx, id).await? else {
            return Ok(None);
        };
        if versions.is_some_and(|versions| !versions.contains(&sale.version())) {
            return Ok(Some(Err(CannotAmend::Stale)));
        }
        if let Err(refused) = amendment.apply(&mut sale, now) {
            return Ok(Some(Err(refused)));
        }
        sqlx::query!(
            "update sales set name = $2, starts_at = $3, ends_at = $4, guards = $5, description = $6, image_url = $7, \
             state_version = state_version + 1 where sale_id = $1",
            id.0,
            sale.name,
            sale.starts_at,
            sale.ends_at,
            sale.guards.stored_with(&sale.staged_guards),
            sale.description.as_deref(),
            sale.image_url.as_deref()
        )
        .execute(&mut *tx)
        .await?;
        let amended: Vec<&Item> = sale.items.iter().filter(|item| amendment.names(&item.sku)).collect();
        change_texts(&mut tx, id.0, &amended).await?;
        send_state(&mut tx, &sale).await?;
        sqlx::query!("select pg_notify($1, '') as told", CHANGED)
            .fetch_one(&mut *tx)
            .await?;
        commit(tx).await?;
        Ok(self.sale(id).await?.map(Ok))
    }

    async fn lock(&self, tx: &mut Tx, id: SaleId) -> Result<Option<Sale>, Fault> {
        let rows = select_sales!("sale_id = $1 for no key update", id.0)
            .fetch_all(&mut **tx)
            .await?;
        Ok(with_items(&mut *tx, rows).await?.pop())
    }

    /// Notes the sales that ended or were closed a day ago and that Redis, whose clock says `now`, no longer sells.
    pub async fn note_over(&self, now: DateTime<Utc>) -> Result<(), Fault> {
        sqlx::query!(
            "update sales set over_at = now() where over_at is null and retired_at is null \
             and state not in ('draft', 'loading') and least(ends_at, closed_at) < now() - interval '24 hours' \
             and (state = 'closed' or ends_at <= $1)",
            now
        )
        .execute(&self.jobs)
        .await?;
        Ok(())
    }

    /// Up to `max` sales after this number that ended or were closed 25 hours ago and still have keys in Redis, each with
    /// its number. They have no pending restocks. For a day, a repeated key gets its first answer. The rest of the time is
    /// for instances that learn late that a sale is `leaving`, also where no worker noted for hours that it is over.
    pub async fn retirable(&self, after: i32, max: i64) -> Result<Vec<(i32, SaleId)>, Fault> {
        let found = sqlx::query!(
            "select number, sale_id from sales s where number > $1 and retired_at is null \
             and over_at < now() - interval '30 minutes' and least(ends_at, closed_at) < now() - interval '25 hours' \
             and not exists (select from restocks r where r.sale_id = s.sale_id and r.state = 'pending') \
             order by number limit $2",
            after,
            max
        );
        let found = found.fetch_all(&self.jobs).await?.into_iter();
        Ok(found.map(|row| (row.number, SaleId(row.sale_id))).collect())
    }

    /// The shards of a sale that still have keys in Redis. Each comes with whether the ledger has a message for it, or a
    /// reserved order.
    pub async fn unretired(&self, id: SaleId) -> Result<Vec<(u16, bool)>, Fault> {
        let rows = sqlx::query!(
            "select shard, exists (select from outbox o where o.sale_id = s.sale_id and o.shard = s.shard) \
                 or exists (select from orders o where o.sale_id = s.sale_id and o.shard = s.shard \
                     and o.state = 'reserved') as \"is_open!\" \
             from shards s where sale_id = $1 and retired_at is null order by shard",
            id.0
        );
        let rows = rows.fetch_all(&self.jobs).await?.into_iter();
        rows.map(|row| Ok((unsigned(i64::from(row.shard))?, row.is_open)))
            .collect()
    }

    /// Postpones the retirement of a sale by half an hour. For the first five minutes, the sale is not `leaving`, so its
    /// shards can be reconciled. Those that have left Redis already are rebuilt.
    pub async fn put_off_retirement(&self, id: SaleId) -> Result<(), Fault> {
        let mut tx = begin(&self.jobs).await?;
        sqlx::query!(
            "update sales set over_at = now(), retired_to = '', retiring = '{}' where sale_id = $1 and retired_at is null",
            id.0
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!("update shards set retired_at = null where sale_id = $1", id.0)
            .execute(&mut *tx)
            .await?;
        commit(tx).await
    }

    /// The next shoppers whose keys have to be removed, of the shards that are being removed now. These are the shards of
    /// the page before, as far as they are among `shards`. If none is, all of `shards` are removed from their first
    /// shoppers on. `None` while another worker removes shoppers of this sale, when none of these shards has keys, and
    /// after [`Ledger::put_off_retirement`].
    pub async fn next_to_retire(&self, id: SaleId, shards: &[u16], max: i64) -> Result<Option<Retiring>, Fault> {
        let mut tx = begin(&self.jobs).await?;
        let begun = sqlx::query!(
            "select retired_to, retiring from sales where sale_id = $1 and retired_at is null \
             and over_at < now() - interval '30 minutes' for no key update skip locked",
            id.0
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(begun) = begun else {
            return Ok(None);
        };
        let shards: Vec<i16> = shards.iter().map(|shard| small(*shard)).collect();
        // Another worker may have removed some since the caller chose them.
        let left = sqlx::query_scalar!(
            "select shard from shards where sale_id = $1 and shard = any($2) and retired_at is null order by shard",
            id.0,
            &shards
        );
        let left = left.fetch_all(&mut *tx).await?;
        let resumed: Vec<i16> = left
            .iter()
            .copied()
            .filter(|shard| begun.retiring.contains(shard))
            .collect();
        let (shards, position) = if resumed.is_empty() {
            (left, String::new())
        } else {
            (resumed, begun.retired_to)
        };
        if shards.is_empty() {
            return Ok(None);
        }
        let rows = sqlx::query!(
            "select distinct user_id, shard from orders where sale_id = $1 and shard = any($2) and user_id > $3 \
             order by user_id limit $4",
            id.0,
            &shards,
            position,
            max
        )
        .fetch_all(&mut *tx)
        .await?;
        let shoppers = rows
            .into_iter()
            .map(|row| Ok((unsigned(i64::from(row.shard))?, word(&row.user_id)?)));
        Ok(Some(Retiring {
            shoppers: shoppers.collect::<Result<_, Fault>>()?,
            sale: id,
            shards,
            tx,
        }))
    }
}

/// Shoppers whose keys one worker removes.
pub struct Retiring {
    tx: Tx,
    sale: SaleId,
    shards: Vec<i16>,
    /// Each with the home shard, in their order.
    pub shoppers: Vec<(u16, UserId)>,
}

impl Retiring {
    /// The shards that are being removed.
    ///
    /// # Errors
    /// `Bug` when the ledger has an impossible shard.
    pub fn shards(&self) -> Result<Vec<u16>, Fault> {
        self.shards.iter().map(|shard| unsigned(i64::from(*shard))).collect()
    }

    /// Notes that the shoppers' keys have been removed.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer; the keys are removed once more.
    pub async fn removed(mut self) -> Result<(), Fault> {
        if let Some((_, last)) = self.shoppers.last() {
            sqlx::query!(
                "update sales set retired_to = $2, retiring = $3 where sale_id = $1",
                self.sale.0,
                last.as_str(),
                &self.shards
            )
            .execute(&mut *self.tx)
            .await?;
        }
        commit(self.tx).await
    }

    /// Notes that all keys of the shards have been removed. Returns whether the sale has no others.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer; the keys are removed once more.
    pub async fn retired(mut self) -> Result<bool, Fault> {
        sqlx::query!(
            "update shards set retired_at = now() where sale_id = $1 and shard = any($2)",
            self.sale.0,
            &self.shards
        )
        .execute(&mut *self.tx)
        .await?;
        let is_last = sqlx::query_scalar!(
            "update sales set retired_to = '', retiring = '{}', retired_at = case when not exists \
                 (select from shards where sale_id = $1 and retired_at is null) then now() end \
             where sale_id = $1 returning retired_at is not null as \"is_last!\"",
            self.sale.0
        )
        .fetch_one(&mut *self.tx)
        .await?;
        commit(self.tx).await?;
        Ok(is_last)
    }
}

/// Stores a sale's items.
async fn insert_items(tx: &mut Tx, sale: Uuid, items: &[Item]) -> Result<(), Fault> {
    let column = |of: fn(&Item) -> String| items.iter().map(of).collect::<Vec<_>>();
    let positions: Vec<i16> = (0..).take(items.len()).collect();
    let prices: Vec<i64> = items.iter().map(|item| item.price_minor).collect();
    let stocks: Vec<i64> = items.iter().map(|item| item.stock).collect();
    let limits: Vec<i32> = items
        .iter()
        .map(|item| i32::try_from(item.per_user_limit).unwrap_or(i32::MAX))
        .collect();
    // An optional text that is missing comes as an empty one, which is never stored.
    sqlx::query!(
        "insert into items (sale_id, position, sku, name, price_minor, currency, stock, per_user_limit, description, \
             image_url, variant_group, variant_option) \
         select $1, i.position, i.sku, i.name, i.price_minor, i.currency, i.stock, i.per_user_limit, \
             nullif(i.description, ''), nullif(i.image_url, ''), nullif(i.variant_group, ''), \
             nullif(i.variant_option, '') \
         from unnest($2::int2[], $3::text[], $4::text[], $5::int8[], $6::text[], $7::int8[], $8::int4[], $9::text[], \
             $10::text[], $11::text[], $12::text[]) \
             as i (position, sku, name, price_minor, currency, stock, per_user_limit, description, image_url, \
             variant_group, variant_option)",
        sale,
        &positions,
        &column(|item| item.sku.to_string()),
        &column(|item| item.name.clone()),
        &prices,
        &column(|item| item.currency.clone()),
        &stocks,
        &limits,
        &column(|item| item.description.clone().unwrap_or_default()),
        &column(|item| item.image_url.clone().unwrap_or_default()),
        &column(|item| item.group.clone().unwrap_or_default()),
        &column(|item| item.option.clone().unwrap_or_default()),
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Stores the descriptions and pictures of these items of a sale.
async fn change_texts(tx: &mut Tx, sale: Uuid, items: &[&Item]) -> Result<(), Fault> {
    if items.is_empty() {
        return Ok(());
    }
    let column = |of: fn(&Item) -> String| items.iter().map(|item| of(item)).collect::<Vec<_>>();
    sqlx::query!(
        "update items set description = nullif(i.description, ''), image_url = nullif(i.image_url, '') \
         from unnest($2::text[], $3::text[], $4::text[]) as i (sku, description, image_url) \
         where items.sale_id = $1 and items.sku = i.sku",
        sale,
        &column(|item| item.sku.to_string()),
        &column(|item| item.description.clone().unwrap_or_default()),
        &column(|item| item.image_url.clone().unwrap_or_default()),
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Stores a new state, and writes a message about it to every shard.
async fn set_state(tx: &mut Tx, sale: &Sale, lifecycle: Lifecycle, starts_at: DateTime<Utc>) -> Result<(), Fault> {
    sqlx::query!(
        "update sales set state = $2, state_version = state_version + 1, starts_at = $3, \
             closed_at = case when $2 = 'closed' then now() end where sale_id = $1",
        sale.id.0,
        lifecycle.as_str(),
        starts_at
    )
    .execute(&mut **tx)
    .await?;
    send_state(tx, sale).await
}

async fn send_state(tx: &mut Tx, sale: &Sale) -> Result<(), Fault> {
    let messages: Vec<_> = (0..sale.shards).map(|shard| (shard, Message::State)).collect();
    send_all(tx, sale.id, &messages).await.map_err(Fault::from)
}

/// Adds the items to sales, on the connection that read the rows. A caller that waits for a second connection while it
/// holds one may wait for other such callers.
async fn with_items(connection: &mut PgConnection, rows: Vec<Row>) -> Result<Vec<Sale>, Fault> {
    let ids: Vec<Uuid> = rows.iter().map(|row| row.sale_id).collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let found = sqlx::query!(
        "select sale_id, sku, name, price_minor, currency, stock, per_user_limit, description, image_url, \
             variant_group, variant_option from items where sale_id = any($1) order by sale_id, position",
        &ids
    )
    .fetch_all(connection)
    .await?;
    let mut items: HashMap<Uuid, Vec<Item>> = HashMap::new();
    for item in found {
        items.entry(item.sale_id).or_default().push(Item {
            sku: word(&item.sku)?,
            name: item.name,
            price_minor: item.price_minor,
            currency: item.currency,
            stock: item.stock,
            per_user_limit: unsigned(i64::from(item.per_user_limit))?,
            description: item.description,
            image_url: item.image_url,
            group: item.variant_group,
            option: item.variant_option,
        });
    }
    rows.into_iter()
        .map(|row| {
            let items = items.remove(&row.sale_id).unwrap_or_default();
            row.into_sale(items)
        })
        .collect()
}
