//! What is older than its setting is forgotten, in batches. Orders, payments and counts of units stay.

use crate::support::crowd::{Terms, World, bought, drain_all, payment};
use crate::support::poll::{PATIENCE, within};
use flashsale::domain::deployment::retention::Retention;
use flashsale::domain::order::payment::PaymentOutcome;
use flashsale::flow::{self, App};

const OF_ACCOUNTS: &str = "select count(*) from orders where sale_id = $1 and user_id in ('ada', 'bob', 'eve')";
const OF_NOBODY: &str =
    "select count(*) from orders where sale_id = $1 and user_id = 'forgotten-' || order_id and quantity = 1";

/// The process of this world with these settings.
fn with(world: &World, retention: Retention) -> App {
    App {
        retention,
        ..App::clone(&world.app)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_lose_their_accounts_so_many_days_after_the_sale_and_only_if_that_is_set() {
    let world = World::new().await;
    let old = world.sale(&Terms::of(10, 2)).await;
    let young = world.sale(&Terms::of(10, 2)).await;
    let owing = world.sale(&Terms::of(10, 2)).await;
    for sale in [&old, &young, &owing] {
        for user in ["ada", "bob", "eve"] {
            let order = bought(&world.app, sale, user, "k", 1).await;
            drain_all(&world.app).await.unwrap();
            // The owing sale's payments come twice.
            for n in 0..=usize::from(sale.id == owing.id) {
                let id = format!("{}-{user}-{n}", sale.id);
                let paid = flow::settle::pay::pay(&world.app, &payment(&id, order.id, 1)).await;
                let expected = [PaymentOutcome::Applied, PaymentOutcome::RefundDue];
                assert_eq!(paid.unwrap(), expected[n]);
            }
        }
    }
    within(PATIENCE, "Redis has all messages", async || {
        flow::settle::release::release_waiting(&world.app).await.unwrap();
        world
            .number("select count(*) from outbox where $1 is not null", old.id)
            .await
            == 0
    })
    .await;
    for sale in [&old, &owing] {
        let over = "update sales set retired_at = now(), starts_at = now() - interval '40 days', \
             ends_at = now() - interval '31 days' where sale_id = $1";
        world.execute(over, sale.id).await.unwrap();
    }
    let over = "update sales set retired_at = now(), starts_at = now() - interval '40 days', \
         ends_at = now() - interval '29 days' where sale_id = $1";
    world.execute(over, young.id).await.unwrap();
    flow::operate::retention::forget_old(&world.app).await.unwrap();
    assert_eq!(world.number(OF_ACCOUNTS, old.id).await, 3, "nothing is set");

    // In pages, then once more for the sale itself.
    for forgotten in [Some(2), Some(1), Some(0), None] {
        assert_eq!(world.app.ledger.forget_accounts(30, 2).await.unwrap(), forgotten);
    }
    assert_eq!(world.number(OF_NOBODY, old.id).await, 3);
    for sale in [&young, &owing] {
        assert_eq!(world.number(OF_ACCOUNTS, sale.id).await, 3);
    }
    let paid = "select count(*) from payments p join orders o on o.order_id = p.matched_order_id where o.sale_id = $1";
    assert_eq!(world.number(paid, old.id).await, 3);
    let audit = flow::watch::audit::audit(&world.app, old.id).await.unwrap().unwrap();
    assert!(audit.balanced, "{audit:?}");

    // Once the money is given back.
    let settled = "update payments set refunded_at = now(), refund_reference = 'r' where outcome = 'refund_due' \
         and matched_order_id in (select order_id from orders where sale_id = $1)";
    world.execute(settled, owing.id).await.unwrap();
    let set = with(
        &world,
        Retention {
            accounts: Some(30),
            ..Retention::default()
        },
    );
    assert_eq!(flow::operate::retention::forget_old(&set).await.unwrap(), 3);
    assert_eq!(world.number(OF_NOBODY, owing.id).await, 3);
    assert_eq!(world.number(OF_ACCOUNTS, young.id).await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_and_guard_warnings_are_deleted_so_many_days_later() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 2)).await;
    let rows = [
        "insert into sale_history (sale_id, at, answers, latency) \
         select $1, now() - n * interval '1 second', '{}', '{}' from generate_series(1, 7) n",
        "insert into guard_alerts (kind, user_id, detail, raised_at) \
         select 'browsing', 'ada', $1::text, now() - n * interval '1 day' from generate_series(25, 34) n",
    ];
    for insert in rows {
        world.execute(insert, sale.id).await.unwrap();
    }
    let history = "select count(*) from sale_history where sale_id = $1";
    let warnings = "select count(*) from guard_alerts where detail = $1::text";
    let set = with(
        &world,
        Retention {
            history: Some(5),
            warnings: None,
            ..Retention::default()
        },
    );
    // Neither a sale that goes on, nor warnings that stay for ever.
    assert_eq!(flow::operate::retention::forget_old(&set).await.unwrap(), 0);
    let over = "update sales set retired_at = now(), starts_at = now() - interval '40 days', \
         ends_at = now() - interval '6 days' where sale_id = $1";
    world.execute(over, sale.id).await.unwrap();
    for deleted in [Some(4), Some(3), None] {
        assert_eq!(world.app.ledger.forget_history(5, 4).await.unwrap(), deleted);
    }
    assert_eq!(world.number(history, sale.id).await, 0);
    assert_eq!(world.number(warnings, sale.id).await, 10);
    assert_eq!(flow::operate::retention::forget_old(&world.app).await.unwrap(), 5);
    assert_eq!(world.number(warnings, sale.id).await, 5);
}
