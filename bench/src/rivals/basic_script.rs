//! A Redis script checks and counts, and the application then writes the order to Postgres. If that write fails, the
//! application gives the units back. After a crash between the two steps, no process can give them back.

use super::{Books, CALL_MAX, Sold, Wanted, no_answer, order, stock_key};
use anyhow::Context as _;
use flashsale::domain::fault::Fault;
use redis::Script;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use std::sync::LazyLock;
use std::time::Duration;

/// Takes units. Its result is the number of units left, or the reason for the refusal.
static TAKE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local stock = tonumber(redis.call('GET', KEYS[1]))
         local bought = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or 0)
         local quantity = tonumber(ARGV[2])
         if not stock then return -3 end
         if bought + quantity > tonumber(ARGV[3]) then return -2 end
         if stock < quantity then return -1 end
         redis.call('HINCRBY', KEYS[2], ARGV[1], quantity)
         return redis.call('DECRBY', KEYS[1], quantity)",
    )
});
const SOLD_OUT: i64 = -1;
const LIMIT_REACHED: i64 = -2;
const NOT_LOADED: i64 = -3;

static GIVE_BACK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "redis.call('HINCRBY', KEYS[2], ARGV[1], -tonumber(ARGV[2]))
         return redis.call('INCRBY', KEYS[1], tonumber(ARGV[2]))",
    )
});

pub(super) struct BasicScript {
    books: Books,
    redis: ConnectionManager,
}

impl BasicScript {
    pub(super) async fn connect(books: Books, url: &str) -> anyhow::Result<Self> {
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(CALL_MAX))
            .set_connection_timeout(Some(Duration::from_secs(1)))
            .set_number_of_retries(1);
        let client = redis::Client::open(url).context("this is no URL of Redis")?;
        let redis = ConnectionManager::new_with_config(client, config).await;
        Ok(Self {
            books,
            redis: redis.context("Redis cannot be reached")?,
        })
    }

    async fn run(&self, script: &Script, wanted: &Wanted, limit: i32) -> Result<i64, Fault> {
        let stock = stock_key(wanted.sale.0, wanted.sku.as_str());
        let mut call = script.prepare_invoke();
        call.key(&stock).key(format!("bought:{stock}"));
        call.arg(wanted.user.as_str()).arg(wanted.quantity).arg(limit);
        let mut redis = self.redis.clone();
        let answer = call.invoke_async(&mut redis);
        tokio::time::timeout(CALL_MAX, answer)
            .await
            .map_err(no_answer)?
            .map_err(no_answer)
    }

    /// Sells, or gives the refusal; `None` if the item does not exist.
    pub(super) async fn sell(&self, wanted: &Wanted) -> Result<Option<Sold>, Fault> {
        let Some(item) = self.books.listed(wanted).await? else {
            return Ok(None);
        };
        let refusal = match self.run(&TAKE, wanted, item.per_user_limit).await? {
            SOLD_OUT => Some(Sold::Out),
            LIMIT_REACHED => Some(Sold::LimitReached),
            NOT_LOADED => return Err(no_answer("the stock is not loaded")),
            _ => None,
        };
        if let Some(refusal) = refusal {
            // The request may be a retry of an accepted purchase.
            return Ok(Some(self.books.find(wanted).await?.unwrap_or(refusal)));
        }
        let order = order(wanted, &item);
        match self.books.insert(wanted, &order).await {
            Ok(true) => Ok(Some(Sold::New(order))),
            Ok(false) => {
                // The key already has its order, so this request must take no units.
                self.run(&GIVE_BACK, wanted, 0).await?;
                self.books.find(wanted).await
            }
            Err(error) => {
                self.run(&GIVE_BACK, wanted, 0).await?;
                Err(no_answer(error))
            }
        }
    }
}
