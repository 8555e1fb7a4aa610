use super::Shop;
use crate::support::raw::arg;
use flashsale::stock::script::BARRIER;

fn write(shop: &Shop, kept_ms: &str) -> String {
    shop.raw.script(&BARRIER, &[shop.key.barrier()], &[arg(kept_ms)])
}

#[tokio::test]
async fn a_barrier_changes_nothing_else_and_goes_by_itself() {
    let shop = Shop::open(|_| {}).await;
    let before = shop.dump();
    for _ in 0..2 {
        assert_eq!(write(&shop, "60000"), "SET");
    }
    let left: i64 = shop.raw.call(redis::cmd("PTTL").arg(shop.key.barrier()));
    assert!((50_000..=60_000).contains(&left), "{left}");
    let mut after = shop.dump();
    assert!(after.remove(shop.key.barrier().as_bytes()).is_some());
    assert_eq!(after, before);
}

#[tokio::test]
async fn a_barrier_is_kept_for_a_time_within_bounds() {
    let shop = Shop::open(|_| {}).await;
    for kept_ms in ["1", "86400000"] {
        assert_eq!(write(&shop, kept_ms), "SET");
    }
    for kept_ms in ["0", "86400001", "1.5", "-1", "nan", "x", ""] {
        assert_eq!(write(&shop, kept_ms), "ERR BADARG barrier", "{kept_ms:?}");
    }
}
