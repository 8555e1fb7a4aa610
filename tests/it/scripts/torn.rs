//! A crash tears the append-only file anywhere. The rest must be the whole of some scripts, and nothing of the next.

use super::{NOW, Shop, sku};
use crate::support::servers::{DurableRedis, copy_files, own_folder};
use flashsale::domain::order::OrderState;
use flashsale::stock::sell::purchase::ShardAnswer;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use uuid::Uuid;

/// Checkers at the same time.
const LANES: usize = 4;

/// A shard's state after a number of scripts: available and held units of the item, and events.
type Seen = (i64, i64, i64);

async fn seen(shop: &Shop) -> Seen {
    let reading = shop.read().await;
    let counters = reading.counters(&sku("A"));
    assert!(counters.balance(), "{counters:?}");
    (counters.available, counters.held, reading.undrained)
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

/// Cuts a file off, lets the checker repair it like a start of a private Redis, and returns the rest.
fn repaired(folder: &Path, file: &Path, at: u64) -> u64 {
    File::options().write(true).open(file).unwrap().set_len(at).unwrap();
    let manifest = folder.join("appendonly.aof.manifest");
    let fixed = Command::new("redis-check-aof")
        .arg("--fix")
        .arg(manifest)
        .stdin(File::open(folder.join("yes")).unwrap())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(fixed.unwrap().success(), "cut at {at}");
    length(file)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_torn_at_any_byte_keeps_whole_scripts() {
    let mut redis = DurableRedis::start();
    let mut shop = Shop::unloaded(&redis.url(), |_| {}).await;
    shop.stock.preload(&shop.sale, 0, 1).await.unwrap();
    shop.follow().await;
    shop.permit().await;
    let file = redis.newest_file();
    let mut written = vec![(length(&file), seen(&shop).await)];
    for step in 0..4 {
        match step {
            0 | 1 => _ = shop.reserve(&format!("shopper-{step}"), "k", 2).await,
            2 => _ = shop.resolve("shopper-0", "k", OrderState::Cancelled).await,
            _ => shop
                .stock
                .restock(shop.key, Uuid::now_v7(), &sku("A"), 3, 1)
                .await
                .unwrap(),
        }
        written.push((length(&file), seen(&shop).await));
    }
    assert!(written.is_sorted() && written[0] != written[1], "{written:?}");
    redis.kill();
    let whole = redis.copy();

    let bytes = fs::read(whole.path().join(file.file_name().unwrap())).unwrap();
    let kept = |at: u64| written.iter().rev().find(|(end, _)| *end <= at).unwrap();
    let cuts: Vec<u64> = (written[1].0..=written[4].0).collect();
    // A check mostly waits for the start of the checker.
    std::thread::scope(|scope| {
        for cuts in cuts.chunks(cuts.len().div_ceil(LANES)) {
            let (bytes, written, whole, file) = (&bytes, &written, &whole, &file);
            scope.spawn(move || {
                let scratch = own_folder();
                copy_files(whole.path(), scratch.path());
                fs::write(scratch.path().join("yes"), "y\n").unwrap();
                let torn = scratch.path().join(file.file_name().unwrap());
                for at in cuts {
                    fs::write(&torn, bytes).unwrap();
                    let rest = repaired(scratch.path(), &torn, *at);
                    assert_eq!(rest, kept(*at).0, "cut at {at} of {written:?}");
                }
            });
        }
    });

    // And by the server itself, in the middle of each script's writes.
    for pair in written.windows(2) {
        let at = u64::midpoint(pair[0].0, pair[1].0);
        redis.go_back_to(&whole);
        File::options().write(true).open(&file).unwrap().set_len(at).unwrap();
        redis.restart();
        shop = Shop {
            sale: shop.sale,
            ..Shop::unloaded(&redis.url(), |_| {}).await
        };
        shop.key.sale = shop.sale.id;
        assert_eq!(seen(&shop).await, pair[0].1, "cut at {at} of {written:?}");
        // It does not sell before it is reconciled.
        let answer = shop.try_buy("somebody", "k", 1, NOW).await;
        assert!(!matches!(answer, Ok(ShardAnswer::Reserved { .. })), "{answer:?}");
        redis.kill();
    }
}
