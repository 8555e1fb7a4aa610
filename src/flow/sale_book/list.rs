//! The list of sales that shoppers see. While Postgres is away, it has the live sales alone.

use super::known::SaleStanding;
use super::live::LiveSales;
use super::{READ_WAIT, SaleBook, is_loaded};
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::Sale;
use crate::flow::{in_time, whole};
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

/// Lists of sales: how long one is served from memory, how many are kept, the longest, and how many are read at once.
/// Any client may ask for them, and orders need the connections.
pub(super) const LIST_FRESH: Duration = Duration::from_millis(500);
pub(super) const LISTS_MAX: usize = 100;
const LIST_MAX: usize = 101;
pub(super) const READERS_MAX: usize = 2;

impl SaleBook {
    /// The first [`LIST_MAX`] sales that shoppers may see, newest first, after the one given. Many concurrent callers
    /// share one query.
    async fn list(&self, after: Option<SaleId>) -> Result<LiveSales, Fault> {
        let standing = after.map_or(SaleStanding::Known, |id| self.known.standing(id));
        if standing == SaleStanding::Nothing || standing == SaleStanding::New && !self.may_ask_ledger() {
            return Ok(LiveSales::default());
        }
        let read = async {
            let _turn = self.readers.acquire().await;
            let sales = self.ledger.public_sales(whole(LIST_MAX), after).await?;
            Ok::<_, Fault>(Arc::new(sales.into_iter().map(Arc::new).collect()))
        };
        self.lists.try_get_or_read(&after, read).await
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
            Some((live, _)) => live.to_vec(),
            None => return Err(Fault::Unavailable(why)),
        };
        sales.retain(|it| it.number < last && is_loaded(it));
        sales.sort_by_key(|sale| Reverse(sale.number));
        sales.truncate(max);
        Ok(sales)
    }
}
