//! The sales that this process knows. The fixed parts of a loaded sale (items, prices, shards, secret) are remembered
//! until an operator amends it. The changing parts (state, times, stock) are read again after a moment. Selling needs only the fixed
//! parts, so it goes on while Postgres is away. Page views need the changing parts; while Postgres is away they get
//! the last ones known.

mod known;

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::{Lifecycle, Sale};
use crate::domain::time::Millis;
use crate::flow::App;
use crate::ledger::Ledger;
use chrono::Utc;
use known::{KnownSales, SaleStanding};
use moka::future::Cache;
use parking_lot::{RwLock, RwLockWriteGuard};
use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long a changing part, or an unknown id, is served from memory.
const FRESH: Duration = Duration::from_millis(200);
/// How long the list of live sales is served from memory: a little less than two rounds of reconciling are apart.
const LIVE_FRESH: Duration = Duration::from_millis(450);
/// How long the list of live sales is served from memory once the ledger has said that it has not changed, and how long
/// at most. An item's stock may change without the ledger saying so.
const LIVE_UNCHANGED: Duration = Duration::from_millis(1_500);
const LIVE_KEPT: Duration = Duration::from_secs(15);
/// Lists of sales: how long one is served from memory, how many are kept, the longest, and how many are read at once.
/// Any client may ask for them, and orders need the connections.
const LIST_FRESH: Duration = Duration::from_millis(500);
const LISTS_MAX: u64 = 100;
const LIST_MAX: usize = 101;
const READERS_MAX: usize = 2;
/// How long callers that read Redis alone wait for the list of sales.
const LIVE_WAIT: Duration = Duration::from_secs(3);
/// How long a page view waits for the ledger, before it gets the last state known.
const READ_WAIT: Duration = Duration::from_millis(400);
/// Sales remembered, and loaded ones among them; further ones are read again.
const SALES_MAX: u64 = 10_000;
const LOADED_MAX: usize = 10_000;

pub struct SaleBook {
    ledger: Ledger,
    /// As the ledger had it a moment ago; `None` for ids that it does not know.
    fresh: Cache<SaleId, Option<Arc<Sale>>>,
    /// Loaded sales, whose fixed parts are final. Every purchase reads one, and a read of this cache is cheap.
    loaded: quick_cache::sync::Cache<SaleId, Arc<Sale>>,
    numbers: Cache<u32, Option<SaleId>>,
    live: Cache<(), LiveSales>,
    versions: RwLock<LiveVersions>,
    /// The list after each sale, as the ledger had it a moment ago.
    lists: Cache<Option<SaleId>, LiveSales>,
    /// Limits the lists that are read at once.
    readers: Semaphore,
    /// The last list that the ledger returned; nothing before the first.
    last_live: RwLock<Option<LiveSales>>,
    known: KnownSales,
}

/// Every sale whose keys are in Redis.
type LiveSales = Arc<Vec<Arc<Sale>>>;

/// What this process knows of the versions of the live sales.
#[derive(Default)]
struct LiveVersions {
    /// The last version that the ledger named, and when it was asked.
    newest: Option<(String, Instant)>,
    /// The last list that was read, which is at least of this version, and when that was.
    list: Option<(LiveSales, String, Instant)>,
    /// When this process last noted a change of its own. What was asked before does not count.
    changed: Option<Instant>,
}

impl SaleBook {
    pub fn new(ledger: Ledger) -> Self {
        let lists = Cache::builder().max_capacity(LISTS_MAX).time_to_live(LIST_FRESH);
        Self {
            ledger,
            fresh: Cache::builder().max_capacity(SALES_MAX).time_to_live(FRESH).build(),
            loaded: quick_cache::sync::Cache::new(LOADED_MAX),
            numbers: Cache::builder()
                .max_capacity(SALES_MAX)
                .time_to_live(Duration::from_secs(60))
                .build(),
            live: Cache::builder().max_capacity(1).time_to_live(LIVE_FRESH).build(),
            versions: RwLock::default(),
            lists: lists.build(),
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
    async fn learn_of(&self, sale: &Arc<Sale>) {
        self.known.note(sale);
        self.fresh.insert(sale.id, Some(Arc::clone(sale))).await;
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
        let sale = self.fresh.try_get_with(id, read).await.map_err(Arc::unwrap_or_clone)?;
        if let Some(sale) = &sale {
            // Another process has loaded it a moment ago. This one must drain what it sells of it.
            if self.is_unlisted(sale) {
                self.outdate().await;
            }
            if standing == SaleStanding::New {
                self.learn_of(sale).await;
            } else {
                self.remember(sale);
            }
        }
        Ok(sale)
    }

    /// The sale as it was at most a moment ago. If Postgres does not answer in time, the last state that this process
    /// knows. Fails with `Unavailable` when Postgres does not answer in time and the sale is not remembered.
    pub async fn latest(&self, id: SaleId) -> Result<Option<Arc<Sale>>, Fault> {
        match in_time(READ_WAIT, Box::pin(self.fresh(id))).await {
            Err(Fault::Unavailable(why)) => match self.remembered(id) {
                Some(sale) => Ok(Some(sale)),
                None => Err(Fault::Unavailable(why)),
            },
            read => read,
        }
    }

    /// The first [`LIST_MAX`] sales that shoppers may see, newest first, after the one given. Many concurrent callers
    /// share one query.
    async fn list(&self, after: Option<SaleId>) -> Result<LiveSales, Fault> {
        let standing = after.map_or(SaleStanding::Known, |id| self.known.standing(id));
        if standing == SaleStanding::Nothing || standing == SaleStanding::New && !self.may_ask_ledger() {
            return Ok(LiveSales::default());
        }
        let read = async {
            let _turn = self.readers.acquire().await;
            let sales = self.ledger.sales(whole(LIST_MAX), after, false).await?;
            Ok::<_, Fault>(Arc::new(sales.into_iter().map(Arc::new).collect()))
        };
        self.lists.try_get_with(after, read).await.map_err(Arc::unwrap_or_clone)
    }

    /// Up to `max` sales that shoppers may see, newest first, after the one given. If Postgres does not answer in time,
    /// those of them whose keys are in Redis. Fails with `Unavailable` when Postgres does not answer in time, and the
    /// one given is not remembered or no list was ever read.
    pub async fn newest(&self, max: usize, after: Option<SaleId>) -> Result<Vec<Arc<Sale>>, Fault> {
        let why = match in_time(READ_WAIT, Box::pin(self.list(after))).await {
            Err(Fault::Unavailable(why)) => why,
            listed => return Ok(listed?.iter().take(max).cloned().collect()),
        };
        let last = match after {
            None => u32::MAX,
            Some(id) => match self.remembered(id) {
                Some(sale) => sale.number,
                None => return Err(Fault::Unavailable(why)),
            },
        };
        let mut sales = match &*self.last_live.read() {
            Some(live) => live.to_vec(),
            None => return Err(Fault::Unavailable(why)),
        };
        sales.retain(|it| it.number < last && is_loaded(it));
        sales.sort_by_key(|sale| Reverse(sale.number));
        sales.truncate(max);
        Ok(sales)
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

    /// A loaded sale from the last list of sales whose keys are in Redis. Every process reads that list all the while,
    /// so it is a moment old when Postgres goes away.
    fn live_sale(&self, is_it: impl Fn(&Sale) -> bool) -> Option<Arc<Sale>> {
        let live = self.last_live.read();
        let found = live.as_ref()?.iter().find(|sale| is_it(sale) && is_loaded(sale));
        found.cloned()
    }

    /// Whether the last list of sales whose keys are in Redis lacks this one, which is among them.
    fn is_unlisted(&self, sale: &Sale) -> bool {
        let live = self.last_live.read();
        let is_missing = |live: &LiveSales| live.iter().all(|it| it.id != sale.id);
        sale.is_in_stock() && live.as_ref().is_some_and(is_missing)
    }

    /// A sale that is not known to be loaded. An unknown id is trusted for a moment, a draft is not: another process
    /// may have loaded it since. Then it can have orders and payments.
    async fn read_unloaded(&self, id: SaleId) -> Result<Option<Arc<Sale>>, Fault> {
        let sale = self.fresh(id).await?;
        if sale.as_ref().is_none_or(|sale| is_loaded(sale)) {
            return Ok(sale);
        }
        self.fresh.invalidate(&id).await;
        self.fresh(id).await
    }

    /// The fixed parts of the sale with this number. Queries for unknown numbers are limited.
    pub async fn by_number(&self, number: u32) -> Result<Option<Arc<Sale>>, Fault> {
        let standing = self.known.standing_of_number(number);
        if standing == SaleStanding::Nothing {
            return Ok(None);
        }
        if let Some(id) = self.numbers.get(&number).await.flatten() {
            return Box::pin(self.fixed_or_draft(id)).await;
        }
        if let Some(sale) = self.live_sale(|sale| sale.number == number) {
            return Ok(Some(sale));
        }
        let read = async {
            // Concurrent callers for one new number count as one query.
            if standing == SaleStanding::New && !self.may_ask_ledger() {
                return Ok(None);
            }
            let Some(sale) = self.ledger.sale_by_number(number).await?.map(Arc::new) else {
                return Ok(None);
            };
            self.learn_of(&sale).await;
            Ok::<_, Fault>(Some(sale.id))
        };
        let found = self.numbers.try_get_with(number, read).await;
        match found.map_err(Arc::unwrap_or_clone)? {
            Some(id) => Box::pin(self.fixed_or_draft(id)).await,
            None => {
                // An unknown number is not remembered: a new sale may get it at any moment.
                self.numbers.invalidate(&number).await;
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
        if let Some(id) = self.numbers.get(&number).await.flatten()
            && let Some(sale) = self.fixed(id).await?
        {
            return Ok(Some(sale));
        }
        let Some(sale) = self.ledger.sale_by_number(number).await?.map(Arc::new) else {
            return Ok(None);
        };
        self.learn_of(&sale).await;
        self.numbers.insert(number, Some(sale.id)).await;
        Ok(Some(sale))
    }

    /// Every sale whose keys are in Redis, as of a moment ago.
    pub async fn live(&self) -> Result<LiveSales, Fault> {
        if let Some(unchanged) = self.unchanged() {
            return Ok(unchanged);
        }
        let read = async {
            let (version, began) = (self.newest_version(), Instant::now());
            let sales = self.ledger.live_sales().await?;
            let sales: LiveSales = Arc::new(sales.into_iter().map(Arc::new).collect());
            let before = {
                let mut last = self.last_live.write();
                last.replace(Arc::clone(&sales))
            };
            self.note_changed(before, &sales);
            if let Some(version) = version {
                let mut versions = self.versions();
                // The reading may lack a change that was noted meanwhile, and the version does not show each.
                if versions.changed.is_none_or(|changed| changed < began) {
                    versions.list = Some((Arc::clone(&sales), version, began));
                }
            }
            Ok::<_, Fault>(sales)
        };
        self.live.try_get_with((), read).await.map_err(Arc::unwrap_or_clone)
    }

    /// The last list, if the ledger has just said that it has not changed since it was read.
    fn unchanged(&self) -> Option<LiveSales> {
        let versions = self.versions.read();
        let ((newest, asked), (list, version, read)) = (versions.newest.as_ref()?, versions.list.as_ref()?);
        let is_unchanged = version == newest && asked.elapsed() < LIVE_UNCHANGED && read.elapsed() < LIVE_KEPT;
        is_unchanged.then(|| Arc::clone(list))
    }

    fn newest_version(&self) -> Option<String> {
        let versions = self.versions.read();
        versions.newest.as_ref().map(|(version, _)| version.clone())
    }

    fn versions(&self) -> RwLockWriteGuard<'_, LiveVersions> {
        self.versions.write()
    }

    /// Notes the version of the live sales that the ledger has named, asked at this moment. Returns whether it is new.
    pub(super) async fn note_version(&self, version: &str, asked: Instant) -> bool {
        {
            let mut versions = self.versions();
            if versions.changed.is_some_and(|changed| asked < changed) {
                return false;
            }
            let is_known = versions.newest.as_ref().is_some_and(|(newest, _)| newest == version);
            versions.newest = Some((version.to_owned(), asked));
            if is_known {
                return false;
            }
        }
        self.live.invalidate(&()).await;
        true
    }

    /// Forgets the versions, because this process knows of a change.
    fn forget_versions(&self) {
        *self.versions() = LiveVersions {
            changed: Some(Instant::now()),
            ..LiveVersions::default()
        };
    }

    /// [`SaleBook::live`] or, while Postgres does not answer, the last list; for callers that read Redis alone. While
    /// Postgres is away no sale is loaded. So the list lacks at most a sale that another process loaded in the moment
    /// before. Fails with `Unavailable` when Postgres does not answer and has never answered this process.
    pub async fn last_live(&self) -> Result<LiveSales, Fault> {
        let read = in_time(LIVE_WAIT, Box::pin(self.live())).await;
        read.or_else(|fault| {
            let last = self.last_live.read().clone();
            last.ok_or(fault)
        })
    }

    /// Has the list of live sales read again: another process may have changed it.
    pub async fn outdate(&self) {
        self.forget_versions();
        self.live.invalidate(&()).await;
    }

    /// Forgets a draft that this process has just deleted.
    pub(super) async fn forget_draft(&self, id: SaleId) {
        self.fresh.invalidate(&id).await;
    }

    /// Notes a sale that this process has just changed.
    pub async fn changed(&self, sale: &Arc<Sale>) {
        self.lists.invalidate_all();
        self.fresh.invalidate(&sale.id).await;
        self.forget_versions();
        self.live.invalidate(&()).await;
        self.remember(sale);
    }

    /// Notes sales that an operator has amended, and those that leave Redis or have left it: the only changes of their
    /// fixed parts.
    fn note_changed(&self, before: Option<LiveSales>, live: &LiveSales) {
        // Compared with what is remembered, not with the list before: two reads may have ended in the wrong order.
        let has_changed = |sale: &&Arc<Sale>| {
            let known = self.loaded.peek(&sale.id);
            known.is_some_and(|known| known.state_version < sale.state_version)
        };
        for sale in live.iter().filter(|sale| sale.leaving || has_changed(sale)) {
            self.remember(sale);
        }
        let ids: HashSet<SaleId> = live.iter().map(|sale| sale.id).collect();
        for gone in before.iter().flat_map(|before| before.iter()) {
            if !ids.contains(&gone.id) {
                self.loaded.remove(&gone.id);
            }
        }
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

/// How long the flows that add up counts wait for Postgres. If Postgres commits later, some are counted twice.
pub(super) const ADD_MAX: Duration = Duration::from_secs(2);

/// Limits the wait for a query that its caller can do without.
pub(super) async fn in_time<T>(wait: Duration, asked: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let answer = tokio::time::timeout(wait, asked).await;
    answer.unwrap_or_else(|_| Err(Fault::Unavailable("Postgres did not answer in time".to_owned())))
}

/// Redis's clock, or this host's while Redis is away: a sale's state can be shown then, too.
pub async fn clock(app: &App) -> Millis {
    app.stock.now().await.unwrap_or_else(|_| Utc::now().timestamp_millis())
}

/// The sale as the ledger has it now.
pub async fn find(app: &App, id: SaleId) -> Result<Option<Sale>, Fault> {
    app.ledger.sale(id).await
}

/// Up to `max` sales, newest first, after the one given.
pub async fn list(app: &App, max: usize, after: Option<SaleId>) -> Result<Vec<Sale>, Fault> {
    app.ledger.sales(whole(max), after, true).await
}

/// A count, as the ledger and the metrics take it.
pub(super) fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
