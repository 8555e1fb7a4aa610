//! A rebuild claims a shard for one server, and lets nothing else count meanwhile.

use super::*;
use flashsale::domain::ids::SaleId;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_whose_epoch_differs_from_the_ledgers_is_rebuilt() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 2)).await;
    let before = rebuilds(&world, &sale).await;
    let another = "update shards set epoch = epoch + 1 where sale_id = $1 and shard = 0";
    world.execute(another, sale.id).await.unwrap();
    within(PATIENCE, "the shard is rebuilt", async || {
        rebuilds(&world, &sale).await > before
    })
    .await;
    sells_again(&world.app, &sale).await;
    world.sells_out(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_marked_delivered_only_if_the_shard_still_has_the_same_server() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 1)).await;
    world.settled(&sale).await;
    let send = async || {
        let message = "insert into outbox (sale_id, shard, message) values ($1, 0, '{\"kind\": \"state\"}')";
        world.execute(message, sale.id).await.unwrap();
        let message = "select max(outbox_id) from outbox where sale_id = $1";
        world.number(message, sale.id).await
    };
    let message = send().await;
    let left = async || {
        world
            .number("select count(*) from outbox where sale_id = $1", sale.id)
            .await
    };
    let server = world.app.stock.server(key(&sale, 0)).await.unwrap();
    world
        .app
        .ledger
        .mark_delivered(sale.id, &[message], &"another server".into())
        .await
        .unwrap();
    assert_eq!(left().await, 1);
    world
        .app
        .ledger
        .mark_delivered(sale.id, &[message], &server)
        .await
        .unwrap();
    assert_eq!(left().await, 0);

    // The same for the job `release`: after a delivery to another server it waits before it tries again.
    let message = send().await;
    for (by, is_left) in [(Server::from("another server"), 1), (server, 0)] {
        let again = "update outbox set not_before = now() where sale_id = $1";
        world.execute(again, sale.id).await.unwrap();
        let batch = world.app.ledger.take_outgoing(10, Some(sale.id), &[]).await.unwrap();
        assert_eq!(batch.messages.len(), 1);
        let by = Some(by);
        batch.settle(vec![(message, Delivery::Applied { by })]).await.unwrap();
        assert_eq!(left().await, is_left);
        let due = world.app.ledger.take_outgoing(10, Some(sale.id), &[]).await.unwrap();
        assert_eq!(due.messages.len(), 0);
    }

    // A run of the job `release` takes no message for a shard that another run serves.
    send().await;
    let none = world.app.ledger.take_outgoing(10, None, &[(sale.id, 0)]).await.unwrap();
    assert_eq!(none.messages.len(), 0);
}

/// Claims a sale's first shard for a server, by one that knows the noted server `before`.
async fn claim_first(world: &World, sale: SaleId, before: Option<&str>, server: &str) -> Result<(), Fault> {
    let moved = MovedShard {
        shard: 0,
        before: before.map(ToOwned::to_owned).into(),
        server: server.into(),
    };
    world.app.ledger.claim_for(sale, &[moved]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_deliveries_to_the_server_that_claimed_the_shard_count() {
    let world = World::new().await;
    // A shard that is not loaded is never reconciled.
    let sale = world.draft(&Terms::of(10, 1)).await;
    let begun = world.app.ledger.begin_loading(sale).await.unwrap();
    assert!(matches!(begun, Loading::Begun(_)));
    let claim = async |before: Option<&str>, server: &str| claim_first(&world, sale, before, server).await;
    claim(None, "one").await.unwrap();
    // A claim that knows an older server is refused.
    assert!(claim(None, "other").await.unwrap_err().is_passing());
    claim(Some("?one"), "other").await.unwrap();
    let message = "insert into outbox (sale_id, shard, message, not_before) \
                   values ($1, 0, '{}', now() + interval '1 hour')";
    world.execute(message, sale).await.unwrap();
    let message = "select max(outbox_id) from outbox where sale_id = $1";
    let message = world.number(message, sale).await;
    for (server, is_left) in [("one", 1), ("other", 0)] {
        world
            .app
            .ledger
            .mark_delivered(sale, &[message], &server.into())
            .await
            .unwrap();
        let left = "select count(*) from outbox where sale_id = $1";
        assert_eq!(world.number(left, sale).await, is_left, "{server}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_is_taken_for_that_of_the_server_that_its_shard_had_when_it_was_drained() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 1)).await;
    let ada = bought(&world.app, &sale, "ada", "k", 1).await;
    drain_all(&world.app).await.unwrap();
    let bob = bought(&world.app, &sale, "bob", "k", 1).await;
    let server = world.app.stock.server(key(&sale, 0)).await.unwrap();
    let by = async || {
        let accepted = world.app.ledger.accepted(&[ada.id, bob.id]).await.unwrap();
        let of = |order: &Order| {
            accepted
                .iter()
                .find(|it| it.order.id == order.id)
                .map(|it| it.by.clone())
        };
        (of(&ada), of(&bob))
    };
    let this = server.replication_id();
    assert!(this.is_some());
    assert_eq!(by().await, (Some(this.clone()), None));
    // The shard moves to another server and back, within one permit.
    claim_first(&world, sale.id, Some(server.as_str()), "other-bb-00")
        .await
        .unwrap();
    assert_eq!(by().await, (Some(None), None));
    claim_first(&world, sale.id, Some("?other-bb-00"), server.as_str())
        .await
        .unwrap();
    drain_all(&world.app).await.unwrap();
    assert_eq!(by().await, (Some(None), Some(this)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_taken_over_from_is_claimed_for_only_after_it_has_followed_in_its_turn() {
    let world = World::new().await;
    let sale = world.draft(&Terms::of(10, 1)).await;
    let begun = world.app.ledger.begin_loading(sale).await.unwrap();
    assert!(matches!(begun, Loading::Begun(_)));
    let claim = async |before: Option<&str>, server: &str| claim_first(&world, sale, before, server).await;
    // Run ids do not repeat, and every test has its own.
    let [one, two, three] = [(); 3].map(|()| Uuid::new_v4().simple().to_string());
    let name = |process: &str, own: &str, before: &str| format!("{process}-{own}-{before}");
    claim(None, &name(&one, "aa", "00")).await.unwrap();
    claim(Some(&format!("?{}", name(&one, "aa", "00"))), &name(&two, "bb", "aa"))
        .await
        .unwrap();
    let noted = format!("?{}", name(&two, "bb", "aa"));
    // As long as it reports its earlier replication id, and after it has forgotten it.
    for own in ["aa", "cc"] {
        let refused = claim(Some(&noted), &name(&one, own, "00")).await.unwrap_err();
        assert!(
            refused.is_passing() && refused.to_string().contains("taken over"),
            "{refused}"
        );
    }
    // It became a replica of the other, and was promoted.
    claim(Some(&noted), &name(&one, "dd", "bb")).await.unwrap();
    let noted = format!("?{}", name(&one, "dd", "bb"));
    claim(Some(&noted), &name(&two, "ee", "00")).await.unwrap_err();
    // An unknown server was started with empty data.
    claim(Some(&noted), &name(&three, "ff", "00")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_is_closed_while_it_is_rebuilt_sells_no_more() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(10, 2)).await;
    bought(&world.app, &sale, "ada", "k", 1).await;
    let seen = flow::recover::rebuild::make_ready(&world.app, &sale, &[0, 1])
        .await
        .unwrap();
    let closed = flow::operate::transition::transition(&world.app, sale.id, Transition::Close)
        .await
        .unwrap();
    assert!(matches!(closed, TransitionOutcome::Done(_)));
    // The rebuild uses the state of the sale that it read before.
    flow::recover::rebuild::rebuild(&world.app, &sale, &seen).await.unwrap();
    flow::recover::attend::attend(&world.app, &sale).await.unwrap();
    assert_eq!(
        buy(&world.app, &sale, "bob", "k", 1).await,
        PurchaseOutcome::Refused(Refusal::NotOpen {
            state: SaleState::Closed
        })
    );
    world.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_being_rebuilt_counts_as_halted_when_its_sale_is_paused() {
    let mut world = World::new().await;
    let sale = world.sale(&Terms::of(4, 3)).await;
    world.end_keeper().await;
    let loading = world.app.stock.begin_restore(&sale, 1, (1, 2), 1, &[]).await;
    assert!(loading.is_ok(), "{loading:?}");
    let outcome = flow::operate::transition::transition(&world.app, sale.id, Transition::Pause).await;
    assert!(matches!(outcome, Ok(TransitionOutcome::Done(_))), "{outcome:?}");
    for (shard, state) in [(0, Lifecycle::Paused), (1, Lifecycle::Loading), (2, Lifecycle::Paused)] {
        let reading = world.app.stock.read_shard(&sale, shard, 0).await.unwrap();
        assert_eq!(reading.record.lifecycle, state, "shard {shard}");
    }
    // It must exist to sell.
    let outcome = flow::operate::transition::transition(&world.app, sale.id, Transition::Resume).await;
    assert!(matches!(outcome, Err(Fault::Incomplete(_))), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_is_paused_also_while_its_only_server_is_silent() {
    let redis = fresh_redis();
    let world = World::on(redis.server.url()).await;
    let sale = world.sale(&Terms::of(4, 2)).await;
    let frozen = Frozen::one(redis.server.pid());
    let outcome = flow::operate::transition::transition(&world.app, sale.id, Transition::Pause).await;
    assert!(matches!(&outcome, Err(fault) if fault.is_passing()), "{outcome:?}");
    let paused = "select count(*) from sales where sale_id = $1 and state = 'paused'";
    assert_eq!(world.number(paused, sale.id).await, 1);
    drop(frozen);
    world.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_shard_is_not_rebuilt_when_it_is_reconciled_while_others_sell() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(100_000, 2)).await;
    let other = world.another().await;
    let stop = Arc::new(AtomicBool::new(false));
    // The other shard sells and nobody drains it, so the ledger's position of it is old.
    let shoppers = (0..8).map(|n| {
        let (app, sale, stop) = (Arc::clone(&other), Arc::clone(&sale), Arc::clone(&stop));
        tokio::spawn(async move {
            let names = (0..).map(|m| format!("u{n}-{m}"));
            let at_the_other = names.filter(|name| {
                let user: UserId = name.parse().unwrap();
                home_shard(&sale.secret.0, &user, sale.shards) == 1
            });
            for name in at_the_other {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                bought(&app, &sale, &name, "k", 1).await;
            }
        })
    });
    let shoppers: Vec<_> = shoppers.collect();
    let keeper = {
        let (app, stop) = (Arc::clone(&other), Arc::clone(&stop));
        tokio::spawn(async move {
            let patience = Patience::of(PATIENCE * 4);
            while !stop.load(Ordering::Relaxed) {
                for kept in [
                    flow::recover::renew::renew(&app).await,
                    flow::recover::attend::reconcile_all(&app).await,
                ] {
                    if let Err(fault) = kept {
                        assert!(fault.is_passing(), "{fault}");
                    }
                }
                patience.pause("the rounds come to an end").await;
            }
        })
    };
    within(PATIENCE, "more events wait than one survey reads", async || {
        let waiting = world.app.stock.undrained(&[key(&sale, 1)]).await.unwrap();
        waiting[0] > EVENTS_MAX as i64
    })
    .await;
    let began = rebuilds(&world, &sale).await;
    for _ in 0..5 {
        let before = world.app.metrics.reconciled_shards.of(["whole"]).get();
        world.app.permits.mark_unverified(key(&sale, 0));
        // A round that began earlier may end first.
        within(
            PATIENCE,
            "the shard is found whole",
            async || match flow::recover::attend::attend(&world.app, &sale).await {
                Ok(()) => world.app.metrics.reconciled_shards.of(["whole"]).get() > before,
                Err(fault) => {
                    assert!(fault.is_passing(), "{fault}");
                    false
                }
            },
        )
        .await;
    }
    stop.store(true, Ordering::Relaxed);
    join_all(shoppers)
        .await
        .into_iter()
        .for_each(|shopper| shopper.unwrap());
    keeper.await.unwrap();
    assert_eq!(rebuilds(&world, &sale).await, began);
    world.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_shard_is_claimed_for_a_server_that_takes_no_writes() {
    let redis = fresh_redis();
    let mut world = World::on(redis.server.url()).await;
    let sale = world.sale(&Terms::of(4, 1)).await;
    // It might claim the shard before the server takes no more writes.
    world.end_keeper().await;
    let elsewhere = "update shards set run_id = 'a-b-c' where sale_id = $1";
    world.execute(elsewhere, sale.id).await.unwrap();
    let raw = Raw::connect(&world.redis);
    let _done: String = raw.call(&mut redis::cmd("FLUSHALL"));
    let mut setting = redis::cmd("CONFIG");
    setting.arg("SET").arg("min-replicas-to-write");
    let _done: String = raw.call(setting.clone().arg(1));
    let fault = flow::recover::reconcile::reconcile(&world.app, &sale, &[0])
        .await
        .unwrap_err();
    assert!(fault.is_passing(), "{fault}");
    let still = "select count(*) from shards where sale_id = $1 and run_id = 'a-b-c'";
    assert_eq!(world.number(still, sale.id).await, 1);
    let _done: String = raw.call(setting.arg(0));
    let reconciled = flow::recover::reconcile::reconcile(&world.app, &sale, &[0]).await;
    assert!(reconciled.unwrap().left.is_none());
    assert_eq!(world.number(still, sale.id).await, 0);
}
