use super::{END, NOW, PERMITTED, SHARD_CUT, Shop, assert_refused, each_bad_key_is_noticed, generous, sku};
use crate::support::raw::arg;
use crate::support::trim;
use flashsale::domain::fault::Fault;
use flashsale::domain::order::event::Position;
use flashsale::domain::sale::Lifecycle;
use flashsale::domain::time::Millis;
use flashsale::stock::record::ShardRecord;
use flashsale::stock::recover::permit::{Permit, Permitted};
use flashsale::stock::script::PERMIT;
use flashsale::stock::sell::purchase::ShardAnswer::{Halted, Overloaded, Replayed, Reserved};
use std::time::Duration;

/// A permit of the first shard's: of epoch 1 and this server, unless it is changed.
async fn try_permit(shop: &Shop, now: Millis, change: impl FnOnce(&mut Permit<'_>)) -> Result<Permitted, Fault> {
    let server = shop.stock.server(shop.key).await.unwrap();
    let mut permit = generous(1, &server);
    change(&mut permit);
    shop.stock.permit(&shop.sale, 0, &permit, Some(now)).await
}

async fn permit(shop: &Shop, now: Millis, change: impl FnOnce(&mut Permit<'_>)) -> Permitted {
    try_permit(shop, now, change).await.unwrap()
}

pub(super) async fn record(shop: &Shop) -> ShardRecord {
    shop.read().await.record
}

/// The answer of a shard that sells, with so many events waiting, of all up to this number.
const fn yes(waiting: i64, seq: i64) -> Permitted {
    Permitted::Yes {
        waiting,
        last: Position { epoch: 1, seq },
        brake: false,
    }
}

/// A sale that follows its state and has no permit.
pub(super) async fn stopped() -> Shop {
    let shop = Shop::loaded(|_| {}).await;
    shop.follow().await;
    shop.admit().await;
    shop
}

fn keys(shop: &Shop) -> Vec<String> {
    let key = shop.key;
    vec![
        key.shard(),
        key.events(),
        key.halt(),
        key.item(&sku("A")),
        key.item(&sku("B")),
    ]
}

#[tokio::test]
async fn a_permit_lets_a_shard_sell_for_as_long_as_it_says_and_changes_nothing_else() {
    for holds in [1, 2, 3_000, 60_000] {
        let shop = stopped().await;
        let (units, mut expected) = (shop.read().await.items, record(&shop).await);
        assert_eq!(shop.buy("ada", "k", 1, NOW).await, Halted);
        let holding = Duration::from_millis(holds);
        assert_eq!(permit(&shop, NOW, |it| it.holds = holding).await, yes(0, 0));
        expected.permit_until = NOW + Millis::try_from(holds).unwrap();
        assert_eq!(
            (record(&shop).await, shop.read().await.items),
            (expected.clone(), units)
        );
        let last = expected.permit_until;
        assert_eq!(shop.buy("ada", "k", 1, last).await, Halted);
        assert!(
            matches!(shop.buy("ada", "k", 1, last - 1).await, Reserved { .. }),
            "{holds}"
        );
        for key in keys(&shop).into_iter().filter(|key| *key != shop.key.halt()) {
            assert_eq!(shop.raw.call::<i64>(redis::cmd("PTTL").arg(key)), -1);
        }
    }
}

#[tokio::test]
async fn a_permit_of_which_most_is_left_is_not_written_again() {
    let shop = stopped().await;
    permit(&shop, NOW, |_| {}).await;
    let before = shop.dump();
    for later in [0, 1, 11_999, 12_000] {
        assert_eq!(permit(&shop, NOW + later, |_| {}).await, yes(0, 0));
        assert_eq!(shop.dump(), before, "{later}");
    }
    permit(&shop, NOW + 12_001, |_| {}).await;
    assert_eq!(record(&shop).await.permit_until, NOW + 72_001);
    // A shorter permit does not shorten a longer one.
    permit(&shop, NOW + 12_001, |it| it.holds = Duration::from_secs(1)).await;
    assert_eq!(record(&shop).await.permit_until, NOW + 72_001);
}

#[tokio::test]
async fn an_expired_permit_is_granted_again_and_not_renewed() {
    let shop = stopped().await;
    let renew = async |now| permit(&shop, now, |it| it.renewal = true).await;
    let before = shop.dump();
    assert_eq!(renew(NOW).await, Permitted::Lapsed, "it never had one");
    assert_eq!(shop.dump(), before);
    assert_eq!(permit(&shop, NOW, |_| {}).await, yes(0, 0));
    assert_eq!(renew(NOW + 59_999).await, yes(0, 0));
    let until = NOW + 119_999;
    assert_eq!(record(&shop).await.permit_until, until);
    let before = shop.dump();
    for late in [0, 1, 1_000_000] {
        assert_eq!(renew(until + late).await, Permitted::Lapsed, "{late}");
    }
    assert_eq!(shop.dump(), before);
    assert_eq!(permit(&shop, until, |_| {}).await, yes(0, 0));
    shop.stock.stop(shop.key).await.unwrap();
    assert_eq!(renew(NOW).await, Permitted::Lapsed, "it was taken away");
}

#[tokio::test]
async fn a_permit_answers_how_many_events_wait_and_which_was_the_last() {
    let shop = stopped().await;
    assert_eq!(permit(&shop, NOW, |_| {}).await, yes(0, 0));
    for (who, seq) in [("ada", 1), ("bob", 2), ("cyd", 3)] {
        shop.reserve(who, "k", 1).await;
        assert_eq!(permit(&shop, NOW, |_| {}).await, yes(seq, seq));
    }
    trim(&shop.stock, shop.key, 2).await;
    assert_eq!(permit(&shop, NOW, |_| {}).await, yes(1, 3));
    trim(&shop.stock, shop.key, 3).await;
    assert_eq!(permit(&shop, NOW, |_| {}).await, yes(0, 3));
    assert_eq!(
        shop.stock.last_event(shop.key).await.unwrap(),
        Position { epoch: 1, seq: 3 }
    );
}

#[tokio::test]
async fn only_the_epoch_that_was_reconciled_on_this_very_server_is_permitted() {
    let shop = stopped().await;
    let before = shop.dump();
    for epoch in [0, 2, -1] {
        assert_eq!(
            permit(&shop, NOW, |it| it.epoch = epoch).await,
            Permitted::Not,
            "{epoch}"
        );
    }
    let server = shop.stock.server(shop.key).await.unwrap();
    let name = server.as_str();
    for other in ["", "0", &name[1..], &format!("{name}0"), &name.to_uppercase()] {
        let other = other.into();
        let permit = generous(1, &other);
        let answer = shop.stock.permit(&shop.sale, 0, &permit, Some(NOW)).await.unwrap();
        assert_eq!(answer, Permitted::Not, "{other}");
    }
    let (parts, other) = (name.split('-').collect::<Vec<&str>>(), "f".repeat(40));
    for at in 0..3 {
        let (mut changed, mut missing) = (parts.clone(), parts.clone());
        changed[at] = &other;
        missing.remove(at);
        for name in [changed.join("-"), missing.join("-")] {
            let server = name.as_str().into();
            let permit = generous(1, &server);
            let answer = shop.stock.permit(&shop.sale, 0, &permit, Some(NOW)).await.unwrap();
            assert_eq!(answer, Permitted::Not, "{name}");
        }
    }
    assert_eq!(shop.dump(), before);
    // A valid permit is not renewed either.
    permit(&shop, NOW, |_| {}).await;
    let before = shop.dump();
    let late = NOW + 50_000;
    assert_eq!(permit(&shop, late, |it| it.epoch = 2).await, Permitted::Not);
    let another = "another".into();
    let permit = generous(1, &another);
    let answer = shop.stock.permit(&shop.sale, 0, &permit, Some(late)).await.unwrap();
    assert_eq!(answer, Permitted::Not);
    assert_eq!(shop.dump(), before);
}

#[tokio::test]
async fn the_answers_name_the_problem() {
    let shop = stopped().await;
    let server = shop.stock.server(shop.key).await.unwrap();
    let run_id = server.as_str();
    let ask = |epoch: i64, for_ms: i64, run_id: &str| {
        let args = [
            arg(epoch),
            arg(for_ms),
            arg(10),
            arg(1000),
            arg(run_id),
            arg(0),
            arg(NOW),
        ];
        shop.raw.script(&PERMIT, &keys(&shop), &args)
    };
    assert_eq!(ask(1, 60_000, run_id), "PERMITTED 0 1-0 0");
    assert_eq!(ask(7, 60_000, run_id), "STALE 1");
    assert_eq!(ask(7, 60_000, "x"), "STALE 1");
    assert_eq!(ask(1, 60_000, "x"), "MOVED");
    shop.stock.halt(shop.key).await.unwrap();
    assert_eq!(ask(7, 60_000, run_id), "STALE 1");
    assert_eq!(ask(1, 60_000, "x"), "MOVED");
    assert_eq!(ask(1, 60_000, run_id), "HALTED");
}

#[tokio::test]
async fn events_wait_for_a_300th_of_the_time_while_redis_uses_as_much_memory_as_it_may() {
    let shop = stopped().await;
    permit(&shop, NOW, |_| {}).await;
    shop.reserve("ada", "k", 1).await;
    let brake = async |waited, memory_max| {
        let change = |it: &mut Permit<'_>| (it.memory_max, it.age_max) = (memory_max, Duration::from_secs(300));
        let answer = permit(&shop, NOW + waited, change).await;
        let Permitted::Yes { waiting, brake, .. } = answer else {
            panic!("{answer:?}")
        };
        assert_eq!((waiting, brake), (1, record(&shop).await.brake));
        brake
    };
    assert!(!brake(1_000, 0).await);
    assert!(brake(1_001, 0).await);
    assert_eq!(shop.buy("dan", "k", 1, NOW + 1_001).await, Overloaded);
    assert!(matches!(shop.buy("ada", "k", 1, NOW + 1_001).await, Replayed { .. }));
    // It still has its permit: only the brake keeps it from selling.
    assert_eq!(record(&shop).await.permit_until, NOW + 1_001 + 60_000);
    assert!(!brake(1_001, 1000).await);
    assert!(matches!(shop.buy("dan", "k", 1, NOW + 1_001).await, Reserved { .. }));
    trim(&shop.stock, shop.key, 2).await;
    let answer = permit(&shop, NOW + 60_000, |it| it.memory_max = 0).await;
    assert_eq!(answer, yes(0, 2));
}

#[tokio::test]
async fn the_brake_holds_while_the_oldest_event_waits_for_longer_than_it_may() {
    let shop = stopped().await;
    permit(&shop, NOW, |_| {}).await;
    shop.reserve("ada", "k", 1).await;
    shop.buy("bob", "k", 1, NOW + 500).await;
    let at = async |now| {
        let answer = permit(&shop, now, |it| it.age_max = Duration::from_millis(1000)).await;
        let Permitted::Yes { brake, .. } = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(brake, record(&shop).await.brake);
        brake
    };
    assert_eq!(
        [at(NOW).await, at(NOW + 1000).await, at(NOW + 1001).await],
        [false, false, true]
    );
    assert_eq!(shop.buy("cyd", "k", 1, NOW + 1002).await, Overloaded);
    assert!(!at(NOW + 1000).await);
    // The oldest is drained: the next one counts.
    at(NOW + 1500).await;
    trim(&shop.stock, shop.key, 1).await;
    assert_eq!([at(NOW + 1500).await, at(NOW + 1501).await], [false, true]);
    trim(&shop.stock, shop.key, 2).await;
    assert!(!at(NOW + 1_000_000).await);
}

#[tokio::test]
async fn events_that_are_none_of_ours_do_not_hold_the_permit_up() {
    let shop = stopped().await;
    for (field, value) in [("sold", &[b'x'; 40][..]), ("reserved", b"short")] {
        let mut add = redis::cmd("XADD");
        add.arg(shop.key.events()).arg("1-*").arg(field).arg(value);
        let _id: String = shop.raw.call(&mut add);
        let answer = permit(&shop, END, |it| it.age_max = Duration::from_millis(1)).await;
        assert!(matches!(answer, Permitted::Yes { brake: false, .. }), "{answer:?}");
        // The age of the oldest is unreadable: it may not fill the memory.
        let answer = permit(&shop, END, |it| it.memory_max = 0).await;
        assert!(matches!(answer, Permitted::Yes { brake: true, .. }), "{answer:?}");
    }
}

#[tokio::test]
async fn a_state_delivered_later_leaves_the_permit_and_the_brake_as_they_are() {
    let mut shop = Shop::open(|_| {}).await;
    shop.damage(&shop.key.shard(), 1, &[1]);
    shop.change(Lifecycle::Paused).await;
    let after = record(&shop).await;
    assert_eq!((after.brake, after.permit_until), (true, PERMITTED + 60_000));
    assert_eq!(after.lifecycle, Lifecycle::Paused);
}

#[tokio::test]
async fn without_a_clock_of_the_tests_redis_own_clock_counts() {
    let shop = stopped().await;
    let server = shop.stock.server(shop.key).await.unwrap();
    let before = shop.stock.now().await.unwrap();
    shop.stock
        .permit(&shop.sale, 0, &generous(1, &server), None)
        .await
        .unwrap();
    let after = shop.stock.now().await.unwrap();
    let until = record(&shop).await.permit_until;
    assert!(
        (before + 60_000..=after + 60_000).contains(&until),
        "{before} {until} {after}"
    );
}

#[tokio::test]
async fn a_foreign_missing_or_cut_off_key_keeps_a_shard_from_selling() {
    each_bad_key_is_noticed!(
        stopped().await,
        |shop| try_permit(&shop, NOW, |_| {}).await,
        foreign: [shop.key.shard(), shop.key.events()],
        missing: [shop.key.shard(), shop.key.events(), shop.key.item(&sku("A")), shop.key.item(&sku("B"))],
        cut_off: [(shop.key.shard(), SHARD_CUT)]
    );
}

#[tokio::test]
async fn arguments_out_of_bounds_are_refused() {
    let shop = stopped().await;
    let server = shop.stock.server(shop.key).await.unwrap();
    let run_id = server.as_str();
    let mut keys = keys(&shop);
    assert_refused(
        &shop,
        &PERMIT,
        &keys,
        &[
            &["one", "1000", "9", "9", run_id],
            &["1", "soon", "9", "9", run_id],
            &["1", "1000", "few", "9", run_id],
            &["1", "1000", "-1", "9", run_id],
            &["1", "1000", "1001", "9", run_id],
            &["1", "1000", "9", "old", run_id],
            &["1", "-1", "9", "9", run_id],
            &["1", "0", "9", "9", run_id],
            &["1", "60001", "9", "9", run_id],
            &["1", "1.5", "9", "9", run_id],
            &["1", "nan", "9", "9", run_id],
            &["1", "1000"],
        ],
    );
    keys.resize(1003, shop.key.item(&sku("B")));
    let args = ["1", "1000", "9", "9", run_id].map(arg);
    assert_eq!(shop.raw.script(&PERMIT, &keys, &args), "PERMITTED 0 1-0 0");
    keys.push(shop.key.item(&sku("B")));
    assert_refused(&shop, &PERMIT, &keys, &[&["1", "1000", "9", "9", run_id]]);
}
