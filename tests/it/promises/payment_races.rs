//! Pay or expire, never both: one place decides, and no money is ever lost.

use crate::support::crowd::{Client, PRICE, Terms, World, answered, bought, cancel, drain_all, payment, shopper_at};
use crate::support::poll::{PATIENCE, Patience, within};
use chrono::{TimeDelta, Utc};
use flashsale::domain::fault::Fault;
use flashsale::domain::ids::{OrderId, SaleId};
use flashsale::domain::order::payment::{Payment, PaymentOutcome};
use flashsale::domain::order::{CancelOutcome, OrderState};
use flashsale::domain::sale::Sale;
use flashsale::flow::{self, App};
use flashsale::ledger::settle::payment::Settlement;
use futures_util::future::{join, join_all};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::sync::Arc;
use uuid::Uuid;

/// Every payment is recorded once, and the money that was kept is the price of the sold units.
async fn the_money_is_all_there(world: &World, sale: &Sale, payments: i64) {
    let item = world.rested(sale).await;
    let recorded = world
        .number(
            "select count(*) from payments p join orders o on o.order_id = p.matched_order_id \
             where o.sale_id = $1 and p.outcome in ('applied', 'refund_due')",
            sale.id,
        )
        .await;
    assert_eq!(recorded, payments);
    let kept = world
        .number(
            "select sum(p.amount_minor)::int8 from payments p join orders o on o.order_id = p.matched_order_id \
             where o.sale_id = $1 and p.outcome = 'applied'",
            sale.id,
        )
        .await;
    assert_eq!(kept, item.ledger.sold * PRICE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_at_the_deadline_is_applied_or_owed_back_and_the_order_paid_or_expired() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let world = World::new().await;
    let terms = Terms {
        window_seconds: 2,
        ..Terms::of(150, 4)
    };
    let sale = world.sale(&terms).await;
    let instances = [
        world.start("all").await,
        world.start("all").await,
        world.start("worker").await,
    ];
    let (one, other) = (instances[0].client(), instances[1].client());
    let shoppers = (0..120u64).map(|n| {
        let (app, sale, one, other) = (Arc::clone(&world.app), Arc::clone(&sale), one.clone(), other.clone());
        let pool = world.pool.clone();
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(n));
        tokio::spawn(async move {
            let order = bought(&app, &sale, &format!("u{n}"), "k", 1).await;
            let payment = payment(&format!("{n}"), order.id, 1);
            let at = order.expires_at + TimeDelta::milliseconds(random.random_range(-400..900));
            let patience = Patience::of(PATIENCE);
            while Utc::now() < at {
                patience.pause("the deadline comes").await;
            }
            let (one, other) = join(pay_by_webhook(&one, &payment), pay_by_webhook(&other, &payment)).await;
            let outcomes = [&one.0, &other.0];
            let decided: Vec<&String> = outcomes.into_iter().filter(|it| *it != "duplicate").collect();
            if decided.is_empty() {
                assert!(one.1 || other.1, "both answers say that it is a duplicate");
            } else {
                assert_eq!(decided.len(), 1, "{outcomes:?}");
            }
            let mut recorded = "pending".to_owned();
            while recorded == "pending" {
                let outcome = "select outcome from payments where payment_id = $1";
                let outcome = sqlx::query_scalar(outcome).bind(&payment.payment_id);
                recorded = outcome.fetch_one(&pool).await.unwrap();
                patience.pause("the payment is settled").await;
            }
            assert!(matches!(recorded.as_str(), "applied" | "refund_due"), "{recorded}");
            assert!(decided.iter().all(|it| **it == recorded), "{outcomes:?} and {recorded}");
            recorded == "applied"
        })
    });
    let mut applied = 0;
    for shopper in join_all(shoppers).await {
        applied += i64::from(shopper.unwrap());
    }
    within(PATIENCE, "nothing is reserved", async || {
        let open = "select count(*) from orders where sale_id = $1 and state = 'reserved'";
        world.number(open, sale.id).await == 0
    })
    .await;
    the_money_is_all_there(&world, &sale, 120).await;
    let paid = "select count(*) from orders where sale_id = $1 and state = 'paid'";
    assert_eq!(world.number(paid, sale.id).await, applied);
    let stats = flow::watch::stats::stats(&world.app, sale.id).await.unwrap().unwrap();
    assert_eq!((stats.orders.paid, stats.orders.expired), (applied, 120 - applied));
    for instance in &instances {
        assert_eq!(instance.errors(), Vec::<String>::new());
    }
}

/// An instance's outcome of a payment, and whether it had to be sent again, because the machine was too busy to answer.
async fn pay_by_webhook(instance: &Client, payment: &Payment) -> (String, bool) {
    let (patience, mut again) = (Patience::of(PATIENCE), false);
    loop {
        let answer = instance.pay(payment).await;
        let outcome = answer.and_then(|it| it.body["outcome"].as_str().map(str::to_owned));
        // Where the order was locked for long, the payment is settled a moment later.
        if let Some(outcome) = outcome.filter(|outcome| outcome != "pending") {
            return (outcome, again);
        }
        again = true;
        patience.pause("a payment has an outcome").await;
    }
}

/// Pays, and repeats the webhook while the answer is 503, as the provider does.
async fn pay(app: &App, payment: &Payment) -> PaymentOutcome {
    let patience = Patience::of(PATIENCE);
    loop {
        match flow::settle::pay::pay(app, payment).await {
            Ok(outcome) => return outcome,
            Err(fault) => assert!(fault.is_passing(), "{fault}"),
        }
        patience.pause("a payment has an outcome").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expiring_paying_and_cancelling_at_once_have_one_winner() {
    let world = World::new().await;
    let terms = Terms {
        window_seconds: 1,
        ..Terms::of(90, 4)
    };
    let sale = world.sale(&terms).await;
    let apps = [world.another().await, world.another().await, world.another().await];
    let users: Vec<String> = (0..90).map(|n| format!("u{n}")).collect();
    let orders = join_all(users.iter().map(|user| bought(&world.app, &sale, user, "k", 1))).await;
    drain_all(&world.app).await.unwrap();
    let deadline = orders.iter().map(|order| order.expires_at).max().unwrap();
    within(PATIENCE, "every deadline passes", async || Utc::now() > deadline).await;
    let races = users.iter().cloned().zip(orders).enumerate().map(|(n, (user, order))| {
        let (app, other) = (Arc::clone(&apps[n % 3]), Arc::clone(&apps[(n + 1) % 3]));
        tokio::spawn(async move {
            let payment = payment(&user, order.id, 1);
            let paying = join(pay(&app, &payment), pay(&other, &payment));
            let cancelling = join(cancel(&app, order.id, &user), cancel(&other, order.id, &user));
            let ((one, two), cancelled) = Box::pin(join(paying, cancelling)).await;
            // If the first answer was lost, both answers say that it is a duplicate. If the order was locked for long, the
            // payment is settled later.
            let undecided = [PaymentOutcome::Duplicate, PaymentOutcome::Pending];
            let paid = [one, two].into_iter().find(|it| !undecided.contains(it));
            (order.id, user, paid, cancelled)
        })
    });
    let (races, expiring) = join(
        join_all(races),
        join_all(apps.iter().map(|app| flow::settle::expire::expire_due(app))),
    )
    .await;
    for run in expiring {
        // A payment that one drain leaves, another settles.
        assert!(run.as_ref().map_or_else(Fault::is_passing, |_| true), "{run:?}");
    }
    for race in races {
        let (order, user, paid, cancelled) = race.unwrap();
        let state = flow::settle::order::read_order(&world.app, order, &user.parse().unwrap())
            .await
            .unwrap()
            .unwrap()
            .state;
        let expected = match state {
            OrderState::Paid => PaymentOutcome::Applied,
            OrderState::Cancelled | OrderState::Expired => PaymentOutcome::RefundDue,
            other => panic!("{other}"),
        };
        assert!(paid.is_none_or(|paid| paid == expected), "{state}: {paid:?}");
        for cancelled in [cancelled.0, cancelled.1] {
            match cancelled {
                CancelOutcome::Cancelled(_) => assert_eq!(state, OrderState::Cancelled),
                CancelOutcome::NotCancellable(seen) => assert_eq!(state, seen),
                CancelOutcome::NotFound => panic!("the order was there"),
            }
        }
    }
    world.settled(&sale).await;
    the_money_is_all_there(&world, &sale, 90).await;
}

/// So many orders of one unit, each of a shopper `u0`, `u1` and so on; the ledger has them.
async fn stored_orders(world: &World, sale: &Sale, count: usize) -> Vec<OrderId> {
    let users: Vec<String> = (0..count).map(|n| format!("u{n}")).collect();
    let orders = join_all(users.iter().map(|user| bought(&world.app, sale, user, "k", 1))).await;
    answered("the orders are stored", || drain_all(&world.app)).await;
    orders.into_iter().map(|order| order.id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_payment_of_a_group_is_decided_for_itself() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(30, 4)).await;
    let orders = stored_orders(&world, &sale, 12).await;
    let (ledger, unknown) = (
        &world.app.ledger,
        OrderId(Uuid::from_u128(u128::from(sale.number) << 96)),
    );
    let recorded = ledger
        .settle_payments(&[payment("before", orders[0], 1)])
        .await
        .unwrap();
    assert!(matches!(
        recorded[..],
        [Settlement::Settled(PaymentOutcome::Applied, Some(_))]
    ));
    cancel(&world.app, orders[1], "u1").await;
    let due = "update orders set created_at = now() - interval '1 hour', expires_at = now() - interval '1 minute' \
         where sale_id = $1 and user_id = 'u2'";
    world.execute(due, sale.id).await.unwrap();
    assert_eq!(
        answered("it expires", || flow::settle::expire::expire_due(&world.app)).await,
        1
    );

    let other_currency = Payment {
        currency: "USD".to_owned(),
        ..payment("in-dollars", orders[5], 1)
    };
    let group = [
        (payment("before", orders[0], 1), "duplicate", false),
        (payment("again", orders[0], 1), "refund_due", false),
        (payment("cancelled", orders[1], 1), "refund_due", false),
        (payment("late", orders[2], 1), "refund_due", false),
        (payment("too-much", orders[3], 2), "refund_due", false),
        (payment("right", orders[3], 1), "applied", true),
        (payment("right", orders[3], 1), "duplicate", false),
        (payment("second", orders[3], 1), "refund_due", false),
        // The same payment for two orders is one payment.
        (payment("one", orders[4], 1), "applied", true),
        (payment("one", orders[6], 1), "duplicate", false),
        (other_currency, "refund_due", false),
        (payment("unknown", unknown, 1), "", false),
        (payment("unknown", unknown, 1), "", false),
        (payment("good", orders[7], 1), "applied", true),
    ];
    let payments: Vec<Payment> = group.iter().map(|(payment, ..)| payment.clone()).collect();
    let settled = ledger.settle_payments(&payments).await.unwrap();
    for (settlement, (payment, outcome, pays)) in settled.iter().zip(&group) {
        let found = match settlement {
            Settlement::Settled(outcome, decided) => (outcome.as_str(), decided.is_some()),
            Settlement::NoOrder => ("", false),
            Settlement::Locked => panic!("nobody has locked {}", payment.order_id),
        };
        assert_eq!(found, (*outcome, *pays), "{}", payment.payment_id);
    }
    assert_eq!(settled.len(), group.len());
    // A payment without an order is not recorded yet, so no copy of it is a duplicate.
    let unknown = "select count(*) from payments where payment_id = 'pay-unknown' and $1::uuid is not null";
    assert_eq!(world.number(unknown, sale.id).await, 0);
    let item = world.settled(&sale).await;
    assert_eq!((item.stock.sold, item.stock.held), (4, 6));
    the_money_is_all_there(&world, &sale, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_that_another_process_records_meanwhile_decides_about_no_other_of_its_group() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(8, 4)).await;
    let orders = stored_orders(&world, &sale, 2).await;
    let payments = [payment("p", orders[0], 1), payment("second", orders[0], 1)];
    // The other process got the same payment for another order, and has not committed it yet.
    let mut other = world.pool.begin().await.unwrap();
    let pending = "insert into payments (payment_id, webhook_id, order_id, amount_minor, currency, outcome) \
         values ('pay-p', 'msg-p', $1, $2, 'EUR', 'pending')";
    let pending = sqlx::query(pending).bind(orders[1].to_string()).bind(PRICE);
    pending.execute(&mut *other).await.unwrap();
    let (ledger, group) = (world.app.ledger.clone(), payments.clone());
    let settling = tokio::spawn(async move { ledger.settle_payments(&group).await });
    let waits = "select count(*) from pg_stat_activity where datname = current_database() \
         and wait_event_type = 'Lock' and $1::uuid is not null";
    within(PATIENCE, "the group waits for it, or has", async || {
        settling.is_finished() || world.number(waits, sale.id).await > 0
    })
    .await;
    other.commit().await.unwrap();
    let settled = settling.await.unwrap().unwrap();
    assert!(settled.iter().all(|it| matches!(it, Settlement::Locked)), "{settled:?}");
    // Recorded as pending, if the sale still counts as locked.
    for payment in &payments {
        pay(&world.app, payment).await;
    }
    let item = world.settled(&sale).await;
    assert_eq!((item.stock.sold, item.stock.held), (2, 0));
    the_money_is_all_there(&world, &sale, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payments_at_once_are_answered_as_one_after_the_other_and_one_that_cannot_be_stored_fails_alone() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(60, 4)).await;
    let mut orders = stored_orders(&world, &sale, 40).await;
    orders.push(bought(&world.app, &sale, "on-its-way", "k", 1).await.id);
    let refuse = "alter table payments add constraint refused check (payment_id <> 'pay-7')";
    sqlx::raw_sql(refuse).execute(&world.pool).await.unwrap();
    let payments = orders
        .iter()
        .enumerate()
        .map(|(n, order)| payment(&n.to_string(), *order, 1));
    let payments: Vec<Payment> = payments.collect();
    let at_once = async || {
        let all = payments
            .iter()
            .map(|payment| flow::settle::pay::pay(&world.app, payment));
        join_all(all).await
    };
    for (n, outcome) in at_once().await.into_iter().enumerate() {
        match outcome {
            Err(Fault::Bug(_)) => assert_eq!(n, 7),
            Ok(PaymentOutcome::Applied) => assert_ne!(n, 7),
            // Where its order comes late, it is settled later.
            Ok(PaymentOutcome::Pending) => assert_eq!(n, 40),
            other => panic!("{n}: {other:?}"),
        }
    }
    let allow = "alter table payments drop constraint refused";
    sqlx::raw_sql(allow).execute(&world.pool).await.unwrap();
    for (n, outcome) in at_once().await.into_iter().enumerate() {
        let expected = if n == 7 {
            PaymentOutcome::Applied
        } else {
            PaymentOutcome::Duplicate
        };
        assert_eq!(outcome.unwrap(), expected, "{n}");
    }
    let item = world.settled(&sale).await;
    assert_eq!((item.stock.sold, item.stock.held), (41, 0));
    the_money_is_all_there(&world, &sale, 41).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_that_overtakes_its_order_is_recorded_and_settled_by_a_worker_that_starts_later() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(4, 1)).await;
    let api = world.start("api").await;
    let order = bought(&world.app, &sale, "u", "k", 1).await;
    let wrong = bought(&world.app, &sale, "v", "k", 1).await;
    // A process holds the shard and does not end.
    let claim = world.app.ledger.claim_shard(sale.id, 0).await.unwrap().unwrap();
    let (right, too_little) = (payment("p", order.id, 1), payment("q", wrong.id, 0));
    let client = api.client();
    let (paid, owed) = join(client.pay(&right), client.pay(&too_little)).await;
    assert_eq!(paid.unwrap().body["outcome"], "pending");
    assert_eq!(owed.unwrap().body["outcome"], "pending");
    assert_eq!(client.pay(&right).await.unwrap().body["outcome"], "duplicate");
    drop(claim);
    let _worker = world.start("worker").await;
    the_money_is_all_there(&world, &sale, 2).await;
    let answer = client.order("u", order.id).await.unwrap();
    assert_eq!(answer.body["state"], "paid", "{answer:?}");
    let answer = client.order("v", wrong.id).await.unwrap();
    assert_eq!(answer.body["state"], "reserved", "{answer:?}");
}

/// Another process does not know the sale, and a client guesses so many others that the process may query no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_for_a_new_sale_is_never_recorded_as_unmatched() {
    let world = World::new().await;
    world.sale(&Terms::of(1, 1)).await;
    let other = world.another().await;
    other.sales.learn().await.unwrap();
    let sale = world.sale(&Terms::of(4, 1)).await;
    let order = bought(&world.app, &sale, &shopper_at(&sale, 0), "k", 1).await;
    // Without a query it answers that there is no such sale, and it keeps that answer for a moment. On a slow machine the
    // first round gives queries back, so the second one asks for more than there may be.
    for guesses in [200, 200] {
        let guesses = (0..guesses).map(|_| SaleId(Uuid::now_v7())).chain([sale.id]);
        let found = join_all(guesses.map(|id| other.sales.fresh(id))).await;
        assert!(found.iter().all(finds_nothing));
    }
    let flood = async {
        loop {
            let guesses = (1..=200).map(|n| other.sales.by_number(sale.number + n));
            assert!(join_all(guesses).await.iter().all(finds_nothing));
        }
    };
    let payment = payment("p", order.id, 1);
    tokio::select! {
        () = flood => {}
        outcome = pay(&other, &payment) => assert_ne!(outcome, PaymentOutcome::Unmatched),
    }
    // A payment that had to be sent again is a duplicate, and one whose order came late is settled later.
    world.settled(&sale).await;
    the_money_is_all_there(&world, &sale, 1).await;
}

/// Whether nothing was found; a busy ledger may not have answered.
fn finds_nothing(found: &Result<Option<Arc<Sale>>, Fault>) -> bool {
    found.as_ref().map_or_else(Fault::is_passing, Option::is_none)
}
