//! Each Lua script by itself, through its caller: every outcome, every guard just inside and just outside, every
//! repetition, and what a missing or a foreign key does.

mod preload;
mod purchase;
mod read_shard;
mod resolve;
mod restock;
mod server;
mod set_state;
mod transfer;
mod withdraw;

use crate::support::raw::{Dump, Raw, arg};
use crate::support::servers;
use flashsale::domain::fault::Fault;
use flashsale::domain::ids::{OrderId, SaleId, Sku, UserId};
use flashsale::domain::order::OrderState;
use flashsale::domain::purchase::PurchaseRequest;
use flashsale::domain::report::Counters;
use flashsale::domain::sale::{Durability, Item, Lifecycle, PurchaseRate, Sale, SaleSecret};
use flashsale::domain::time::{Millis, from_millis};
use flashsale::stock::Stock;
use flashsale::stock::keys::ShardKey;
use flashsale::stock::purchase::ShardAnswer;
use flashsale::stock::read_shard::ShardReading;
use flashsale::stock::record::OrderRecord;
use flashsale::stock::resolve::Resolved;

/// When the sales of these tests start, and how long they last. The scripts take their clock from the test.
const START: Millis = 1_900_000_000_000;
const END: Millis = START + 3_600_000;
/// While they sell.
const NOW: Millis = START + 1_000;

/// A sale on one shard of a Redis, with what a test needs to look at it.
struct Shop {
    stock: Stock,
    raw: Raw,
    sale: Sale,
    key: ShardKey,
}

fn sku(name: &str) -> Sku {
    name.parse().unwrap()
}

fn user(name: &str) -> UserId {
    name.parse().unwrap()
}

/// One item with ten units, five for each shopper, and a window that no test fills by accident.
fn sale() -> Sale {
    let item = |name: &str, stock, per_user_limit| Item {
        sku: sku(name),
        name: name.to_owned(),
        price_minor: 100,
        currency: "EUR".to_owned(),
        stock,
        per_user_limit,
    };
    Sale {
        id: SaleId(uuid::Uuid::new_v4()),
        number: 7,
        name: "test".to_owned(),
        lifecycle: Lifecycle::Active,
        state_version: 1,
        starts_at: from_millis(START),
        ends_at: from_millis(END),
        shards: 1,
        payment_window_seconds: 900,
        purchase_rate: PurchaseRate {
            limit: 1000,
            window_ms: 60_000,
        },
        durability: Durability::Redis,
        items: vec![item("A", 10, 5), item("B", 4, 2)],
        secret: SaleSecret([9; 32]),
        created_at: from_millis(START),
        retired: false,
    }
}

impl Shop {
    /// A sale as `change` makes it, which sells from [`START`] to [`END`].
    async fn open(change: impl FnOnce(&mut Sale)) -> Self {
        let shop = Self::loaded(change).await;
        shop.follow().await;
        shop
    }

    /// A sale whose shards were created, and not told to sell.
    async fn loaded(change: impl FnOnce(&mut Sale)) -> Self {
        let shop = Self::unloaded(&servers::redis(), change).await;
        for shard in 0..shop.sale.shards {
            shop.stock.preload(&shop.sale, shard, 1).await.unwrap();
        }
        shop
    }

    /// A sale without a key in the Redis at `url`.
    async fn unloaded(url: &str, change: impl FnOnce(&mut Sale)) -> Self {
        let mut sale = sale();
        change(&mut sale);
        Self {
            stock: Stock::connect(url).await.unwrap(),
            raw: Raw::connect(url),
            key: ShardKey {
                sale: sale.id,
                shard: 0,
            },
            sale,
        }
    }

    /// Tells the shards the sale's state as it is now.
    async fn follow(&self) {
        for shard in 0..self.sale.shards {
            self.stock.set_state(&self.sale, shard).await.unwrap();
        }
    }

    /// Gives the sale its next state, and tells the shards.
    async fn change(&mut self, lifecycle: Lifecycle) {
        self.sale.lifecycle = lifecycle;
        self.sale.state_version += 1;
        self.follow().await;
    }

    const fn shard(&self, shard: u16) -> ShardKey {
        ShardKey {
            sale: self.sale.id,
            shard,
        }
    }

    fn order(&self, who: &str, key: &str) -> OrderId {
        OrderId::derive(self.sale.number, &self.sale.secret.0, &user(who), &key.parse().unwrap())
    }

    /// A purchase of item A.
    async fn try_buy(&self, who: &str, key: &str, quantity: u32, now: Millis) -> Result<ShardAnswer, Fault> {
        self.try_buy_item("A", who, key, quantity, now).await
    }

    async fn try_buy_item(
        &self,
        item: &str,
        who: &str,
        key: &str,
        quantity: u32,
        now: Millis,
    ) -> Result<ShardAnswer, Fault> {
        let request = PurchaseRequest {
            user: user(who),
            key: key.parse().unwrap(),
            sku: sku(item),
            quantity,
        };
        let order = self.order(who, key);
        self.stock.purchase(self.key, order, &request, Some(now)).await
    }

    async fn buy(&self, who: &str, key: &str, quantity: u32, now: Millis) -> ShardAnswer {
        self.try_buy(who, key, quantity, now).await.unwrap()
    }

    /// A purchase of item A that must succeed.
    async fn reserve(&self, who: &str, key: &str, quantity: u32) -> OrderRecord {
        match self.buy(who, key, quantity, NOW).await {
            ShardAnswer::Reserved(record) => record,
            other => panic!("{who} {key}: {other:?}"),
        }
    }

    /// A decision about an order of item A.
    async fn try_resolve(&self, who: &str, key: &str, state: OrderState) -> Result<Resolved, Fault> {
        let order = self.order(who, key);
        self.stock
            .resolve(self.key, &user(who), order, &sku("A"), state, NOW + 5)
            .await
    }

    async fn resolve(&self, who: &str, key: &str, state: OrderState) -> Resolved {
        self.try_resolve(who, key, state).await.unwrap()
    }

    async fn read(&self) -> ShardReading {
        let reading = self.stock.read_shard(self.key, 1000).await.unwrap();
        for (sku, counters) in &reading.items {
            assert!(counters.balance(), "{sku}: {counters:?}");
        }
        reading
    }

    /// The counters of item A.
    async fn counters(&self) -> Counters {
        self.read().await.counters(&sku("A"))
    }

    /// Every key of the sale, byte for byte.
    fn dump(&self) -> Dump {
        self.raw.dump(&ShardKey::pattern(self.sale.id))
    }

    fn remove(&self, key: &str) {
        let _there: i64 = self.raw.call(redis::cmd("DEL").arg(key));
    }

    /// Puts a value of a foreign type in a key's place.
    fn plant(&self, key: &str) {
        let () = self.raw.call(redis::cmd("SET").arg(key).arg("planted"));
    }

    /// Milliseconds until a shopper is forgotten; -1 when never, -2 when there is none.
    fn forgotten_in(&self, who: &str) -> i64 {
        self.raw.call(redis::cmd("PTTL").arg(self.key.buyer(&user(who))))
    }
}

/// Makes a call fail on each of these keys in turn, once with a foreign type in its place; the call must say that
/// this is a defect, and change nothing.
macro_rules! each_foreign_key_is_refused {
    ($make:expr, |$shop:ident| [$($key:expr),+ $(,)?], $call:expr) => {$({
        let $shop = $make;
        $shop.plant(&$key);
        let before = $shop.dump();
        let answer = $call;
        assert!(
            matches!(&answer, Err(Fault::Bug(text)) if text.contains("WRONGTYPE")),
            "{}: {answer:?}",
            stringify!($key)
        );
        assert_eq!($shop.dump(), before, "{}", stringify!($key));
    })+};
}

/// The same with the key gone: the call must say that the shard is not complete.
macro_rules! each_missing_key_is_noticed {
    ($make:expr, |$shop:ident| [$($key:expr),+ $(,)?], $call:expr) => {$({
        let $shop = $make;
        $shop.remove(&$key);
        let before = $shop.dump();
        let answer = $call;
        assert!(matches!(answer, Err(Fault::Incomplete(_))), "{}: {answer:?}", stringify!($key));
        assert_eq!($shop.dump(), before, "{}", stringify!($key));
    })+};
}

use {each_foreign_key_is_refused, each_missing_key_is_noticed};

/// Every script refuses arguments that its header does not allow, and changes nothing.
fn assert_refused(shop: &Shop, script: &redis::Script, keys: &[String], table: &[&[&str]]) {
    let before = shop.dump();
    for args in table {
        let shown = args;
        let args: Vec<Vec<u8>> = args.iter().map(arg).collect();
        let answer = shop.raw.script(script, keys, &args);
        assert!(answer.starts_with("ERR BADARG"), "{shown:?}: {answer}");
    }
    assert_eq!(shop.dump(), before);
}
