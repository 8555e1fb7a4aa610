//! A crowd in which half of the requests are sent twice at the same moment.

use super::crowd::{Terms, World, try_buy};
use flashsale::domain::order::purchase::{PurchaseOutcome, Refusal};
use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The answers to a doubled crowd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubled {
    /// Keys with an order.
    pub orders: usize,
    /// Keys of which one copy got the order and the other got `sold_out`.
    pub both: usize,
}

/// Shoppers who wait for answers at the same time: so few that copies reach Redis while others probe for the last units.
const DOUBLED_AT_ONCE: usize = 24;

/// Sends one request for each key, every second one twice at the same moment through two instances. No unit comes back
/// meanwhile.
pub async fn doubled_crowd(world: &World, stock: i64, shards: u16, keys: usize) -> Doubled {
    let sale = world.sale(&Terms::of(stock, shards)).await;
    let apps = [world.another().await, world.another().await];
    let shoppers = (0..keys).map(|key| {
        let (apps, sale) = (&apps, &sale);
        let copies = (0..1 + key % 2).map(move |copy| {
            let (app, sale) = (Arc::clone(&apps[(key / 2 + copy) % 2]), Arc::clone(sale));
            let user = format!("doubled-{key}");
            tokio::spawn(async move { (key, try_buy(&app, &sale, &user, "k", 1).await) })
        });
        // Nothing is spawned before it is this shopper's turn.
        async move { join_all(copies).await }
    });
    let answers: Vec<_> = stream::iter(shoppers).buffer_unordered(DOUBLED_AT_ONCE).collect().await;
    let (mut orders, mut sold_out) = (BTreeSet::new(), BTreeSet::new());
    for request in answers.into_iter().flatten() {
        match request.unwrap() {
            (key, Ok(PurchaseOutcome::Reserved(_) | PurchaseOutcome::Replayed(_))) => _ = orders.insert(key),
            (key, Ok(PurchaseOutcome::Refused(Refusal::SoldOut))) => _ = sold_out.insert(key),
            (_, Ok(other)) => panic!("{other:?}"),
            (_, Err(fault)) => assert!(fault.is_passing(), "{fault}"),
        }
    }
    Doubled {
        orders: orders.len(),
        both: orders.intersection(&sold_out).count(),
    }
}
