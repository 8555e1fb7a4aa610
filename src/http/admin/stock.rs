//! The stock of a sale: restock, numbers, rebuild.

use crate::domain::code::Code;
use crate::domain::ids::Sku;
use crate::domain::operator::report::{RebuildPreview, Rebuilt, Stats};
use crate::domain::sale::STOCK_MAX;
use crate::flow;
use crate::flow::operate::restock::{self, RestockOutcome};
use crate::http::admin::sales::{self, example_shard, view};
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Json, Key, Operator, Query, SalePath, parsed};
use crate::http::openapi::SALE_ID;
use crate::http::problem::Problem;
use crate::http::views::AdminSale;
use crate::http::{Api, REBUILD_WAIT, found};
use actix_web::HttpResponse;
use actix_web::web::Data;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;

pub const ROUTES: &[Endpoint] = &[
    Endpoint::post("/v1/admin/sales/{id}/restock", handler!(restock), |it| {
        it.of_operators("restockSale", "Add units to an item, or take unsold ones back")
            .says("A negative quantity takes free units back, all of them or none. The same key is applied once.")
            .with_key("restock-2026-11-22-1")
            .reads::<RestockBody>(json!({"sku": "TSHIRT-M", "quantity": 100}))
            .answers::<AdminSale>(200, "The sale with its new stock.", sales::example("open"))
            .refuses(&[
                Code::InsufficientStock,
                Code::InvalidTransition,
                Code::IdempotencyKeyReused,
                Code::Overloaded,
            ])
    })
    .by_run(),
    Endpoint::post("/v1/admin/sales/{id}/rebuild", handler!(rebuild), |it| {
        it.of_operators("rebuildSale", "Rebuild a sale's stock in Redis from Postgres")
            .says(
                "Use it after a loss, even while the sale goes on. A shard that is being rebuilt answers 503 \
                 `unavailable`, and then sells again by itself. With `dry_run=true` nothing changes: the answer shows \
                 what each shard has and what a rebuild would write. The free units of each item are spread evenly.",
            )
            .query::<RebuildQuery>(&[("dry_run", false.into())])
            .answers::<RebuildAnswer>(
                200,
                "The result of the rebuild.",
                json!({"sale_id": SALE_ID, "shards": 2, "orders": 31, "lost_orders": 0}),
            )
            .refuses(&[Code::InvalidTransition, Code::Overloaded])
    })
    .by_run(),
    Endpoint::get("/v1/admin/sales/{id}/stats", handler!(stats), |it| {
        let stats = json!({
            "sale_id": SALE_ID, "state": "open", "server_time": "2026-11-22T09:00:12.000Z",
            "items": [{"sku": "TSHIRT-M", "total": 100, "available": 69, "held": 30, "sold": 1, "in_transit": 0}],
            "shards": [example_shard(0), example_shard(1)], "undrained_events": 0,
            "orders": {"reserved": 30, "paid": 1, "cancelled": 2, "expired": 0, "revoked": 0},
            "alerts": {"dead_letters": 0, "failed_releases": 0, "refunds_due": 0, "unmatched_payments": 0, "lost_orders": 0},
            "stopped": {"window": 12}, "would_stop": {"account": 3},
        });
        it.of_operators("getStats", "Show a sale in numbers")
            .says(
                "`stopped` counts the requests that each guard has refused, `would_stop` those that a guard in shadow \
                 would have refused.",
            )
            .answers::<Stats>(200, "The numbers.", stats)
    }),
];

/// The body of a restock.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RestockBody {
    /// The item to restock.
    #[schemars(with = "Sku")]
    sku: String,
    /// Units to add; a negative number takes free units back. Not 0.
    #[schemars(range(min = -STOCK_MAX, max = STOCK_MAX), extend("not" = {"const": 0}))]
    quantity: i64,
}

async fn restock(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Key(key): Key,
    Json(body): Json<RestockBody>,
) -> Result<HttpResponse, Problem> {
    let sku = parsed("sku:", &body.sku)?;
    if body.quantity == 0 || !(-STOCK_MAX..=STOCK_MAX).contains(&body.quantity) {
        return Err(Problem::invalid(format!(
            "quantity must be -{STOCK_MAX} to {STOCK_MAX}, and not 0"
        )));
    }
    let RestockBody { sku: name, quantity } = body;
    let outcome = api.for_operator(move |app| async move { restock::restock(&app, id, &key, &sku, quantity).await });
    match outcome.await? {
        RestockOutcome::Applied(sale) => Ok(HttpResponse::Ok().json(view(&api, (*sale).clone()).await)),
        RestockOutcome::Insufficient { free: Some(free) } if quantity < 0 => {
            Err(Problem::too_few_free(&name, free, -quantity))
        }
        RestockOutcome::Insufficient { .. } => Err(Problem::new(
            Code::InsufficientStock,
            if quantity > 0 {
                format!("{name} would have more than {STOCK_MAX} units")
            } else {
                format!("too few units of {name} are free to take {} back", -quantity)
            },
        )),
        RestockOutcome::KeyReused => Err(Problem::key_reused("another restock")),
        RestockOutcome::NotLoaded(state) => Err(Problem::invalid_transition(state)),
        RestockOutcome::SaleNotFound => Err(Problem::not_found("such sale")),
        RestockOutcome::ItemNotFound => Err(Problem::not_found("such sku in this sale")),
    }
}

async fn stats(api: Data<Api>, _: Operator, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
    let stats = api.for_operator(move |app| async move { flow::watch::stats::stats(&app, id).await });
    Ok(HttpResponse::Ok().json(found(stats.await?, "such sale")?))
}

/// How to rebuild.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RebuildQuery {
    /// Whether to change nothing, and only show what a rebuild would change.
    #[serde(default)]
    dry_run: bool,
}

/// The result of a rebuild, or of a dry run.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub(in crate::http) enum RebuildAnswer {
    Done(Rebuilt),
    DryRun(RebuildPreview),
}

async fn rebuild(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Query(query): Query<RebuildQuery>,
) -> Result<HttpResponse, Problem> {
    let sale = api.for_operator(move |app| async move { flow::sale_book::find(&app, id).await });
    let sale = found(sale.await?, "such sale")?;
    let app = Arc::clone(&api.operators);
    let rebuilt = api.run(REBUILD_WAIT, async move {
        Ok(if query.dry_run {
            let preview = flow::recover::rebuild::preview::preview(&app, id).await?;
            preview.map(RebuildAnswer::DryRun)
        } else {
            let rebuilt = flow::recover::attend::rebuild_sale(&app, id).await?;
            rebuilt.map(RebuildAnswer::Done)
        })
    });
    match rebuilt.await? {
        Some(rebuilt) => Ok(HttpResponse::Ok().json(rebuilt)),
        None => Err(Problem::wrong_state(format!(
            "a sale that is {} has no stock in Redis to rebuild",
            sale.lifecycle.as_str()
        ))),
    }
}
