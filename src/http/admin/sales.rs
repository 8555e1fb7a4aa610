//! Sales: drafts, and the transitions of a sale, its preload among them.

use crate::domain::code::Code;
use crate::domain::ids::SaleId;
use crate::domain::operator::report::ShardStats;
use crate::domain::plain::PLAIN_PATTERN;
use crate::domain::sale::amendment::{Amendment, CannotAmend};
use crate::domain::sale::guards::SaleGuards;
use crate::domain::sale::{SEARCH_MAX, Sale, SaleRequest, SaleSearch, SaleState, Transition};
use crate::flow;
use crate::flow::operate::drafts::{self, ChangeOutcome, CreateOutcome, DeleteOutcome, Lacking};
use crate::flow::operate::transition::{self, TransitionOutcome};
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Json, MaybeKey, Operator, Query, REPLAYED, SalePath, Versions, parsed};
use crate::http::openapi::{Description, Header, SALE_ID};
use crate::http::problem::Problem;
use crate::http::views::{AdminSale, Page, PageSize};
use crate::http::{Api, found};
use actix_web::http::header::{ETag, EntityTag, LOCATION};
use actix_web::web::Data;
use actix_web::{HttpResponse, HttpResponseBuilder};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::borrow::Cow;

pub const ROUTES: &[Endpoint] = &[
    Endpoint::post("/v1/admin/sales", handler!(create_sale), |it| {
        it.of_operators("createSale", "Create a sale")
            .says(
                "A new sale is a draft. `ends_at` must be after `starts_at`, and SKUs must be unique. Items with the \
                 same `group` are variants of one thing, and need different `option`s. `durability` `replica` needs a \
                 Redis with a replica. The same key with the same body gets the same sale again.",
            )
            .with_key_if_any()
            .reads::<SaleRequest>(example_terms())
            .answers::<AdminSale>(200, "The sale that this key created.", example("draft"))
            .with_header(Header::LOCATION)
            .with_header(Header::IS_REPLAYED)
            .with_header(Header::TAG)
            .answers::<AdminSale>(201, "The draft.", example("draft"))
            .with_header(Header::LOCATION)
            .with_header(Header::TAG)
            .leads_to(&[
                ("showSaleToOperator", "id", "/id"),
                ("preloadSale", "id", "/id"),
                ("openSale", "id", "/id"),
                ("getStats", "id", "/id"),
                ("auditSale", "id", "/id"),
                ("buy", "id", "/id"),
            ])
    }),
    Endpoint::get("/v1/admin/sales", handler!(list_sales), |it| {
        it.of_operators("listSalesToOperator", "List sales")
            .says("Newest first.")
            .query::<SalesQuery>(&[("limit", 10.into())])
            .answers_page::<AdminSale>("A page of sales.", example("open"))
    }),
    Endpoint::get("/v1/admin/sales/{id}", handler!(show_sale), |it| {
        it.of_operators("showSaleToOperator", "Show a sale")
            .answers::<AdminSale>(200, "The sale.", example("open"))
            .with_header(Header::TAG)
    }),
    Endpoint::put("/v1/admin/sales/{id}", handler!(change_sale), |it| {
        it.of_operators("changeSale", "Change a draft")
            .says(
                "Replaces the whole draft, by the same rules as its creation. With `If-Match`, only if the draft has \
                 not changed since, else 409. Once its preload has begun, a sale cannot be changed.",
            )
            .with_version("The `ETag` of the draft to change.")
            .reads::<SaleRequest>(example_terms())
            .answers::<AdminSale>(200, "The draft as it is now.", example("draft"))
            .with_header(Header::TAG)
            .refuses(&[Code::InvalidTransition])
    }),
    Endpoint::patch("/v1/admin/sales/{id}", handler!(amend_sale), |it| {
        it.of_operators("amendSale", "Amend a published sale")
            .says(
                "Changes its name, descriptions, pictures, its waiting room's rate, its start and end. Start and end can \
                 only become later, until five seconds before them. `guards` stages guards: a value for a part of the \
                 shoppers, the same ones at every instance. An absent member stays; an empty text is removed. Every \
                 instance follows within a second. With `If-Match`, only if the sale has not changed since, else 409. \
                 Change a draft with `PUT`.",
            )
            .with_version("The `ETag` of the sale to amend.")
            .reads::<Amendment>(json!({
                "name": "Winter drop", "description": "Warm things, once a year.", "ends_at": "2037-11-22T10:00:00Z",
            }))
            .answers::<AdminSale>(200, "The sale as it is now.", example("open"))
            .with_header(Header::TAG)
            .refuses(&[Code::InvalidTransition, Code::Overloaded])
    }),
    Endpoint::delete("/v1/admin/sales/{id}", handler!(delete_sale), |it| {
        it.of_operators("deleteSale", "Delete a draft")
            .says(
                "Deletes it for good. Once its preload has begun, a sale cannot be deleted: close it. The key that \
                 created the draft may create another sale.",
            )
            .answers::<DeletedSale>(200, "Deleted.", json!({"id": SALE_ID, "deleted": true}))
            .refuses(&[Code::InvalidTransition])
    }),
    Endpoint::post("/v1/admin/sales/{id}/preload", handler!(preload), |it| {
        let mut preloaded = example("scheduled");
        preloaded["sale_id"] = SALE_ID.into();
        preloaded["shards"] = json!([example_shard(0), example_shard(1)]);
        it.of_operators("preloadSale", "Load a sale's stock into Redis")
            .says(
                "Splits each item's stock over the shards, to the last unit. The sale becomes `scheduled`, or `open` \
                 if its start has passed. A second call changes nothing.",
            )
            .answers::<Preloaded>(200, "The sale, and what each shard holds.", preloaded)
            .refuses(&[Code::InvalidRequest, Code::Overloaded])
    }),
    Endpoint::post(
        "/v1/admin/sales/{id}/open",
        handler!(|api, operator, id| transition(api, operator, id, Transition::Open)),
        |it| {
            to_state(it.of_operators("openSale", "Open a sale now"), "open")
                .says("Also before its start. Opening an open sale is not an error.")
        },
    )
    .by_run(),
    Endpoint::post(
        "/v1/admin/sales/{id}/pause",
        handler!(|api, operator, id| transition(api, operator, id, Transition::Pause)),
        |it| {
            to_state(it.of_operators("pauseSale", "Pause a sale"), "paused").says(
                "Nothing is sold until it is resumed. Held units can still be paid for and cancelled. A scheduled \
                 sale that is paused does not open by itself.",
            )
        },
    )
    .by_run(),
    Endpoint::post(
        "/v1/admin/sales/{id}/resume",
        handler!(|api, operator, id| transition(api, operator, id, Transition::Resume)),
        |it| {
            to_state(it.of_operators("resumeSale", "Resume a sale"), "open")
                .says("Ends a pause. If its start is still ahead, the sale is `scheduled` and opens then.")
        },
    )
    .by_run(),
    Endpoint::post(
        "/v1/admin/sales/{id}/close",
        handler!(|api, operator, id| transition(api, operator, id, Transition::Close)),
        |it| {
            to_state(it.of_operators("closeSale", "Close a sale for good"), "closed")
                .says("Held units can still be paid for and cancelled.")
        },
    )
    .by_run(),
];

pub(super) async fn view(api: &Api, sale: Sale) -> AdminSale {
    AdminSale::at(sale, flow::sale_book::clock(&api.app).await)
}

/// A sale, with the version of its terms in `ETag`.
async fn shown(api: &Api, mut answer: HttpResponseBuilder, sale: Sale) -> HttpResponse {
    answer.insert_header(ETag(EntityTag::new_strong(sale.version())));
    answer.json(view(api, sale).await)
}

fn without(Lacking(what): Lacking) -> Problem {
    Problem::invalid(what)
}

/// Once for each `Idempotency-Key`, if the request has one
async fn create_sale(
    api: Data<Api>,
    _: Operator,
    MaybeKey(key): MaybeKey,
    Json(request): Json<SaleRequest>,
) -> Result<HttpResponse, Problem> {
    let new = request.check(api.sale_guards);
    let new = new.map_err(|wrong| Problem::invalid(wrong.to_string()))?;
    let created = api.for_operator(|app| async move { drafts::create_once(&app, &new, key.as_ref()).await });
    let (mut answer, sale) = match created.await?.map_err(without)? {
        CreateOutcome::Created(sale) => (HttpResponse::Created(), sale),
        CreateOutcome::Replayed(sale) => {
            let mut answer = HttpResponse::Ok();
            answer.insert_header((REPLAYED, "true"));
            (answer, sale)
        }
        CreateOutcome::KeyReused => {
            return Err(Problem::key_reused("a sale that was created with another body"));
        }
    };
    answer.insert_header((LOCATION, format!("/v1/admin/sales/{}", sale.id)));
    Ok(shown(&api, answer, sale).await)
}

/// Replaces a draft, if it still is the version that `If-Match` names. A preloaded sale
/// cannot be changed.
async fn change_sale(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Versions(versions): Versions,
    Json(request): Json<SaleRequest>,
) -> Result<HttpResponse, Problem> {
    let new = request.check(api.sale_guards);
    let new = new.map_err(|wrong| Problem::invalid(wrong.to_string()))?;
    let changed = api.for_operator(move |app| async move { drafts::change(&app, id, &new, versions.as_deref()).await });
    match changed.await?.map_err(without)? {
        ChangeOutcome::Changed(sale) => Ok(shown(&api, HttpResponse::Ok(), sale).await),
        ChangeOutcome::Stale => Err(Problem::wrong_state(
            "the draft has changed since the ETag in If-Match: read it again, then change it",
        )),
        ChangeOutcome::NoDraft(sale) => {
            let now = flow::sale_book::clock(&api.app).await;
            Err(Problem::not_a_draft(sale.state_at(now)))
        }
        ChangeOutcome::NotFound => Err(Problem::not_found("such sale")),
    }
}

async fn amend_sale(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Versions(versions): Versions,
    Json(amendment): Json<Amendment>,
) -> Result<HttpResponse, Problem> {
    let amended =
        api.for_operator(move |app| async move { transition::amend(&app, id, &amendment, versions.as_deref()).await });
    match found(amended.await?, "such sale")? {
        Ok(sale) => Ok(shown(&api, HttpResponse::Ok(), sale).await),
        Err(CannotAmend::Stale) => Err(Problem::wrong_state(
            "the sale has changed since the ETag in If-Match: read it again, then amend it",
        )),
        Err(CannotAmend::Invalid(wrong)) => Err(Problem::invalid(wrong.to_string())),
        Err(CannotAmend::State(SaleState::Draft)) => {
            Err(Problem::wrong_state("the sale is a draft: replace it with PUT"))
        }
        Err(CannotAmend::State(state)) => Err(Problem::invalid_transition(state)),
        Err(CannotAmend::NotLater(field)) => Err(Problem::wrong_state(format!("{field} can only become later"))),
        Err(CannotAmend::TooLate(field)) => Err(Problem::wrong_state(format!(
            "{field} can be moved until five seconds before it"
        ))),
        Err(CannotAmend::NoItem) => Err(Problem::not_found("such item")),
    }
}

/// A draft that was deleted.
#[derive(Serialize, JsonSchema)]
pub(in crate::http) struct DeletedSale {
    /// The id of the deleted draft.
    id: SaleId,
    /// Always `true`.
    #[schemars(extend("const" = true))]
    deleted: bool,
}

/// Deletes a draft. A preloaded sale stays, with its orders and money.
async fn delete_sale(api: Data<Api>, _: Operator, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
    let deleted = api.for_operator(move |app| async move { drafts::delete(&app, id).await });
    match deleted.await? {
        DeleteOutcome::Deleted => Ok(HttpResponse::Ok().json(DeletedSale { id, deleted: true })),
        DeleteOutcome::NoDraft(sale) => {
            let now = flow::sale_book::clock(&api.app).await;
            Err(Problem::not_a_draft(sale.state_at(now)))
        }
        DeleteOutcome::NotFound => Err(Problem::not_found("such sale")),
    }
}

/// Which sales to list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SalesQuery {
    /// Lists only the sales whose name contains this text, in capital or small letters, or an item's name or SKU, or
    /// whose id begins with it, from four characters on.
    #[schemars(length(min = 1, max = SEARCH_MAX), regex(pattern = PLAIN_PATTERN))]
    search: Option<String>,
    /// At most so many sales; 100 by default.
    #[serde(default)]
    limit: PageSize,
    /// Lists only the sales after the one with this id.
    starting_after: Option<SaleId>,
}

async fn list_sales(api: Data<Api>, _: Operator, Query(query): Query<SalesQuery>) -> Result<HttpResponse, Problem> {
    let (limit, after) = (query.limit.get(), query.starting_after);
    let search: Option<SaleSearch> = query.search.as_deref().map(|text| parsed("search", text)).transpose()?;
    let sales = api
        .for_operator(move |app| async move { flow::sale_book::list(&app, limit + 1, after, search.as_ref()).await });
    let (sales, now) = (sales.await?, flow::sale_book::clock(&api.app).await);
    let sales = sales.into_iter().map(|sale| AdminSale::at(sale, now)).collect();
    Ok(HttpResponse::Ok().json(Page::of(sales, limit)))
}

async fn show_sale(api: Data<Api>, _: Operator, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
    let sale = api.for_operator(move |app| async move { flow::sale_book::find(&app, id).await });
    let sale = found(sale.await?, "such sale")?;
    Ok(shown(&api, HttpResponse::Ok(), sale).await)
}

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

async fn preload(api: Data<Api>, _: Operator, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
    let loaded = api.for_operator(move |app| async move { flow::operate::preload::preload(&app, id).await });
    let (sale, readings) = found(loaded.await?.map_err(without)?, "such sale")?;
    let preloaded = Preloaded {
        sale: view(&api, (*sale).clone()).await,
        sale_id: id,
        shards: readings.iter().map(flow::watch::stats::shard_stats).collect(),
    };
    // In a `Value`, the later of two members with one name replaces the earlier: `shards`.
    Ok(HttpResponse::Ok().json(serde_json::to_value(preloaded).unwrap_or_default()))
}

async fn transition(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    to: Transition,
) -> Result<HttpResponse, Problem> {
    let outcome = api.for_operator(move |app| async move { transition::transition(&app, id, to).await });
    match outcome.await? {
        TransitionOutcome::Done(sale) => Ok(HttpResponse::Ok().json(view(&api, sale).await)),
        TransitionOutcome::Invalid(state) => Err(Problem::invalid_transition(state)),
        TransitionOutcome::NotFound => Err(Problem::not_found("such sale")),
    }
}

/// Describes the answers of a transition to this state.
fn to_state<'a>(it: Description<'a>, state: &str) -> Description<'a> {
    it.answers::<AdminSale>(200, "The sale as it is now.", example(state))
        .refuses(&[Code::InvalidTransition, Code::Overloaded])
}

fn example_terms() -> Value {
    json!({
        "name": "Winter drop", "description": "Warm things, once a year.",
        "image_url": "https://images.example/winter.jpg", "starts_at": "2026-11-22T09:00:00Z",
        "ends_at": "2036-11-22T10:00:00Z", "shards": 2,
        "items": [{"sku": "TSHIRT-M", "name": "T-shirt, medium", "price_minor": 2500, "currency": "EUR", "stock": 100,
            "per_user_limit": 2, "description": "Organic cotton.\nWash at 30 °C.",
            "image_url": "https://images.example/t-shirt.jpg", "group": "T-shirt", "option": "M"}],
    })
}

/// A sale in examples.
pub fn example(state: &str) -> Value {
    let mut sale = example_terms();
    sale["id"] = SALE_ID.into();
    sale["state"] = state.into();
    sale["starts_at"] = "2026-11-22T09:00:00.000Z".into();
    sale["ends_at"] = "2036-11-22T10:00:00.000Z".into();
    sale["created_at"] = "2026-11-22T08:00:00.000Z".into();
    sale["server_time"] = "2026-11-22T09:00:00.120Z".into();
    sale["payment_window_seconds"] = 900.into();
    sale["purchase_rate"] = json!({"limit": 5, "window_ms": 60000});
    sale["durability"] = "redis".into();
    sale["guards"] = json!(SaleGuards::default());
    sale["message"] = json!({});
    sale
}

pub(super) fn example_shard(number: u16) -> Value {
    json!({"shard": number, "epoch": 1, "available": {"TSHIRT-M": 50}, "held": {"TSHIRT-M": 0}, "sold": {"TSHIRT-M": 0},
        "sent": {"TSHIRT-M": 0}, "received": {"TSHIRT-M": 0}, "in_transit": {"TSHIRT-M": 0}, "undrained_events": 0})
}
