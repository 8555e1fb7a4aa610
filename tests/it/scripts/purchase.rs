use super::{
    END, ITEM_CUT, NOW, PERMITTED, SHARD_CUT, START, Shop, asked_at, asking, assert_refused,
    each_cut_off_key_is_noticed, each_foreign_key_is_refused, each_missing_key_is_noticed, sku, user,
};
use crate::support::poll::eventually;
use crate::support::trim;
use flashsale::domain::fault::Fault;
use flashsale::domain::ids::OrderId;
use flashsale::domain::operator::report::Counters;
use flashsale::domain::order::OrderState;
use flashsale::domain::order::event::{Origin, Position};
use flashsale::domain::order::purchase::Refusal::{Banned, KeyReused, NotOpen, RateLimited, TooManyHolds};
use flashsale::domain::sale::{Lifecycle, PurchaseRate, SaleState};
use flashsale::domain::time::Millis;
use flashsale::stock::record::{BuyerRecord, OrderRecord};
use flashsale::stock::script::PURCHASE;
use flashsale::stock::sell::purchase::PurchaseArguments;
use flashsale::stock::sell::purchase::ShardAnswer::{
    self, Halted, LimitReached, Overloaded, Refused, Replayed, Reserved, Short,
};
use futures_util::future::join_all;
use std::collections::HashSet;

const fn window(limit: u32, window_ms: i64) -> PurchaseRate {
    PurchaseRate { limit, window_ms }
}

/// The entry of an order in the window.
fn member(shop: &Shop, who: &str, key: &str) -> [u8; 6] {
    shop.order(who, key).0.as_bytes()[10..].try_into().unwrap()
}

fn banned_until(until: Millis) -> ShardAnswer {
    Refused(Banned { until: Some(until) })
}

fn is_reserved(answer: &ShardAnswer) -> bool {
    matches!(answer, Reserved { .. })
}

#[tokio::test]
async fn a_purchase_holds_units_writes_the_order_and_one_event() {
    let shop = Shop::open(|_| {}).await;
    let record = shop.reserve("ada", "k", 3).await;
    let expected = OrderRecord {
        state: OrderState::Reserved,
        item: 0,
        quantity: 3,
        created_at: NOW,
        resolved_at: 0,
        event: Some(Position { epoch: 1, seq: 1 }),
    };
    assert_eq!(record, expected);

    let reading = shop.read().await;
    let counters = Counters {
        available: 7,
        held: 3,
        granted: 10,
        ..Counters::default()
    };
    assert_eq!(reading.counters(&sku("A")), counters);
    assert_eq!(reading.counters(&sku("B")).available, 4);
    assert_eq!(reading.undrained, 1);
    assert_eq!(reading.events[0].position, Position { epoch: 1, seq: 1 });
    let event = reading.events[0].reserved.clone().unwrap();
    assert_eq!(
        (event.order, event.user, event.key.as_str()),
        (shop.order("ada", "k"), user("ada"), "k")
    );
    assert_eq!((event.item, event.quantity, event.created_at), (0, 3, NOW));

    let ada = BuyerRecord {
        elsewhere: false,
        units: vec![(0, 3)],
        window: vec![(NOW, member(&shop, "ada", "k"))],
        orders: vec![(shop.order("ada", "k"), expected)],
    };
    assert_eq!(shop.buyer("ada").await, ada);
    assert_eq!(shop.forgotten_in("ada"), -1);
}

#[tokio::test]
async fn a_new_order_comes_with_its_server_where_the_caller_asks_for_it() {
    let shop = Shop::open(|_| {}).await;
    let server = shop.stock.server(shop.key).await.unwrap();
    for (who, named) in [("ada", true), ("bob", false)] {
        let asked = PurchaseArguments { named, ..asked_at(NOW) };
        let request = asking(who, "k", 1);
        let answer = shop
            .stock
            .purchase(shop.key, shop.order(who, "k"), &request, asked)
            .await;
        let Ok(Reserved { record, by }) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(by, server.replication_id().filter(|_| named));
        let row = shop.stock.read_buyer(shop.key, &user(who)).await.unwrap();
        assert_eq!(row.orders, [(shop.order(who, "k"), record)]);
    }
}

#[tokio::test]
async fn an_event_carries_the_trace_of_its_request_behind_what_an_older_drain_reads() {
    let shop = Shop::open(|_| {}).await;
    let origin = Origin {
        trace: [0xfe; 16],
        span: [0x0a; 8],
    };
    let asked = PurchaseArguments {
        origin: Some(origin),
        ..asked_at(NOW)
    };
    let buy_under = async |who: &str, key: &str, asked: PurchaseArguments| {
        let (order, request) = (shop.order(who, key), asking(who, key, 1));
        shop.stock.purchase(shop.key, order, &request, asked).await.unwrap()
    };
    let buy = async |who: &str, asked: PurchaseArguments| buy_under(who, "k", asked).await;
    assert!(is_reserved(&buy("ada", asked_at(NOW)).await));
    assert!(is_reserved(&buy("bob", asked).await));
    // A guard in the same request still applies.
    let guarded = PurchaseArguments { holds_max: 1, ..asked };
    assert!(is_reserved(&buy("cleo", guarded).await));
    assert_eq!(buy_under("cleo", "k2", guarded).await, Refused(TooManyHolds));
    // A repeated request gets the same answer, with any trace.
    assert!(matches!(buy("bob", asked_at(NOW)).await, Replayed { .. }));

    let events = shop.read().await.events;
    let origins: Vec<_> = events.iter().map(|event| event.origin).collect();
    assert_eq!(origins, [None, Some(origin), Some(origin)]);
    let users: Vec<_> = events
        .iter()
        .map(|event| event.reserved.clone().unwrap().user)
        .collect();
    assert_eq!(users, [user("ada"), user("bob"), user("cleo")]);
    let stored: Vec<(String, Vec<Vec<u8>>)> = shop
        .raw
        .call(redis::cmd("XRANGE").arg(shop.key.events()).arg("-").arg("+"));
    let fields: Vec<Vec<&[u8]>> = stored
        .iter()
        .map(|(_, pairs)| pairs.iter().step_by(2).map(Vec::as_slice).collect())
        .collect();
    assert_eq!(
        fields,
        [
            vec![&b"reserved"[..]],
            vec![b"reserved", b"origin"],
            vec![b"reserved", b"origin"]
        ]
    );
}

#[tokio::test]
async fn every_item_is_sold_from_its_own_units_and_under_its_own_limit() {
    let shop = Shop::open(|_| {}).await;
    assert!(is_reserved(&shop.buy("ada", "a", 5, NOW).await));
    assert!(is_reserved(&shop.try_buy_item("B", "ada", "b", 2, NOW).await.unwrap()));
    assert_eq!(shop.buy("ada", "a2", 1, NOW).await, LimitReached);
    assert_eq!(shop.try_buy_item("B", "ada", "b2", 1, NOW).await.unwrap(), LimitReached);
    let reading = shop.read().await;
    let units = |item: &str| {
        (
            reading.counters(&sku(item)).available,
            reading.counters(&sku(item)).held,
        )
    };
    assert_eq!((units("A"), units("B")), ((5, 5), (2, 2)));
    let items: Vec<u16> = reading
        .events
        .iter()
        .map(|event| event.reserved.clone().unwrap().item)
        .collect();
    assert_eq!(items, [0, 1]);
    assert_eq!(shop.buyer("ada").await.units, [(0, 5), (1, 2)]);
    shop.resolve("ada", "a", OrderState::Cancelled).await;
    assert_eq!(shop.buyer("ada").await.units, [(0, 0), (1, 2)]);
    shop.reserve("ada", "a3", 4).await;
    assert_eq!(shop.buyer("ada").await.units, [(0, 4), (1, 2)]);
    assert_eq!(shop.try_buy_item("B", "ada", "b3", 1, NOW).await.unwrap(), LimitReached);
}

#[tokio::test]
async fn the_sale_sells_from_its_first_to_its_last_millisecond() {
    let table = [
        (START - 1, Some(SaleState::Scheduled)),
        (START, None),
        (START + 1, None),
        (END - 1, None),
        (END, Some(SaleState::Closed)),
        (END + 1, Some(SaleState::Closed)),
    ];
    let shop = Shop::open(|_| {}).await;
    for (now, refusal) in table {
        let answer = shop.buy(&format!("at {now}"), "k", 1, now).await;
        match refusal {
            Some(state) => assert_eq!(answer, Refused(NotOpen { state }), "at {now}"),
            None => assert!(is_reserved(&answer), "at {now}: {answer:?}"),
        }
    }
}

#[tokio::test]
async fn a_shard_without_an_open_state_sells_nothing() {
    let mut shop = Shop::loaded(|_| {}).await;
    shop.permit().await;
    assert_eq!(
        shop.buy("ada", "draft", 1, NOW).await,
        Refused(NotOpen {
            state: SaleState::Draft
        })
    );
    for (lifecycle, at, state) in [
        (Lifecycle::Paused, NOW, SaleState::Paused),
        (Lifecycle::Paused, START - 1, SaleState::Paused),
        (Lifecycle::Paused, END - 1, SaleState::Paused),
        (Lifecycle::Paused, END, SaleState::Closed),
        (Lifecycle::Closed, NOW, SaleState::Closed),
        (Lifecycle::Closed, START - 1, SaleState::Closed),
    ] {
        shop.change(lifecycle).await;
        assert_eq!(
            shop.buy("ada", "k", 1, at).await,
            Refused(NotOpen { state }),
            "{lifecycle:?} at {at}"
        );
    }
    shop.change(Lifecycle::Active).await;
    assert!(is_reserved(&shop.buy("ada", "k", 1, NOW).await));
}

#[tokio::test]
async fn a_shard_sells_until_the_last_millisecond_of_its_permit_and_answers_repeated_requests_after_it() {
    let shop = Shop::open(|sale| sale.ends_at += chrono::TimeDelta::days(100)).await;
    let until = PERMITTED + 60_000;
    let first = shop.buy("ada", "k", 2, until - 1).await;
    let Reserved { record, .. } = first else {
        panic!("{first:?}")
    };
    let before = shop.dump();
    for now in [until, until + 1] {
        assert_eq!(shop.buy("bob", "k", 1, now).await, Halted);
        assert_eq!(shop.buy("ada", "other", 1, now).await, Halted);
        let replayed = Replayed {
            record: record.clone(),
            drained: false,
        };
        assert_eq!(shop.buy("ada", "k", 2, now).await, replayed);
        assert_eq!(shop.buy("ada", "k", 1, now).await, Refused(KeyReused));
    }
    assert_eq!(shop.dump(), before);
    assert!(is_reserved(&shop.buy("bob", "k", 1, until - 1).await));
}

#[tokio::test]
async fn a_shard_that_was_never_permitted_or_is_halted_says_so_before_anything_else() {
    let mut shop = Shop::loaded(|_| {}).await;
    shop.admit().await;
    shop.ban("ada", END);
    for lifecycle in [Lifecycle::Active, Lifecycle::Paused, Lifecycle::Closed] {
        shop.change(lifecycle).await;
        let before = shop.dump();
        for (who, quantity) in [("ada", 1), ("bob", 1), ("bob", 6), ("bob", 11)] {
            assert_eq!(shop.buy(who, "k", quantity, NOW).await, Halted, "{lifecycle:?}");
        }
        assert_eq!(shop.dump(), before, "it costs no window");
    }
    shop.change(Lifecycle::Active).await;
    shop.permit().await;
    assert_eq!(shop.buy("ada", "k", 1, NOW).await, banned_until(END));
    shop.reserve("bob", "k", 1).await;
    shop.stock.stop(shop.key).await.unwrap();
    assert_eq!(shop.buy("bob", "more", 1, NOW).await, Halted);
    assert!(matches!(shop.buy("bob", "k", 1, NOW).await, Replayed { .. }));
}

#[tokio::test]
async fn a_braked_shard_sells_nothing_and_answers_repeated_requests() {
    let shop = Shop::open(|_| {}).await;
    let record = shop.reserve("ada", "k", 1).await;
    shop.ban("cyd", END);
    shop.damage(&shop.key.shard(), 1, &[1]);
    let before = shop.dump();
    for (who, key, quantity) in [("ada", "other", 1), ("bob", "k", 1), ("bob", "k", 6), ("cyd", "k", 1)] {
        assert_eq!(shop.buy(who, key, quantity, NOW).await, Overloaded, "{who}");
    }
    assert_eq!(shop.buy("ada", "k", 2, NOW).await, Refused(KeyReused));
    let replayed = Replayed { record, drained: false };
    assert_eq!(shop.buy("ada", "k", 1, NOW).await, replayed);
    assert_eq!(shop.dump(), before);
    assert_eq!(
        shop.buy("bob", "k", 1, PERMITTED + 60_000).await,
        Halted,
        "without a permit, the brake does not matter"
    );
    shop.damage(&shop.key.shard(), 1, &[0]);
    assert!(is_reserved(&shop.buy("bob", "k", 1, NOW).await));
}

#[tokio::test]
async fn a_shopper_has_the_limit_and_not_one_unit_more() {
    let shop = Shop::open(|_| {}).await;
    assert_eq!(shop.buy("ada", "six", 6, NOW).await, LimitReached);
    assert!(is_reserved(&shop.buy("ada", "five", 5, NOW).await));
    assert!(is_reserved(&shop.buy("bob", "four", 4, NOW).await));
    assert_eq!(shop.buy("bob", "two", 2, NOW).await, LimitReached);
    assert!(is_reserved(&shop.buy("bob", "one", 1, NOW).await));
    assert_eq!(shop.buy("bob", "last", 1, NOW).await, LimitReached);
}

#[tokio::test]
async fn a_shard_sells_its_last_unit_and_says_how_many_it_has_when_they_are_too_few() {
    let shop = Shop::open(|_| {}).await;
    shop.reserve("ada", "k", 5).await;
    shop.reserve("bob", "k", 3).await;
    assert_eq!(shop.buy("cyd", "three", 3, NOW).await, Short { available: 2 });
    assert!(is_reserved(&shop.buy("cyd", "two", 2, NOW).await));
    assert_eq!(shop.buy("cyd", "one", 1, NOW).await, Short { available: 0 });
    assert_eq!(shop.counters().await.held, 10);
}

#[tokio::test]
async fn quantities_are_whole_and_within_bounds() {
    let shop = Shop::open(|sale| {
        sale.items[0].stock = 200_000;
        sale.items[0].per_user_limit = 200_000;
    })
    .await;
    let keys = [
        shop.key.shard(),
        shop.key.item(&sku("A")),
        shop.key.buyer(&user("ada")),
        shop.key.events(),
    ];
    let order = "0123456789abcdef";
    assert_refused(
        &shop,
        &PURCHASE,
        &keys,
        &[
            &[order, "0", "k\nada"],
            &[order, "100001", "k\nada"],
            &[order, "-1", "k\nada"],
            &[order, "1.5", "k\nada"],
            &[order, "nan", "k\nada"],
            &[order, "inf", "k\nada"],
            &[order, "", "k\nada"],
            &[order, "one", "k\nada"],
            &["0123456789abcde", "1", "k\nada"],
            &["0123456789abcdefg", "1", "k\nada"],
            &[order, "1", "k\nada", "", "", "0", "0", "0", ""],
            &[order, "1", "k\nada", "", "", "0", "0", "0", "a trace, a byte too few"],
            &[order, "1", "k\nada", "", "", "0", "0", "0", "a trace, a byte too much."],
        ],
    );
    assert!(is_reserved(&shop.buy("ada", "most", 100_000, NOW).await));
    assert!(is_reserved(&shop.buy("ada", "least", 1, NOW).await));
    assert_eq!(shop.counters().await.held, 100_001);
}

#[tokio::test]
async fn a_window_lets_its_limit_through_and_the_next_one_when_the_oldest_is_as_old_as_the_window() {
    let shop = Shop::open(|sale| sale.purchase_rate = window(2, 1000)).await;
    assert!(is_reserved(&shop.buy("ada", "1", 1, NOW).await));
    assert!(is_reserved(&shop.buy("ada", "2", 1, NOW + 400).await));
    assert_eq!(
        shop.buy("ada", "3", 1, NOW + 400).await,
        Refused(RateLimited { wait_ms: 600 })
    );
    assert_eq!(
        shop.buy("ada", "3", 1, NOW + 999).await,
        Refused(RateLimited { wait_ms: 1 })
    );
    assert!(is_reserved(&shop.buy("ada", "3", 1, NOW + 1000).await));
    assert_eq!(
        shop.buy("ada", "4", 1, NOW + 1000).await,
        Refused(RateLimited { wait_ms: 400 })
    );
    assert_eq!(
        shop.buy("ada", "4", 1, NOW + 1399).await,
        Refused(RateLimited { wait_ms: 1 })
    );
    assert!(is_reserved(&shop.buy("ada", "4", 1, NOW + 1400).await));
    assert!(
        is_reserved(&shop.buy("bob", "1", 1, NOW + 1400).await),
        "windows are one shopper's own"
    );
}

#[tokio::test]
async fn waiting_as_long_as_was_said_is_enough_and_a_millisecond_less_is_not() {
    for (limit, window_ms) in [(1, 1), (1, 2), (3, 777), (5, 86_400_000)] {
        let shop = Shop::open(|sale| {
            sale.purchase_rate = window(limit, window_ms);
            sale.ends_at += chrono::TimeDelta::days(30);
        })
        .await;
        for n in 0..limit {
            shop.reserve("ada", &format!("fills {n}"), 1).await;
        }
        let Refused(RateLimited { wait_ms }) = shop.buy("ada", "next", 1, NOW).await else {
            panic!("{limit} in {window_ms} ms let one more through");
        };
        assert_eq!(wait_ms, window_ms);
        let early = shop.buy("ada", "next", 1, NOW + wait_ms - 1).await;
        assert_eq!(early, Refused(RateLimited { wait_ms: 1 }));
        // With five in the window, the shopper's limit of units is reached; the window has let the request through.
        let in_time = shop.buy("ada", "next", 1, NOW + wait_ms).await;
        assert!(
            is_reserved(&in_time) || (limit == 5 && in_time == LimitReached),
            "{in_time:?}"
        );
    }
}

#[tokio::test]
async fn a_request_that_the_window_refuses_is_not_counted_and_changes_nothing() {
    let shop = Shop::open(|sale| sale.purchase_rate = window(1, 1000)).await;
    shop.reserve("ada", "k", 1).await;
    let before = shop.dump();
    for n in 1..100 {
        let answer = shop.buy("ada", &format!("again {n}"), 1, NOW + n).await;
        assert_eq!(answer, Refused(RateLimited { wait_ms: 1000 - n }));
    }
    assert_eq!(shop.dump(), before);
    assert!(is_reserved(&shop.buy("ada", "late", 1, NOW + 1000).await));
}

#[tokio::test]
async fn a_refused_request_counts_once_however_often_it_is_repeated() {
    let mut shop = Shop::open(|sale| sale.purchase_rate = window(2, 1000)).await;
    shop.change(Lifecycle::Paused).await;
    let paused = Refused(NotOpen {
        state: SaleState::Paused,
    });
    assert_eq!(shop.buy("ada", "one", 1, NOW).await, paused);
    let before = shop.dump();
    for n in 1..50 {
        assert_eq!(shop.buy("ada", "one", 1, NOW + n).await, paused);
    }
    assert_eq!(shop.dump(), before);
    assert_eq!(shop.buy("ada", "two", 1, NOW + 50).await, paused, "another key counts");
    assert_eq!(
        shop.buy("ada", "three", 1, NOW + 50).await,
        Refused(RateLimited { wait_ms: 950 })
    );
    assert_eq!(
        shop.buy("ada", "one", 1, NOW + 999).await,
        paused,
        "counted, so let through"
    );
    assert_eq!(
        shop.buy("ada", "one", 1, NOW + 1000).await,
        paused,
        "out of the window, so counted again"
    );
    assert_eq!(
        shop.buy("ada", "three", 1, NOW + 1049).await,
        Refused(RateLimited { wait_ms: 1 })
    );
    shop.change(Lifecycle::Active).await;
    assert!(
        is_reserved(&shop.buy("ada", "two", 1, NOW + 1049).await),
        "a refused request may be repeated until it succeeds"
    );
}

#[tokio::test]
async fn a_request_is_not_taken_for_one_whose_id_lies_across_two_entries_of_the_window() {
    let mut shop = Shop::open(|sale| sale.purchase_rate = window(2, 1000)).await;
    shop.change(Lifecycle::Paused).await;
    let time = NOW.to_be_bytes();
    let ending = |bytes: [u8; 6]| {
        let mut id = [1; 16];
        id[10..].copy_from_slice(&bytes);
        OrderId(uuid::Uuid::from_bytes(id))
    };
    let [_, _, t0, t1, t2, t3, t4, t5] = time;
    let first = *b"abcdef";
    // The window is <time>abcdef<time>ghijkl: these are made of the middle of it.
    let across = [
        *b"defabc",
        [b'd', b'e', b'f', t0, t1, t2],
        [t3, t4, t5, b'a', b'b', b'c'],
        [t0, t1, t2, t3, t4, t5],
    ];
    let request = asking("ada", "k", 1);
    for order in [first, *b"ghijkl"] {
        let answer = shop
            .stock
            .purchase(shop.key, ending(order), &request, asked_at(NOW))
            .await
            .unwrap();
        assert_eq!(
            answer,
            Refused(NotOpen {
                state: SaleState::Paused
            })
        );
    }
    for order in across {
        let answer = shop
            .stock
            .purchase(shop.key, ending(order), &request, asked_at(NOW))
            .await
            .unwrap();
        assert_eq!(answer, Refused(RateLimited { wait_ms: 1000 }), "{order:?}");
    }
    let known = shop
        .stock
        .purchase(shop.key, ending(*b"ghijkl"), &request, asked_at(NOW))
        .await
        .unwrap();
    assert_eq!(
        known,
        Refused(NotOpen {
            state: SaleState::Paused
        })
    );
}

#[tokio::test]
async fn a_repeated_request_gets_its_first_answer_after_any_later_change() {
    let table = [
        "at once",
        "sold out",
        "paused",
        "closed",
        "after the end",
        "before the start",
        "window full",
        "banned",
        "paid",
        "cancelled",
        "expired",
        "revoked",
    ];
    for since in table {
        let mut shop = Shop::open(|sale| sale.purchase_rate = window(2, 60_000)).await;
        let first = shop.reserve("ada", "k", 2).await;
        let (mut now, mut expected) = (NOW, first.clone());
        match since {
            "sold out" => {
                for (who, quantity) in [("bob", 5), ("cyd", 3)] {
                    shop.reserve(who, "k", quantity).await;
                }
            }
            "paused" => shop.change(Lifecycle::Paused).await,
            "closed" => shop.change(Lifecycle::Closed).await,
            "after the end" => now = END + 1,
            "before the start" => now = START - 1,
            "window full" => {
                shop.reserve("ada", "other", 1).await;
                assert!(matches!(
                    shop.buy("ada", "third", 1, NOW).await,
                    Refused(RateLimited { .. })
                ));
            }
            "banned" => {
                shop.ban("ada", END);
                assert_eq!(shop.buy("ada", "other", 1, NOW).await, banned_until(END));
            }
            other => {
                if let Ok(state) = other.parse::<OrderState>() {
                    shop.resolve("ada", "k", state).await;
                    expected.state = state;
                    expected.resolved_at = NOW + 5;
                }
            }
        }
        let before = shop.dump();
        for _ in 0..2 {
            let answer = shop.buy("ada", "k", 2, now).await;
            let record = expected.clone();
            assert_eq!(answer, Replayed { record, drained: false }, "{since}");
        }
        assert_eq!(shop.dump(), before, "{since}");
    }
}

#[tokio::test]
async fn a_replay_says_whether_the_drain_has_taken_the_event() {
    let shop = Shop::open(|_| {}).await;
    shop.reserve("ada", "k", 1).await;
    shop.reserve("bob", "k", 1).await;
    trim(&shop.stock, shop.key, 1).await;
    assert!(matches!(
        shop.buy("ada", "k", 1, NOW).await,
        Replayed { drained: true, .. }
    ));
    assert!(matches!(
        shop.buy("bob", "k", 1, NOW).await,
        Replayed { drained: false, .. }
    ));
    trim(&shop.stock, shop.key, 2).await;
    assert!(matches!(
        shop.buy("bob", "k", 1, NOW).await,
        Replayed { drained: true, .. }
    ));
    shop.reserve("cyd", "k", 1).await;
    let positions: Vec<_> = shop
        .read()
        .await
        .events
        .iter()
        .map(|event| event.position.seq)
        .collect();
    assert_eq!(positions, [3], "an emptied stream goes on counting");
}

#[tokio::test]
async fn a_key_belongs_to_its_first_request() {
    let shop = Shop::open(|_| {}).await;
    shop.reserve("ada", "k", 2).await;
    let before = shop.dump();
    assert_eq!(shop.buy("ada", "k", 1, NOW).await, Refused(KeyReused));
    assert_eq!(shop.buy("ada", "k", 3, NOW).await, Refused(KeyReused));
    assert_eq!(
        shop.try_buy_item("B", "ada", "k", 2, NOW).await.unwrap(),
        Refused(KeyReused)
    );
    assert_eq!(shop.dump(), before);
    assert!(
        is_reserved(&shop.buy("bob", "k", 1, NOW).await),
        "each shopper has their own keys"
    );
}

#[tokio::test]
async fn a_ban_holds_until_its_last_millisecond_and_costs_no_window() {
    let shop = Shop::open(|_| {}).await;
    shop.ban("ada", NOW + 1000);
    let before = shop.dump();
    assert_eq!(shop.buy("ada", "k", 1, NOW + 999).await, banned_until(NOW + 1000));
    assert_eq!(shop.dump(), before);
    assert!(is_reserved(&shop.buy("ada", "k", 1, NOW + 1000).await));
    shop.ban("ada", NOW + 2000);
    assert_eq!(shop.buy("ada", "other", 1, NOW + 1999).await, banned_until(NOW + 2000));
    assert_eq!(shop.buy("ada", "other", 6, NOW + 2000).await, LimitReached);
    assert!(is_reserved(&shop.buy("ada", "other", 1, NOW + 2000).await));
    assert_eq!(
        shop.buy("ada", "third", 1, NOW + 1999).await,
        banned_until(NOW + 2000),
        "the ban stands after any later write"
    );
}

#[tokio::test]
async fn a_shopper_without_an_order_is_forgotten_with_the_window_and_one_with_an_order_never() {
    let shop = Shop::open(|sale| sale.purchase_rate = window(10, 50_000)).await;
    assert_eq!(shop.forgotten_in("ada"), -2);
    assert_eq!(shop.buy("ada", "too many", 6, NOW).await, LimitReached);
    let left = shop.forgotten_in("ada");
    assert!((50_000..=56_000).contains(&left), "{left}");
    // Many of them do not expire all at once.
    let mut spread = Vec::new();
    for n in 0..50 {
        let who = format!("crowd-{n}");
        assert_eq!(shop.buy(&who, "too many", 6, NOW).await, LimitReached);
        spread.push(shop.forgotten_in(&who));
    }
    let (first, last) = (spread.iter().min().unwrap(), spread.iter().max().unwrap());
    assert!(last - first > 2_000, "{spread:?}");
    shop.reserve("ada", "k", 5).await;
    assert_eq!(shop.forgotten_in("ada"), -1);
    assert_eq!(shop.buy("ada", "one more", 1, NOW).await, LimitReached);
    assert_eq!(shop.forgotten_in("ada"), -1);
    shop.resolve("ada", "k", OrderState::Cancelled).await;
    assert_eq!(shop.buy("ada", "too many again", 6, NOW).await, LimitReached);
    assert_eq!(
        shop.forgotten_in("ada"),
        -1,
        "the order is still known: its key may be repeated"
    );

    shop.reserve("bob", "k", 1).await;
    assert_eq!(shop.forgotten_in("bob"), -1);
    for key in [shop.key.shard(), shop.key.item(&sku("A")), shop.key.events()] {
        assert_eq!(shop.raw.call::<i64>(redis::cmd("PTTL").arg(key)), -1);
    }
}

#[tokio::test]
async fn a_banned_shopper_is_not_forgotten_before_the_ban_ends() {
    let shop = Shop::open(|_| {}).await;
    shop.ban("ada", NOW);
    assert_eq!(shop.buy("ada", "too many", 6, NOW - 1).await, banned_until(NOW));
    assert_eq!(shop.forgotten_in("ada"), -1);
    assert_eq!(shop.buy("ada", "too many", 6, NOW).await, LimitReached);
    assert!(shop.forgotten_in("ada") > 0, "the ban is over");
}

#[tokio::test]
async fn a_shopper_with_an_old_window_is_gone() {
    let shop = Shop::open(|sale| sale.purchase_rate = window(1, 1)).await;
    assert_eq!(shop.buy("ada", "too many", 6, NOW).await, LimitReached);
    assert!((1..=1001).contains(&shop.forgotten_in("ada")));
    eventually("the shopper is forgotten", || shop.forgotten_in("ada") == -2);
}

/// A sale in which ada has bought a unit under `k`.
async fn bought() -> Shop {
    let shop = Shop::open(|_| {}).await;
    shop.reserve("ada", "k", 1).await;
    shop
}

#[tokio::test]
async fn a_foreign_type_in_any_key_is_noticed_and_changes_nothing() {
    // Also for a replay, which reads them all.
    for replay in [false, true] {
        let shop = || async {
            if replay {
                bought().await
            } else {
                Shop::open(|_| {}).await
            }
        };
        each_foreign_key_is_refused!(
            shop().await,
            |shop| [shop.key.events()],
            shop.try_buy("ada", "k", 1, NOW).await
        );
        // One command reads several keys, and finds none where there is no string.
        each_foreign_key_is_refused!(
            shop().await,
            |shop| [shop.key.shard(), shop.key.item(&sku("A"))],
            shop.try_buy("ada", "k", 1, NOW).await,
            Incomplete,
            ""
        );
    }
}

#[tokio::test]
async fn a_string_that_is_no_shopper_is_a_defect_and_changes_nothing() {
    // An empty row, one too short for its head, with a cut-off item, with a cut-off window.
    let (item, window) = (
        [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 9, 9],
    );
    for bytes in [&b""[..], b"planted", &[0; 10], &item, &window] {
        let shop = Shop::open(|_| {}).await;
        shop.put(&shop.key.buyer(&user("ada")), bytes);
        let before = shop.dump();
        let answer = shop.try_buy("ada", "k", 1, NOW).await;
        assert!(matches!(answer, Err(Fault::Bug(_))), "{bytes:?}: {answer:?}");
        assert_eq!(shop.dump(), before, "{bytes:?}");
    }
}

#[tokio::test]
async fn a_missing_key_is_never_created_by_selling() {
    each_missing_key_is_noticed!(
        Shop::open(|_| {}).await,
        |shop| [shop.key.shard(), shop.key.item(&sku("A")), shop.key.events()],
        shop.try_buy("ada", "k", 1, NOW).await
    );
    each_missing_key_is_noticed!(
        bought().await,
        |shop| [shop.key.shard(), shop.key.item(&sku("A")), shop.key.events()],
        shop.try_buy("ada", "k", 1, NOW).await
    );
    let shop = Shop::open(|_| {}).await;
    let before = shop.dump();
    let answer = shop.try_buy_item("C", "ada", "k", 1, NOW).await;
    assert!(matches!(answer, Err(Fault::Incomplete(_))), "{answer:?}");
    assert_eq!(shop.dump(), before);
}

#[tokio::test]
async fn a_cut_off_record_is_not_sold_from() {
    each_cut_off_key_is_noticed!(
        Shop::open(|_| {}).await,
        |shop| [(shop.key.shard(), SHARD_CUT), (shop.key.item(&sku("A")), ITEM_CUT)],
        shop.try_buy("ada", "k", 1, NOW).await
    );
}

#[tokio::test]
async fn of_a_thousand_shoppers_at_once_a_hundred_have_the_hundred_units() {
    let shop = Shop::open(|sale| sale.items[0].stock = 100).await;
    let names: Vec<String> = (0..1000).map(|n| format!("shopper {n}")).collect();
    let mut answers = Vec::new();
    // So many at once that a slow machine has each answer in time.
    for some in names.chunks(100) {
        answers.extend(join_all(some.iter().map(|who| shop.buy(who, "k", 1, NOW))).await);
    }
    assert_eq!(answers.iter().filter(|answer| is_reserved(answer)).count(), 100);
    assert_eq!(
        answers
            .iter()
            .filter(|answer| **answer == Short { available: 0 })
            .count(),
        900
    );
    let reading = shop.read().await;
    let counters = reading.counters(&sku("A"));
    assert_eq!((counters.available, counters.held), (0, 100));
    let seqs: Vec<i64> = reading.events.iter().map(|event| event.position.seq).collect();
    assert_eq!(seqs, (1..=100).collect::<Vec<_>>());
    let orders: HashSet<OrderId> = reading
        .events
        .iter()
        .map(|event| event.reserved.clone().unwrap().order)
        .collect();
    assert_eq!(orders.len(), 100);
}

#[tokio::test]
async fn of_a_thousand_copies_of_one_request_one_is_the_order_and_the_others_are_its_replays() {
    let shop = Shop::open(|sale| sale.purchase_rate = window(1, 60_000)).await;
    let mut answers = Vec::new();
    for _ in 0..10 {
        answers.extend(join_all((0..100).map(|_| shop.buy("ada", "k", 2, NOW))).await);
    }
    let records: Vec<_> = answers
        .iter()
        .map(|answer| match answer {
            Reserved { record, .. } | Replayed { record, drained: false } => record,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(records.iter().all(|record| *record == records[0]));
    assert_eq!(answers.iter().filter(|answer| is_reserved(answer)).count(), 1);
    let reading = shop.read().await;
    assert_eq!((reading.counters(&sku("A")).held, reading.undrained), (2, 1));
}

#[tokio::test]
async fn without_a_clock_of_the_tests_redis_own_clock_counts() {
    let shop = Shop::open(|sale| sale.starts_at = flashsale::domain::time::from_millis(0)).await;
    let request = asking("ada", "k", 1);
    let before = shop.stock.now().await.unwrap();
    let answer = shop
        .stock
        .purchase(shop.key, shop.order("ada", "k"), &request, PurchaseArguments::default())
        .await
        .unwrap();
    let after = shop.stock.now().await.unwrap();
    let Reserved { record, .. } = answer else {
        panic!("{answer:?}")
    };
    assert!(
        (before..=after).contains(&record.created_at),
        "{before} {record:?} {after}"
    );
}

#[tokio::test]
async fn names_that_resemble_keys_are_only_names() {
    let shop = Shop::open(|_| {}).await;
    let tag = format!("{{{}:0}}:shard", shop.sale.id);
    let names = [
        "{}",
        "}{",
        "a:b",
        ":shard",
        ":item:A",
        "a\nb",
        "\n",
        "w",
        "b",
        "u",
        "\u{1f980}",
        " ",
        "*",
        "é\r\n",
        &tag,
    ];
    for (n, name) in names.iter().enumerate() {
        let shop = Shop::open(|_| {}).await;
        shop.reserve(name, "w", 1).await;
        let reading = shop.read().await;
        let event = reading.events[0].reserved.clone().unwrap();
        assert_eq!((event.user.as_str(), event.key.as_str()), (*name, "w"), "{n}");
        assert_eq!(reading.counters(&sku("A")).held, 1);
        assert_eq!(shop.buyer(name).await.orders.len(), 1);
    }
}
