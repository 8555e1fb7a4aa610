//! Drafts: created, changed, deleted, each in one transaction.

use crate::domain::fault::Fault;
use crate::domain::ids::{IdempotencyKey, SaleId};
use crate::domain::sale::{Item, Lifecycle, NewSale, Sale};
use crate::ledger::news::notify_changed;
use crate::ledger::{Ledger, Tx, begin, commit, small};
use uuid::Uuid;

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
        notify_changed(&mut tx).await?;
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
