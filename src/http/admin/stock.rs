//! The stock of a sale: preload, restock, numbers, audit, rebuild.

use crate::domain::code::Code;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::report::{Audit, RebuildPreview, Rebuilt, ShardStats};
use crate::domain::sale::STOCK_MAX;
use crate::flow;
use crate::flow::operate::restock::RestockOutcome;
use crate::http::Api;
use crate::http::admin::sales::view;
use crate::http::extract::{Json, Key, Operator, Query, SalePath};
use crate::http::problem::Problem;
use crate::http::views::{AdminSale, Page, PageSize};
use crate::http::{AUDIT_WAIT, REBUILD_WAIT};
use actix_web::HttpResponse;
use actix_web::web::Data;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use std::sync::Arc;

/// A preloaded sale. Its member `shards` is not the number of shards, but what each shard holds.
#[derive(Serialize)]
pub(in crate::http) struct Preloaded {
    #[serde(flatten)]
    sale: AdminSale,
    sale_id: SaleId,
    shards: Vec<ShardStats>,
}

impl JsonSchema for Preloaded {
    fn schema_name() -> Cow<'static, str> {
        "PreloadedSale".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = AdminSale::json_schema(generator);
        let mut sale_id = generator.subschema_for::<SaleId>();
        sale_id.insert("description".to_owned(), "The sale's id, the same as `id`.".into());
        let mut shards = generator.subschema_for::<Vec<ShardStats>>();
        shards.insert("description".to_owned(), "What each shard holds.".into());
        schema.insert("description".to_owned(), "A sale that has been preloaded.".into());
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            properties.insert("sale_id".to_owned(), sale_id.to_value());
            properties.insert("shards".to_owned(), shards.to_value());
        }
        if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
            required.push("sale_id".into());
        }
        schema
    }
}

/// `POST /v1/admin/sales/{id}/preload`
pub async fn preload(api: Data<Api>, _: Operator, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
    let loaded = api.for_others(move |app| async move {
        Ok(match flow::sell::await_durability::lacking_for(&app, id).await? {
            Some(lacking) => Err(lacking),
            None => Ok(flow::operate::preload::preload(&app, id).await?),
        })
    });
    let loaded = loaded.await?.map_err(Problem::invalid)?;
    let (sale, readings) = loaded.ok_or_else(|| Problem::not_found("such sale"))?;
    let shards = readings.iter().map(flow::watch::stats::shard_stats).collect();
    let view = view(&api, (*sale).clone()).await;
    let preloaded = Preloaded {
        sale: view,
        sale_id: id,
        shards,
    };
    // In a `Value`, the later of two members with one name replaces the earlier: `shards`.
    Ok(HttpResponse::Ok().json(serde_json::to_value(preloaded).unwrap_or_default()))
}

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

/// `POST /v1/admin/sales/{id}/restock`
pub async fn restock(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Key(key): Key,
    Json(body): Json<RestockBody>,
) -> Result<HttpResponse, Problem> {
    let sku = body
        .sku
        .parse()
        .map_err(|wrong| Problem::invalid(format!("sku: {wrong}")))?;
    if body.quantity == 0 || !(-STOCK_MAX..=STOCK_MAX).contains(&body.quantity) {
        return Err(Problem::invalid(format!(
            "quantity must be -{STOCK_MAX} to {STOCK_MAX}, and not 0"
        )));
    }
    let quantity = body.quantity;
    let outcome = api
        .for_others(move |app| async move { flow::operate::restock::restock(&app, id, &key, &sku, quantity).await })
        .await?;
    match outcome {
        RestockOutcome::Applied(sale) => Ok(HttpResponse::Ok().json(view(&api, (*sale).clone()).await)),
        RestockOutcome::Insufficient => Err(Problem::new(
            Code::InsufficientStock,
            format!(
                "{} units cannot be moved: too few are free, or the item would exceed {STOCK_MAX}",
                body.quantity
            ),
        )),
        RestockOutcome::KeyReused => Err(Problem::new(
            Code::IdempotencyKeyReused,
            "this key belongs to another restock",
        )),
        RestockOutcome::NotLoaded(state) => Err(Problem::invalid_transition(state)),
        RestockOutcome::SaleNotFound => Err(Problem::not_found("such sale")),
        RestockOutcome::ItemNotFound => Err(Problem::not_found("such sku in this sale")),
    }
}

/// `GET /v1/admin/sales/{id}/stats`
pub async fn stats(api: Data<Api>, _: Operator, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
    let stats = api
        .for_others(move |app| async move { flow::watch::stats::stats(&app, id).await })
        .await?;
    Ok(HttpResponse::Ok().json(stats.ok_or_else(|| Problem::not_found("such sale"))?))
}

/// The most differences in one answer.
const DIFFERENCES_MAX: u32 = 1000;

/// Which differences of an audit to return.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// At most so many differences; 1000 by default.
    #[serde(default)]
    limit: PageSize<DIFFERENCES_MAX>,
    /// Lists only the differences after this text: the last difference of the page before.
    starting_after: Option<String>,
}

/// A stock audit with one page of its differences.
#[derive(Serialize, JsonSchema)]
pub(in crate::http) struct AuditPage {
    #[serde(flatten)]
    audit: Audit,
    /// How many differences there are in total.
    differences_total: usize,
    /// Whether more differences follow. Ask for them with `starting_after` and the last difference.
    has_more: bool,
}

impl AuditPage {
    fn of(mut audit: Audit, query: &AuditQuery) -> Self {
        let differences_total = audit.differences.len();
        if let Some(after) = &query.starting_after {
            audit.differences.retain(|difference| difference > after);
        }
        let Page { data, has_more } = Page::of(std::mem::take(&mut audit.differences), query.limit.get());
        audit.differences = data;
        Self {
            audit,
            differences_total,
            has_more,
        }
    }
}

/// `GET /v1/admin/sales/{id}/audit`: each page counts again. The differences are sorted by their text, so a lasting
/// difference is on exactly one page.
pub async fn audit(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Query(query): Query<AuditQuery>,
) -> Result<HttpResponse, Problem> {
    let app = Arc::clone(&api.operators);
    let next = api
        .audits
        .next(id, move || async move { flow::watch::audit::audit(&app, id).await });
    let audit = api.for_long(AUDIT_WAIT, |_| next).await?;
    let audit = audit.ok_or_else(|| Problem::not_found("such sale"))?;
    Ok(HttpResponse::Ok().json(AuditPage::of(audit, &query)))
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

/// `POST /v1/admin/sales/{id}/rebuild`
pub async fn rebuild(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Query(query): Query<RebuildQuery>,
) -> Result<HttpResponse, Problem> {
    let sale = api
        .for_others(move |app| async move { flow::sale_book::find(&app, id).await })
        .await?;
    let sale = sale.ok_or_else(|| Problem::not_found("such sale"))?;
    let rebuilt = api
        .for_long(REBUILD_WAIT, move |app| async move {
            Ok(if query.dry_run {
                let preview = flow::recover::rebuild::preview::preview(&app, id).await?;
                preview.map(RebuildAnswer::DryRun)
            } else {
                let rebuilt = flow::recover::attend::rebuild_sale(&app, id).await?;
                rebuilt.map(RebuildAnswer::Done)
            })
        })
        .await?;
    match rebuilt {
        Some(rebuilt) => Ok(HttpResponse::Ok().json(rebuilt)),
        None => Err(Problem::new(
            Code::InvalidTransition,
            format!(
                "a sale that is {} has no stock in Redis to rebuild",
                sale.lifecycle.as_str()
            ),
        )),
    }
}
