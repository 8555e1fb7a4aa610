//! The live sales: every sale whose keys are in Redis. Each process reads their list all the while. While the ledger
//! says that the list has not changed, the last one is served.

use super::{SaleBook, is_loaded};
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::Sale;
use crate::flow::in_time;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the list of live sales is served from memory: a little less than two rounds of reconciling are apart.
pub(super) const LIVE_FRESH: Duration = Duration::from_millis(450);
/// How long the list of live sales is served from memory once the ledger has said that it has not changed: as long as a
/// bulletin counts, so that the next one comes before.
const LIVE_UNCHANGED: Duration = Duration::from_millis(2_500);
/// How long that list is served at most: an item's stock may change without the ledger saying so.
const LIVE_KEPT: Duration = Duration::from_secs(15);
/// How long callers that read Redis alone wait for the list of sales.
const LIVE_WAIT: Duration = Duration::from_secs(3);

/// Every sale whose keys are in Redis.
pub(super) type LiveSales = Arc<Vec<Arc<Sale>>>;

/// What this process knows of the versions of the live sales.
#[derive(Default)]
pub(super) struct LiveVersions {
    /// The last version that the ledger named, and when it was asked.
    newest: Option<(String, Instant)>,
    /// The last list that was read, which is at least of this version, and when that was.
    list: Option<(LiveSales, String, Instant)>,
    /// When this process last noted a change of its own. What was asked before does not count.
    changed: Option<Instant>,
}

impl SaleBook {
    /// Every sale whose keys are in Redis, as of a moment ago.
    pub async fn live(&self) -> Result<LiveSales, Fault> {
        if let Some(unchanged) = self.unchanged() {
            return Ok(unchanged);
        }
        let read = async {
            let (newest, began) = (self.versions.read().newest.clone(), Instant::now());
            let sales = self.ledger.live_sales().await?;
            let sales: LiveSales = Arc::new(sales.into_iter().map(Arc::new).collect());
            let before = {
                let mut last = self.last_live.write();
                // After a change, a reading begins beside the one before, which may end later.
                if last.as_ref().is_some_and(|(_, asked)| *asked > began) {
                    return Ok(sales);
                }
                last.replace((Arc::clone(&sales), began)).map(|(before, _)| before)
            };
            self.note_changed(before, &sales);
            if let Some((version, _)) = newest {
                let mut versions = self.versions.write();
                // The reading may lack a change that was noted meanwhile, and the version does not show each.
                if versions.changed.is_none_or(|changed| changed < began) {
                    versions.list = Some((Arc::clone(&sales), version, began));
                }
            }
            Ok::<_, Fault>(sales)
        };
        self.live.try_get_or_read(&(), read).await
    }

    /// The last list, if the ledger has just said that it has not changed since it was read.
    fn unchanged(&self) -> Option<LiveSales> {
        let versions = self.versions.read();
        let ((newest, asked), (list, version, read)) = (versions.newest.as_ref()?, versions.list.as_ref()?);
        let is_unchanged = version == newest && asked.elapsed() < LIVE_UNCHANGED && read.elapsed() < LIVE_KEPT;
        is_unchanged.then(|| Arc::clone(list))
    }

    /// A loaded sale of the last list, if the ledger has just said that the list has not changed.
    pub(super) fn unchanged_sale(&self, id: SaleId) -> Option<Arc<Sale>> {
        let live = self.unchanged()?;
        let found = live.iter().find(|sale| sale.id == id && is_loaded(sale));
        found.cloned()
    }

    /// Notes the version of the live sales that the ledger has named, asked at this moment. Returns whether it is new.
    pub(in crate::flow) fn note_version(&self, version: &str, asked: Instant) -> bool {
        {
            let mut versions = self.versions.write();
            if versions.changed.is_some_and(|changed| asked < changed) {
                return false;
            }
            let is_known = versions.newest.as_ref().is_some_and(|(newest, _)| newest == version);
            versions.newest = Some((version.to_owned(), asked));
            if is_known {
                return false;
            }
        }
        self.live.forget(&());
        true
    }

    /// [`SaleBook::live`] or, while Postgres does not answer, the last list; for callers that read Redis alone. While
    /// Postgres is away no sale is loaded. So the list lacks at most a sale that another process loaded in the moment
    /// before. Fails with `Unavailable` when Postgres does not answer and has never answered this process.
    pub async fn last_live(&self) -> Result<LiveSales, Fault> {
        let read = in_time(LIVE_WAIT, Box::pin(self.live())).await;
        read.or_else(|fault| {
            let last = self.last_live.read();
            last.as_ref().map(|(live, _)| Arc::clone(live)).ok_or(fault)
        })
    }

    /// Has the list of live sales read again: this process has changed one, or another process may have.
    pub fn outdate(&self) {
        *self.versions.write() = LiveVersions {
            changed: Some(Instant::now()),
            ..LiveVersions::default()
        };
        self.live.forget(&());
    }

    /// A loaded sale from the last list of sales whose keys are in Redis. Every process reads that list all the while,
    /// so it is a moment old when Postgres goes away.
    pub(super) fn live_sale(&self, is_it: impl Fn(&Sale) -> bool) -> Option<Arc<Sale>> {
        let last = self.last_live.read();
        let (live, _) = last.as_ref()?;
        let found = live.iter().find(|sale| is_it(sale) && is_loaded(sale));
        found.cloned()
    }

    /// Whether the last list of sales whose keys are in Redis lacks this one, which is among them.
    pub(super) fn is_unlisted(&self, sale: &Sale) -> bool {
        let last = self.last_live.read();
        let is_missing = |(live, _): &(LiveSales, Instant)| live.iter().all(|it| it.id != sale.id);
        sale.is_in_stock() && last.as_ref().is_some_and(is_missing)
    }

    /// Notes sales that an operator has amended, and those that leave Redis or have left it: the only changes of their
    /// fixed parts.
    fn note_changed(&self, before: Option<LiveSales>, live: &LiveSales) {
        // Compared with what is remembered, which may be newer than the list before.
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
}
