//! What shoppers can buy: the newest open sale, and the items of a sale.

use super::SALES;
use crate::cli::Failure;
use crate::cli::shared::answer::{cell, read};
use crate::cli::shared::client::Client;
use crate::cli::shared::{output, pages};
use crate::stderr;
use serde::Deserialize;
use uuid::Uuid;

/// How many sales are searched for an open one, newest first.
const SALES_MAX: usize = 100;

/// The newest open sale, or the newest if none of the newest is open. Prints which one it is.
pub(super) fn newest_open(reader: &Client) -> Result<Uuid, Failure> {
    let sales = pages::newest(reader, SALES, "id", SALES_MAX)?;
    let open = sales.iter().find(|sale| sale["state"] == "open");
    let sale = open.or(sales.first());
    let sale = sale.ok_or_else(|| Failure::No("shoppers see no sale".to_owned()))?;
    let of = |name: &str| output::one_line(&cell(sale, name));
    stderr::line(format_args!(
        "flashsale: the sale {}, {}, is {}",
        of("id"),
        of("name"),
        of("state")
    ));
    read(&sale["id"])
}

/// An item of a sale, as shoppers see it.
#[derive(Deserialize)]
pub(super) struct PublicItem {
    sku: String,
    availability: String,
}

pub(super) fn items(reader: &Client, sale: Uuid) -> Result<Vec<PublicItem>, Failure> {
    read(&reader.get(&format!("{SALES}/{sale}"))?.body["items"])
}

/// The SKU of the sale's only item.
pub(super) fn only_sku(reader: &Client, sale: Uuid) -> Result<String, Failure> {
    let items = items(reader, sale)?;
    match items.as_slice() {
        [only] => Ok(only.sku.clone()),
        several => Err(Failure::Usage(format!(
            "name one of the sale's items: {}",
            list(several)
        ))),
    }
}

/// These items, and whether they have stock.
pub(super) fn list(items: &[PublicItem]) -> String {
    let with_stock = |item: &PublicItem| format!("{} ({})", item.sku, item.availability.replace('_', " "));
    output::one_line(&items.iter().map(with_stock).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::shared::mock_server::MockServer;
    use serde_json::{Value, json};

    #[test]
    fn the_latest_sale_is_the_newest_open_one() {
        let (newest, open, older) = (Uuid::from_u128(3), Uuid::from_u128(2), Uuid::from_u128(1));
        let latest = |states: &[(Uuid, &str)]| {
            let sales: Vec<Value> = states
                .iter()
                .map(|(id, state)| json!({"id": id, "state": state, "name": "Winter"}))
                .collect();
            let page = json!({"data": sales, "has_more": false}).to_string();
            newest_open(&MockServer::answering(&[(200, &page)]).client())
        };
        let states = [(newest, "closed"), (open, "open"), (older, "open")];
        assert_eq!(latest(&states).unwrap(), open);
        assert_eq!(latest(&[(newest, "scheduled"), (older, "closed")]).unwrap(), newest);
        assert!(matches!(latest(&[]), Err(Failure::No(_))));
    }
}
