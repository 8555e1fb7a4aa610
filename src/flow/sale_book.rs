//! The sales that this process knows. The fixed parts of a loaded sale (items, prices, shards, secret) are remembered
//! until an operator amends it. The changing parts (state, times, stock) are read again after a moment. Selling needs
//! only the fixed parts, so it goes on while Postgres is away. Page views need the changing parts; while Postgres is
//! away they get the last ones known. A crash leaves nothing: all of it is read again.

mod known;
mod list;
mod live;

use crate::cache::Cache;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::{Lifecycle, Sale, SaleSearch};
use crate::domain::time::Millis;
use crate::flow::{App, in_time, whole};
use crate::ledger::Ledger;
use chrono::Utc;
use known::{KnownSales, SaleStanding};
use list::{LIST_FRESH, LISTS_MAX, READERS_MAX};
use live::{LIVE_FRESH, LiveSales, LiveVersions};
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long a changing part, or an unknown id, is served from memory.
const FRESH: Duration = Duration::from_millis(200);
/// How long the id of a sale's number is remembered.
const NUMBERS_KEPT: Duration = Duration::from_secs(60);
/// How long a page view waits for the ledger, before it gets the last state known.
const READ_WAIT: Duration = Duration::from_millis(400);
/// Sales remembered; further ones are read again.
const SALES_MAX: usize = 10_000;

pub struct SaleBook {
    ledger: Ledger,
    /// As the ledger had it a moment ago; `None` for ids that it does not know.
    fresh: Cache<SaleId, Option<Arc<Sale>>, Fault>,
    /// Loaded sales, whose fixed parts are final. Every purchase reads one, and a read of this cache is cheap.
    loaded: quick_cache::sync::Cache<SaleId, Arc<Sale>>,
    numbers: Cache<u32, Option<SaleId>, Fault>,
    live: Cache<(), LiveSales, Fault>,
    versions: RwLock<LiveVersions>,
    /// The list after each sale, as the ledger had it a moment ago.
    lists: Cache<Option<SaleId>, LiveSales, Fault>,
    /// Limits the lists that are read at once.
    readers: Semaphore,
    /// The last list that the ledger returned, and when it was asked for it; nothing before the first.
    last_live: RwLock<Option<(LiveSales, Instant)>>,
    known: KnownSales,
}

impl SaleBook {
    pub fn new(ledger: Ledger) -> Self {
        Self {
            ledger,
            fresh: Cache::fresh_for(FRESH, SALES_MAX),
            loaded: quick_cache::sync::Cache::new(SALES_MAX),
            numbers: Cache::fresh_for(NUMBERS_KEPT, SALES_MAX),
            live: Cache::fresh_for(LIVE_FRESH, 1),
            versions: RwLock::default(),
            lists: Cache::fresh_for(LIST_FRESH, LISTS_MAX),
            readers: Semaphore::new(READERS_MAX),
            last_live: RwLock::default(),
            known: KnownSales::default(),
        }
    }

    /// Reads which sales have been created since the last time.
    pub async fn learn(&self) -> Result<(), Fault> {
        let sales = self.ledger.sale_ids(self.known.read_to()).await?;
        self.known.note_read(sales);
        Ok(())
    }

    /// Notes a sale that this process did not know, and replaces what it remembered a moment ago.
    fn learn_of(&self, sale: &Arc<Sale>) {
        self.known.note(sale);
        self.fresh.insert(sale.id, Some(Arc::clone(sale)));
        self.remember(sale);
    }

    pub fn knows(&self, id: SaleId) -> bool {
        self.known.has(id)
    }

    /// Whether an id that probably does not exist may be queried once more.
    pub(super) fn may_ask_ledger(&self) -> bool {
        self.known.may_ask_ledger()
    }

    /// The sale as it was at most a moment ago. Many concurrent callers share one query.
    pub async fn fresh(&self, id: SaleId) -> Result<Option<Arc<Sale>>, Fault> {
        let standing = self.known.standing(id);
        if standing == SaleStanding::Nothing {
            return Ok(None);
        }
        let read = async {
            // Concurrent callers for one new id count as one query.
            if standing == SaleStanding::New && !self.may_ask_ledger() {
                return Ok(None);
            }
            self.ledger.sale(id).await.map(|sale| sale.map(Arc::new))
        };
        let sale = self.fresh.try_get_or_read(&id, read).await?;
        if let Some(sale) = &sale {
            // Another process has loaded it a moment ago. This one must drain what it sells of it.
            if self.is_unlisted(sale) {
                self.outdate();
            }
            if standing == SaleStanding::New {
                self.known.note(sale);
            }
            self.remember(sale);
        }
        Ok(sale)
    }

    /// The sale as it was at most a moment ago, but for its items' stock. A live sale needs no query while bulletins
    /// report changes. If Postgres does not answer in time, the last state that this process knows. Fails with
    /// `Unavailable` when Postgres does not answer in time and the sale is not remembered.
    pub async fn latest(&self, id: SaleId) -> Result<Option<Arc<Sale>>, Fault> {
        if let Some(sale) = self.unchanged_sale(id) {
            return Ok(Some(sale));
        }
        match in_time(READ_WAIT, Box::pin(self.fresh(id))).await {
            Err(Fault::Unavailable(why)) => match self.remembered(id) {
                Some(sale) => Ok(Some(sale)),
                None => Err(Fault::Unavailable(why)),
            },
            read => read,
        }
    }

    /// The fixed parts of a sale; its state may be old. A draft is read again each time. Fails with `Unavailable` when
    /// Postgres does not answer and the sale is not remembered.
    pub async fn fixed(&self, id: SaleId) -> Result<Option<Arc<Sale>>, Fault> {
        match self.known_loaded(id) {
            Some(sale) => Ok(Some(sale)),
            None => Box::pin(self.read_unloaded(id)).await,
        }
    }

    /// A sale that is known to be loaded, so its fixed parts need no query. No request need have named it before
    /// Postgres went away.
    fn known_loaded(&self, id: SaleId) -> Option<Arc<Sale>> {
        if let Some(sale) = self.loaded.get(&id) {
            return Some(sale);
        }
        let sale = self.live_sale(|sale| sale.id == id)?;
        self.remember(&sale);
        Some(sale)
    }

    /// The sale as this process last read it, if it is loaded; for while Postgres does not answer.
    pub fn remembered(&self, id: SaleId) -> Option<Arc<Sale>> {
        let live = self.live_sale(|sale| sale.id == id);
        let loaded = self.loaded.get(&id);
        match (live, loaded) {
            // A change by this process itself is newer than its last list.
            (Some(live), Some(loaded)) if loaded.state_version > live.state_version => Some(loaded),
            (live, loaded) => live.or(loaded),
        }
    }

    /// A sale that is not known to be loaded. An unknown id is trusted for a moment, a draft is not: another process
    /// may have loaded it since. Then it can have orders and payments.
    async fn read_unloaded(&self, id: SaleId) -> Result<Option<Arc<Sale>>, Fault> {
        let sale = self.fresh(id).await?;
        if sale.as_ref().is_none_or(|sale| is_loaded(sale)) {
            return Ok(sale);
        }
        self.fresh.expire(&id);
        self.fresh(id).await
    }

    /// The fixed parts of the sale with this number. Queries for unknown numbers are limited.
    pub async fn by_number(&self, number: u32) -> Result<Option<Arc<Sale>>, Fault> {
        let standing = self.known.standing_of_number(number);
        if standing == SaleStanding::Nothing {
            return Ok(None);
        }
        if let Some(id) = self.numbers.get(&number).flatten() {
            return Box::pin(self.fixed_or_draft(id)).await;
        }
        if let Some(sale) = self.live_sale(|sale| sale.number == number) {
            return Ok(Some(sale));
        }
        // Boxed, so that the futures of all readings of orders stay small.
        Box::pin(self.read_number(number, standing)).await
    }

    async fn read_number(&self, number: u32, standing: SaleStanding) -> Result<Option<Arc<Sale>>, Fault> {
        let read = async {
            // Concurrent callers for one new number count as one query.
            if standing == SaleStanding::New && !self.may_ask_ledger() {
                return Ok(None);
            }
            let Some(sale) = self.ledger.sale_by_number(number).await?.map(Arc::new) else {
                return Ok(None);
            };
            self.learn_of(&sale);
            Ok::<_, Fault>(Some(sale.id))
        };
        match self.numbers.try_get_or_read(&number, read).await? {
            Some(id) => Box::pin(self.fixed_or_draft(id)).await,
            None => {
                // An unknown number is not remembered: a new sale may get it at any moment.
                self.numbers.expire(&number);
                Ok(None)
            }
        }
    }

    /// [`SaleBook::fixed`], except that only so many queries a second find out whether a draft was just loaded.
    async fn fixed_or_draft(&self, id: SaleId) -> Result<Option<Arc<Sale>>, Fault> {
        if let Some(sale) = self.known_loaded(id) {
            return Ok(Some(sale));
        }
        match self.fresh(id).await? {
            Some(sale) if !is_loaded(&sale) && self.may_ask_ledger() => self.read_unloaded(id).await,
            sale => Ok(sale),
        }
    }

    /// [`SaleBook::by_number`], but never rate-limited. For payment webhooks: "no such sale" must come from the
    /// ledger.
    pub async fn by_number_for_certain(&self, number: u32) -> Result<Option<Arc<Sale>>, Fault> {
        if let Some(id) = self.numbers.get(&number).flatten()
            && let Some(sale) = self.fixed(id).await?
        {
            return Ok(Some(sale));
        }
        let Some(sale) = self.ledger.sale_by_number(number).await?.map(Arc::new) else {
            return Ok(None);
        };
        self.learn_of(&sale);
        self.numbers.insert(number, Some(sale.id));
        Ok(Some(sale))
    }

    /// Forgets a draft that this process has just deleted.
    pub(super) fn forget_draft(&self, id: SaleId) {
        self.fresh.forget(&id);
    }

    /// Notes a sale that this process has just changed.
    pub fn changed(&self, sale: &Arc<Sale>) {
        self.lists.forget_all();
        self.fresh.forget(&sale.id);
        self.outdate();
        self.remember(sale);
    }

    fn remember(&self, sale: &Arc<Sale>) {
        // A read that began before an amendment must not undo it.
        let is_newer = |known: Arc<Sale>| known.state_version > sale.state_version;
        if is_loaded(sale) && !self.loaded.get(&sale.id).is_some_and(is_newer) {
            self.loaded.insert(sale.id, Arc::clone(sale));
        }
    }
}

/// Whether a sale's fixed parts are final.
const fn is_loaded(sale: &Sale) -> bool {
    !matches!(sale.lifecycle, Lifecycle::Draft | Lifecycle::Loading)
}

/// Redis's clock, or this host's while Redis is away: a sale's state can be shown then, too.
pub async fn clock(app: &App) -> Millis {
    app.stock.now().await.unwrap_or_else(|_| Utc::now().timestamp_millis())
}

/// The sale as the ledger has it now.
pub async fn find(app: &App, id: SaleId) -> Result<Option<Sale>, Fault> {
    app.ledger.sale(id).await
}

/// Up to `max` sales that fit the search, newest first, after the one given.
pub async fn list(
    app: &App,
    max: usize,
    after: Option<SaleId>,
    search: Option<&SaleSearch>,
) -> Result<Vec<Sale>, Fault> {
    app.ledger.sales(whole(max), after, search).await
}
