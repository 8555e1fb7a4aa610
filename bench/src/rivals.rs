//! Three rivals: other ways to sell that articles on this subject propose, written with usual care.
//!
//! They share our HTTP server, replies, shopper routes, and checks of tokens, keys and bodies. They keep no holds: a
//! written order is sold.

mod basic_script;
mod database_only;
mod no_lock;

use actix_web::http::header::LOCATION;
use actix_web::middleware::from_fn;
use actix_web::web::{self, Data};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer};
use anyhow::Context as _;
use basic_script::BasicScript;
use chrono::{DateTime, TimeDelta, Utc};
use database_only::DatabaseOnly;
use flashsale::config::Config;
use flashsale::domain::code::Code;
use flashsale::domain::fault::Fault;
use flashsale::domain::ids::{IdempotencyKey, OrderId, SaleId, Sku, UserId};
use flashsale::domain::order::purchase::QUANTITY_MAX;
use flashsale::http::extract::{Json, Key, SalePath, Tokens, bearer};
use flashsale::http::health::healthz;
use flashsale::http::problem::Problem;
use flashsale::http::request_id::request_id;
use no_lock::NoLock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{FromRow, PgPool};
use std::cell::RefCell;
use std::collections::HashMap;
use std::str::FromStr;
use std::time::Duration;
use uuid::Uuid;

/// Connections of each worker to Postgres; each worker has a core. Orders of the basic script wait together for one
/// commit.
const CONNECTIONS: u32 = 16;
/// Connections of the database-only rival. Its purchases hold the lock on the item's row until their commit, so only
/// the work before the lock runs in parallel.
///
/// This number sold most, though by little. Purchases a second in two windows of 1.5 s, side by side:
/// - 1 connection: 2,456 and 3,016
/// - 2 connections: 2,257 and 2,351
/// - 4 connections: 2,478 and 2,415
/// - 8 connections: 2,941 and 2,661
/// - 16 connections: 2,411 and 2,373
const CONNECTIONS_TO_ONE_ROW: u32 = 8;
/// The time limit of work behind a request; the client waits two seconds.
const CALL_MAX: Duration = Duration::from_millis(1500);
/// The time that a shopper has to pay an order.
const PAYMENT_WINDOW: TimeDelta = TimeDelta::days(1);

/// The rivals' tables. All rivals have the same ones, and use those that they need.
const SCHEMA: &str = "
create table items (
    sale_id uuid not null,
    sku text not null,
    price_minor bigint not null,
    currency text not null,
    per_user_limit integer not null,
    available bigint not null check (available >= 0),
    primary key (sale_id, sku)
);
create table buyers (
    sale_id uuid not null,
    sku text not null,
    user_id text not null,
    units integer not null,
    primary key (sale_id, sku, user_id)
);
create table orders (
    order_id uuid primary key,
    sale_id uuid not null,
    sku text not null,
    user_id text not null,
    idempotency_key text not null,
    quantity integer not null,
    amount_minor bigint not null,
    currency text not null,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    unique (sale_id, user_id, idempotency_key)
);
create function buy(
    new_id uuid, of_sale uuid, of_sku text, by_user text, under_key text, units_wanted integer, units_max integer,
    amount bigint, in_currency text, at timestamptz, until timestamptz
) returns text language plpgsql as $$
declare
    refusal text;
begin
    -- What will be refused is refused before anything is written or locked.
    if units_wanted + coalesce((select b.units from buyers b
               where b.sale_id = of_sale and b.sku = of_sku and b.user_id = by_user), 0) > units_max then
        refusal := 'limit';
    elsif not exists (select from items i
                      where i.sale_id = of_sale and i.sku = of_sku and i.available >= units_wanted) then
        refusal := 'out';
    end if;
    -- After that, because it may be the key's own order that has used it up.
    if exists (select from orders o
               where o.sale_id = of_sale and o.user_id = by_user and o.idempotency_key = under_key) then
        return 'known';
    end if;
    if refusal is not null then
        return refusal;
    end if;
    insert into orders (order_id, sale_id, sku, user_id, idempotency_key, quantity, amount_minor, currency, created_at,
        expires_at)
    values (new_id, of_sale, of_sku, by_user, under_key, units_wanted, amount, in_currency, at, until)
    on conflict do nothing;
    if not found then
        return 'known';
    end if;
    insert into buyers as b (sale_id, sku, user_id, units) values (of_sale, of_sku, by_user, units_wanted)
    on conflict (sale_id, sku, user_id) do update set units = b.units + excluded.units
        where b.units + excluded.units <= units_max;
    if not found then
        raise exception 'limit' using errcode = 'S0001';
    end if;
    -- Last, because everybody queues for this row: it is locked for this statement and the commit.
    update items i set available = i.available - units_wanted
    where i.sale_id = of_sale and i.sku = of_sku and i.available >= units_wanted;
    if not found then
        raise exception 'out' using errcode = 'S0002';
    end if;
    return 'new';
end
$$;
";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// Statements of Postgres that read the stock, check it and write it back, without a lock.
    NoLock,
    /// One transaction of Postgres a purchase.
    DatabaseOnly,
    /// A script in Redis counts, and the application writes the order afterwards.
    BasicScript,
}

impl Way {
    const fn connections(self) -> u32 {
        match self {
            Self::DatabaseOnly => CONNECTIONS_TO_ONE_ROW,
            Self::NoLock | Self::BasicScript => CONNECTIONS,
        }
    }
}

/// A purchase after its checks.
struct Wanted {
    sale: SaleId,
    user: UserId,
    key: IdempotencyKey,
    sku: Sku,
    quantity: i32,
}

/// The constant columns of an item.
#[derive(Clone, FromRow)]
struct Listed {
    price_minor: i64,
    currency: String,
    per_user_limit: i32,
}

/// The result of a purchase.
enum Sold {
    New(Order),
    /// The key already has this order.
    Again(Order),
    /// The key has an order for another item or quantity.
    KeyReused,
    /// Too few units are left.
    Out,
    /// The purchase would exceed the shopper's limit.
    LimitReached,
}

/// An error after which the result of the purchase is unknown.
fn no_answer(error: impl std::fmt::Display) -> Fault {
    Fault::Unavailable(error.to_string())
}

/// The orders in Postgres, which all rivals keep.
struct Books {
    pool: PgPool,
    listed: RefCell<HashMap<(Uuid, String), Listed>>,
}

#[derive(FromRow)]
struct Row {
    order_id: Uuid,
    sku: String,
    quantity: i32,
    amount_minor: i64,
    currency: String,
    created_at: DateTime<Utc>,
    expires_at: DateTime<Utc>,
}

impl Books {
    async fn connect(url: &str, connections: u32) -> anyhow::Result<Self> {
        let options = PgConnectOptions::from_str(url)?.options([("statement_timeout", "1500ms")]);
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(CALL_MAX)
            .connect_with(options);
        Ok(Self {
            pool: pool.await.context("Postgres cannot be reached")?,
            listed: RefCell::default(),
        })
    }

    /// The constant columns of an item; Postgres is read once.
    async fn listed(&self, wanted: &Wanted) -> Result<Option<Listed>, Fault> {
        let name = (wanted.sale.0, wanted.sku.to_string());
        let known = self.listed.borrow().get(&name).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let found: Option<Listed> =
            sqlx::query_as("select price_minor, currency, per_user_limit from items where sale_id = $1 and sku = $2")
                .bind(name.0)
                .bind(&name.1)
                .fetch_optional(&self.pool)
                .await
                .map_err(no_answer)?;
        if let Some(found) = &found {
            self.listed.borrow_mut().insert(name, found.clone());
        }
        Ok(found)
    }

    /// The order of a key, if it has one.
    async fn find(&self, wanted: &Wanted) -> Result<Option<Sold>, Fault> {
        let row: Option<Row> = sqlx::query_as(
            "select order_id, sku, quantity, amount_minor, currency, created_at, expires_at from orders \
             where sale_id = $1 and user_id = $2 and idempotency_key = $3",
        )
        .bind(wanted.sale.0)
        .bind(wanted.user.as_str())
        .bind(wanted.key.as_str())
        .fetch_optional(&self.pool)
        .await
        .map_err(no_answer)?;
        let Some(row) = row else { return Ok(None) };
        if row.sku != wanted.sku.as_str() || row.quantity != wanted.quantity {
            return Ok(Some(Sold::KeyReused));
        }
        Ok(Some(Sold::Again(Order {
            id: OrderId(row.order_id),
            sale_id: wanted.sale,
            sku: wanted.sku.clone(),
            quantity: row.quantity,
            amount_minor: row.amount_minor,
            currency: row.currency,
            state: "reserved",
            confirmed: true,
            created_at: row.created_at,
            expires_at: row.expires_at,
            paid_at: None,
        })))
    }

    /// Stores an order unless its key already has one; `true` if it did.
    async fn insert(&self, wanted: &Wanted, order: &Order) -> Result<bool, sqlx::Error> {
        let done = sqlx::query(
            "insert into orders (order_id, sale_id, sku, user_id, idempotency_key, quantity, amount_minor, currency, \
             created_at, expires_at) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) on conflict do nothing",
        )
        .bind(order.id.0)
        .bind(order.sale_id.0)
        .bind(order.sku.as_str())
        .bind(wanted.user.as_str())
        .bind(wanted.key.as_str())
        .bind(wanted.quantity)
        .bind(order.amount_minor)
        .bind(&order.currency)
        .bind(order.created_at)
        .bind(order.expires_at)
        .execute(&self.pool)
        .await?;
        Ok(done.rows_affected() == 1)
    }
}

/// An order, with the members of ours.
#[derive(Serialize)]
struct Order {
    id: OrderId,
    sale_id: SaleId,
    sku: Sku,
    quantity: i32,
    amount_minor: i64,
    currency: String,
    state: &'static str,
    confirmed: bool,
    created_at: DateTime<Utc>,
    expires_at: DateTime<Utc>,
    paid_at: Option<DateTime<Utc>>,
}

/// A new order for a purchase.
fn order(wanted: &Wanted, item: &Listed) -> Order {
    let created_at = Utc::now();
    Order {
        id: OrderId(Uuid::new_v4()),
        sale_id: wanted.sale,
        sku: wanted.sku.clone(),
        quantity: wanted.quantity,
        amount_minor: item.price_minor.saturating_mul(i64::from(wanted.quantity)),
        currency: item.currency.clone(),
        state: "reserved",
        confirmed: true,
        created_at,
        expires_at: created_at + PAYMENT_WINDOW,
        paid_at: None,
    }
}

enum Till {
    NoLock(NoLock),
    DatabaseOnly(DatabaseOnly),
    BasicScript(BasicScript),
}

/// The body of a purchase, as ours takes it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Body {
    sku: String,
    quantity: i32,
}

async fn purchase(
    till: Data<Till>,
    tokens: Data<Tokens>,
    request: HttpRequest,
    SalePath(sale): SalePath,
    Key(key): Key,
    Json(body): Json<Body>,
) -> Result<HttpResponse, Problem> {
    let shopper = bearer(request.headers()).and_then(|token| tokens.user(token));
    let (user, _) =
        shopper.ok_or_else(|| Problem::new(Code::Unauthenticated, "the token is missing, wrong or expired"))?;
    let sku = body.sku.parse();
    let wanted = Wanted {
        sale,
        user,
        key,
        sku: sku.map_err(|wrong| Problem::invalid(format!("sku: {wrong}")))?,
        quantity: body.quantity,
    };
    if !(1..=i64::from(QUANTITY_MAX)).contains(&i64::from(wanted.quantity)) {
        return Err(Problem::invalid(format!("quantity must be 1 to {QUANTITY_MAX}")));
    }
    // As in our program, a purchase completes even if the client disconnects.
    let selling = actix_web::rt::spawn(async move {
        match till.get_ref() {
            Till::NoLock(till) => till.sell(&wanted).await,
            Till::DatabaseOnly(till) => till.sell(&wanted).await,
            Till::BasicScript(till) => till.sell(&wanted).await,
        }
    });
    answer(selling.await.map_err(no_answer).and_then(|sold| sold)?)
}

fn answer(sold: Option<Sold>) -> Result<HttpResponse, Problem> {
    let refused = |code, why: &str| Err(Problem::new(code, why));
    let (mut answer, order) = match sold {
        Some(Sold::New(order)) => (HttpResponse::Created(), order),
        Some(Sold::Again(order)) => {
            let mut answer = HttpResponse::Ok();
            answer.insert_header(("Idempotency-Replayed", "true"));
            (answer, order)
        }
        Some(Sold::KeyReused) => return refused(Code::IdempotencyKeyReused, "this key belongs to another order"),
        Some(Sold::Out) => return refused(Code::SoldOut, "there are not that many units left"),
        Some(Sold::LimitReached) => {
            let why = "one shopper may not have that many units of this item";
            return refused(Code::PurchaseLimitReached, why);
        }
        None => return Err(Problem::not_found("such sku in this sale")),
    };
    answer.insert_header((LOCATION, format!("/v1/orders/{}", order.id)));
    Ok(answer.json(order))
}

/// Serves until the process ends. Fails when a server is unreachable or the address is taken.
pub fn serve(config: &Config, way: Way) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    runtime.block_on(async {
        let database = config.database_url.expose().clone();
        let tokens = Data::new(Tokens::new(config.jwt_secret.expose().as_bytes()));
        let redis = config.redis_url.expose().clone();
        let server = HttpServer::new(move || {
            let (database, redis) = (database.clone(), redis.clone());
            App::new()
                .app_data(tokens.clone())
                // Each worker has its own connections to both servers, as ours has to Redis. No worker wakes on
                // another's thread.
                .data_factory(move || {
                    let (database, redis) = (database.clone(), redis.clone());
                    async move {
                        let books = Books::connect(&database, way.connections()).await?;
                        Ok::<_, anyhow::Error>(match way {
                            Way::NoLock => Till::NoLock(NoLock::over(books)),
                            Way::DatabaseOnly => Till::DatabaseOnly(DatabaseOnly::over(books)),
                            Way::BasicScript => Till::BasicScript(BasicScript::connect(books, &redis).await?),
                        })
                    }
                })
                .route("/healthz", web::get().to(healthz))
                .route("/v1/sales/{id}/orders", web::post().to(purchase))
                .wrap(from_fn(request_id))
        });
        let server = server.bind(config.listen)?.run();
        tracing::info!(address = %config.listen, "serving");
        Ok(server.await?)
    })
}

pub async fn prepare(database: &str) -> anyhow::Result<()> {
    let books = Books::connect(database, 1).await?;
    sqlx::raw_sql(SCHEMA).execute(&books.pool).await?;
    books.pool.close().await;
    Ok(())
}

/// Puts units of an item on sale, in Postgres.
pub async fn list(database: &str, sale: Uuid, sku: &str, stock: i64, per_user_limit: i32) -> anyhow::Result<()> {
    let books = Books::connect(database, 1).await?;
    sqlx::query(
        "insert into items (sale_id, sku, price_minor, currency, per_user_limit, available) \
         values ($1, $2, 49900, 'EUR', $3, $4)",
    )
    .bind(sale)
    .bind(sku)
    .bind(per_user_limit)
    .bind(stock)
    .execute(&books.pool)
    .await?;
    books.pool.close().await;
    Ok(())
}

/// The Redis key of the basic script's stock.
pub fn stock_key(sale: Uuid, sku: &str) -> String {
    format!("stock:{{{sale}:{sku}}}")
}
