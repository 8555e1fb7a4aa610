//! The base of the tests: servers, connections, instances of the program, waiting, a world with shoppers.

pub mod app;
pub mod authority;
pub mod backlog;
pub mod collector;
pub mod crowd;
pub mod document;
pub mod doubled;
pub mod lua;
pub mod network;
pub mod poll;
pub mod raw;
pub mod servers;
pub mod window;

use flashsale::stock::Stock;
use flashsale::stock::keys::ShardKey;
use std::path::Path;

/// Trims a shard's events up to this number, as the drain does once the ledger has them.
pub async fn trim(stock: &Stock, shard: ShardKey, seq: i64) {
    let events = stock.events(shard, 10_000).await.unwrap();
    if let Some(last) = events.iter().rfind(|it| it.position.seq <= seq) {
        stock.trim_events(shard, last).await.unwrap();
    }
}

/// The folder of the repository.
pub fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = package.ancestors();
    folders.find(|it| it.join("lua").is_dir()).unwrap()
}
