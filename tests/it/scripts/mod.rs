//! Each Lua script by itself, through its caller: every outcome, every guard just inside and just outside, every
//! repetition, and the effect of a missing or a foreign key.

mod ban;
mod barrier;
mod bench;
mod challenge;
mod cost;
mod fence;
mod holds;
mod many_orders;
mod permit;
mod preload;
mod purchase;
mod read_shard;
mod resolve;
mod restock;
mod restore;
mod server;
mod set_state;
mod stop;
mod torn;
mod transfer;
mod trim;
mod versions;
mod waiting_room;
mod withdraw;

use crate::support::raw::{Dump, Raw, arg};
use crate::support::servers;
use flashsale::domain::deployment::server::Server;
use flashsale::domain::fault::Fault;
use flashsale::domain::ids::{OrderId, SaleId, Sku, UserId};
use flashsale::domain::operator::report::Counters;
use flashsale::domain::order::OrderState;
use flashsale::domain::order::purchase::PurchaseRequest;
use flashsale::domain::sale::{Item, Lifecycle, NewSale, Sale, SaleSecret};
use flashsale::domain::time::{Millis, from_millis};
use flashsale::stock::Stock;
use flashsale::stock::keys::ShardKey;
use flashsale::stock::operate::read_shard::ShardReading;
use flashsale::stock::record::{BuyerRecord, OrderRecord};
use flashsale::stock::recover::permit::{Permit, Permitted};
use flashsale::stock::sell::purchase::{PurchaseArguments, ShardAnswer};
use flashsale::stock::sell::transfer::{Destination, Sent, Transfer};
use flashsale::stock::settle::resolve::Resolved;
use std::time::Duration;
use uuid::Uuid;

/// When the sales of these tests start, and how long they last. The scripts take their clock from the test.
const START: Millis = 1_900_000_000_000;
const END: Millis = START + 3_600_000;
/// While they sell.
const NOW: Millis = START + 1_000;
/// Later than any moment of these tests: until then the shards may sell.
const PERMITTED: Millis = END + 40 * 86_400_000;

/// A sale on one shard of a Redis, with the means to inspect it.
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

/// A request for item A.
fn asking(who: &str, key: &str, quantity: u32) -> PurchaseRequest {
    PurchaseRequest::new(user(who), key.parse().unwrap(), sku("A"), quantity)
}

/// A purchase at this moment of the tests' clock.
fn asked_at(now: Millis) -> PurchaseArguments {
    PurchaseArguments {
        now: Some(now),
        ..PurchaseArguments::default()
    }
}

/// One item with ten units, five for each shopper, and a window that no test fills by accident.
fn sale() -> Sale {
    let item = |name: &str, stock, per_user_limit| Item::plain(sku(name), stock, per_user_limit);
    Sale {
        id: SaleId(Uuid::new_v4()),
        number: 7,
        secret: SaleSecret([9; 32]),
        ..NewSale::plain(
            vec![item("A", 10, 5), item("B", 4, 2)],
            from_millis(START),
            from_millis(END),
        )
        .unstored()
    }
}

/// A transfer from the first shard to the second.
fn on_its_way(id: Uuid, units: i64) -> Transfer {
    Transfer {
        id,
        to: Destination::Shard(1),
        units,
        sent_at: NOW,
        to_epoch: 1,
        epoch: 1,
        sku: sku("A"),
        server: None,
    }
}

/// The answer of a lender in its first epoch.
const fn sent(units: i64) -> Sent {
    Sent::Out { units, epoch: 1 }
}

/// A permit that outlasts the events of every test.
const fn generous(epoch: i64, server: &Server) -> Permit<'_> {
    Permit {
        epoch,
        server,
        holds: Duration::from_secs(60),
        memory_max: 1000,
        age_max: Duration::from_secs(86_400 * 365),
        renewal: false,
    }
}

impl Shop {
    /// A sale as `change` makes it, which sells from [`START`] to [`END`].
    async fn open(change: impl FnOnce(&mut Sale)) -> Self {
        let shop = Self::loaded(change).await;
        shop.follow().await;
        shop.permit().await;
        shop
    }

    /// A sale whose shards were created, without a state that lets them sell.
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

    /// Delivers the sale's present state to the shards.
    async fn follow(&self) {
        for shard in 0..self.sale.shards {
            self.stock.set_state(&self.sale, shard).await.unwrap();
        }
    }

    /// Loads the scripts that sell and lend.
    async fn admit(&self) -> Server {
        let server = self.stock.server(self.key).await.unwrap();
        self.stock.admit(self.key, &server).await.unwrap();
        server
    }

    /// Lets every shard sell, regardless of the clock of a test.
    async fn permit(&self) {
        let server = self.admit().await;
        for shard in 0..self.sale.shards {
            let epoch = self.stock.epoch(self.shard(shard)).await.unwrap();
            let permit = generous(epoch, &server);
            let permitted = self.stock.permit(&self.sale, shard, &permit, Some(PERMITTED)).await;
            assert!(matches!(permitted.unwrap(), Permitted::Yes { brake: false, .. }));
        }
    }

    /// Gives the sale its next state, and delivers it to the shards.
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
            sku: sku(item),
            ..asking(who, key, quantity)
        };
        let order = self.order(who, key);
        self.stock.purchase(self.key, order, &request, asked_at(now)).await
    }

    /// A purchase of item A after a replay probe that found no order in the ledger.
    async fn buy_after_probe(&self, who: &str, key: &str, quantity: u32, probed: i64) -> ShardAnswer {
        let (order, request) = (self.order(who, key), asking(who, key, quantity));
        let answer = self
            .stock
            .purchase(
                self.key,
                order,
                &request,
                PurchaseArguments {
                    ledger_asked: Some(probed),
                    ..asked_at(NOW)
                },
            )
            .await;
        answer.unwrap()
    }

    async fn buy(&self, who: &str, key: &str, quantity: u32, now: Millis) -> ShardAnswer {
        self.try_buy(who, key, quantity, now).await.unwrap()
    }

    /// A purchase of item A that must succeed.
    async fn reserve(&self, who: &str, key: &str, quantity: u32) -> OrderRecord {
        match self.buy(who, key, quantity, NOW).await {
            ShardAnswer::Reserved { record, .. } => record,
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
        let reading = self.stock.read_shard(&self.sale, 0, 1000).await.unwrap();
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

    /// A shopper's row on the home shard.
    async fn buyer(&self, who: &str) -> BuyerRecord {
        self.stock.read_buyer(self.key, &user(who)).await.unwrap()
    }

    fn remove(&self, key: &str) {
        let _there: i64 = self.raw.call(redis::cmd("DEL").arg(key));
    }

    /// A string's bytes.
    fn bytes(&self, key: &str) -> Vec<u8> {
        self.raw.call(redis::cmd("GET").arg(key))
    }

    /// Replaces a key's value by a string.
    fn put(&self, key: &str, bytes: &[u8]) {
        let () = self.raw.call(redis::cmd("SET").arg(key).arg(bytes));
    }

    /// Changes some bytes of a string, from this offset on.
    fn damage(&self, key: &str, offset: usize, bytes: &[u8]) {
        let _length: i64 = self.raw.call(redis::cmd("SETRANGE").arg(key).arg(offset).arg(bytes));
    }

    /// Replaces a key's value by one of a type that none of the keys has.
    fn plant(&self, key: &str) {
        self.remove(key);
        let _length: i64 = self.raw.call(redis::cmd("LPUSH").arg(key).arg("planted"));
    }

    /// Bans a shopper until then.
    fn ban(&self, who: &str, until: Millis) {
        let key = self.key.buyer(&user(who));
        let there: i64 = self.raw.call(redis::cmd("EXISTS").arg(&key));
        if there == 0 {
            self.put(&key, &[0; 12]);
        }
        assert_eq!(until % 1000, 0, "a ban ends at a whole second");
        let seconds = u32::try_from(until / 1000).unwrap();
        self.damage(&key, 0, &[&seconds.to_be_bytes()[..], &[0, 1]].concat());
    }

    /// Milliseconds until a shopper is forgotten; -1 when never, -2 when there is none.
    fn forgotten_in(&self, who: &str) -> i64 {
        self.raw.call(redis::cmd("PTTL").arg(self.key.buyer(&user(who))))
    }
}

/// Makes a call meet, on each of these keys in turn, a value of a foreign type; the call must say that this is a
/// defect, or fail in this other way, and change nothing.
macro_rules! each_foreign_key_is_refused {
    ($make:expr, |$shop:ident| $keys:tt, $call:expr) => {
        $crate::scripts::each_foreign_key_is_refused!($make, |$shop| $keys, $call, Bug, "WRONGTYPE")
    };
    ($make:expr, |$shop:ident| [$($key:expr),+ $(,)?], $call:expr, $fault:ident, $word:literal) => {$({
        let $shop = $make;
        $shop.plant(&$key);
        let before = $shop.dump();
        let answer = $call;
        assert!(
            matches!(&answer, Err(Fault::$fault(text)) if text.contains($word)),
            "{}: {answer:?}",
            stringify!($key)
        );
        assert_eq!($shop.dump(), before, "{}", stringify!($key));
    })+};
}

/// Makes a call meet, on each of these keys in turn, a string of each of these lengths. The call must say that the shard is not complete, and change nothing.
macro_rules! each_cut_off_key_is_noticed {
    ($make:expr, |$shop:ident| [$(($key:expr, $lengths:expr)),+ $(,)?], $call:expr) => {$(
        for length in $lengths {
            let $shop = $make;
            let mut bytes = $shop.bytes(&$key);
            bytes.resize(length, b'-');
            $shop.put(&$key, &bytes);
            let before = $shop.dump();
            let answer = $call;
            assert!(matches!(answer, Err(Fault::Incomplete(_))), "{} {length}: {answer:?}", stringify!($key));
            assert_eq!($shop.dump(), before, "{} {length}", stringify!($key));
        }
    )+};
}

/// The same with the key gone.
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

/// All three for one call.
macro_rules! each_bad_key_is_noticed {
    ($make:expr, |$shop:ident| $call:expr, foreign: $foreign:tt, missing: $missing:tt, cut_off: $cut_off:tt) => {
        $crate::scripts::each_foreign_key_is_refused!($make, |$shop| $foreign, $call);
        $crate::scripts::each_missing_key_is_noticed!($make, |$shop| $missing, $call);
        $crate::scripts::each_cut_off_key_is_noticed!($make, |$shop| $cut_off, $call);
    };
}

/// Lengths that no shard's record has.
const SHARD_CUT: [usize; 4] = [0, 1, 42, 44];
/// Lengths that no item's record has.
const ITEM_CUT: [usize; 4] = [0, 1, 59, 61];

use {each_bad_key_is_noticed, each_cut_off_key_is_noticed, each_foreign_key_is_refused, each_missing_key_is_noticed};

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
