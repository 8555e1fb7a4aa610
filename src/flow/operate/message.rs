//! Message: an operator sets the message to the shoppers of a sale. One transaction of the ledger: a crash leaves the old
//! message or the new one.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::Sale;
use crate::domain::sale::message::SaleMessage;
use crate::flow::App;
use std::sync::Arc;

/// Replaces the message to a sale's shoppers; an empty one is removed. `None` if there is no such sale. Every instance
/// shows it within a second.
pub async fn set(app: &App, id: SaleId, message: &SaleMessage) -> Result<Option<Sale>, Fault> {
    let sale = app.ledger.set_message(id, message).await?;
    if let Some(sale) = &sale {
        app.sales.changed(&Arc::new(sale.clone()));
    }
    Ok(sale)
}
