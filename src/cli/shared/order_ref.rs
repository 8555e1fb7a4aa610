//! An order's id as people type it: whole, its first characters, its number, or `@latest`. The number is the last eight
//! characters, which the shop's pages show.
//!
//! All but a whole id is searched in the newest orders of the newest sales that are no drafts. A prefix counts only if
//! the search read all orders, since another one may have it, too. The characters of a number are random, so it names
//! one order.

use super::answer::Column;
use super::client::Client;
use super::pages;
use super::sale_ref::{LATEST, NUMBER, prefix, several};
use crate::cli::Failure;
use serde_json::Value;
use std::str::FromStr;
use uuid::Uuid;

/// How many sales are searched, newest first.
const SALES_MAX: usize = 10;
/// How many sales are read to find so many that are no drafts.
const SALES_READ: usize = 100;
/// How many orders of each are searched. A shopper gets no more than these in one answer.
const ORDERS_MAX: usize = 1_000;
const COLUMNS: [Column; 4] = [
    ("ORDER", "id"),
    ("SKU", "sku"),
    ("STATE", "state"),
    ("CREATED", "created_at"),
];

/// The paths of a list of orders and of a list of their sales.
#[derive(Debug, Clone, Copy)]
pub struct Lists {
    pub orders: &'static str,
    pub sales: &'static str,
}

pub const OPERATORS: Lists = Lists {
    orders: "/v1/admin/orders",
    sales: "/v1/admin/sales",
};
pub const SHOPPERS: Lists = Lists {
    orders: "/v1/orders",
    sales: "/v1/sales",
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderRef {
    Id(Uuid),
    /// In lower case, with dashes. With as many characters as a number, it may be one.
    Prefix(String),
    /// In lower case.
    Number(String),
    Latest,
}

impl FromStr for OrderRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == LATEST {
            return Ok(Self::Latest);
        }
        if let Ok(id) = text.parse() {
            return Ok(Self::Id(id));
        }
        // The pages write a number as `…9b4c6f1a`.
        let number = text.strip_prefix('…').map(str::to_ascii_lowercase);
        let is_number = |text: &String| text.len() == NUMBER && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let part = match number {
            Some(number) => Some(number).filter(is_number).map(Self::Number),
            None => prefix(text).map(Self::Prefix),
        };
        part.ok_or_else(|| {
            format!(
                "write the last {NUMBER} characters of the order's id, as the shop's page shows them, or all of it, \
                 such as 00000001-a3f7-8c21-8e55-0d9b4c6f1a37, its first characters (at least four; the orders of a \
                 sale share the first eight), or {LATEST}"
            )
        })
    }
}

impl OrderRef {
    /// The order, as the lists have it.
    pub fn find(&self, client: &Client, lists: Lists) -> Result<Value, Failure> {
        if *self == Self::Latest {
            let newest = newest(client, lists)?.into_iter().next();
            return newest.ok_or_else(|| {
                Failure::No(format!(
                    "no order among the newest {SALES_MAX} sales that have been preloaded"
                ))
            });
        }
        let (sales, mut is_cut) = sales(client, lists)?;
        let mut found = Vec::new();
        for sale in sales {
            let path = format!("{}?sale_id={sale}", lists.orders);
            let (_, orders) = pages::list(client, &path, "data", ORDERS_MAX, "/id")?;
            is_cut |= orders.len() >= ORDERS_MAX;
            found.extend(orders.into_iter().filter(|order| self.names(order)));
        }
        match found.as_slice() {
            [] => Err(Failure::No(format!(
                "no such order among the newest {ORDERS_MAX} of each of the newest {SALES_MAX} sales that have been \
                 preloaded: write the whole id, which `flashsale orders list` prints"
            ))),
            [order] if !is_cut || self.is_number_of(order) => Ok(order.clone()),
            [_] => Err(Failure::No(format!(
                "there are too many orders to find one by the beginning of its id: write all of it, or its last {NUMBER} \
                 characters"
            ))),
            _ => {
                for order in &mut found {
                    if let Some(number) = number_of(order).map(str::to_owned) {
                        order["id"] = format!("…{number}").into();
                    }
                }
                Err(several(
                    &found,
                    "orders match",
                    &COLUMNS,
                    "write the last eight characters of one",
                ))
            }
        }
    }

    fn names(&self, order: &Value) -> bool {
        let begins = |text: &str| order["id"].as_str().is_some_and(|id| id.starts_with(text));
        matches!(self, Self::Prefix(text) if begins(text)) || self.is_number_of(order)
    }

    fn is_number_of(&self, order: &Value) -> bool {
        let number = number_of(order);
        matches!(self, Self::Prefix(text) | Self::Number(text) if number == Some(text.as_str()))
    }
}

/// The number of an order.
pub fn number_of(order: &Value) -> Option<&str> {
    let id = order["id"].as_str()?;
    id.get(id.len().checked_sub(NUMBER)?..)
}

/// The newest orders of the newest sales, newest first, as far as one answer for each sale has them.
pub fn newest(client: &Client, lists: Lists) -> Result<Vec<Value>, Failure> {
    let mut orders = Vec::new();
    for sale in sales(client, lists)?.0 {
        let path = format!("{}?sale_id={sale}", lists.orders);
        orders.extend(pages::list(client, &path, "data", 1, "/id")?.1);
    }
    // RFC 3339 in UTC, all of one length: the texts sort as the times do.
    orders.sort_by_cached_key(|order| std::cmp::Reverse(order["created_at"].as_str().map(str::to_owned)));
    Ok(orders)
}

/// The ids of the newest sales that may have orders, and whether there are more of them.
fn sales(client: &Client, lists: Lists) -> Result<(Vec<String>, bool), Failure> {
    let sales = pages::newest(client, lists.sales, "id", SALES_READ)?;
    let sold = sales.iter().filter(|sale| sale["state"] != "draft");
    let mut ids: Vec<String> = sold.filter_map(|sale| sale["id"].as_str().map(str::to_owned)).collect();
    let is_cut = ids.len() > SALES_MAX || sales.len() >= SALES_READ;
    ids.truncate(SALES_MAX);
    Ok((ids, is_cut))
}

#[cfg(test)]
mod tests {
    use super::super::mock_server::MockServer;
    use super::*;
    use serde_json::json;

    const ID: &str = "00000001-a3f7-8c21-8e55-0d9b4c6f1a37";
    const OTHER: &str = "00000001-b3f7-8c21-8e55-0d9b4c6f1a38";

    fn page(entries: &[Value]) -> String {
        json!({"data": entries, "has_more": false}).to_string()
    }

    fn order(id: &str, at: u32) -> Value {
        json!({"id": id, "sku": "phone", "state": "paid", "created_at": format!("2026-11-27T20:00:0{at}.000Z")})
    }

    fn find(typed: &str, orders: &[Value]) -> Result<Value, Failure> {
        let sales = page(&[
            json!({"id": "d", "state": "draft"}),
            json!({"id": "s", "state": "open"}),
        ]);
        let server = MockServer::answering(&[(200, &sales), (200, &page(orders))]);
        let found = typed.parse::<OrderRef>().unwrap().find(&server.client(), OPERATORS);
        assert!(server.requests()[1].starts_with("GET /v1/admin/orders?sale_id=s "));
        found
    }

    #[test]
    fn an_order_is_written_by_a_part_of_its_id() {
        assert_eq!(ID.parse(), Ok(OrderRef::Id(ID.parse().unwrap())));
        assert_eq!("…4C6F1A37".parse(), Ok(OrderRef::Number("4c6f1a37".to_owned())));
        assert_eq!("0000".parse(), Ok(OrderRef::Prefix("0000".to_owned())));
        for wrong in ["", "000", "nonsense", "…4c6f", "…000000zz", "@last"] {
            let said = wrong.parse::<OrderRef>().unwrap_err();
            assert!(
                said.contains("at least four") && said.contains(LATEST),
                "{wrong}: {said}"
            );
        }
    }

    #[test]
    fn a_part_of_an_id_finds_the_one_order_that_has_it() {
        let orders = [order(ID, 1), order(OTHER, 2)];
        for (typed, id) in [
            ("00000001-a", ID),
            ("…4c6f1a38", OTHER),
            ("4C6F1A37", ID),
            (LATEST, OTHER),
        ] {
            assert_eq!(find(typed, &orders).unwrap()["id"], id, "{typed}");
        }
        let several = find("00000001", &orders).unwrap_err().to_string();
        for part in [
            "2 orders",
            "\n…4c6f1a37  phone",
            "\n…4c6f1a38  phone",
            "paid",
            "2026-11-27",
            "last eight",
        ] {
            assert!(several.contains(part), "{part}: {several}");
        }
        assert!(matches!(find("0000", &[]), Err(Failure::No(said)) if said.contains("orders list")));
        let none = find(LATEST, &[]).unwrap_err().to_string();
        assert_eq!(none, "no order among the newest 10 sales that have been preloaded");
    }

    #[test]
    fn drafts_hide_no_order() {
        let mut sales: Vec<Value> = (0..=SALES_MAX)
            .map(|at| json!({"id": format!("d{at}"), "state": "draft"}))
            .collect();
        sales.push(json!({"id": "s", "state": "open"}));
        for typed in [LATEST, "4c6f1a37", "00000001-a"] {
            let server = MockServer::answering(&[(200, &page(&sales)), (200, &page(&[order(ID, 1)]))]);
            let found = typed.parse::<OrderRef>().unwrap().find(&server.client(), OPERATORS);
            assert_eq!(found.unwrap()["id"], ID, "{typed}");
            assert_eq!(server.requests().len(), 2, "{typed}");
        }
    }

    #[test]
    fn among_too_many_orders_only_a_number_is_sure() {
        let mut orders: Vec<Value> = (1..ORDERS_MAX).map(|at| order(&format!("x{at}"), 1)).collect();
        orders.push(order(ID, 1));
        assert_eq!(find("4c6f1a37", &orders).unwrap()["id"], ID);
        assert!(matches!(find("00000001-a", &orders), Err(Failure::No(said)) if said.contains("too many orders")));
    }
}
