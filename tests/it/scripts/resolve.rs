use super::{ITEM_CUT, NOW, Shop, assert_refused, each_bad_key_is_noticed, sku, user};
use flashsale::domain::fault::Fault;
use flashsale::domain::operator::report::Counters;
use flashsale::domain::order::OrderState::{self, Cancelled, Expired, Paid, Revoked};
use flashsale::domain::sale::Lifecycle;
use flashsale::stock::script::RESOLVE;
use flashsale::stock::sell::purchase::ShardAnswer;
use flashsale::stock::settle::resolve::Resolved;

const DECISIONS: [OrderState; 4] = [Paid, Cancelled, Expired, Revoked];

async fn bought() -> Shop {
    let shop = Shop::open(|_| {}).await;
    shop.reserve("ada", "k", 3).await;
    shop
}

#[tokio::test]
async fn each_decision_moves_the_held_units_where_it_says() {
    for state in DECISIONS {
        let shop = bought().await;
        let events = shop.read().await.undrained;
        assert_eq!(shop.resolve("ada", "k", state).await, Resolved::Now);
        let base = Counters {
            granted: 10,
            available: 7,
            ..Counters::default()
        };
        let expected = match state {
            Paid => Counters { sold: 3, ..base },
            Revoked => Counters {
                revoked: 3,
                version: 1,
                ..base
            },
            _ => Counters {
                available: 10,
                version: 1,
                ..base
            },
        };
        assert_eq!(shop.counters().await, expected, "{state}");
        assert_eq!(shop.read().await.undrained, events, "{state}");
        let (_, record) = &shop.buyer("ada").await.orders[0];
        assert_eq!((record.state, record.quantity), (state, 3));
        assert_eq!((record.created_at, record.resolved_at), (NOW, NOW + 5));
    }
}

#[tokio::test]
async fn an_order_leaves_reserved_once() {
    for first in DECISIONS {
        let shop = bought().await;
        shop.resolve("ada", "k", first).await;
        let before = shop.dump();
        for second in DECISIONS {
            let expected = if second == first {
                Resolved::Already
            } else {
                Resolved::Conflict(Some(first))
            };
            assert_eq!(
                shop.resolve("ada", "k", second).await,
                expected,
                "{first}, then {second}"
            );
        }
        assert_eq!(shop.dump(), before, "{first}");
    }
}

#[tokio::test]
async fn units_that_came_back_may_be_bought_again_and_sold_ones_count_for_ever() {
    for state in DECISIONS {
        let shop = Shop::open(|_| {}).await;
        shop.reserve("ada", "k", 5).await;
        assert_eq!(shop.buy("ada", "more", 1, NOW).await, ShardAnswer::LimitReached);
        shop.resolve("ada", "k", state).await;
        let answer = shop.buy("ada", "more", 5, NOW).await;
        if state == Paid {
            assert_eq!(answer, ShardAnswer::LimitReached);
        } else {
            assert!(matches!(answer, ShardAnswer::Reserved { .. }), "{state}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn only_the_order_that_is_meant_is_resolved() {
    let shop = bought().await;
    shop.reserve("ada", "other", 2).await;
    shop.reserve("bob", "k", 2).await;
    assert_eq!(shop.resolve("ada", "k", Cancelled).await, Resolved::Now);
    let counters = shop.counters().await;
    assert_eq!((counters.available, counters.held), (6, 4));
    assert_eq!(shop.buy("ada", "four", 4, NOW).await, ShardAnswer::LimitReached);
    shop.reserve("ada", "three", 3).await;
}

#[tokio::test]
async fn an_order_that_the_shard_does_not_know_changes_nothing() {
    let shop = bought().await;
    let before = shop.dump();
    for (who, key) in [("ada", "unknown"), ("bob", "k"), ("nobody", "k")] {
        assert_eq!(shop.resolve(who, key, Paid).await, Resolved::Unknown);
    }
    assert_eq!(shop.dump(), before);
}

#[tokio::test]
async fn a_decision_is_applied_in_every_state_of_the_sale() {
    for lifecycle in [Lifecycle::Paused, Lifecycle::Closed] {
        let mut shop = bought().await;
        shop.change(lifecycle).await;
        assert_eq!(shop.resolve("ada", "k", Expired).await, Resolved::Now);
        assert_eq!(shop.counters().await.available, 10);
    }
}

#[tokio::test]
async fn an_impossible_decision_is_a_defect_and_changes_nothing() {
    let shop = bought().await;
    let before = shop.dump();
    let order = shop.order("ada", "k");
    let of_item = |item: &'static str| {
        let (stock, key) = (&shop.stock, shop.key);
        async move { stock.resolve(key, &user("ada"), order, &sku(item), Paid, NOW).await }
    };
    let other_item = of_item("B").await;
    assert!(
        matches!(&other_item, Err(Fault::Bug(text)) if text.contains("INVARIANT")),
        "{other_item:?}"
    );
    let no_item = of_item("C").await;
    assert!(matches!(no_item, Err(Fault::Incomplete(_))), "{no_item:?}");
    assert_eq!(shop.dump(), before);

    // Fewer units are held than in the order, or the shopper has fewer, or none of the item: a foreign client has written
    // here.
    let cannot_be = async |states: &[OrderState]| {
        let before = shop.dump();
        for state in states {
            let answer = shop.try_resolve("ada", "k", *state).await;
            assert!(
                matches!(&answer, Err(Fault::Bug(text)) if text.contains("INVARIANT")),
                "{state}: {answer:?}"
            );
        }
        assert_eq!(shop.dump(), before);
    };
    let (item, buyer) = (shop.key.item(&sku("A")), shop.key.buyer(&user("ada")));
    shop.damage(&item, 11, &[2]);
    cannot_be(&DECISIONS).await;
    shop.damage(&item, 11, &[3]);
    shop.damage(&buyer, 17, &[2]);
    cannot_be(&[Cancelled, Expired, Revoked]).await;
    shop.damage(&buyer, 13, &[1]);
    cannot_be(&DECISIONS).await;
    shop.damage(&buyer, 13, &[0, 0, 0, 0, 3]);
    assert_eq!(shop.dump(), before);
    assert_eq!(shop.resolve("ada", "k", Paid).await, Resolved::Now);
}

#[tokio::test]
async fn arguments_out_of_bounds_are_refused() {
    let shop = bought().await;
    let order = "0123456789abcdef";
    assert_refused(
        &shop,
        &RESOLVE,
        &[shop.key.item(&sku("A")), shop.key.buyer(&user("ada"))],
        &[
            &[order, "0", "1"],
            &[order, "5", "1"],
            &[order, "-1", "1"],
            &[order, "1.5", "1"],
            &[order, "nan", "1"],
            &[order, "paid", "1"],
            &[order, "1", "now"],
            &[order, "1"],
            &["0123456789abcde", "1", "1"],
            &["0123456789abcdefg", "1", "1"],
        ],
    );
}

#[tokio::test]
async fn a_foreign_missing_or_cut_off_key_changes_nothing() {
    each_bad_key_is_noticed!(
        bought().await,
        |shop| shop.try_resolve("ada", "k", Cancelled).await,
        foreign: [shop.key.item(&sku("A")), shop.key.buyer(&user("ada"))],
        missing: [shop.key.item(&sku("A"))],
        cut_off: [(shop.key.item(&sku("A")), ITEM_CUT)]
    );
    let shop = bought().await;
    shop.put(&shop.key.buyer(&user("ada")), b"planted");
    let before = shop.dump();
    let answer = shop.try_resolve("ada", "k", Cancelled).await;
    assert!(matches!(answer, Err(Fault::Bug(_))), "{answer:?}");
    assert_eq!(shop.dump(), before);
    let shop = bought().await;
    shop.remove(&shop.key.buyer(&user("ada")));
    let before = shop.dump();
    assert_eq!(shop.resolve("ada", "k", Cancelled).await, Resolved::Unknown);
    assert_eq!(shop.dump(), before);
}
