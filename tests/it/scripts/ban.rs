use super::{END, NOW, SHARD_CUT, Shop, assert_refused, each_bad_key_is_noticed, user};
use chrono::DateTime;
use flashsale::domain::fault::Fault;
use flashsale::domain::order::purchase::Refusal::{self, Banned};
use flashsale::domain::shopper::ban::{Ban, BannedBy, FOR_EVER};
use flashsale::domain::time::Millis;
use flashsale::stock::script::BAN;
use flashsale::stock::sell::purchase::ShardAnswer::{LimitReached, Refused, Replayed, Reserved};

const FOR_GOOD: Refusal = Banned { until: None };

/// The nth decision about an account: banned until then, or for ever, or no longer.
fn decided(who: &str, revision: u16, until: Option<Millis>, lifted: bool) -> Ban {
    let at = DateTime::from_timestamp_millis(NOW).unwrap();
    Ban {
        user: user(who),
        reason: "a reason".to_owned(),
        banned_by: BannedBy::Operator,
        operator: None,
        banned_at: at,
        banned_until: until.map(|until| DateTime::from_timestamp_millis(until).unwrap()),
        lifted_at: lifted.then_some(at),
        sessions_from: None,
        revision,
        change: 1,
    }
}

async fn deliver(shop: &Shop, ban: &Ban) {
    shop.stock.ban(shop.key, ban, None).await.unwrap();
}

#[tokio::test]
async fn a_ban_keeps_a_shopper_from_buying_until_it_ends_and_from_nothing_else() {
    for has_order in [false, true] {
        let shop = Shop::open(|_| {}).await;
        if has_order {
            shop.reserve("ada", "before", 1).await;
        }
        let (units, ada) = (shop.read().await.items, shop.buyer("ada").await);
        deliver(&shop, &decided("ada", 1, Some(NOW + 5000), false)).await;
        assert_eq!((shop.read().await.items, shop.buyer("ada").await), (units, ada));
        assert_eq!(
            shop.buy("ada", "k", 1, NOW + 4999).await,
            Refused(Banned {
                until: Some(NOW + 5000)
            })
        );
        if has_order {
            assert!(matches!(shop.buy("ada", "before", 1, NOW).await, Replayed { .. }));
        }
        assert!(matches!(shop.buy("bob", "k", 1, NOW).await, Reserved { .. }));
        assert!(matches!(shop.buy("ada", "k", 1, NOW + 5000).await, Reserved { .. }));
    }
}

#[tokio::test]
async fn the_newest_decision_counts_in_any_order_of_arrival() {
    let ban = |revision| decided("ada", revision, None, false);
    let lift = |revision| decided("ada", revision, None, true);
    // Each list is delivered from left to right; the last number is the newest decision's.
    let tables: [(&[Ban], bool); 7] = [
        (&[ban(1), lift(2)], false),
        (&[lift(2), ban(1)], false),
        (&[ban(3), lift(2)], true),
        (&[ban(1), lift(2), ban(1)], false),
        (&[ban(1), lift(2), ban(3), lift(2)], true),
        // After 32767 comes 1.
        (&[ban(32_767), lift(1)], false),
        (&[ban(1), lift(32_767)], true),
    ];
    for (n, (decisions, is_banned)) in tables.into_iter().enumerate() {
        let shop = Shop::open(|_| {}).await;
        shop.reserve("ada", "before", 1).await;
        for decision in decisions {
            deliver(&shop, decision).await;
            let before = shop.dump();
            deliver(&shop, decision).await;
            assert_eq!(shop.dump(), before, "twice is once");
        }
        assert_eq!(
            shop.buy("ada", "k", 1, NOW).await == Refused(FOR_GOOD),
            is_banned,
            "{n}"
        );
    }
}

#[tokio::test]
async fn a_ban_that_comes_after_its_lift_bans_nobody_also_without_a_row() {
    let shop = Shop::open(|_| {}).await;
    deliver(&shop, &decided("ada", 2, None, true)).await;
    let left = shop.forgotten_in("ada");
    assert!((500_000..=600_000).contains(&left), "{left}");
    deliver(&shop, &decided("ada", 1, None, false)).await;
    assert!(matches!(shop.buy("ada", "k", 1, NOW).await, Reserved { .. }));
    deliver(&shop, &decided("ada", 3, None, false)).await;
    assert_eq!(shop.buy("ada", "k2", 1, NOW).await, Refused(FOR_GOOD));
}

#[tokio::test]
async fn a_banned_shopper_without_orders_is_forgotten_when_the_ban_or_the_sale_has_ended() {
    let shop = Shop::open(|_| {}).await;
    let expires = |who: &str| -> i64 { shop.raw.call(redis::cmd("PEXPIRETIME").arg(shop.key.buyer(&user(who)))) };
    deliver(&shop, &decided("ada", 1, Some(NOW + 9000), false)).await;
    assert_eq!(expires("ada"), NOW + 10_000);
    deliver(&shop, &decided("ada", 2, Some(NOW + 5000), false)).await;
    assert_eq!(expires("ada"), NOW + 10_000, "not earlier than it was to be");
    deliver(&shop, &decided("bob", 1, None, false)).await;
    assert_eq!(expires("bob"), END + 1000);
    deliver(&shop, &decided("cyd", 1, None, true)).await;
    assert_eq!(expires("cyd"), -2, "nothing is remembered of who was never here");
    shop.reserve("dan", "k", 1).await;
    deliver(&shop, &decided("dan", 1, None, false)).await;
    assert_eq!(expires("dan"), -1, "who has orders stays");
    // A refusal writes the row and keeps the ban.
    assert_eq!(shop.buy("eve", "too many", 6, NOW).await, LimitReached);
    deliver(&shop, &decided("eve", 1, None, false)).await;
    assert_eq!(shop.buy("eve", "k", 1, NOW).await, Refused(FOR_GOOD));
    assert_eq!(decided("eve", 1, None, false).until_seconds(), FOR_EVER);
}

#[tokio::test]
async fn a_shard_that_is_being_rebuilt_takes_only_bans_for_that_epoch() {
    let shop = Shop::loaded(|_| {}).await;
    shop.follow().await;
    shop.stock.begin_restore(&shop.sale, 0, (1, 2), 1, &[]).await.unwrap();
    let before = shop.dump();
    let ban = decided("ada", 1, None, false);
    for epoch in [None, Some(1), Some(3)] {
        let answer = shop.stock.ban(shop.key, &ban, epoch).await;
        assert!(matches!(answer, Err(Fault::Incomplete(_))), "{epoch:?}: {answer:?}");
    }
    assert_eq!(shop.dump(), before);
    shop.stock.ban(shop.key, &ban, Some(2)).await.unwrap();
    assert_ne!(shop.dump(), before);
}

#[tokio::test]
async fn a_foreign_missing_or_cut_off_key_is_noticed() {
    let ban = decided("ada", 1, None, false);
    each_bad_key_is_noticed!(
        Shop::open(|_| {}).await,
        |shop| shop.stock.ban(shop.key, &ban, None).await,
        foreign: [shop.key.shard(), shop.key.buyer(&user("ada"))],
        missing: [shop.key.shard()],
        cut_off: [(shop.key.shard(), SHARD_CUT)]
    );
}

#[tokio::test]
async fn arguments_out_of_bounds_are_refused() {
    let shop = Shop::open(|_| {}).await;
    let keys = [shop.key.shard(), shop.key.buyer(&user("ada"))];
    assert_refused(
        &shop,
        &BAN,
        &keys,
        &[
            &[],
            &["soon", "1", "0"],
            &["-1", "1", "0"],
            &["4294967296", "1", "0"],
            &["1.5", "1", "0"],
            &["nan", "1", "0"],
            &["1", "0", "0"],
            &["1", "32768", "0"],
            &["1", "1.5", "0"],
            &["1", "one", "0"],
            &["1", "1"],
            &["1", "1", "epoch"],
        ],
    );
}
