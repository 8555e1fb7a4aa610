use super::{Shop, assert_refused};
use flashsale::stock::script::TRIM;

/// How many events the first shard has.
fn left(shop: &Shop) -> i64 {
    shop.raw.call(redis::cmd("XLEN").arg(shop.key.events()))
}

/// A shop with three events.
async fn sold() -> Shop {
    let shop = Shop::open(|_| {}).await;
    for who in ["ada", "bob", "cyd"] {
        shop.reserve(who, "k", 1).await;
    }
    shop
}

#[tokio::test]
async fn events_are_trimmed_up_to_the_last_one_that_was_read() {
    let shop = sold().await;
    let events = shop.stock.events(shop.key, 2).await.unwrap();
    shop.stock.trim_events(shop.key, &events[1]).await.unwrap();
    let rest = shop.stock.events(shop.key, 9).await.unwrap();
    assert_eq!(rest.iter().map(|it| it.position.seq).collect::<Vec<_>>(), [3]);
    let before = shop.dump();
    shop.stock.trim_events(shop.key, &events[1]).await.unwrap();
    assert_eq!(shop.dump(), before, "once more");
}

#[tokio::test]
async fn events_stay_if_another_one_has_the_last_id() {
    // A replica was promoted that had not got the last event, and has written its own since.
    let shop = sold().await;
    let events = shop.stock.events(shop.key, 9).await.unwrap();
    let last = format!("1-{}", events[2].position.seq);
    let _gone: i64 = shop.raw.call(redis::cmd("XDEL").arg(shop.key.events()).arg(&last));
    shop.stock.trim_events(shop.key, &events[2]).await.unwrap();
    assert_eq!(left(&shop), 2, "it has no event there");
    let mut other = events[2].raw.clone();
    *other.last_mut().unwrap() ^= 1;
    shop.remove(&shop.key.events());
    let mut add = redis::cmd("XADD");
    add.arg(shop.key.events()).arg(last).arg("reserved").arg(other);
    let _id: String = shop.raw.call(&mut add);
    let before = shop.dump();
    shop.stock.trim_events(shop.key, &events[2]).await.unwrap();
    assert_eq!(shop.dump(), before);
    let now = shop.stock.events(shop.key, 9).await.unwrap();
    shop.stock.trim_events(shop.key, &now[0]).await.unwrap();
    assert_eq!(left(&shop), 0, "what was read here");
}

#[tokio::test]
async fn an_entry_with_the_last_possible_id_is_trimmed_too() {
    for id in [
        "1-9223372036854775807",
        "9223372036854775807-1",
        "1-18446744073709551615",
    ] {
        let shop = sold().await;
        let mut add = redis::cmd("XADD");
        add.arg(shop.key.events()).arg(id).arg("note").arg("by hand");
        let _id: String = shop.raw.call(&mut add);
        let events = shop.stock.events(shop.key, 9).await.unwrap();
        shop.stock.trim_events(shop.key, &events[3]).await.unwrap();
        assert_eq!(left(&shop), 0, "{id}");
    }
}

#[tokio::test]
async fn a_call_without_all_arguments_is_refused() {
    let shop = sold().await;
    assert_refused(&shop, &TRIM, &[shop.key.events()], &[&["1-1"], &["1-1", "value"]]);
}
