//! The guards of unpaid holds in the purchase script: how many there may be, and how long an account waits after an
//! unpaid hold.

use super::{NOW, Shop, asked_at, asking, sku, user};
use flashsale::domain::order::OrderState::{self, Cancelled, Expired, Paid, Revoked};
use flashsale::domain::order::purchase::Refusal::{CoolingDown, NotOpen, TooManyHolds};
use flashsale::domain::sale::SaleState;
use flashsale::domain::time::{Millis, from_millis};
use flashsale::stock::sell::purchase::PurchaseArguments;
use flashsale::stock::sell::purchase::ShardAnswer::{self, LimitReached, Refused, Replayed, Reserved, Short};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

const DAY: Millis = 86_400_000;

/// A sale of forty days with plenty of everything.
async fn open() -> Shop {
    Shop::open(|sale| {
        sale.ends_at = from_millis(NOW + 40 * DAY);
        for item in sale.items.iter_mut() {
            (item.stock, item.per_user_limit) = (100_000, 1000);
        }
    })
    .await
}

async fn buy(shop: &Shop, key: &str, holds_max: u32, cooldown_ms: Millis, now: Millis) -> ShardAnswer {
    let asked = PurchaseArguments {
        holds_max,
        cooldown_ms,
        ..asked_at(now)
    };
    let request = asking("ada", key, 1);
    let answer = shop.stock.purchase(shop.key, shop.order("ada", key), &request, asked);
    answer.await.unwrap()
}

async fn resolve(shop: &Shop, key: &str, state: OrderState, at: Millis) {
    let order = shop.order("ada", key);
    let (ada, item) = (user("ada"), sku("A"));
    let resolved = shop.stock.resolve(shop.key, &ada, order, &item, state, at);
    resolved.await.unwrap();
}

fn is_reserved(answer: &ShardAnswer) -> bool {
    matches!(answer, Reserved { .. })
}

/// Every purchase reads and writes the whole row, so it may not grow without end in a sale without a limit of holds.
#[tokio::test]
async fn a_row_takes_some_hundred_unpaid_orders_and_no_more() {
    let shop = open().await;
    let mut taken = 0;
    while is_reserved(&buy(&shop, &format!("k{taken}"), 0, 0, NOW).await) {
        taken += 1;
        assert!(taken < 500, "the row has no end");
    }
    assert!(taken > 400, "{taken}");
    assert_eq!(buy(&shop, "one more", 0, 0, NOW).await, Refused(TooManyHolds));
    assert!(matches!(buy(&shop, "k7", 0, 0, NOW).await, Replayed { .. }));
    resolve(&shop, "k7", Cancelled, NOW + 1).await;
    assert!(matches!(
        buy(&shop, "again", 0, 0, NOW).await,
        ShardAnswer::AskLedger { .. }
    ));
    let answer = shop.buy_after_probe("ada", "again", 1, 1).await;
    assert!(is_reserved(&answer), "{answer:?}");
}

#[tokio::test]
async fn an_account_holds_as_many_orders_unpaid_as_it_may_and_not_one_more() {
    let shop = open().await;
    for key in ["a", "b"] {
        assert!(is_reserved(&buy(&shop, key, 2, 0, NOW).await), "{key}");
    }
    let before = shop.counters().await;
    assert_eq!(buy(&shop, "c", 2, 0, NOW).await, Refused(TooManyHolds));
    assert_eq!(shop.counters().await, before, "a refusal takes nothing");
    assert!(matches!(buy(&shop, "a", 2, 0, NOW).await, Replayed { .. }));
    resolve(&shop, "a", Paid, NOW + 1).await;
    assert!(
        is_reserved(&buy(&shop, "c", 2, 0, NOW + 2).await),
        "a paid order is no hold"
    );
    assert_eq!(buy(&shop, "d", 2, 0, NOW + 2).await, Refused(TooManyHolds));
    assert!(is_reserved(&buy(&shop, "d", 3, 0, NOW + 2).await), "with more allowed");
    assert!(is_reserved(&buy(&shop, "e", 0, 0, NOW + 2).await), "without a bound");
    assert_eq!(buy(&shop, "f", 4, 0, NOW + 2).await, Refused(TooManyHolds));
    resolve(&shop, "e", Cancelled, NOW + 3).await;
    assert!(is_reserved(&buy(&shop, "f", 4, 0, NOW + 4).await));
}

#[tokio::test]
async fn a_shopper_who_does_not_pay_waits_to_the_millisecond_and_longer_each_time() {
    let shop = open().await;
    let mut now = NOW;
    for (unpaid, wait) in [(1, 1000), (2, 2000), (3, 4000), (4, 8000)] {
        let key = format!("unpaid-{unpaid}");
        assert!(is_reserved(&buy(&shop, &key, 0, 1000, now).await), "{key}");
        resolve(&shop, &key, Expired, now + 5).await;
        let next = format!("unpaid-{}", unpaid + 1);
        assert_eq!(
            buy(&shop, &next, 0, 1000, now + 5).await,
            Refused(CoolingDown { wait_ms: wait }),
            "{key}"
        );
        assert_eq!(
            buy(&shop, &next, 0, 1000, now + 5 + wait - 1).await,
            Refused(CoolingDown { wait_ms: 1 }),
            "{key}"
        );
        now += 5 + wait;
    }
    assert!(is_reserved(&buy(&shop, "paid", 0, 1000, now).await));
    resolve(&shop, "paid", Paid, now + 5).await;
    assert!(
        is_reserved(&buy(&shop, "after", 0, 1000, now + 6).await),
        "a payment resets the count"
    );
    resolve(&shop, "after", Expired, now + 7).await;
    let waits = buy(&shop, "next", 0, 1000, now + 7).await;
    assert_eq!(waits, Refused(CoolingDown { wait_ms: 1000 }));
    assert!(
        is_reserved(&buy(&shop, "next", 0, 0, now + 8).await),
        "in a sale without waits"
    );
}

#[tokio::test]
async fn no_wait_is_longer_than_a_day() {
    let shop = open().await;
    for number in 0..20 {
        let key = format!("k{number}");
        assert!(is_reserved(&buy(&shop, &key, 0, 0, NOW + number).await));
        resolve(&shop, &key, Expired, NOW + 100).await;
    }
    let first = buy(&shop, "next", 0, 1000, NOW + 100).await;
    assert_eq!(first, Refused(CoolingDown { wait_ms: DAY }));
    assert!(is_reserved(&buy(&shop, "next", 0, 1000, NOW + 100 + DAY).await));
}

#[tokio::test]
async fn the_first_hold_that_is_given_back_within_a_minute_was_kept_from_nobody() {
    let shop = open().await;
    assert!(is_reserved(&buy(&shop, "soon", 0, 1000, NOW).await));
    resolve(&shop, "soon", Cancelled, NOW + 60_000).await;
    assert!(is_reserved(&buy(&shop, "late", 0, 1000, NOW + 60_000).await));
    resolve(&shop, "late", Cancelled, NOW + 120_001).await;
    let waits = buy(&shop, "next", 0, 1000, NOW + 120_001).await;
    assert_eq!(waits, Refused(CoolingDown { wait_ms: 1000 }));
    // The second one counts against the shopper, however short it was.
    assert!(is_reserved(&buy(&shop, "again", 0, 0, NOW + 120_002).await));
    resolve(&shop, "again", Cancelled, NOW + 120_003).await;
    let waits = buy(&shop, "next", 0, 1000, NOW + 120_003).await;
    assert_eq!(waits, Refused(CoolingDown { wait_ms: 2000 }));
    // An order that the ledger revoked does not count against the shopper.
    assert!(is_reserved(&buy(&shop, "revoked", 0, 0, NOW + 122_003).await));
    resolve(&shop, "revoked", Revoked, NOW + 300_000).await;
    assert!(is_reserved(&buy(&shop, "next", 0, 1000, NOW + 300_000).await));
}

#[tokio::test]
async fn the_sale_and_its_limits_come_in_their_order() {
    let shop = Shop::open(|_| {}).await;
    for key in ["a", "b"] {
        assert!(is_reserved(&buy(&shop, key, 0, 0, NOW).await));
    }
    resolve(&shop, "a", Expired, NOW + 5).await;
    let ask = |quantity, holds_max, cooldown_ms, now| {
        let asked = PurchaseArguments {
            holds_max,
            cooldown_ms,
            ..asked_at(now)
        };
        let (shop, request) = (&shop, asking("ada", "next", quantity));
        async move {
            let order = shop.order("ada", "next");
            shop.stock.purchase(shop.key, order, &request, asked).await.unwrap()
        }
    };
    assert_eq!(
        ask(9, 1, 1000, super::END).await,
        Refused(NotOpen {
            state: SaleState::Closed
        })
    );
    assert_eq!(ask(9, 1, 1000, NOW + 6).await, Refused(CoolingDown { wait_ms: 999 }));
    assert_eq!(ask(9, 1, 0, NOW + 6).await, LimitReached);
    assert_eq!(ask(4, 1, 0, NOW + 6).await, Refused(TooManyHolds));
    assert!(is_reserved(&ask(4, 2, 0, NOW + 6).await));
    // Ada has five of ten.
    let rest = asking("bob", "k", 5);
    let bob = shop
        .stock
        .purchase(shop.key, shop.order("bob", "k"), &rest, asked_at(NOW + 6));
    assert!(is_reserved(&bob.await.unwrap()));
    let none = PurchaseArguments {
        holds_max: 1,
        cooldown_ms: 1000,
        ..asked_at(NOW + 6)
    };
    let eve = asking("eve", "k", 1);
    let eve = shop.stock.purchase(shop.key, shop.order("eve", "k"), &eve, none);
    assert_eq!(eve.await.unwrap(), Short { available: 0 });
}

/// An order's final state, and after how many milliseconds.
type Fate = (Option<OrderState>, Millis);

/// The same rule, read off the orders in the order in which they were accepted.
fn cooling_until(fates: &[Fate], created_at: impl Fn(usize) -> Millis, cooldown_ms: Millis) -> Option<Millis> {
    let (mut unpaid, mut regrets, mut last) = (0u32, 0, 0);
    for (number, (state, after)) in fates.iter().enumerate() {
        match state {
            Some(Paid) => (unpaid, regrets) = (0, 0),
            Some(Cancelled) if *after <= 60_000 && regrets == 0 => regrets = 1,
            Some(Expired | Cancelled) => (unpaid, last) = (unpaid + 1, last.max(created_at(number) + after)),
            _ => {}
        }
    }
    (unpaid > 0).then(|| last + (cooldown_ms << (unpaid - 1)).min(DAY))
}

#[tokio::test]
async fn the_rule_is_the_same_for_orders_in_every_state() {
    let shop = open().await;
    let state = prop_oneof![Just(None), Just(Some(Paid)), Just(Some(Expired)), Just(Some(Cancelled))];
    let fates = prop::collection::vec((state, 1..200_000i64), 0..8);
    let mut runner = TestRunner::deterministic();
    for case in 0..150 {
        let fates = fates.new_tree(&mut runner).unwrap().current();
        let who = format!("shopper-{case}");
        let created_at = |number: usize| NOW + Millis::try_from(number).unwrap();
        for (number, (state, after)) in fates.iter().enumerate() {
            let key = format!("k{number}");
            let order = shop.order(&who, &key);
            let request = asking(&who, &key, 1);
            let answer = shop
                .stock
                .purchase(shop.key, order, &request, asked_at(created_at(number)));
            assert!(is_reserved(&answer.await.unwrap()));
            if let Some(state) = state {
                let at = created_at(number) + after;
                let (user, item) = (user(&who), sku("A"));
                let resolved = shop.stock.resolve(shop.key, &user, order, &item, *state, at);
                resolved.await.unwrap();
            }
        }
        let asked = PurchaseArguments {
            cooldown_ms: 700,
            ..asked_at(NOW + 250_000)
        };
        let answer = shop
            .stock
            .purchase(shop.key, shop.order(&who, "next"), &asking(&who, "next", 1), asked)
            .await
            .unwrap();
        let expected = cooling_until(&fates, created_at, 700).map(|until| until - NOW - 250_000);
        match expected.filter(|wait| *wait > 0) {
            Some(wait_ms) => assert_eq!(answer, Refused(CoolingDown { wait_ms }), "{fates:?}"),
            None => assert!(is_reserved(&answer), "{fates:?}: {answer:?}"),
        }
    }
}
