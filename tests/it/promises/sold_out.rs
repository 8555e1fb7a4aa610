//! While an item is sold out, requests are answered by a proof and a reading, as the script would answer them, and nothing
//! is written, on one Redis and on a cluster.

use crate::support::app::{Answer, TestApp, Who, sale_with};
use crate::support::crowd::{SKU, Terms, World, bought, cancel, shopper_at, try_buy};
use crate::support::poll::{self, PATIENCE};
use crate::support::raw::Raw;
use crate::support::servers::{Cluster, fresh_redis};
use flashsale::domain::fault::Fault;
use flashsale::domain::ids::Sku;
use flashsale::domain::order::purchase::{PurchaseOutcome, Refusal};
use flashsale::stock::keys::ShardKey;
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn is_sold_out(answer: &Result<PurchaseOutcome, Fault>) -> bool {
    matches!(answer, Ok(PurchaseOutcome::Refused(Refusal::SoldOut)))
}

/// A sale whose last unit has gone, to ada, and of which the instance knows it.
struct SoldOut {
    app: TestApp,
    sale: String,
    order: String,
}

impl SoldOut {
    async fn with(changes: Value) -> Self {
        Self::on(TestApp::start().await, changes).await
    }

    async fn on(app: TestApp, changes: Value) -> Self {
        let mut terms = json!({"shards": 4, "stock": 1});
        terms
            .as_object_mut()
            .unwrap()
            .extend(changes.as_object().unwrap().clone());
        let sale = app.load_sale(&sale_with(&terms)).await;
        let order = app.buy("ada", &sale, "won", 1).await.ok(201).id();
        app.buy("first", &sale, "k", 1).await.no(409, "sold_out");
        Self { app, sale, order }
    }

    async fn buy(&self, user: &str, key: &str) -> Answer {
        self.app.buy(user, &self.sale, key, 1).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_is_refused_writes_nothing_and_runs_no_script() {
    let redis = fresh_redis();
    let url = redis.server.url();
    let app = TestApp::with("api", &[("FLASHSALE_REDIS_URL", url.as_str())]).await;
    let sale = app.load_sale(&sale_with(&json!({"shards": 4, "stock": 1}))).await;
    app.buy("ada", &sale, "k", 1).await.ok(201);
    app.buy("first", &sale, "k", 1).await.no(409, "sold_out");

    let raw = Raw::connect(&url);
    let rows = |raw: &Raw| raw.dump("*:buyer:*");
    // On a busy machine, a request that has waited too long for its turn asks the script, and waves of requests are read
    // apart: then a smaller crowd comes.
    for crowd in [300, 200, 150, 100, 70, 50] {
        let (before, known) = (raw.command_counts(), rows(&raw));
        for (user, answer) in app.buy_at_once(&sale, &format!("late-{crowd}"), crowd).await {
            let answer = answer.no(409, "sold_out");
            assert_eq!(answer.body["key_has_order"], false, "{user}: {answer:?}");
        }
        let after = raw.command_counts();
        let more = |name: &str| after.get(name).copied().unwrap_or(0) - before.get(name).copied().unwrap_or(0);
        if rows(&raw) == known {
            assert_eq!((more("mset"), more("xadd")), (0, 0));
            // One command reads the rows of all who wait.
            let commands = usize::try_from(more("mget")).unwrap();
            assert!(commands > 0);
            if commands < crowd * 2 / 3 {
                return;
            }
        }
    }
    panic!("each crowd wrote rows, or was read one by one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_has_an_order_finds_it() {
    let it = SoldOut::with(json!({})).await;
    let again = it.buy("ada", "won").await.ok(200);
    assert_eq!(again.id(), it.order);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    it.app
        .buy("ada", &it.sale, "won", 2)
        .await
        .no(422, "idempotency_key_reused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_banned_account_hears_of_its_ban_and_when_it_ends() {
    let it = SoldOut::with(json!({})).await;
    it.buy("bob", "k").await.no(409, "sold_out");
    let until = "2099-01-01T00:00:00.000Z";
    let ban = json!({"user": "bob", "reason": "a bot", "until": until});
    let request = it.app.request(reqwest::Method::POST, Who::Operator, "/v1/admin/bans");
    it.app.send(request.json(&ban)).await.ok(201);
    let refused = poll::answer("the ban has arrived", || async {
        let answer = it.buy("bob", "k").await;
        (answer.code() == "banned").then_some(answer)
    })
    .await;
    assert_eq!(refused.body["banned_until"], until, "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_hammers_is_refused_and_first_comes_who_does_not() {
    let it = SoldOut::with(json!({"purchase_rate": {"limit": 3, "window_ms": 60_000}})).await;
    for key in ["1", "2", "3", "3", "2"] {
        it.buy("bob", key).await.no(409, "sold_out");
    }
    let full = it.buy("bob", "4").await.no(429, "rate_limited");
    assert!((1..=60).contains(&full.retry_after()), "{full:?}");
    // A repeated request counts once.
    it.buy("bob", "1").await.no(409, "sold_out");
    // What the script counted counts here, too.
    it.buy("ada", "2").await.no(409, "sold_out");
    it.buy("ada", "3").await.no(409, "sold_out");
    it.buy("ada", "4").await.no(429, "rate_limited");

    // Bob must wait also when units are back, first or later.
    it.app.cancel("ada", &it.order).await.ok(200);
    it.buy("bob", "5").await.no(429, "rate_limited");
    it.buy("cleo", "k").await.ok(201);
    it.app.restock(&it.sale, "more", "phone", 5).await.ok(200);
    it.buy("dora", "k").await.ok(201);
    it.buy("bob", "6").await.no(429, "rate_limited");
    it.buy("bob", "1").await.ok(201);
}

/// The unit comes back again and again, and of each crowd one shopper gets it.
async fn units_go_to_whoever_asks_next(it: SoldOut, rounds: usize) {
    let mut owner = ("ada".to_owned(), it.order.clone());
    for round in 0..rounds {
        it.app.cancel(&owner.0, &owner.1).await.ok(200);
        // All of them knew nothing but that it was sold out.
        let crowd = it.app.buy_at_once(&it.sale, &format!("round-{round}"), 20).await;
        let won: Vec<_> = crowd.into_iter().filter(|(_, answer)| answer.status == 201).collect();
        let [(user, answer)] = &won[..] else {
            panic!("round {round}: {won:?}")
        };
        owner = (user.clone(), answer.id());
    }
    it.app.assert_balanced(&it.sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_that_come_back_go_to_whoever_asks_next() {
    units_go_to_whoever_asks_next(SoldOut::with(json!({})).await, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_that_come_back_on_a_cluster_go_to_whoever_asks_next() {
    let cluster = Cluster::start();
    let url = cluster.url();
    let app = TestApp::with("all", &[("FLASHSALE_REDIS_URL", url.as_str())]).await;
    units_go_to_whoever_asks_next(SoldOut::on(app, json!({"shards": 12})).await, 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_on_a_cluster_reads_all_shards_twice_and_then_the_row() {
    const SHARDS: u16 = 12;
    let cluster = Cluster::start();
    let world = World::on(cluster.url()).await;
    let sale = world.sale(&Terms::of(1, SHARDS)).await;
    bought(&world.app, &sale, "ada", "k", 1).await;
    assert!(is_sold_out(&try_buy(&world.app, &sale, "first", "k", 1).await));
    // The one with the fewest commands: upkeep adds to some of them.
    let (mut fewest, mut least) = (BTreeMap::new(), i64::MAX);
    for n in 0..20 {
        let before = cluster.commands_of_primaries();
        assert!(is_sold_out(
            &try_buy(&world.app, &sale, &format!("late-{n}"), "k", 1).await
        ));
        let mut used = BTreeMap::new();
        for (before, after) in before.iter().zip(cluster.commands_of_primaries()) {
            for (name, count) in after {
                *used.entry(name.clone()).or_insert(0) += count - before.get(&name).unwrap_or(&0);
            }
        }
        used.retain(|_, count| *count > 0);
        let count = used.values().sum();
        if count < least {
            (fewest, least) = (used, count);
        }
    }
    let nodes =
        (0..SHARDS).map(|shard| Cluster::first_primary_of(cluster.slot(&ShardKey::new(sale.id, shard).shard())));
    let nodes = i64::try_from(nodes.collect::<BTreeSet<usize>>().len()).unwrap();
    let each = 2 * nodes + 1;
    let expected = [
        ("mget", 2 * i64::from(SHARDS) + 1),
        ("script|exists", each),
        ("time", each),
    ];
    assert_eq!(fewest, expected.map(|(name, count)| (name.to_owned(), count)).into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_does_not_sell_says_so() {
    let it = SoldOut::with(json!({})).await;
    it.app.operate(&it.sale, "pause").await.ok(200);
    let answer = it.buy("bob", "k").await.no(409, "sale_not_open");
    assert_eq!(answer.body["sale_state"], "paused");
    it.app.operate(&it.sale, "resume").await.ok(200);
    it.buy("bob", "k").await.no(409, "sold_out");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_for_fewer_units_than_are_left_is_served() {
    let app = TestApp::start().await;
    let terms = json!({"shards": 4, "stock": 3, "per_user_limit": 10});
    let sale = app.load_sale(&sale_with(&terms)).await;
    app.buy("ada", &sale, "k", 5).await.no(409, "sold_out");
    // Those who want five, and those who want one, wait for the same proof.
    let five = (0..10).map(|n| {
        let (app, sale) = (&app, &sale);
        async move { app.buy(&format!("five-{n}"), sale, "k", 5).await.no(409, "sold_out") }
    });
    let (_, one) = tokio::join!(join_all(five), app.buy_at_once(&sale, "one", 4));
    let bought = one.iter().filter(|(_, answer)| answer.status == 201).count();
    assert_eq!(bought, 3, "{one:?}");
    app.assert_balanced(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_wants_more_than_is_left_keeps_nobody_from_the_rest() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(3, 4)).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let crowd = (0..8).map(|of| {
        let (app, sale, is_over) = (Arc::clone(&world.app), Arc::clone(&sale), Arc::clone(&is_over));
        tokio::spawn(async move {
            for n in (0..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                let answer = try_buy(&app, &sale, &format!("crowd-{of}-{n}"), "k", 5).await;
                assert!(is_sold_out(&answer), "{answer:?}");
            }
        })
    });
    let crowd: Vec<_> = crowd.collect();
    // One of the shards has no unit.
    for shard in 0..3 {
        bought(&world.app, &sale, &shopper_at(&sale, 3 - shard), "k", 1).await;
    }
    is_over.store(true, Ordering::Relaxed);
    for member in crowd {
        member.await.unwrap();
    }
    world.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_leave_while_they_survey_for_all_keep_nobody_waiting() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(1, 4)).await;
    bought(&world.app, &sale, "ada", "k", 1).await;
    assert!(is_sold_out(&try_buy(&world.app, &sale, "first", "k", 1).await));
    for round in 0..50 {
        let asking = |n: usize| {
            let (app, sale) = (Arc::clone(&world.app), Arc::clone(&sale));
            tokio::spawn(async move { try_buy(&app, &sale, &format!("{round}-{n}"), "k", 1).await })
        };
        let mut staying: Vec<_> = (0..20).map(asking).collect();
        let leaving: Vec<_> = staying.drain(..10).collect();
        tokio::task::yield_now().await;
        leaving.iter().for_each(tokio::task::JoinHandle::abort);
        for answer in join_all(staying).await {
            let answer = answer.unwrap();
            assert!(is_sold_out(&answer), "{answer:?}");
        }
    }
}

/// A copy that gets the unit makes the other's proof true. So the proof comes before the reading of the row. Returns how
/// often each of two copies came first.
async fn copies_hear_one_answer(world: World, rounds: usize) -> [usize; 2] {
    let sale = world.sale(&Terms::of(1, 4)).await;
    let (one, other) = (&world.app, world.another().await);
    let sku: Sku = SKU.parse().unwrap();
    let mut holder = ("ada".to_owned(), bought(one, &sale, "ada", "k", 1).await);
    let mut answers = [0; 2];
    for round in 0..rounds {
        // The first instance knows that the item is sold out, and asks no script.
        for n in 0..2 {
            assert!(is_sold_out(&try_buy(one, &sale, &format!("{round}-{n}"), "k", 1).await));
        }
        cancel(&other, holder.1.id, &holder.0).await;
        poll::within(PATIENCE, "the unit is back", async || {
            let readings = (0..sale.shards).map(|shard| other.stock.read_shard(&sale, shard, 0));
            let free = join_all(readings).await.into_iter();
            free.map(|it| it.unwrap().counters(&sku).available).sum::<i64>() == 1
        })
        .await;
        let user = format!("copied-{round}");
        let later = async {
            // The copies come at the same moment, or one after the other.
            for _ in 0..round % 40 {
                other.stock.now().await.unwrap();
            }
            try_buy(&other, &sale, &user, "k", 1).await
        };
        let (late, order) = tokio::join!(try_buy(one, &sale, &user, "k", 1), later);
        let all = [late, order];
        let of = |answer: &Result<PurchaseOutcome, Fault>| match answer {
            Ok(PurchaseOutcome::Reserved(order) | PurchaseOutcome::Replayed(order)) => Some(order.clone()),
            answer => {
                assert!(is_sold_out(answer), "{answer:?}");
                None
            }
        };
        assert!(!all.iter().any(is_sold_out), "round {round}: {all:?}");
        answers[0] += usize::from(matches!(all[0], Ok(PurchaseOutcome::Reserved(_))));
        answers[1] += usize::from(matches!(all[1], Ok(PurchaseOutcome::Reserved(_))));
        holder = (user, all.iter().find_map(of).unwrap());
    }
    world.settled(&sale).await;
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_request_for_a_unit_that_is_back_hear_one_answer() {
    let first = copies_hear_one_answer(World::new().await, 150).await;
    assert!(first.iter().all(|it| *it > 0), "{first:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_request_on_a_cluster_for_a_unit_that_is_back_hear_one_answer() {
    let cluster = Cluster::start();
    copies_hear_one_answer(World::on(cluster.url()).await, 40).await;
}
