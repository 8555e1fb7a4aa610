//! A shopper with so many orders that decided ones are left to the ledger.

use super::{NOW, Shop, asked_at, asking, user};
use crate::support::servers;
use flashsale::domain::order::OrderState::{self, Cancelled, Expired, Paid, Revoked};
use flashsale::domain::order::purchase::Refusal::{Banned, KeyReused, RateLimited};
use flashsale::domain::sale::PurchaseRate;
use flashsale::domain::time::Millis;
use flashsale::stock::sell::purchase::PurchaseArguments;
use flashsale::stock::sell::purchase::ShardAnswer::{self, AskLedger, LimitReached, Refused, Replayed, Reserved};
use flashsale::stock::settle::resolve::Resolved;

/// The longest row that keeps a decided order.
const ROW_MAX: usize = 4096;

fn row(shop: &Shop) -> Vec<u8> {
    shop.bytes(&shop.key.buyer(&user("ada")))
}

async fn buy_at(shop: &Shop, key: &str, now: Millis) {
    let answer = shop.buy("ada", key, 1, now).await;
    assert!(matches!(answer, Reserved { .. }), "{key}: {answer:?}");
}

/// A sale in which ada has reserved a unit under each of `k0`, `k1` and so on, the last ones at one moment, so that
/// they are in the window together; and that moment.
async fn with_orders(epoch: i64, orders: i64, together: i64) -> (Shop, Millis) {
    let shop = Shop::unloaded(&servers::redis(), |sale| {
        sale.items[0].stock = 1000;
        sale.items[0].per_user_limit = 1000;
        sale.purchase_rate = PurchaseRate {
            limit: 200,
            window_ms: 1000,
        };
    })
    .await;
    shop.stock.preload(&shop.sale, 0, epoch).await.unwrap();
    shop.follow().await;
    shop.permit().await;
    let at = |n: i64| NOW + 1000 * n.min(orders - together);
    for n in 0..orders {
        buy_at(&shop, &format!("k{n}"), at(n)).await;
    }
    (shop, at(orders))
}

/// A row so long that several decided orders are left to the ledger.
async fn with_a_long_row() -> Shop {
    let (shop, _) = with_orders(1, 110, 1).await;
    assert!(row(&shop).len() > ROW_MAX + 200);
    shop
}

#[tokio::test]
async fn a_row_of_four_kibibytes_keeps_its_decided_orders_and_one_byte_more_leaves_them_to_the_ledger() {
    // 12 bytes, 6 an item, 12 an entry of the window, 36 and the event's id an order: one of 4096, one of 4097.
    for (epoch, orders, together, is_left) in [(10, 95, 16, false), (1, 98, 14, true)] {
        for state in [Paid, Cancelled, Expired, Revoked] {
            let (shop, _) = with_orders(epoch, orders, together).await;
            assert_eq!(row(&shop).len(), if is_left { ROW_MAX + 1 } else { ROW_MAX });
            let before = shop.buyer("ada").await;
            assert!(!before.elsewhere);
            assert_eq!(shop.resolve("ada", "k0", state).await, Resolved::Now);

            let mut expected = before.clone();
            expected.units = vec![(0, u32::try_from(orders - i64::from(state != Paid)).unwrap())];
            if is_left {
                expected.elsewhere = true;
                expected.orders.remove(0);
            } else {
                expected.orders[0].1.state = state;
                expected.orders[0].1.resolved_at = NOW + 5;
            }
            assert_eq!(shop.buyer("ada").await, expected, "{state}");
            let counters = shop.counters().await;
            let units = |of: OrderState| i64::from(state == of);
            assert_eq!(
                (counters.held, counters.sold, counters.revoked),
                (orders - 1, units(Paid), units(Revoked))
            );

            // A decided order is not decided again; an order missing in the row is the ledger's.
            let after = shop.dump();
            assert_eq!(shop.resolve("ada", "k0", state).await, Resolved::Already);
            let other = if state == Paid { Cancelled } else { Paid };
            let (conflict, unknown) = if is_left {
                (Resolved::Already, Resolved::Already)
            } else {
                (Resolved::Conflict(Some(state)), Resolved::Unknown)
            };
            assert_eq!(shop.resolve("ada", "k0", other).await, conflict);
            assert_eq!(shop.resolve("ada", "unknown", Paid).await, unknown);
            assert_eq!(shop.resolve("bob", "k0", Paid).await, Resolved::Unknown);
            let (again, reused) = (shop.buy("ada", "k0", 1, NOW).await, shop.buy("ada", "k0", 2, NOW).await);
            if is_left {
                assert_eq!((again, reused), (AskLedger { number: 1 }, AskLedger { number: 1 }));
            } else {
                assert!(
                    matches!(&again, Replayed { record, .. } if record.state == state),
                    "{again:?}"
                );
                assert_eq!(reused, Refused(KeyReused));
            }
            assert_eq!(shop.dump(), after);
        }
    }
}

#[tokio::test]
async fn an_order_in_the_middle_is_left_and_its_neighbours_stay() {
    let shop = with_a_long_row().await;
    let before = shop.buyer("ada").await.orders;
    assert_eq!(shop.resolve("ada", "k50", Cancelled).await, Resolved::Now);
    assert_eq!(shop.resolve("ada", "k109", Cancelled).await, Resolved::Now);
    let after = shop.buyer("ada").await.orders;
    assert_eq!(after[..50], before[..50]);
    assert_eq!(after[50..], before[51..109]);
    for key in ["k49", "k51", "k108"] {
        let answer = shop.buy("ada", key, 1, NOW).await;
        assert!(matches!(answer, Replayed { drained: false, .. }), "{key}: {answer:?}");
        assert_eq!(shop.buy("ada", key, 2, NOW).await, Refused(KeyReused), "{key}");
    }
}

#[tokio::test]
async fn a_new_key_is_decided_only_after_a_replay_probe_and_then_found_without() {
    let shop = with_a_long_row().await;
    shop.resolve("ada", "k0", Cancelled).await;
    let before = shop.dump();
    assert_eq!(shop.buy("ada", "new", 1, NOW).await, AskLedger { number: 1 });
    for never_said in [0, 2, -1] {
        let answer = shop.buy_after_probe("ada", "new", 1, never_said).await;
        assert_eq!(answer, AskLedger { number: 1 }, "{never_said}");
    }
    assert_eq!(shop.dump(), before);

    let Reserved { record, .. } = shop.buy_after_probe("ada", "new", 1, 1).await else {
        panic!("not sold after the replay probe")
    };
    let replayed = Replayed { record, drained: false };
    let after = shop.dump();
    assert_eq!(shop.buy("ada", "new", 1, NOW).await, replayed);
    assert_eq!(shop.buy_after_probe("ada", "new", 1, 1).await, replayed);
    assert_eq!(shop.buy("ada", "new", 2, NOW).await, Refused(KeyReused));
    assert_eq!(shop.dump(), after);
    assert!(matches!(shop.buy("bob", "new", 1, NOW).await, Reserved { .. }));
}

#[tokio::test]
async fn a_probe_older_than_the_last_left_order_must_be_repeated() {
    let shop = with_a_long_row().await;
    for number in 1..=3 {
        shop.resolve("ada", &format!("k{number}"), Expired).await;
        for probed in (0..5).filter(|probed| *probed != number) {
            let answer = shop.buy_after_probe("ada", "new", 1, probed).await;
            assert_eq!(answer, AskLedger { number }, "after {probed}");
        }
    }
    // The numbers end at 255 and begin again, not at the one that means that every order is here.
    shop.damage(&shop.key.buyer(&user("ada")), 6, &[254]);
    shop.resolve("ada", "k4", Expired).await;
    assert_eq!(shop.buy("ada", "new", 1, NOW).await, AskLedger { number: 255 });
    shop.resolve("ada", "k5", Expired).await;
    assert_eq!(
        shop.buy_after_probe("ada", "new", 1, 255).await,
        AskLedger { number: 1 }
    );
    assert!(matches!(
        shop.buy_after_probe("ada", "new", 1, 1).await,
        Reserved { .. }
    ));
}

#[tokio::test]
async fn the_replay_probe_precedes_ban_window_and_limit_and_replaces_none() {
    let (shop, now) = with_orders(1, 120, 20).await;
    shop.resolve("ada", "k0", Cancelled).await;
    let ask_ledger = AskLedger { number: 1 };
    let (ask, order) = (|quantity| asking("ada", "new", quantity), shop.order("ada", "new"));
    let both = async |quantity: u32, now: Millis| -> [ShardAnswer; 2] {
        let request = ask(quantity);
        let without = shop.stock.purchase(shop.key, order, &request, asked_at(now)).await;
        let with = shop
            .stock
            .purchase(
                shop.key,
                order,
                &request,
                PurchaseArguments {
                    ledger_asked: Some(1),
                    ..asked_at(now)
                },
            )
            .await;
        [without.unwrap(), with.unwrap()]
    };
    shop.ban("ada", now);
    assert_eq!(
        both(1, now - 1).await,
        [ask_ledger.clone(), Refused(Banned { until: Some(now) })]
    );
    assert_eq!(both(1000, now).await, [ask_ledger.clone(), LimitReached]);
    let ada = shop.buyer("ada").await;
    assert!(ada.elsewhere, "a refusal keeps what it found");
    assert_eq!((ada.window.len(), ada.orders.len()), (21, 119));
    assert_eq!(shop.forgotten_in("ada"), -1);
    for n in 0..179 {
        let order = shop.order("ada", &format!("fills {n}"));
        let request = ask(1000);
        let refused = shop.stock.purchase(
            shop.key,
            order,
            &request,
            PurchaseArguments {
                ledger_asked: Some(1),
                ..asked_at(now + 10)
            },
        );
        assert_eq!(refused.await.unwrap(), LimitReached);
    }
    let order = shop.order("ada", "one too many");
    let request = ask(1);
    let refused = shop.stock.purchase(
        shop.key,
        order,
        &request,
        PurchaseArguments {
            ledger_asked: Some(1),
            ..asked_at(now + 10)
        },
    );
    assert_eq!(refused.await.unwrap(), Refused(RateLimited { wait_ms: 990 }));
}

#[tokio::test]
async fn a_shopper_whose_every_order_is_left_is_remembered() {
    let shop = Shop::open(|_| {}).await;
    let mut nothing_else = [0; 12];
    nothing_else[6] = 7;
    shop.put(&shop.key.buyer(&user("ada")), &nothing_else);
    assert_eq!(shop.resolve("ada", "k", Paid).await, Resolved::Already);
    assert_eq!(shop.buy("ada", "k", 6, NOW).await, AskLedger { number: 7 });
    assert_eq!(shop.buy_after_probe("ada", "k", 6, 7).await, LimitReached);
    assert_eq!(shop.forgotten_in("ada"), -1);
    assert_eq!(shop.buy("ada", "other", 1, NOW).await, AskLedger { number: 7 });
}

#[tokio::test]
async fn a_row_stays_short_however_often_is_bought_and_given_back() {
    let shop = Shop::open(|_| {}).await;
    let mut numbers = Vec::new();
    for n in 0..400 {
        let key = format!("k{n}");
        let answer = match shop.buy("ada", &key, 5, NOW).await {
            AskLedger { number } => {
                numbers.push(number);
                shop.buy_after_probe("ada", &key, 5, number).await
            }
            answer => answer,
        };
        assert!(matches!(answer, Reserved { .. }), "{key}: {answer:?}");
        assert_eq!(shop.resolve("ada", &key, Cancelled).await, Resolved::Now);
    }
    // The window of a thousand requests is a part of it: only the orders are left to the ledger.
    let ada = shop.buyer("ada").await;
    assert!(row(&shop).len() - 12 * ada.window.len() < ROW_MAX);
    assert!(ada.orders.len() < 110 && ada.elsewhere, "{}", ada.orders.len());
    assert_eq!(ada.units, [(0, 0)]);
    assert!(numbers.len() > 290 && numbers.contains(&1) && numbers.contains(&255));
    let counters = shop.counters().await;
    assert_eq!((counters.available, counters.held, counters.version), (10, 0, 400));
}
