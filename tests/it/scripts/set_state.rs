use super::{END, NOW, SHARD_CUT, START, Shop, assert_refused, each_bad_key_is_noticed};
use crate::support::raw::arg;
use flashsale::domain::fault::Fault;
use flashsale::domain::order::event::Position;
use flashsale::domain::order::purchase::Refusal;
use flashsale::domain::sale::{Lifecycle, PurchaseRate, SaleState};
use flashsale::domain::time::from_millis;
use flashsale::stock::record::ShardRecord;
use flashsale::stock::script::SET_STATE;
use flashsale::stock::sell::purchase::ShardAnswer;

#[tokio::test]
async fn a_shard_follows_the_newest_version_and_no_older_one() {
    let mut shop = Shop::open(|sale| sale.state_version = 5).await;
    let before = shop.dump();
    for version in [5, 4, 1] {
        shop.sale.lifecycle = Lifecycle::Closed;
        shop.sale.state_version = version;
        shop.follow().await;
        assert_eq!(shop.dump(), before, "version {version}");
    }
    shop.sale.state_version = 6;
    shop.follow().await;
    let reading = shop.read().await;
    assert_eq!(
        (reading.record.state_version, reading.record.lifecycle),
        (6, Lifecycle::Closed)
    );
}

#[tokio::test]
async fn the_answer_distinguishes_a_new_version_from_an_old_one() {
    let shop = Shop::loaded(|_| {}).await;
    let keys = [shop.key.shard()];
    let answer = |version: i64| {
        let args: Vec<Vec<u8>> = [version, 1, START, END].iter().map(arg).collect();
        shop.raw.script(&SET_STATE, &keys, &args)
    };
    assert_eq!(
        [answer(2), answer(2), answer(1), answer(3)],
        ["SET", "STALE", "STALE", "SET"]
    );
}

#[tokio::test]
async fn every_item_follows_the_new_state_and_times_and_has_its_counters_as_they_were() {
    let mut shop = Shop::open(|_| {}).await;
    shop.reserve("ada", "k", 3).await;
    let before = shop.read().await;
    shop.sale.starts_at = from_millis(START - 500);
    shop.sale.ends_at = from_millis(END + 500);
    shop.change(Lifecycle::Paused).await;
    let reading = shop.read().await;
    assert_eq!(reading.items, before.items);
    assert_eq!(reading.undrained, before.undrained);
    let record = ShardRecord {
        lifecycle: Lifecycle::Paused,
        starts_at: START - 500,
        ends_at: END + 500,
        state_version: 2,
        ..before.record
    };
    assert_eq!(reading.record, record);
    for item in ["A", "B"] {
        let answer = shop.try_buy_item(item, "bob", item, 1, NOW).await.unwrap();
        assert_eq!(
            answer,
            ShardAnswer::Refused(Refusal::NotOpen {
                state: SaleState::Paused
            })
        );
    }
}

#[tokio::test]
async fn the_limits_and_the_number_of_the_next_event_stay_as_they_were() {
    let mut shop = Shop::open(|sale| {
        sale.purchase_rate = PurchaseRate {
            limit: 2,
            window_ms: 1000,
        }
    })
    .await;
    shop.reserve("ada", "one", 1).await;
    shop.change(Lifecycle::Paused).await;
    shop.change(Lifecycle::Active).await;
    let record = shop.reserve("ada", "two", 1).await;
    assert_eq!(record.event, Some(Position { epoch: 1, seq: 2 }));
    assert_eq!(
        shop.buy("ada", "three", 1, NOW).await,
        ShardAnswer::Refused(Refusal::RateLimited { wait_ms: 1000 })
    );
}

#[tokio::test]
async fn a_sale_opened_ahead_of_its_time_sells_at_once() {
    let mut shop = Shop::open(|_| {}).await;
    let early = START - 10_000;
    assert_eq!(
        shop.buy("ada", "k", 1, early).await,
        ShardAnswer::Refused(Refusal::NotOpen {
            state: SaleState::Scheduled
        })
    );
    shop.sale.starts_at = from_millis(early);
    shop.change(Lifecycle::Active).await;
    assert!(matches!(
        shop.buy("ada", "k", 1, early).await,
        ShardAnswer::Reserved { .. }
    ));
}

#[tokio::test]
async fn a_shard_that_is_being_rebuilt_follows_no_state() {
    let mut shop = Shop::loaded(|_| {}).await;
    shop.follow().await;
    shop.stock.begin_restore(&shop.sale, 0, (1, 2), 1, &[]).await.unwrap();
    let before = shop.dump();
    // The restored state is not new.
    shop.follow().await;
    shop.sale.state_version += 1;
    let answer = shop.stock.set_state(&shop.sale, 0).await;
    assert!(matches!(answer, Err(Fault::Incomplete(_))), "{answer:?}");
    assert_eq!(shop.dump(), before);
}

#[tokio::test]
async fn arguments_out_of_bounds_are_refused() {
    let shop = Shop::loaded(|_| {}).await;
    assert_refused(
        &shop,
        &SET_STATE,
        &[shop.key.shard()],
        &[
            &["1", "0", "5", "9"],
            &["1", "4", "5", "9"],
            &["1", "1.5", "5", "9"],
            &["1", "nan", "5", "9"],
            &["1", "open", "5", "9"],
            &["new", "1", "5", "9"],
            &["1", "1", "soon", "9"],
            &["1", "1", "5", "late"],
            &["1", "1", "5"],
        ],
    );
}

#[tokio::test]
async fn a_foreign_missing_or_cut_off_shard_is_left_as_it_is() {
    each_bad_key_is_noticed!(
        Shop::loaded(|_| {}).await,
        |shop| shop.stock.set_state(&shop.sale, 0).await,
        foreign: [shop.key.shard()],
        missing: [shop.key.shard()],
        cut_off: [(shop.key.shard(), SHARD_CUT)]
    );
}
