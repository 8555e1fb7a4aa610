//! What commands do with Redis and Postgres themselves, without serving.

use super::runtime;
use crate::domain::deployment::connection_pools::ConnectionPools;
use crate::domain::deployment::redis_certificates::RedisCertificates;
use crate::domain::ids::{SaleId, UserId};
use crate::domain::sale::Sale;
use crate::flow::App;
use crate::flow::operate::inspect::Inspected;
use crate::ledger::Ledger;
use crate::ledger::operate::archive::{ArchiveOutcome, RestoreOutcome};
use crate::stock::Stock;
use crate::{flow, ledger};
use std::fs::File;

/// Applies the migrations that the database lacks.
pub fn migrate(database_url: &str) -> anyhow::Result<()> {
    Ok(runtime()?.block_on(ledger::migrate(database_url))?)
}

/// Writes a sale that is over into a file, and deletes it from the ledger.
pub fn archive(database_url: &str, sale: SaleId, file: File) -> anyhow::Result<ArchiveOutcome> {
    Ok(runtime()?.block_on(ledger::operate::archive::archive(database_url, sale, file))?)
}

/// Restores a sale from a file of [`archive`].
pub fn restore(database_url: &str, file: File) -> anyhow::Result<RestoreOutcome> {
    Ok(runtime()?.block_on(ledger::operate::archive::restore(database_url, file))?)
}

/// Decodes what Redis holds of a sale.
pub fn inspect(
    redis_url: &str,
    redis_certificates: &RedisCertificates,
    database_url: &str,
    sale: SaleId,
    user: Option<&UserId>,
) -> anyhow::Result<Inspected> {
    runtime()?.block_on(async {
        let ledger = Ledger::connect(database_url, ConnectionPools::default()).await?;
        let stock = Stock::connect_with(redis_url, redis_certificates).await?;
        Ok(flow::operate::inspect::inspect(&App::new(stock, ledger), sale, user).await?)
    })
}

/// The newest sales of Postgres, newest first.
pub fn newest_sales(database_url: &str, max: i64) -> anyhow::Result<Vec<Sale>> {
    runtime()?.block_on(async {
        let ledger = Ledger::connect(database_url, ConnectionPools::default()).await?;
        Ok(ledger.sales(max, None, None).await?)
    })
}
