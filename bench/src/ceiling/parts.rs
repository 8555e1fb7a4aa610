//! The parts alone: Redis with `SET`, with the purchase script, and with the script's commands.

use super::{Round, Stage};
use crate::load::real;
use crate::resp::{self, Commands, Ran, Reply};
use crate::shoppers::{script_calls, sku};
use crate::world::{OwnRedis, fill};
use anyhow::{Result, bail};
use chrono::{TimeDelta, Utc};
use flashsale::domain::ids::SaleId;
use flashsale::domain::sale::{Item, NewSale, PurchaseRate, Sale};
use flashsale::stock::Stock;
use flashsale::stock::keys::ShardKey;
use flashsale::stock::recover::permit::{Permit, Permitted};
use flashsale::stock::script::PURCHASE;
use std::ops::Range;
use std::time::Duration;
use uuid::Uuid;

/// The Redis commands that the purchase script runs for a shopper's first purchase. The keys and bytes are as many, and
/// the script decides nothing. No script with these four commands can be faster.
const BARE: &str = "#!lua
redis.call('TIME')
local found = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])
local head = '1234567890123456789'
local id = redis.call('XADD', KEYS[4], 'NOMKSTREAM', '1-*', 'reserved', head .. ARGV[1] .. ARGV[3])
redis.call('MSET', KEYS[2], found[2], KEYS[3], '123456789012123456123456123456' .. ARGV[1] .. head .. id)
return head .. id";
/// A permit that outlasts the measurement of a part.
const PERMIT: Duration = Duration::from_secs(60);

impl Stage<'_> {
    pub(super) fn measure_parts(&self, round: &mut Round, number: usize) -> Result<()> {
        let [in_memory, on_disk] = &self.parts;
        self.step(number, "SET and the script, in memory")?;
        round.set = Some(self.set(in_memory)?);
        round.script = Some(self.script(in_memory)?);
        round.bare = Some(self.bare(in_memory)?);
        self.step(number, "SET and the script, on disk")?;
        round.set_on_disk = Some(self.set(on_disk)?);
        round.script_on_disk = Some(self.script(on_disk)?);
        Ok(())
    }

    /// The number of script calls in one stretch.
    pub(super) fn calls(&self) -> usize {
        self.bench.options.size(2_000, 100_000)
    }

    /// Commands a second of a part. It repeats `stretch` until the stretches together last half a window. Each stretch
    /// starts from the same state. The first quarter is a warm-up. Only the time with commands under way counts.
    fn part(&self, mut stretch: impl FnMut() -> Result<Ran>) -> Result<f64> {
        let mut ask_for = |length: Duration| -> Result<f64> {
            let (mut all, mut seconds) = (0, 0.0);
            while seconds < length.as_secs_f64() {
                let ran = stretch()?;
                (all, seconds) = (all + ran.all, seconds + ran.seconds);
            }
            Ok(real(all) / seconds.max(1e-9))
        };
        ask_for(self.window.warm / 2)?;
        ask_for(self.window.measured / 2)
    }

    /// Pipelined `SET`s a second, each with a new key.
    fn set(&self, part: &OwnRedis) -> Result<f64> {
        let mut commands = Commands::default();
        for n in 0..self.calls() * 3 {
            commands.add(&[b"SET", format!("key:{n:012}").as_bytes(), b"value"]);
        }
        let is_ok = |reply: &Reply| matches!(reply, Reply::Status(_));
        self.part(|| {
            let ran = resp::run(&part.socket()?, &commands, is_ok, &self.bench.stop)?;
            part.connect()?.call(&["FLUSHALL", "SYNC"])?;
            ran.check("commands SET")
        })
    }

    /// Purchases a second of the script alone; each shopper buys for the first time.
    fn script(&self, part: &OwnRedis) -> Result<f64> {
        self.calls_of(PURCHASE.get_hash(), part)
    }

    /// The same for [`BARE`], which runs the same commands and decides nothing.
    fn bare(&self, part: &OwnRedis) -> Result<f64> {
        match part.connect()?.call(&["SCRIPT", "LOAD", BARE])? {
            Reply::Bulk(Some(hash)) => self.calls_of(&String::from_utf8(hash)?, part),
            other => bail!("the bare script was not loaded: {other:?}"),
        }
    }

    fn calls_of(&self, script: &str, part: &OwnRedis) -> Result<f64> {
        let sale = sale();
        let calls = script_calls(script, &sale, 0..self.calls(), self.salt())?;
        let is_order = |reply: &Reply| matches!(reply, Reply::Bulk(Some(_)));
        self.part(|| {
            self.permit(part, &sale)?;
            let ran = resp::run(&part.socket()?, &calls, is_order, &self.bench.stop)?;
            // The next stretch must find no purchases of its shoppers.
            part.connect()?.call(&["FLUSHALL", "SYNC"])?;
            ran.check("purchases by the script")
        })
    }

    /// Loads a sale as the application does, and gives its only shard a permit.
    fn permit(&self, part: &OwnRedis, sale: &Sale) -> Result<()> {
        let url = part.url()?;
        self.bench.wait_for(async {
            let stock = Stock::connect(&url).await?;
            let shard = ShardKey {
                sale: sale.id,
                shard: 0,
            };
            stock.preload(sale, 0, 1).await?;
            stock.set_state(sale, 0).await?;
            let server = stock.server(shard).await?;
            stock.admit(shard, &server).await?;
            let permit = Permit {
                epoch: 1,
                server: &server,
                holds: PERMIT,
                memory_max: 1000,
                age_max: PERMIT * 10,
                renewal: false,
            };
            match stock.permit(sale, 0, &permit, None).await? {
                Permitted::Yes { brake: false, .. } => Ok(()),
                other => bail!("the shard was not permitted to sell: {other:?}"),
            }
        })
    }

    /// Bytes of Redis that each purchase leaves after the drain has removed its event.
    pub(super) fn bytes_a_purchase(&self, orders: usize) -> Result<f64> {
        const AT_ONCE: usize = 100_000;
        let [part, _] = &self.parts;
        let (sale, salt) = (sale(), self.salt());
        self.permit(part, &sale)?;
        let mut redis = part.connect()?;
        let before = redis.memory()?;
        for from in (0..orders).step_by(AT_ONCE) {
            // The permit may have ended, because nothing renews it here.
            self.permit(part, &sale)?;
            let range: Range<usize> = from..orders.min(from + AT_ONCE);
            fill(self.bench, &part.socket()?, &sale, range, salt)?;
        }
        // As the drain does after its commit.
        let events = ShardKey {
            sale: sale.id,
            shard: 0,
        }
        .events();
        redis.number(&["XTRIM", &events, "MAXLEN", "0"])?;
        let bytes = (redis.memory()? - before) / real(orders);
        redis.call(&["FLUSHALL", "SYNC"])?;
        Ok(bytes)
    }
}

/// A sale of one shard that no ledger has.
fn sale() -> Sale {
    let now = Utc::now();
    // This SKU is always valid.
    let items = sku(0).parse().ok().map(|sku| Item::plain(sku, 100_000_000, 1));
    Sale {
        id: SaleId(Uuid::new_v4()),
        payment_window_seconds: 86_400,
        purchase_rate: PurchaseRate {
            limit: 5,
            window_ms: 60_000,
        },
        ..NewSale::plain(
            items.into_iter().collect(),
            now - TimeDelta::seconds(60),
            now + TimeDelta::days(1),
        )
        .unstored()
    }
}
