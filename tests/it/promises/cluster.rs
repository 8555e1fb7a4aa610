//! On a Redis Cluster all promises hold while primaries die and slots move.

use crate::support::app::{Instance, Who, environment, sale_with};
use crate::support::crowd::{Terms, World, answered, bought, buy, cancel, drain_all, payment, shopper_at, try_buy};
use crate::support::poll::{self, PATIENCE, Patience, once_within, within};
use crate::support::servers::{self, Cluster, fresh_redis_with};
use flashsale::domain::fault::Fault;
use flashsale::domain::order::purchase::PurchaseOutcome;
use flashsale::domain::sale::{Lifecycle, Sale, Transition};
use flashsale::flow;
use flashsale::flow::operate::restock::RestockOutcome;
use flashsale::stock::Stock;
use flashsale::stock::door::limit::{Limit, LimitedRequest, Verdict};
use flashsale::stock::keys::ShardKey;
use flashsale::stock::sell::transfer::{Destination, Sent};
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use uuid::Uuid;

/// A slow machine stays below this. Waits for one silent shard after the other add up to more.
const WAITS_MAX: Duration = Duration::from_secs(2);

/// One shopper's purchase, repeated with the same key until it is no longer unknown; `None` when all is sold.
async fn insist(client: crate::support::app::Client, user: String, sale: String) -> Option<(String, String)> {
    // Two failovers may come meanwhile, and each may take half a minute.
    let patience = Patience::of(Duration::from_secs(120));
    loop {
        let answer = client.buy(&user, &sale, "k", 1).await;
        match answer.status {
            200 | 201 => return Some((user, answer.id())),
            409 => {
                answer.no(409, "sold_out");
                return None;
            }
            _ => drop(answer.no(503, "unavailable")),
        }
        patience.pause("a purchase is decided").await;
    }
}

/// Sells a sale out on a cluster while something `happens` in the middle, and checks that every unit was sold once.
/// Returns how many successes shoppers got.
async fn sells_out_while(durability: &str, happens: impl FnOnce(&mut Cluster, &str)) -> usize {
    let mut cluster = Cluster::start();
    let environment = environment(&cluster.url(), &servers::database().await);
    let one = Instance::start(&environment, "all").may_log_errors();
    let other = Instance::start(&environment, "api").may_log_errors();
    let terms = json!({"shards": 12, "stock": 400, "durability": durability});
    let id = one.load_sale(&sale_with(&terms)).await;
    let mut crowd = JoinSet::new();
    let (mut sold, mut refused) = (BTreeSet::new(), 0);
    let mut happens = Some(happens);
    for number in 0..440 {
        let client = if number % 2 == 0 { &one } else { &other };
        crowd.spawn(insist((**client).clone(), format!("shopper-{number}"), id.clone()));
        if crowd.len() == 16 {
            match crowd.join_next().await.unwrap().unwrap() {
                Some(order) => assert!(sold.insert(order)),
                None => refused += 1,
            }
        }
        if number == 150 {
            happens.take().unwrap()(&mut cluster, &id);
        }
    }
    while let Some(order) = crowd.join_next().await {
        match order.unwrap() {
            Some(order) => assert!(sold.insert(order)),
            None => refused += 1,
        }
    }
    one.wait_for_units(&id, [0, 400, 0]).await;
    one.assert_balanced(&id).await;
    // A replica that was behind may have lost orders that its primary had acknowledged: then there were more successes.
    assert!(
        sold.len() >= 400 && sold.len() + refused == 440,
        "{} sold, {refused} refused",
        sold.len()
    );
    let all = json!({"reserved": 400, "paid": 0, "cancelled": 0, "expired": 0, "revoked": 0});
    poll::answer("every order is in the ledger", || async {
        (one.stats(&id).await["orders"] == all).then_some(())
    })
    .await;
    one.assert_balanced(&id).await;
    sold.len()
}

/// The slot of a shard.
fn slot(cluster: &Cluster, sale: &str, shard: u16) -> u16 {
    cluster.slot(&format!("{{{sale}:{shard}}}:shard"))
}

/// The slot of a sale's first shard, and the shards that are on other primaries than that.
fn beside_the_first(cluster: &Cluster, sale: &Sale) -> (u16, Vec<u16>) {
    let slot = |shard| slot(cluster, &sale.id.to_string(), shard);
    let is_elsewhere = |shard: &u16| Cluster::first_primary_of(slot(*shard)) != Cluster::first_primary_of(slot(0));
    (slot(0), (0..sale.shards).filter(is_elsewhere).collect())
}

#[tokio::test]
async fn a_url_of_one_server_is_refused_where_a_cluster_is() {
    let redis = fresh_redis_with(&[("cluster-enabled", "yes")]);
    let refused = Stock::connect(&redis.server.url()).await.err().unwrap().to_string();
    assert!(
        refused.contains("FLASHSALE_REDIS_URL must begin with redis+cluster://"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_sells_every_unit_once_with_shards_on_all_nodes() {
    assert_eq!(sells_out_while("redis", |_, _| {}).await, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_room_on_all_nodes_counts_places_over_all_of_them() {
    let cluster = Cluster::start();
    let environment = environment(&cluster.url(), &servers::database().await);
    let app = Instance::start(&environment, "all").may_log_errors();
    let guards = json!({"waiting_room": true});
    let id = app
        .load_sale(&sale_with(&json!({"shards": 12, "guards": guards})))
        .await;
    app.operate(&id, "pause").await.ok(200);
    let path = format!("/v1/sales/{id}/waiting-room");
    let position = async |user: &str| {
        let request = app.request(Method::POST, Who::Shopper(user), &path);
        app.send(request.json(&json!({}))).await.ok(200).body["position"].as_i64()
    };
    let stock = Stock::connect(&cluster.url()).await.unwrap();
    let users: Vec<String> = (0..24).map(|number| format!("shopper-{number}")).collect();
    for user in &users {
        // Shoppers of the same millisecond are equal.
        let now = stock.now().await.unwrap();
        within(PATIENCE, "a millisecond passes", async || {
            stock.now().await.unwrap() > now
        })
        .await;
        position(user).await;
    }
    for (user, place) in users.iter().zip(1..) {
        within(PATIENCE, "the place is that of coming", async || {
            position(user).await == Some(place)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_dies_while_it_sells_costs_no_unit() {
    sells_out_while("redis", |cluster, sale| cluster.kill_primary_of(slot(cluster, sale, 0))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_whose_primaries_die_one_after_the_other_costs_no_unit() {
    sells_out_while("replica", |cluster, sale| {
        let slot = slot(cluster, sale, 0);
        for _ in 0..2 {
            cluster.kill_primary_of(slot);
            cluster.add_replica_after_failover(slot);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_hangs_does_not_keep_those_who_wait_for_it() {
    sells_out_while("redis", |cluster, sale| {
        let slot = slot(cluster, sale, 0);
        cluster.hang_primary_of(slot);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hangs_keeps_nobody_from_borrowing_of_the_others_nor_one_after_the_other_waiting() {
    let mut cluster = Cluster::start();
    let world = World::on(cluster.url()).await;
    let sale = world.sale(&Terms::of(48, 24)).await;
    let (first, healthy) = beside_the_first(&cluster, &sale);
    assert!(healthy.len() > 4, "{healthy:?}");
    let [lucky, others @ ..] = healthy.as_slice() else {
        unreachable!()
    };
    // The first to borrow loads the scripts for it.
    bought(&world.app, &sale, &shopper_at(&sale, *lucky), "before", 3).await;
    // No replica takes over, so that each try meets the silent node.
    cluster.kill_replica_of(first);
    cluster.hang_primary_of(first);
    let mut keys = (0..).map(|n| format!("k{n}"));
    once_within(WAITS_MAX, "one borrows, and nobody else waits for long", async || {
        let key = keys.next().unwrap();
        // As many as are left, which only the silent shard could have; and more than the own shard has.
        let unknown = others.iter().map(|shard| {
            let user = shopper_at(&sale, *shard);
            let (world, sale, key) = (&world, &sale, &key);
            async move { try_buy(&world.app, sale, &user, key, 45).await }
        });
        let user = shopper_at(&sale, *lucky);
        let (unknown, borrowed) = tokio::join!(join_all(unknown), try_buy(&world.app, &sale, &user, &key, 3));
        for outcome in unknown {
            assert!(matches!(&outcome, Err(fault) if fault.is_passing()), "{outcome:?}");
        }
        match borrowed {
            Ok(PurchaseOutcome::Reserved(_)) => Some(()),
            Err(fault) if fault.is_passing() => None,
            other => panic!("{other:?}"),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hangs_keeps_the_orders_of_the_others_waiting_for_the_ledger_no_longer_than_it_is_waited_for() {
    let mut cluster = Cluster::start();
    let world = World::on(cluster.url()).await;
    let sale = world.sale(&Terms::of(480, 24)).await;
    let (first, healthy) = beside_the_first(&cluster, &sale);
    assert!(!healthy.is_empty());
    // No replica takes over, so that each round meets the silent node.
    cluster.kill_replica_of(first);
    cluster.hang_primary_of(first);
    let orders = "select count(*) from orders where sale_id = $1";
    let mut bought_so_far = 0;
    within(PATIENCE, "a round of the drain takes all others in time", async || {
        for shard in &healthy {
            let (user, key) = (shopper_at(&sale, *shard), format!("k{bought_so_far}"));
            bought(&world.app, &sale, &user, &key, 1).await;
            bought_so_far += 1;
        }
        let began = Instant::now();
        let drained = drain_all(&world.app).await;
        let took = began.elapsed();
        assert!(matches!(&drained, Err(fault) if fault.is_passing()), "{drained:?}");
        // A slow machine may make a healthy shard miss its round.
        took < WAITS_MAX && world.number(orders, sale.id).await == bought_so_far
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_while_its_shard_sells_costs_no_unit() {
    let sold = sells_out_while("redis", |cluster, sale| {
        for shard in 0..4 {
            cluster.move_slot(slot(cluster, sale, shard));
        }
    });
    assert_eq!(sold.await, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_joins_and_is_given_shards_while_they_sell_costs_no_unit() {
    let sold = sells_out_while("redis", |cluster, sale| {
        cluster.add_primary();
        for shard in 0..4 {
            cluster.move_slot_to_newest(slot(cluster, sale, shard));
        }
    });
    assert_eq!(sold.await, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_a_replica_acknowledged_survives_dying_primaries_and_moving_slots() {
    let sold = sells_out_while("replica", |cluster, sale| {
        let lost = slot(cluster, sale, 0);
        cluster.kill_primary_of(lost);
        cluster.add_replica_after_failover(lost);
        // Not the other way round: `MIGRATE` waits for no replica of the target node.
        for shard in 0..4 {
            cluster.move_slot(slot(cluster, sale, shard));
        }
    });
    assert_eq!(sold.await, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_a_replica_acknowledged_outlives_its_primary() {
    let mut cluster = Cluster::start();
    let environment = environment(&cluster.url(), &servers::database().await);
    // Nothing is drained: orders that are there afterwards were on the replica.
    let api = Instance::start(&environment, "api");
    let terms = json!({"shards": 12, "stock": 200, "durability": "replica"});
    let sale = api.load_sale(&sale_with(&terms)).await;
    let buy = |n: u32| {
        let (api, sale) = (&api, &sale);
        async move {
            let user = format!("shopper-{n}");
            (api.buy(&user, sale, "k", 1).await, user)
        }
    };
    let known = |n: u32| {
        poll::answer("the outcome is known", move || async move {
            let (answer, user) = buy(n).await;
            (answer.status != 503).then_some((answer, user))
        })
    };
    let orders = join_all((0..120).map(known)).await;
    let slot = slot(&cluster, &sale, 0);
    cluster.kill_primary_of(slot);
    for (order, user) in orders {
        assert!([200, 201].contains(&order.status), "{order:?}");
        let order = order.id();
        let found = poll::answer("its shard is there again", || async {
            let found = api.order(&user, &order).await;
            (found.status != 503).then_some(found)
        });
        assert_eq!(found.await.ok(200).body["state"], "reserved");
    }
    // The promoted primary has no replica to acknowledge anything; the other primaries have one.
    let answers = join_all((0..120).map(buy)).await;
    let unknown = answers.iter().filter(|(answer, _)| answer.status == 503).count();
    assert!((1..120).contains(&unknown), "{unknown}");

    cluster.add_replica_after_failover(slot);
    let _worker = Instance::start(&environment, "worker").may_log_errors();
    let all = json!({"reserved": 120, "paid": 0, "cancelled": 0, "expired": 0, "revoked": 0});
    poll::answer("every order is in the ledger", || async {
        (api.stats(&sale).await["orders"] == all).then_some(())
    })
    .await;
    for n in 0..120 {
        let (answer, _) = known(n).await;
        assert_eq!(answer.ok(200).header("idempotency-replayed"), Some("true"), "{n}");
    }
    api.assert_balanced(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_which_one_primary_has_no_replica_cannot_promise_one() {
    let mut cluster = Cluster::start();
    let environment = environment(&cluster.url(), &servers::database().await);
    let api = Instance::start(&environment, "api");
    let terms = sale_with(&json!({"durability": "replica"}));
    let early = api.create_sale(&terms).await;
    cluster.kill_replica_of(0);
    let refused = poll::answer("the sale is refused", || async {
        let answer = api.try_create_sale(&terms).await;
        (answer.status != 201).then_some(answer)
    });
    let refused = refused.await.no(400, "invalid_request");
    assert!(refused.text("detail").contains("CLUSTER REPLICATE"), "{refused:?}");
    api.operate(&early, "preload").await.no(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_silent_keeps_no_other_shard_from_stopping_and_no_hold_from_its_end() {
    let mut cluster = Cluster::start();
    let world = World::on(cluster.url()).await;
    let sale = world.sale(&Terms::of(48, 12)).await;
    let (first, healthy) = beside_the_first(&cluster, &sale);
    assert!(!healthy.is_empty());
    bought(&world.app, &sale, &shopper_at(&sale, healthy[0]), "k", 1).await;
    answered("the order is stored", || drain_all(&world.app)).await;
    let overdue = "update orders set created_at = created_at - interval '1 hour', \
                   expires_at = expires_at - interval '1 hour' where sale_id = $1";
    assert_eq!(world.execute(overdue, sale.id).await.unwrap(), 1);
    // No replica is promoted, and the first shard is the silent one.
    cluster.kill_replica_of(first);
    cluster.hang_primary_of(first);
    let (patience, mut in_time) = (Patience::of(PATIENCE), 0);
    while in_time < 3 {
        let began = Instant::now();
        let clock = world.app.stock.slowest_clock().await;
        // An answer that comes late on a slow machine tells nothing.
        in_time += usize::from(clock.is_ok() && began.elapsed() < WAITS_MAX);
        patience.pause("the others answer in time with their clocks").await;
    }
    within(PATIENCE, "the hold ends", async || {
        let _passing = flow::settle::expire::expire_due(&world.app).await;
        let expired = "select count(*) from orders where sale_id = $1 and state = 'expired'";
        world.number(expired, sale.id).await == 1
    })
    .await;
    // A delivery to the silent node makes the client rediscover the cluster, and readings right after that wait for it. With
    // a delivery in every round, they might never come through.
    let mut turns = 0;
    within(PATIENCE, "all shards that answer are halted", async || {
        if turns % 8 == 0 {
            let paused = flow::operate::transition::transition(&world.app, sale.id, Transition::Pause).await;
            assert!(
                matches!(&paused, Err(fault) if fault.is_passing()),
                "one does not know: {paused:?}"
            );
        }
        turns += 1;
        let readings = healthy.iter().map(|shard| world.app.stock.read_shard(&sale, *shard, 0));
        let readings = join_all(readings).await.into_iter();
        let mut states = readings.map(|it| it.map(|it| it.record.lifecycle));
        states.all(|state| matches!(state, Ok(Lifecycle::Paused)))
    })
    .await;
}

/// A node that takes no message has thousands of them waiting. A decision for another node came after them, and is
/// delivered before each of them was tried.
async fn other_decisions_pass_those_for(first: impl FnOnce(&mut Cluster, u16)) {
    let mut cluster = Cluster::start();
    let mut world = World::on(cluster.url()).await;
    let sale = world.sale(&Terms::of(48, 12)).await;
    let (slot, healthy) = beside_the_first(&cluster, &sale);
    let order = bought(&world.app, &sale, &shopper_at(&sale, healthy[0]), "k", 1)
        .await
        .id;
    answered("the order is stored", || drain_all(&world.app)).await;
    world.end_keeper().await;
    let waiting = "insert into outbox (sale_id, shard, message, not_before) \
         select $1, 0, jsonb_build_object('kind', 'resolve', 'order', gen_random_uuid(), 'user', 'u' || n, \
             'sku', 'mug', 'quantity', 1, 'state', 'expired', 'at', 0), now() - interval '1 minute' \
         from generate_series(1, 5000) as n";
    assert_eq!(world.execute(waiting, sale.id).await.unwrap(), 5_000);
    let paid = world.app.ledger.settle_payments(&[payment("p", order, 1)]).await;
    paid.unwrap();
    first(&mut cluster, slot);
    within(PATIENCE, "the other node gets its decision", async || {
        let _passing = flow::settle::release::release_waiting(&world.app).await;
        let left = "select count(*) from outbox where sale_id = $1 and shard <> 0";
        world.number(left, sale.id).await == 0
    })
    .await;
    let untried = "select count(*) from outbox where sale_id = $1 and shard = 0 and attempts = 0";
    assert!(world.number(untried, sale.id).await > 0, "it came after all of them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_for_a_silent_primary_keep_no_decision_for_another_node_waiting() {
    other_decisions_pass_those_for(|cluster, slot| {
        cluster.kill_replica_of(slot);
        cluster.hang_primary_of(slot);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_for_a_primary_that_refuses_writes_keep_no_decision_for_another_node_waiting() {
    other_decisions_pass_those_for(|cluster, slot| cluster.refuse_writes_at(slot)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_gone_keeps_no_shard_of_another_node_from_being_reconciled_and_selling() {
    let mut cluster = Cluster::start();
    let world = World::on(cluster.url()).await;
    let sale = world.sale(&Terms::of(240, 24)).await;
    let (first, healthy) = beside_the_first(&cluster, &sale);
    let users: Vec<String> = (0..sale.shards).map(|shard| shopper_at(&sale, shard)).collect();
    for user in &users {
        bought(&world.app, &sale, user, "before", 1).await;
    }
    world.settled(&sale).await;

    // No replica replaces the lost node; another node's shards have a new server.
    cluster.kill_replica_of(first);
    cluster.kill_primary_of(first);
    cluster.hand_over(slot(&cluster, &sale.id.to_string(), healthy[0]));
    for shard in &healthy {
        bought(&world.app, &sale, &users[usize::from(*shard)], "after", 1).await;
    }
    // Its own shard has eight left.
    bought(&world.app, &sale, &users[usize::from(healthy[0])], "borrowed", 12).await;

    // A transfer that was left between two shards that answer.
    let (lender, borrower) = (healthy[1], healthy[2]);
    let key = |shard| ShardKey { sale: sale.id, shard };
    let sku = sale.items[0].sku.clone();
    within(PATIENCE, "a transfer leaves its lender", async || {
        let to = Destination::Shard(borrower);
        let sent = world
            .app
            .stock
            .transfer_out(key(lender), Uuid::now_v7(), &sku, to, 1, 0)
            .await;
        matches!(sent, Ok(Sent::Out { .. }))
    })
    .await;
    within(PATIENCE, "it arrives", async || {
        let _passing = flow::sell::borrow::finish_left(&world.app, &sale, 0).await;
        let left = world.app.stock.transfers_each(sale.id, sale.shards).await.unwrap();
        left.0.is_empty()
    })
    .await;

    // The units of the other shards can be withdrawn; the total is unknown.
    let withdrawn = "withdrawn".parse().unwrap();
    within(
        PATIENCE,
        "units are withdrawn",
        async || match flow::operate::restock::restock(&world.app, sale.id, &withdrawn, &sku, -20).await {
            Ok(outcome) => matches!(outcome, RestockOutcome::Applied(_)) || panic!("{outcome:?}"),
            Err(fault) => !fault.is_passing(),
        },
    )
    .await;
    let too_many = "too-many".parse().unwrap();
    let unknown = flow::operate::restock::restock(&world.app, sale.id, &too_many, &sku, -190).await;
    assert!(matches!(&unknown, Err(fault) if fault.is_passing()), "{unknown:?}");

    // Back again and empty, its shards are rebuilt with the units that no other shard accounts for.
    cluster.start_again();
    for user in &users {
        bought(&world.app, &sale, user, "again", 1).await;
    }
    within(PATIENCE, "the other withdrawal is decided", async || {
        let answer = flow::operate::restock::restock(&world.app, sale.id, &too_many, &sku, -190).await;
        matches!(answer, Ok(RestockOutcome::Insufficient { .. }))
    })
    .await;
    world.settled(&sale).await;
    world.sells_out(&sale).await;
}

/// Two nodes fail at once, and a third restarts meanwhile.
struct TwoFailures {
    cluster: Cluster,
    world: World,
    sale: Arc<Sale>,
    /// A shopper of each shard.
    users: Vec<String>,
    /// The slot of the first shard of the node that will restart.
    restarts: u16,
    /// The shards that will be whole then.
    whole: Vec<u16>,
    /// The shards of other nodes that answer and have lost data, and those of this node that are torn.
    lost: Vec<u16>,
}

impl TwoFailures {
    /// One node is gone and another empty. The node that will restart has lost its first shards, as many as are `torn`.
    async fn begin(torn: usize) -> Self {
        let mut cluster = Cluster::start();
        let world = World::on(cluster.url()).await;
        let sale = world.sale(&Terms::of(240, 24)).await;
        let (gone, healthy) = beside_the_first(&cluster, &sale);
        let slot_of = |shard| slot(&cluster, &sale.id.to_string(), shard);
        let node_of = |shard: &u16| Cluster::first_primary_of(slot_of(*shard));
        let is_here = |shard: &&u16| node_of(shard) == node_of(&healthy[0]);
        let (here, mut lost): (Vec<u16>, Vec<u16>) = healthy.iter().partition(is_here);
        let (restarts, is_emptied) = (slot_of(here[0]), slot_of(lost[0]));
        let (torn, whole) = here.split_at(torn);
        assert!(!whole.is_empty(), "{healthy:?}");
        lost.extend(torn);
        let users: Vec<String> = (0..sale.shards).map(|shard| shopper_at(&sale, shard)).collect();
        for user in &users {
            bought(&world.app, &sale, user, "before", 1).await;
        }
        world.settled(&sale).await;
        cluster.kill_replica_of(gone);
        cluster.kill_primary_of(gone);
        let node = |slot| cluster.node(cluster.number_of_primary(slot).unwrap());
        let _ok: String = node(is_emptied).call(&mut redis::cmd("FLUSHALL"));
        for shard in torn {
            let key = ShardKey::new(sale.id, *shard);
            let _gone: i64 = node(restarts).call(redis::cmd("DEL").arg(key.events()));
        }
        let whole = whole.to_vec();
        Self {
            cluster,
            world,
            sale,
            users,
            restarts,
            whole,
            lost,
        }
    }

    /// How many shards the ledger lists as to be reconciled.
    async fn unverified(&self) -> usize {
        let unverified = "select count(*) from shards where sale_id = $1 and run_id like '?%'";
        usize::try_from(self.world.number(unverified, self.sale.id).await).unwrap()
    }

    /// Marks the whole shards in this process alone.
    fn mark_whole_unverified(&self) {
        for shard in &self.whole {
            let key = ShardKey::new(self.sale.id, *shard);
            self.world.app.permits.mark_unverified(key);
        }
    }

    async fn sell_none(&self, shards: &[u16]) {
        for shard in shards {
            let user = &self.users[usize::from(*shard)];
            let outcome = try_buy(&self.world.app, &self.sale, user, "after", 1).await;
            assert!(
                matches!(&outcome, Err(fault) if fault.is_passing()),
                "{shard}: {outcome:?}"
            );
        }
    }

    /// The node that will restart has done so.
    async fn sells_what_is_whole(&self) {
        for shard in &self.whole {
            let user = &self.users[usize::from(*shard)];
            bought(&self.world.app, &self.sale, user, "after", 1).await;
        }
        self.sell_none(&self.lost).await;
    }

    /// The node that was gone is back, and empty.
    async fn end(mut self) {
        self.cluster.start_again();
        for user in &self.users {
            bought(&self.world.app, &self.sale, user, "again", 1).await;
        }
        self.world.settled(&self.sale).await;
        self.world.sells_out(&self.sale).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_gone_and_another_that_is_empty_keep_no_whole_shard_from_selling() {
    let failed = TwoFailures::begin(0).await;
    failed.cluster.hand_over(failed.restarts);
    failed.sells_what_is_whole().await;
    let sells = failed.whole.len();
    assert_eq!(
        failed.unverified().await,
        failed.users.len() - sells,
        "no other process lets one of these sell"
    );
    failed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_lost_data_keeps_no_whole_one_of_its_node_from_selling_while_another_node_is_gone() {
    let failed = TwoFailures::begin(1).await;
    failed.mark_whole_unverified();
    failed.cluster.hand_over(failed.restarts);
    failed.sells_what_is_whole().await;
    failed.end().await;
}

/// A whole shard claims more units than can be there. It does not sell before all shards are compared.
async fn too_many_units_wait_for_all_shards(check: impl FnOnce(&TwoFailures)) {
    let failed = TwoFailures::begin(0).await;
    let item = ShardKey::new(failed.sale.id, failed.whole[0]).item(&failed.sale.items[0].sku);
    let node = failed.cluster.number_of_primary(failed.restarts).unwrap();
    for offset in [0, 42] {
        failed.cluster.node(node).tamper(&item, offset, 240);
    }
    check(&failed);
    within(PATIENCE, "none of them is found whole", async || {
        let reconciled = flow::recover::reconcile::reconcile(&failed.world.app, &failed.sale, &failed.whole).await;
        matches!(&reconciled, Ok(it) if it.left.is_some() && it.done.is_empty())
    })
    .await;
    assert_eq!(failed.unverified().await, failed.users.len());
    failed.sell_none(&failed.whole).await;
    failed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_of_a_restarted_node_with_more_units_than_can_be_there_do_not_sell_while_others_are_missing() {
    too_many_units_wait_for_all_shards(|failed| failed.cluster.hand_over(failed.restarts)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unverified_shards_with_more_units_than_can_be_there_do_not_sell_while_others_are_missing() {
    too_many_units_wait_for_all_shards(TwoFailures::mark_whole_unverified).await;
}

/// Whether Redis has neither this shard nor the row of this shopper of it.
async fn has_left(world: &World, sale: &Sale, shard: u16, user: &str) -> bool {
    let key = ShardKey { sale: sale.id, shard };
    let row = world.app.stock.read_buyer(key, &user.parse().unwrap()).await;
    let shard = world.app.stock.read_shard(sale, shard, 0).await;
    matches!(shard, Err(Fault::Incomplete(_))) && row.is_ok_and(|row| row.orders.is_empty())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_gone_keeps_no_shard_of_another_node_in_redis_after_their_sale() {
    let mut cluster = Cluster::start();
    let world = World::on(cluster.url()).await;
    let sale = world.sale(&Terms::of(240, 12)).await;
    let (first, healthy) = beside_the_first(&cluster, &sale);
    assert!(!healthy.is_empty());
    let users: Vec<String> = (0..sale.shards).map(|shard| shopper_at(&sale, shard)).collect();
    let mut orders = Vec::new();
    for user in &users {
        orders.push(bought(&world.app, &sale, user, "k", 1).await.id);
    }
    answered("the orders are stored", || drain_all(&world.app)).await;
    for (order, user) in orders.iter().zip(&users).skip(1) {
        cancel(&world.app, *order, user).await;
    }
    world.settled(&sale).await;
    // The ledger does not have this order before the node is silent.
    bought(&world.app, &sale, &users[0], "late", 1).await;

    // No replica takes over.
    cluster.kill_replica_of(first);
    cluster.hang_primary_of(first);
    // This decision waits for its shard.
    cancel(&world.app, orders[0], &users[0]).await;
    let ended = "update sales set starts_at = starts_at - interval '3 days', ends_at = ends_at - interval '3 days', \
                 over_at = now() - interval '1 hour' where sale_id = $1";
    assert_eq!(world.execute(ended, sale.id).await.unwrap(), 1);
    within(PATIENCE, "the shards that answer leave Redis", async || {
        let retired = flow::operate::retire::retire_ended(&world.app).await;
        assert!(
            matches!(&retired, Ok(0)) || matches!(&retired, Err(fault) if fault.is_passing()),
            "{retired:?}"
        );
        let left = healthy
            .iter()
            .map(|shard| has_left(&world, &sale, *shard, &users[usize::from(*shard)]));
        join_all(left).await.into_iter().all(|has_left| has_left)
    })
    .await;
    let retired = "select count(*) from sales where sale_id = $1 and retired_at is not null";
    assert_eq!(world.number(retired, sale.id).await, 0);

    // Its undrained order is stored before its keys go.
    cluster.resume();
    within(PATIENCE, "the other shards leave Redis, too", async || {
        let _passing = drain_all(&world.app).await;
        let _passing = flow::settle::expire::expire_due(&world.app).await;
        let _passing = flow::settle::release::release_waiting(&world.app).await;
        let _passing = flow::operate::retire::retire_ended(&world.app).await;
        let overdue = "update orders set created_at = created_at - interval '1 hour', \
                       expires_at = expires_at - interval '1 hour' where sale_id = $1 and state = 'reserved' \
                       and created_at > now() - interval '30 minutes'";
        world.execute(overdue, sale.id).await.unwrap();
        world.number(retired, sale.id).await == 1
    })
    .await;
    for (shard, user) in (0..).zip(&users) {
        assert!(has_left(&world, &sale, shard, user).await, "shard {shard}");
    }
    let stored = "select count(*) from orders where sale_id = $1";
    assert_eq!(world.number(stored, sale.id).await, i64::from(sale.shards) + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_gone_keeps_no_shards_of_other_nodes_uneven() {
    let mut cluster = Cluster::start();
    let world = World::on(cluster.url()).await;
    let sale = world.sale(&Terms::of(240, 12)).await;
    let (first, healthy) = beside_the_first(&cluster, &sale);
    let [rich, poor, ..] = healthy[..] else {
        panic!("{healthy:?}")
    };
    let sku = sale.items[0].sku.clone();
    flow::sell::borrow::transfer(&world.app, &sale, &sku, (poor, rich), 20)
        .await
        .unwrap();
    cluster.kill_replica_of(first);
    cluster.hang_primary_of(first);
    within(PATIENCE, "the shards that answer are even", async || {
        let moved = flow::recover::rebalance::rebalance(&world.app, &sale).await;
        assert!(!matches!(&moved, Err(fault) if !fault.is_passing()), "{moved:?}");
        let readings = [rich, poor].map(|shard| world.app.stock.read_shard(&sale, shard, 0));
        let readings = join_all(readings).await.into_iter();
        readings
            .map(|it| it.map_or(0, |it| it.counters(&sku).available))
            .eq([20, 20])
    })
    .await;
}

/// An instance runs for weeks, and nodes are replaced by others meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_outlives_all_nodes_of_its_url() {
    let mut cluster = Cluster::start();
    let world = World::on(cluster.url()).await;
    let sale = world.sale(&Terms::of(96, 12)).await;
    let users: Vec<String> = (0..sale.shards).map(|shard| shopper_at(&sale, shard)).collect();
    // The three primaries, one after the other.
    for slot in [0, 8_000, 16_000] {
        cluster.kill_primary_of(slot);
        cluster.add_replica_after_failover(slot);
        for user in &users {
            bought(&world.app, &sale, user, &format!("after-{slot}"), 1).await;
        }
    }
    // A node that hangs breaks no connection: only nodes that are asked again know the new primary.
    cluster.hang_primary_of(0);
    for user in &users {
        bought(&world.app, &sale, user, "at-last", 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_the_smaller_part_of_a_cluster_get_503_until_the_cut_is_over() {
    let mut cluster = Cluster::start();
    let world = World::on(cluster.url()).await;
    let sale = world.sale(&Terms::of(48, 12)).await;
    let (user, first) = (shopper_at(&sale, 0), slot(&cluster, &sale.id.to_string(), 0));
    let before = bought(&world.app, &sale, &user, "before", 1).await;
    cluster.isolate_primary_of(first);
    within(PATIENCE, "the isolated node serves nobody", async || {
        cluster.state_at(first).contains("cluster_state:fail")
    })
    .await;
    let during = try_buy(&world.app, &sale, &user, "during", 1).await;
    assert!(matches!(&during, Err(fault) if fault.is_passing()), "{during:?}");
    cluster.resume();
    bought(&world.app, &sale, &user, "during", 1).await;
    let again = buy(&world.app, &sale, &user, "before", 1).await;
    assert!(
        matches!(&again, PurchaseOutcome::Replayed(it) if it.id == before.id),
        "{again:?}"
    );
    within(PATIENCE, "every shard sells", async || {
        let mut outcomes = Vec::new();
        for shard in 0..sale.shards {
            outcomes.push(try_buy(&world.app, &sale, &shopper_at(&sale, shard), "after", 1).await);
        }
        outcomes.iter().all(Result::is_ok)
    })
    .await;
    world.settled(&sale).await;
    world.sells_out(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_that_a_promoted_replica_never_heard_of_lending_to_another_node_are_not_there_twice() {
    let mut cluster = Cluster::start();
    let world = World::on(cluster.url()).await;
    let sale = world.sale(&Terms::of(48, 12)).await;
    let (first, elsewhere) = beside_the_first(&cluster, &sale);
    let borrower = elsewhere[0];
    for shard in [0, borrower] {
        bought(&world.app, &sale, &shopper_at(&sale, shard), "before", 1).await;
    }
    world.settled(&sale).await;
    // The lender's replica is behind when three of its units go to the other node, where they are sold.
    let behind = cluster.stop_replica_of(first);
    let sku = sale.items[0].sku.clone();
    flow::sell::borrow::transfer(&world.app, &sale, &sku, (0, borrower), 3)
        .await
        .unwrap();
    bought(&world.app, &sale, &shopper_at(&sale, borrower), "borrowed", 6).await;
    cluster.kill_primary_of(first);
    drop(behind);
    bought(&world.app, &sale, &shopper_at(&sale, 0), "after", 1).await;
    world.settled(&sale).await;
    world.sells_out(&sale).await;
    let revoked = "select count(*) from orders where sale_id = $1 and state = 'revoked'";
    assert_eq!(world.number(revoked, sale.id).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_clock_is_ahead_sells_and_lets_no_hold_end_before_the_slowest_clock_says_so() {
    let (cluster, clocks) = Cluster::with_clocks();
    clocks[0].set(40 * 60 * 1000);
    let world = World::on(cluster.url()).await;
    let sale = world.sale(&Terms::of(48, 12)).await;
    let is_ahead = |shard: u16| slot(&cluster, &sale.id.to_string(), shard) < 5461;
    let (ahead, right): (Vec<u16>, Vec<u16>) = (0..sale.shards).partition(|shard| is_ahead(*shard));
    let mut created = BTreeMap::new();
    for shard in 0..sale.shards {
        let order = bought(&world.app, &sale, &shopper_at(&sale, shard), "k", 1).await;
        created.insert(shard, order.created_at);
    }
    let minutes = (created[&ahead[0]] - created[&right[0]]).num_minutes();
    assert!((39..=40).contains(&minutes), "{minutes}");
    world.settled(&sale).await;
    // All holds end in twenty minutes by the correct clocks: by the wrong one they are over.
    let soon = "update orders set expires_at = now() + interval '20 minutes', created_at = now() - interval '1 minute' \
                where sale_id = $1";
    world.execute(soon, sale.id).await.unwrap();
    flow::settle::expire::expire_due(&world.app).await.unwrap();
    let held = "select count(*) from orders where sale_id = $1 and state = 'reserved'";
    assert_eq!(world.number(held, sale.id).await, i64::from(sale.shards));
    let now = "update orders set created_at = created_at - interval '1 hour', \
               expires_at = expires_at - interval '1 hour' where sale_id = $1";
    world.execute(now, sale.id).await.unwrap();
    within(PATIENCE, "the holds end", async || {
        flow::settle::expire::expire_due(&world.app).await.unwrap();
        world.number(held, sale.id).await == 0
    })
    .await;
    world.settled(&sale).await;
    world.sells_out(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_the_receiver_of_a_moving_slot_lacks_is_loaded_there() {
    let cluster = Cluster::start();
    let stock = Stock::connect(&cluster.url()).await.unwrap();
    let limit = Limit::FixedWindow {
        limit: 5,
        window: Duration::from_secs(60),
    };
    cluster.begin_to_move_slot(cluster.slot("{limit:ada}:counter"));
    let asking = LimitedRequest {
        id: "ada",
        request: [0; 16],
        now: None,
    };
    for count in 1..=3 {
        assert_eq!(stock.pass(&limit, &asking).await.unwrap(), Verdict::Passed { count });
    }
}
