//! Drafts: operators create, change and delete sales that nobody can buy from yet.
//!
//! Each is one transaction of the ledger, so a crash leaves all or nothing. A key finds what its request created.

use crate::domain::fault::Fault;
use crate::domain::ids::{IdempotencyKey, SaleId};
use crate::domain::sale::{Durability, Lifecycle, NewSale, Sale};
use crate::flow::App;
pub use crate::ledger::operate::draft::{ChangeOutcome, CreateOutcome, DeleteOutcome};
use std::sync::Arc;

/// What these servers lack for a sale's durability, and how an operator can provide it.
pub struct Lacking(pub String);

/// Creates a sale as a draft.
pub async fn create(app: &App, new: &NewSale) -> Result<Sale, Fault> {
    let sale = app.ledger.create_sale(new).await?;
    // The other processes are notified. If this reading fails, the process queries unknown ids.
    let _unlearned = app.sales.learn().await;
    Ok(sale)
}

/// Creates a sale as a draft, if the servers have what its durability needs; with a key, at most once for that key.
/// Fails with `Unavailable` when Postgres does not answer; the same key finds whether the sale was created.
pub async fn create_once(
    app: &App,
    new: &NewSale,
    key: Option<&IdempotencyKey>,
) -> Result<Result<CreateOutcome, Lacking>, Fault> {
    if let Some(lacking) = lacking(app, new.durability).await? {
        return Ok(Err(lacking));
    }
    let Some(key) = key else {
        return Ok(Ok(CreateOutcome::Created(create(app, new).await?)));
    };
    let outcome = app.ledger.create_sale_once(new, key).await?;
    let _unlearned = app.sales.learn().await;
    Ok(Ok(outcome))
}

/// Replaces a draft, if the servers have what its durability needs, and if it has one of these versions; `None` allows
/// any version.
pub async fn change(
    app: &App,
    id: SaleId,
    new: &NewSale,
    versions: Option<&[String]>,
) -> Result<Result<ChangeOutcome, Lacking>, Fault> {
    if let Some(lacking) = lacking(app, new.durability).await? {
        return Ok(Err(lacking));
    }
    let outcome = app.ledger.change_draft(id, new, versions).await?;
    if let ChangeOutcome::Changed(sale) = &outcome {
        app.sales.changed(&Arc::new(sale.clone()));
    }
    Ok(Ok(outcome))
}

pub async fn delete(app: &App, id: SaleId) -> Result<DeleteOutcome, Fault> {
    let outcome = app.ledger.delete_draft(id).await?;
    app.sales.forget_draft(id);
    Ok(outcome)
}

async fn lacking(app: &App, durability: Durability) -> Result<Option<Lacking>, Fault> {
    if durability != Durability::Replica || app.stock.replicas().await? > 0 {
        return Ok(None);
    }
    Ok(Some(Lacking(
        "durability \"replica\" needs a replica of Redis, on a cluster one of each primary that has slots, and INFO \
         replication shows none online; connect one with REPLICAOF or CLUSTER REPLICATE, or choose \"redis\" or \
         \"postgres\""
            .to_owned(),
    )))
}

/// What the servers lack for a draft that is to be loaded.
pub(super) async fn lacking_for(app: &App, id: SaleId) -> Result<Option<Lacking>, Fault> {
    match app.ledger.sale(id).await? {
        Some(sale) if sale.lifecycle == Lifecycle::Draft => lacking(app, sale.durability).await,
        _ => Ok(None),
    }
}
