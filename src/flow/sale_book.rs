//! The sales that this process knows. What never changes of a sale once it is loaded (items, prices, shards, secret)
//! is remembered for good; what changes (state, times, stock) is read again after a moment. Selling asks only for
//! the first kind, so it goes on while Postgres is away.

use super::App;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::{Lifecycle, NewSale, Sale};
use crate::domain::time::Millis;
use crate::ledger::Ledger;
use chrono::Utc;
use moka::future::Cache;
use std::sync::Arc;
use std::time::Duration;

/// How long what may change, or what does not exist, is believed.
const FRESH: Duration = Duration::from_millis(200);
/// Sales remembered; more are read again.
const SALES_MAX: u64 = 10_000;

/// See the module.
pub struct SaleBook {
    ledger: Ledger,
    /// As the ledger had it a moment ago; `None` for ids that it does not know.
    fresh: Cache<SaleId, Option<Arc<Sale>>>,
    /// Loaded sales, whose fixed parts are final.
    loaded: Cache<SaleId, Arc<Sale>>,
    numbers: Cache<u32, Option<SaleId>>,
    live: Cache<(), Arc<Vec<Arc<Sale>>>>,
}

impl SaleBook {
    /// A book over this ledger, empty.
    #[must_use]
    pub fn new(ledger: Ledger) -> Self {
        let brief = || Cache::builder().max_capacity(SALES_MAX).time_to_live(FRESH);
        Self {
            ledger,
            fresh: brief().build(),
            loaded: Cache::new(SALES_MAX),
            numbers: Cache::builder()
                .max_capacity(SALES_MAX)
                .time_to_live(Duration::from_secs(60))
                .build(),
            live: Cache::builder().max_capacity(1).time_to_live(FRESH).build(),
        }
    }

    /// The sale as it was at most a moment ago. Many who ask at once are one query.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer.
    pub async fn fresh(&self, id: SaleId) -> Result<Option<Arc<Sale>>, Fault> {
        let read = async { self.ledger.sale(id).await.map(|sale| sale.map(Arc::new)) };
        let sale = self.fresh.try_get_with(id, read).await.map_err(shared)?;
        if let Some(sale) = &sale {
            self.remember(sale).await;
        }
        Ok(sale)
    }

    /// The fixed parts of a sale; its state may be old. While it is a draft, it is read again.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer and the sale is not remembered.
    pub async fn fixed(&self, id: SaleId) -> Result<Option<Arc<Sale>>, Fault> {
        match self.loaded.get(&id).await {
            Some(sale) => Ok(Some(sale)),
            None => Box::pin(self.fresh(id)).await,
        }
    }

    /// The fixed parts of the sale with this number.
    ///
    /// # Errors
    /// As [`SaleBook::fixed`].
    pub async fn by_number(&self, number: u32) -> Result<Option<Arc<Sale>>, Fault> {
        let read = async {
            self.ledger
                .sale_by_number(number)
                .await
                .map(|sale| sale.map(|sale| sale.id))
        };
        let known = self.numbers.get(&number).await.flatten();
        let id = match known {
            Some(id) => Some(id),
            // Numbers that nobody has are believed for a moment only: one may be given out.
            None => match self.numbers.try_get_with(number, read).await.map_err(shared)? {
                None => {
                    self.numbers.invalidate(&number).await;
                    None
                }
                found => found,
            },
        };
        match id {
            Some(id) => self.fixed(id).await,
            None => Ok(None),
        }
    }

    /// Every sale whose keys are in Redis, as of a moment ago.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer.
    pub async fn live(&self) -> Result<Arc<Vec<Arc<Sale>>>, Fault> {
        let read = async {
            let sales = self.ledger.live_sales().await?;
            Ok::<_, Fault>(Arc::new(sales.into_iter().map(Arc::new).collect::<Vec<_>>()))
        };
        self.live.try_get_with((), read).await.map_err(shared)
    }

    /// Notes a sale as this process has just changed it.
    pub async fn changed(&self, sale: &Arc<Sale>) {
        self.fresh.invalidate(&sale.id).await;
        self.live.invalidate(&()).await;
        self.remember(sale).await;
    }

    async fn remember(&self, sale: &Arc<Sale>) {
        if !matches!(sale.lifecycle, Lifecycle::Draft | Lifecycle::Loading) {
            self.loaded.insert(sale.id, Arc::clone(sale)).await;
        }
    }
}

/// Redis's clock, or this host's while Redis is away: what a state looks like must not depend on it being there.
pub async fn clock(app: &App) -> Millis {
    app.stock.now().await.unwrap_or_else(|_| Utc::now().timestamp_millis())
}

/// Creates a sale as a draft.
///
/// # Errors
/// `Unavailable` when Postgres does not answer.
pub async fn create(app: &App, new: &NewSale) -> Result<Sale, Fault> {
    app.ledger.create_sale(new).await
}

/// The sale as it is now.
///
/// # Errors
/// `Unavailable` when Postgres does not answer.
pub async fn find(app: &App, id: SaleId) -> Result<Option<Sale>, Fault> {
    app.ledger.sale(id).await
}

/// Up to `max` sales, newest first, after the one given.
///
/// # Errors
/// `Unavailable` when Postgres does not answer.
pub async fn list(app: &App, max: usize, after: Option<SaleId>) -> Result<Vec<Sale>, Fault> {
    app.ledger
        .sales(i64::try_from(max).unwrap_or(i64::MAX), after, true)
        .await
}

/// A fault that several callers share.
pub(super) fn shared(fault: Arc<Fault>) -> Fault {
    match &*fault {
        Fault::Unavailable(text) => Fault::Unavailable(text.clone()),
        Fault::Incomplete(text) => Fault::Incomplete(text.clone()),
        Fault::Overloaded(text) => Fault::Overloaded(text.clone()),
        Fault::Bug(text) => Fault::Bug(text.clone()),
    }
}
