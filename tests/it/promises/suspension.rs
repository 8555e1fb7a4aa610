//! A process that stands still and goes on later, with what it knew then, does no harm; nor does one that is asked to end.

use super::crowd::{Doors, all_is_well, rush};
use crate::support::crowd::{Instance, PATIENCE, Terms, World};
use crate::support::poll::{Patience, pass};
use crate::support::servers::Frozen;
use flashsale::domain::sale::Sale;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Longer than any permit.
const STILL: Duration = Duration::from_secs(4);

/// Long enough to finish what was under way.
const AWAKE: Duration = Duration::from_millis(500);

async fn has_answered(doors: &Doors, more: usize) {
    let (patience, before) = (Patience::of(PATIENCE), doors.answers.load(Ordering::Relaxed));
    while doors.answers.load(Ordering::Relaxed) < before + more {
        patience.pause("the crowd is at it").await;
    }
}

/// Stops a process at a moment when it stands in nobody's way for long, and has the sale rebuilt by another if asked to.
async fn suspend(sleeps: &Instance, other: &Instance, sale: &Sale, rebuilt: bool) -> Frozen {
    let patience = Patience::of(PATIENCE * 2);
    loop {
        let frozen = Frozen::one(sleeps.pid());
        if !rebuilt {
            return frozen;
        }
        let answer = other.client().operate(sale.id, "rebuild", "k", &json!({})).await;
        if answer.is_some_and(|answer| answer.status == 200) {
            return frozen;
        }
        // It has a lock of the ledger, which it gives back at once if it can, or loses some seconds later.
        drop(frozen);
        pass(AWAKE).await;
        patience.pause("the sale is rebuilt while a process sleeps").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_sleeps_for_longer_than_a_permit_wakes_up_harmless() {
    for rebuilt in [false, true] {
        let world = World::new().await;
        let sale = world.sale(&Terms::of(150, 4)).await;
        let (sleeps, other) = (world.start("all").await, world.start("all").await);
        let doors = Arc::new(Doors::default());
        doors.set(vec![sleeps.client(), other.client()]);
        let crowd = {
            let (doors, sale) = (Arc::clone(&doors), Arc::clone(&sale));
            tokio::spawn(async move { rush(&doors, &sale, "meanwhile", 120, rand::random()).await })
        };
        has_answered(&doors, 30).await;

        // What it knows of the shards is of an earlier life by the time it wakes up, if they were rebuilt.
        doors.set(vec![other.client()]);
        let frozen = suspend(&sleeps, &other, &sale, rebuilt).await;
        pass(STILL).await;
        drop(frozen);
        doors.set(vec![sleeps.client(), other.client()]);

        assert!(crowd.await.unwrap() > 0);
        all_is_well(&world, &sale).await;
        let revoked = "select count(*) from orders where sale_id = $1 and state = 'revoked'";
        assert_eq!(world.number(revoked, sale.id).await, 0, "rebuilt: {rebuilt}");
        for instance in [&sleeps, &other] {
            assert_eq!(instance.errors(), Vec::<String>::new(), "rebuilt: {rebuilt}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_asked_to_end_amid_a_crowd_finishes_what_it_began() {
    let world = World::new().await;
    let sale = world.sale(&Terms::of(300, 4)).await;
    let (mut ends, other) = (world.start("all").await, world.start("all").await);
    let doors = Arc::new(Doors::default());
    doors.set(vec![ends.client(), other.client()]);
    let crowd = {
        let (doors, sale) = (Arc::clone(&doors), Arc::clone(&sale));
        tokio::spawn(async move { rush(&doors, &sale, "meanwhile", 200, rand::random()).await })
    };
    has_answered(&doors, 50).await;
    assert!(!crowd.is_finished(), "the crowd had gone");
    ends.terminate().await;
    // As a front does that no longer finds it ready.
    doors.set(vec![other.client()]);
    assert!(crowd.await.unwrap() > 0);
    all_is_well(&world, &sale).await;
    let refused = "select count(*) from orders where sale_id = $1 and state = 'revoked'";
    assert_eq!(world.number(refused, sale.id).await, 0);
    for instance in [&ends, &other] {
        assert_eq!(instance.errors(), Vec::<String>::new());
    }
}
