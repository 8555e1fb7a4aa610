//! The present version starts on the state that an earlier one left behind: `tests/state/make` keeps it.

use crate::support::app::{Client, Instance, Who, environment, sale};
use crate::support::crowd::{Terms, World, bought, cancel, drain_all, try_buy};
use crate::support::poll::{self, PATIENCE};
use crate::support::raw::Raw;
use crate::support::servers::{DurableRedis, database_of_dump};
use flashsale::domain::fault::Fault;
use flashsale::domain::order::OrderState;
use flashsale::domain::order::purchase::PurchaseOutcome;
use flashsale::flow;
use flashsale::stock::keys::ShardKey;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Folders under `tests/state`, one for each version whose state is kept.
const KEPT: [&str; 1] = ["2026-11-23"];

struct Kept {
    folder: PathBuf,
    /// The sales' ids by name, and the orders.
    made: Value,
}

impl Kept {
    fn of(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/state").join(name);
        let made = std::fs::read_to_string(folder.join("made.json")).unwrap();
        Self {
            made: serde_json::from_str(&made).unwrap(),
            folder,
        }
    }

    fn sale(&self, name: &str) -> &str {
        self.made["sales"][name].as_str().unwrap()
    }

    fn order(&self, user: &str) -> &Value {
        let orders = self.made["orders"].as_array().unwrap();
        orders.iter().find(|order| order["user"] == user).unwrap()
    }

    fn id(&self, user: &str) -> &str {
        self.order(user)["id"].as_str().unwrap()
    }

    /// Every old key is answered with its old order.
    async fn is_replayed(&self, client: &Client) {
        for order in self.made["orders"].as_array().unwrap() {
            let text = |member: &str| order[member].as_str();
            let (user, key, sale) = (text("user").unwrap(), text("key").unwrap(), text("sale").unwrap());
            let (sku, quantity) = (text("sku").unwrap_or("phone"), order["quantity"].as_i64().unwrap_or(1));
            let again = client.buy_sku(user, self.sale(sale), key, sku, quantity).await.ok(200);
            assert_eq!(again.header("idempotency-replayed"), Some("true"), "{user}");
            assert_eq!(
                (again.id(), &again.body["state"]),
                (self.id(user).to_owned(), &order["state"]),
                "{user}"
            );
        }
    }

    async fn pay(&self, client: &Client, user: &str) {
        let order = client.order(user, self.id(user)).await.ok(200);
        assert_eq!(
            client.pay(&format!("late-{user}"), &order.body).await,
            "applied",
            "{user}"
        );
        client.wait_for_order(user, self.id(user), "paid").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_of_every_kept_version_is_sold_on() {
    for name in KEPT {
        let kept = Kept::of(name);
        let redis = DurableRedis::on(&kept.folder.join("appendonlydir"));
        let database = database_of_dump(&kept.folder.join("postgres.sql"), "").await;
        let environment = environment(&redis.url(), &database);

        // Two orders have not been drained, and a payment has not been delivered.
        let raw = Raw::connect(&redis.url());
        let undrained = |sale: &str| -> i64 {
            let stream = |shard: u8| format!("{{{}:{shard}}}:events", kept.sale(sale));
            (0..2)
                .map(|shard| raw.call::<i64>(redis::cmd("XLEN").arg(stream(shard))))
                .sum()
        };
        assert_eq!((undrained("open"), undrained("short")), (1, 1));

        // Without a worker nothing expires yet.
        let api = Instance::start(&environment, "api");
        kept.is_replayed(&api).await;
        kept.pay(&api, "ada").await;

        let worker = Instance::start(&environment, "worker");
        api.wait_for_order("eve", kept.id("eve"), "reserved").await;
        api.wait_for_order("ann", kept.id("ann"), "expired").await;
        kept.pay(&api, "eve").await;
        kept.pay(&api, "ned").await;
        let cancelled = api.cancel("pat", kept.id("pat")).await.ok(200);
        assert_eq!(cancelled.body["state"], "cancelled");
        for (user, key) in [("fay", "k"), ("gus", "k"), ("zoe", "k")] {
            let answer = api.buy(user, kept.sale("open"), key, 1).await;
            if user == "fay" {
                answer.no(403, "banned");
            } else {
                answer.ok(201);
            }
        }
        api.buy("mia", kept.sale("guarded"), "second", 1).await.ok(201);
        let third = api.buy("mia", kept.sale("guarded"), "third", 1).await;
        assert_eq!(third.code(), "too_many_holds");
        api.buy("zoe", kept.sale("committed"), "k", 1).await.ok(201);
        api.buy("zoe", kept.sale("paused"), "k", 1)
            .await
            .no(409, "sale_not_open");
        api.operate(kept.sale("paused"), "resume").await.ok(200);
        api.buy("zoe", kept.sale("paused"), "k", 1).await.ok(201);
        api.buy("zoe", kept.sale("closed"), "k", 1)
            .await
            .no(409, "sale_not_open");
        api.buy("zoe", kept.sale("scheduled"), "k", 1)
            .await
            .no(409, "sale_not_open");
        api.operate(kept.sale("scheduled"), "open").await.ok(200);
        api.buy("zoe", kept.sale("scheduled"), "k", 1).await.ok(201);
        api.operate(kept.sale("draft"), "preload").await.ok(200);
        api.buy("zoe", kept.sale("draft"), "k", 1).await.ok(201);
        api.restock(kept.sale("open"), "r-new", "phone", 5).await.ok(200);
        let fresh = api.load_sale(&sale()).await;
        api.buy("ada", &fresh, "k", 1).await.ok(201);

        let sales = kept.made["sales"].as_object().unwrap().values();
        let sales: Vec<&str> = sales.map(|id| id.as_str().unwrap()).collect();
        for sale in &sales {
            poll::answer("the stock audit balances", || async {
                let audit = api.admin(sale, "/audit").await.ok(200);
                let stats = api.stats(sale).await;
                (audit.body["balanced"] == true && stats["undrained_events"] == 0).then_some(())
            })
            .await;
        }
        api.post(Who::Operator, &format!("/v1/admin/sales/{}/rebuild", kept.sale("open")))
            .await
            .ok(200);
        for sale in sales {
            api.assert_balanced(sale).await;
        }
        // The order whose payment Redis had not got, and the later decisions.
        let mut ledger = <sqlx::PgConnection as sqlx::Connection>::connect(&database)
            .await
            .unwrap();
        poll::within(PATIENCE, "every decision is delivered", async || {
            let waiting: i64 = sqlx::query_scalar("select count(*) from outbox")
                .fetch_one(&mut ledger)
                .await
                .unwrap();
            waiting == 0
        })
        .await;
        let dead: i64 = sqlx::query_scalar("select count(*) from dead_letters")
            .fetch_one(&mut ledger)
            .await
            .unwrap();
        assert_eq!(dead, 0);
        drop((worker, api));
    }
}

/// An outage that the earlier version has written into the deadlines is not added a second time.
#[tokio::test]
async fn holds_that_were_extended_before_the_upgrade_are_not_extended_twice() {
    for name in KEPT {
        let extended = "insert into public.outages (since, until) values (now() - interval '3 hours', now() - interval '2 hours'); \
             update public.orders set expires_at = expires_at + interval '1 hour' where state = 'reserved';";
        let dump = Kept::of(name).folder.join("postgres.sql");
        let database = database_of_dump(&dump, extended).await;
        let mut ledger = <sqlx::PgConnection as sqlx::Connection>::connect(&database)
            .await
            .unwrap();
        let windows = "select count(*), count(*) filter (where expires_at = orders.created_at + make_interval(secs => payment_window_seconds)) \
             from orders join sales using (sale_id) where orders.state = 'reserved'";
        let (reserved, stored): (i64, i64) = sqlx::query_as(windows).fetch_one(&mut ledger).await.unwrap();
        assert!(reserved > 0);
        assert_eq!(stored, reserved);
    }
}

/// A worker that is older than the selling instance drains the events that it can read, and loses none of the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_of_a_newer_version_waits_for_a_newer_worker() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 1)).await;
    let key = ShardKey {
        sale: sale.id,
        shard: 0,
    };
    let first = bought(&world.app, &sale, "first", "k", 1).await;
    let raw = Raw::connect(&world.redis);
    for (kind, value) in [("reserved", &b"\x01another layout"[..]), ("split", b"\x01another kind")] {
        let mut add = redis::cmd("XADD");
        let newer: String = raw.call(add.arg(key.events()).arg("1-*").arg(kind).arg(value));
        let after = bought(&world.app, &sale, "after", kind, 1).await;
        poll::within(PATIENCE, "the drain is at the newer event", async || {
            matches!(
                flow::settle::drain::drain_batch(&world.app, &sale, 0).await,
                Err(Fault::Newer(_))
            )
        })
        .await;
        let user = "first".parse().unwrap();
        let drained = flow::settle::order::read_order(&world.app, first.id, &user)
            .await
            .unwrap()
            .unwrap();
        assert!(drained.confirmed);
        let stored = "select (select count(*) from orders where sale_id = $1) * 10 \
             + (select count(*) from dead_letters where sale_id = $1)";
        assert_eq!(world.number(stored, sale.id).await % 10, 0, "no dead letter");
        assert_eq!(world.app.stock.undrained(&[key]).await.unwrap(), [2]);
        // The shard is not rebuilt over it either.
        assert!(matches!(
            flow::recover::attend::rebuild_sale(&world.app, sale.id).await,
            Err(Fault::Newer(_))
        ));

        // A newer worker drains it. It has trimmed the first one, and not yet the second.
        let taken_in = "update shards set drained_seq = drained_seq + 1 where sale_id = $1";
        world.execute(taken_in, sale.id).await.unwrap();
        if kind == "reserved" {
            let _gone: i64 = raw.call(redis::cmd("XDEL").arg(key.events()).arg(newer));
        }
        drain_all(&world.app).await.unwrap();
        assert_eq!(world.number(stored, sale.id).await % 10, 0, "no dead letter");
        let user = "after".parse().unwrap();
        let drained = flow::settle::order::read_order(&world.app, after.id, &user)
            .await
            .unwrap()
            .unwrap();
        assert!(drained.confirmed);
    }
}

/// An older instance that rebuilds a shard meets a shopper's row of a newer version. It leaves the row as it is, and an
/// instance that can read the row finishes the rebuild.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_leaves_the_row_of_a_newer_version_to_a_newer_worker() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 1)).await;
    let key = ShardKey {
        sale: sale.id,
        shard: 0,
    };
    let order = bought(&world.app, &sale, "u", "k", 1).await;
    drain_all(&world.app).await.unwrap();
    let raw = Raw::connect(&world.redis);
    let row = key.buyer(&"u".parse().unwrap());
    let set_version = |version: u8| {
        let mut change = redis::cmd("SETRANGE");
        let _length: i64 = raw.call(change.arg(&row).arg(7).arg(&[version << 4][..]));
    };
    set_version(1);
    let newer: Vec<u8> = raw.call(redis::cmd("GET").arg(&row));
    poll::within(
        PATIENCE,
        "the rebuild meets the row",
        async || match flow::recover::attend::rebuild_sale(&world.app, sale.id).await {
            Err(Fault::Newer(_)) => true,
            Err(_) => false,
            Ok(rebuilt) => panic!("{rebuilt:?}"),
        },
    )
    .await;
    assert_eq!(raw.call::<Vec<u8>>(redis::cmd("GET").arg(&row)), newer);

    // This stands for a version that reads the row.
    set_version(0);
    poll::within(PATIENCE, "the order is found again", async || {
        match try_buy(&world.app, &sale, "u", "k", 1).await {
            Ok(PurchaseOutcome::Replayed(found)) => found.id == order.id,
            _ => false,
        }
    })
    .await;
    world.settled(&sale).await;
}

/// A message whose kind or names this version does not know is postponed. After an hour it is listed as refused, and a worker
/// that can read it delivers it all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_a_newer_version_waits_for_a_newer_worker_and_is_listed_after_an_hour() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 1)).await;
    let order = bought(&world.app, &sale, "u", "k", 1).await;
    drain_all(&world.app).await.unwrap();
    let unknown = "insert into outbox (sale_id, shard, message, created_at) \
         select $1, 0, message::jsonb, now() - age from (values ('{\"kind\": \"split\"}'), \
             ('{\"kind\": \"resolve\", \"order\": \"00000000-0000-0000-0000-000000000000\", \"user\": \"u\", \
                \"sku\": \"phone\", \"quantity\": 1, \"state\": \"exchanged\", \"at\": 1}')) as messages (message), \
             (values (interval '0'), (interval '61 minutes')) as ages (age)";
    assert_eq!(world.execute(unknown, sale.id).await.unwrap(), 4);
    // A member that this version does not know changes nothing of a message.
    let longer = "insert into outbox (sale_id, shard, message) values ($1, 0, '{\"kind\": \"state\", \"at\": 1}')";
    assert_eq!(world.execute(longer, sale.id).await.unwrap(), 1);
    let postponed = world.app.metrics.releases.of(["postponed"]).get();
    cancel(&world.app, order.id, "u").await;
    let left = "select count(*) from outbox where sale_id = $1 and message ->> 'kind' = 'state' \
         or sale_id = $1 and message ->> 'state' = 'cancelled'";
    poll::within(PATIENCE, "readable messages are delivered", async || {
        flow::settle::release::release_waiting(&world.app).await.unwrap();
        world.number(left, sale.id).await == 0
    })
    .await;
    let of_state = |condition| world.number(condition, sale.id);
    let refused = "select count(*) from outbox where sale_id = $1 and failure like 'no message: %' \
         and created_at < now() - interval '1 hour'";
    assert_eq!(of_state(refused).await, 2);
    let waits = "select count(*) from outbox where sale_id = $1 and failure is null and attempts > 0 \
         and not_before > created_at";
    assert_eq!(of_state(waits).await, 2);
    assert!(world.app.metrics.releases.of(["postponed"]).get() >= postponed + 4);

    // The messages of the newer version cannot be read; this stands for a version that reads one of the listed ones.
    let readable = "update outbox set message = '{\"kind\": \"state\"}', not_before = now() \
         where outbox_id = (select min(outbox_id) from outbox where sale_id = $1 and failure is not null)";
    assert_eq!(world.execute(readable, sale.id).await.unwrap(), 1);
    poll::within(PATIENCE, "it is delivered", async || {
        world.app.ledger.retry_unreadable().await.unwrap();
        flow::settle::release::release_waiting(&world.app).await.unwrap();
        of_state(refused).await == 1
    })
    .await;
    assert_eq!(of_state(left).await, 0);

    // A newer worker finds them there, also after an older one has rebuilt the sale.
    flow::recover::attend::rebuild_sale(&world.app, sale.id)
        .await
        .unwrap()
        .unwrap();
    let newer = "select count(*) from outbox where sale_id = $1 and message ->> 'kind' = 'split' and failure is null";
    assert_eq!(of_state(newer).await, 1);
    let user = "u".parse().unwrap();
    let order = flow::settle::order::read_order(&world.app, order.id, &user)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(order.state, OrderState::Cancelled);
}
