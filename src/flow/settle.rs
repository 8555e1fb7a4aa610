//! Settle: store orders in the ledger, decide them, and deliver the decisions to the stock.

pub mod cancel;
pub mod dead_letters;
pub mod drain;
pub mod expire;
pub mod groups;
pub mod order;
pub mod pay;
pub mod payments;
pub mod release;

use crate::domain::fault::Fault;
use crate::domain::order::wanted::OrdersOf;
use crate::flow::App;
use std::time::Duration;

/// After a full batch of expiries or releases, the next one waits so many times as long as that batch took: purchases
/// matter more than units that are free a moment later. A batch takes longer beside purchases, so the pauses do, too.
const REST_TIMES: u32 = 3;
/// The longest of these pauses, so that a slow server delays the units of many batches by a known time.
const REST_MAX: Duration = Duration::from_millis(40);

/// Whether there can be such orders: they are of any sale, or of one that exists.
async fn can_be(app: &App, of: &OrdersOf) -> Result<bool, Fault> {
    match of.sale() {
        Some(sale) => Ok(app.ledger.sale(sale).await?.is_some()),
        None => Ok(true),
    }
}

/// The pause after a full batch that took so long.
fn rest_after(took: Duration) -> Duration {
    took.saturating_mul(REST_TIMES).min(REST_MAX)
}
