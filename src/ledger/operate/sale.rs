//! Sales: loaded, opened, paused, closed, amended. Each step is one transaction, so a crash leaves the sale before the
//! step or after it.

use super::ban::lock_changes;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::amendment::{Amendment, CannotAmend};
use crate::domain::sale::guards::{SaleGuards, SaleStages};
use crate::domain::sale::message::SaleMessage;
use crate::domain::sale::shard::part;
use crate::domain::sale::{Item, Lifecycle, PurchaseRate, Sale, SaleSearch, SaleSecret, SaleState, Step, Transition};
use crate::domain::time::{Millis, from_millis};
use crate::ledger::news::notify_changed;
use crate::ledger::outbox::{Message, send_all};
use crate::ledger::{Ledger, Tx, acquire, begin, commit, small, unsigned, word};
use chrono::{DateTime, Utc};
use serde_json::json;
use sqlx::PgConnection;
use std::collections::HashMap;
use uuid::Uuid;

#[derive(Debug, Clone)]
pub enum TransitionOutcome {
    /// The sale is now, or was already, in the state asked for.
    Done(Sale),
    /// A sale in this state cannot make the transition.
    Invalid(SaleState),
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

struct SaleRow {
    sale_id: Uuid,
    number: i32,
    name: String,
    description: Option<String>,
    image_url: Option<String>,
    state: String,
    state_version: i64,
    starts_at: DateTime<Utc>,
    ends_at: DateTime<Utc>,
    closed_at: Option<DateTime<Utc>>,
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

impl SaleRow {
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
            // The upgrade that added the column gave its own time to the sales that were closed before.
            closed_at: self.closed_at.filter(|at| *at < self.ends_at),
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
            items: items.into(),
            message: self.message.as_ref().map(SaleMessage::from_stored).unwrap_or_default(),
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
        sqlx::query_as!(SaleRow,
            "select sale_id, number, name, description, image_url, state, state_version, starts_at, \
            ends_at, closed_at, shards, payment_window_seconds, rate_limit, rate_window_ms, durability, guards, secret, \
            created_at, (select texts from sale_messages m where m.sale_id = sales.sale_id) as message, \
            retired_at is not null as \"retired!\", \
            coalesce(over_at < now() - interval '5 minutes', false) \
                and least(ends_at, closed_at) < now() - interval '24 hours 30 minutes' as \"leaving!\" \
            from sales where " + $condition,
            $($argument),*)
    };
}

impl Ledger {
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
        notify_changed(&mut tx).await?;
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

    /// Up to `max` sales that shoppers may see, newest first, older than the one given.
    pub async fn public_sales(&self, max: i64, after: Option<SaleId>) -> Result<Vec<Sale>, Fault> {
        let mut connection = acquire(&self.api).await?;
        let rows = select_sales!(
            "($2::uuid is null or number < (select number from sales where sale_id = $2)) \
             and state not in ('draft', 'loading') order by number desc limit $1",
            max,
            after.map(|sale| sale.0)
        )
        .fetch_all(&mut *connection)
        .await?;
        with_items(&mut connection, rows).await
    }

    /// Up to `max` sales in any state, newest first, older than the one given. With `search`, those whose name
    /// contains it, or the name or SKU of an item, or whose id begins with it. Ids of two years share their first three
    /// characters, so an id needs four.
    pub async fn sales(
        &self,
        max: i64,
        after: Option<SaleId>,
        search: Option<&SaleSearch>,
    ) -> Result<Vec<Sale>, Fault> {
        let mut connection = acquire(&self.api).await?;
        let rows = select_sales!(
            "($2::uuid is null or number < (select number from sales where sale_id = $2)) \
             and ($3::text is null or strpos(lower(name), lower($3)) > 0 \
                 or length($3) > 3 and starts_with(sale_id::text, lower($3)) \
                 or exists (select from items i where i.sale_id = sales.sale_id \
                     and (strpos(lower(i.sku), lower($3)) > 0 or strpos(lower(i.name), lower($3)) > 0))) \
             order by number desc limit $1",
            max,
            after.map(|sale| sale.0),
            search.map(SaleSearch::as_str)
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
        notify_changed(&mut tx).await?;
        commit(tx).await?;
        Ok(self.sale(id).await?.map(Ok))
    }

    /// The sale, locked against other changes until the transaction ends.
    pub(super) async fn lock(&self, tx: &mut Tx, id: SaleId) -> Result<Option<Sale>, Fault> {
        let rows = select_sales!("sale_id = $1 for no key update", id.0)
            .fetch_all(&mut **tx)
            .await?;
        Ok(with_items(&mut *tx, rows).await?.pop())
    }
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
async fn with_items(connection: &mut PgConnection, rows: Vec<SaleRow>) -> Result<Vec<Sale>, Fault> {
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
