//! The operators' API: sales, stock, orders, bans, guards, payments, and the audit log.

use super::Api;
use super::explain::parse_value;
use super::extract::{Json, Key, MaybeKey, Operator, OrderPath, Query, SalePath, Versions};
use super::orders::REPLAYED;
use super::problem::{Code, Problem};
use super::views::{AdminSale, Page, PageQuery, PageSize};
use super::webhooks::{NAME_MAX, NO_NUL};
use super::{AUDIT_WAIT, REBUILD_WAIT};
use crate::domain::ban::{BannedBy, NewBan, REASON_MAX};
use crate::domain::guard::{GuardChanges, GuardSettings};
use crate::domain::ids::{OrderId, SaleId, Sku, UserId};
use crate::domain::order::{OrderState, OrdersOf};
use crate::domain::payment::{PaymentOutcome, REFERENCE_MAX, Refund, RefundReference};
use crate::domain::plain::PLAIN_PATTERN;
use crate::domain::report::{Audit, RebuildPreview, Rebuilt, ShardStats};
use crate::domain::sale::{STOCK_MAX, Sale, SaleRequest, Transition};
use crate::flow;
use crate::flow::operate::restock::RestockOutcome;
use crate::flow::operate::transition::TransitionOutcome;
use crate::flow::sale_book::{ChangeOutcome, CreateOutcome, DeleteOutcome};
use actix_web::http::header::{ETag, EntityTag, LOCATION};
use actix_web::web::Data;
use actix_web::{HttpResponse, HttpResponseBuilder};
use chrono::{DateTime, Datelike as _, Utc};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::sync::Arc;

async fn view(api: &Api, sale: Sale) -> AdminSale {
    AdminSale::at(sale, flow::sale_book::clock(&api.app).await)
}

/// A sale, with the version of its terms in `ETag`.
async fn shown(api: &Api, mut answer: HttpResponseBuilder, sale: Sale) -> HttpResponse {
    answer.insert_header(ETag(EntityTag::new_strong(sale.version())));
    answer.json(view(api, sale).await)
}

/// `POST /v1/admin/sales`: once for each `Idempotency-Key`, if the request has one
pub async fn create_sale(
    api: Data<Api>,
    _: Operator,
    MaybeKey(key): MaybeKey,
    Json(request): Json<SaleRequest>,
) -> Result<HttpResponse, Problem> {
    let new = request.check(api.sale_guards);
    let new = new.map_err(|wrong| Problem::invalid(wrong.to_string()))?;
    let created = api.for_others(|app| async move {
        Ok(
            match flow::sell::await_durability::lacking(&app, new.durability).await? {
                Some(lacking) => Err(lacking),
                None => Ok(flow::sale_book::create_once(&app, &new, key.as_ref()).await?),
            },
        )
    });
    let (mut answer, sale) = match created.await?.map_err(Problem::invalid)? {
        CreateOutcome::Created(sale) => (HttpResponse::Created(), sale),
        CreateOutcome::Replayed(sale) => {
            let mut answer = HttpResponse::Ok();
            answer.insert_header((REPLAYED, "true"));
            (answer, sale)
        }
        CreateOutcome::KeyReused => {
            return Err(Problem::new(
                Code::IdempotencyKeyReused,
                "this key belongs to a sale that was created with another body",
            ));
        }
    };
    answer.insert_header((LOCATION, format!("/v1/admin/sales/{}", sale.id)));
    Ok(shown(&api, answer, sale).await)
}

/// `PUT /v1/admin/sales/{id}`: replaces a draft, if it still is the version that `If-Match` names. A preloaded sale
/// cannot be changed.
pub async fn change_sale(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Versions(versions): Versions,
    Json(request): Json<SaleRequest>,
) -> Result<HttpResponse, Problem> {
    let new = request.check(api.sale_guards);
    let new = new.map_err(|wrong| Problem::invalid(wrong.to_string()))?;
    let changed = api.for_others(move |app| async move {
        Ok(
            match flow::sell::await_durability::lacking(&app, new.durability).await? {
                Some(lacking) => Err(lacking),
                None => Ok(flow::sale_book::change(&app, id, &new, versions.as_deref()).await?),
            },
        )
    });
    match changed.await?.map_err(Problem::invalid)? {
        ChangeOutcome::Changed(sale) => Ok(shown(&api, HttpResponse::Ok(), sale).await),
        ChangeOutcome::Stale => Err(Problem::new(
            Code::InvalidTransition,
            "the draft has changed since the ETag in If-Match: read it again, then change it",
        )),
        ChangeOutcome::NoDraft(sale) => {
            let now = flow::sale_book::clock(&api.app).await;
            Err(Problem::not_a_draft(sale.state_at(now)))
        }
        ChangeOutcome::NotFound => Err(Problem::not_found("such sale")),
    }
}

/// A draft that was deleted.
#[derive(Serialize, JsonSchema)]
pub(super) struct DeletedSale {
    /// The id of the deleted draft.
    id: SaleId,
    /// Always `true`.
    #[schemars(extend("const" = true))]
    deleted: bool,
}

/// `DELETE /v1/admin/sales/{id}`: deletes a draft. A preloaded sale stays, with its orders and money.
pub async fn delete_sale(api: Data<Api>, _: Operator, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
    let deleted = api.for_others(move |app| async move { flow::sale_book::delete(&app, id).await });
    match deleted.await? {
        DeleteOutcome::Deleted => Ok(HttpResponse::Ok().json(DeletedSale { id, deleted: true })),
        DeleteOutcome::NoDraft(sale) => {
            let now = flow::sale_book::clock(&api.app).await;
            Err(Problem::not_a_draft(sale.state_at(now)))
        }
        DeleteOutcome::NotFound => Err(Problem::not_found("such sale")),
    }
}

/// `GET /v1/admin/sales`
pub async fn list_sales(api: Data<Api>, _: Operator, Query(page): Query<PageQuery>) -> Result<HttpResponse, Problem> {
    let limit = page.limit.get();
    let after = page.starting_after;
    let sales = api
        .for_others(move |app| async move { flow::sale_book::list(&app, limit + 1, after).await })
        .await?;
    let now = flow::sale_book::clock(&api.app).await;
    let sales = sales.into_iter().map(|sale| AdminSale::at(sale, now)).collect();
    Ok(HttpResponse::Ok().json(Page::of(sales, limit)))
}

/// `GET /v1/admin/sales/{id}`
pub async fn show_sale(api: Data<Api>, _: Operator, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
    let sale = api
        .for_others(move |app| async move { flow::sale_book::find(&app, id).await })
        .await?;
    let sale = sale.ok_or_else(|| Problem::not_found("such sale"))?;
    Ok(shown(&api, HttpResponse::Ok(), sale).await)
}

/// A preloaded sale. Its member `shards` is not the number of shards, but what each shard holds.
#[derive(Serialize)]
pub(super) struct Preloaded {
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

async fn transition(api: &Api, id: SaleId, to: Transition) -> Result<HttpResponse, Problem> {
    match api
        .for_others(move |app| async move { flow::operate::transition::transition(&app, id, to).await })
        .await?
    {
        TransitionOutcome::Done(sale) => Ok(HttpResponse::Ok().json(view(api, sale).await)),
        TransitionOutcome::Invalid(state) => Err(Problem::invalid_transition(state)),
        TransitionOutcome::NotFound => Err(Problem::not_found("such sale")),
    }
}

macro_rules! transitions {
    ($($name:ident $to:ident)*) => {$(
        #[doc = concat!("`POST /v1/admin/sales/{id}/", stringify!($name), "`")]
        pub async fn $name(api: Data<Api>, _: Operator, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
            transition(&api, id, Transition::$to).await
        }
    )*};
}

transitions! { open Open pause Pause resume Resume close Close }

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
pub(super) struct AuditPage {
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
    let app = Arc::clone(&api.app);
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
pub(super) enum RebuildAnswer {
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

/// Which orders to list: those of a sale, of an account, or of both.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OrdersQuery {
    /// Lists only the orders of this sale. This or `user` is required.
    sale_id: Option<SaleId>,
    /// Lists only the orders of this account.
    #[schemars(with = "Option<UserId>")]
    user: Option<String>,
    /// Lists only the orders in this state.
    #[schemars(extend("enum" = OrderState::ALL))]
    state: Option<String>,
    /// At most so many orders; 100 by default.
    #[serde(default)]
    limit: PageSize,
    /// Lists only the orders after the one with this id.
    starting_after: Option<OrderId>,
}

/// `GET /v1/admin/orders`, by id, the last first
pub async fn list_orders(
    api: Data<Api>,
    _: Operator,
    Query(query): Query<OrdersQuery>,
) -> Result<HttpResponse, Problem> {
    let account = query.user.as_deref().map(user).transpose()?;
    let of = match (account, query.sale_id) {
        (Some(user), sale) => OrdersOf::User(user, sale),
        (None, Some(sale)) => OrdersOf::Sale(sale),
        (None, None) => return Err(Problem::invalid("give sale_id, user, or both")),
    };
    let state = query.state.as_deref().map(str::parse::<OrderState>).transpose();
    let state = state.map_err(|wrong| Problem::invalid(format!("state: {wrong}")))?;
    let (limit, after) = (query.limit.get(), query.starting_after);
    let orders = api
        .for_others(move |app| async move {
            flow::settle::order::list_for_operators(&app, &of, state, after, limit + 1).await
        })
        .await?;
    let orders = orders.ok_or_else(|| Problem::not_found("such sale"))?;
    Ok(HttpResponse::Ok().json(Page::of(orders, limit)))
}

/// `GET /v1/admin/orders/{id}`
pub async fn show_order(api: Data<Api>, _: Operator, OrderPath(id): OrderPath) -> Result<HttpResponse, Problem> {
    let order = api
        .for_others(move |app| async move { flow::settle::order::find_anywhere(&app, id).await })
        .await?;
    let order = order.ok_or_else(|| Problem::not_found("such order"))?;
    Ok(HttpResponse::Ok().json(order))
}

/// The guards of the instance that answers.
#[derive(Serialize, JsonSchema)]
pub(super) struct Guards {
    /// The settings from the instance's configuration.
    configured: GuardSettings,
    /// The settings that operators have changed, for all instances.
    changed: GuardChanges,
    /// The settings in force: the configuration with the changes.
    effective: GuardSettings,
    /// Requests per second that this instance accepts now; 0 is no limit.
    rate: u32,
    /// Purchases that this instance is answering now.
    in_flight: u32,
}

impl Guards {
    fn of(api: &Api, changed: GuardChanges) -> Self {
        Self {
            configured: api.guards,
            changed,
            effective: api.guards.with(&changed),
            rate: api.gate.rate(),
            in_flight: api.gate.in_flight(),
        }
    }
}

/// `GET /v1/admin/guards`
pub async fn show_guards(api: Data<Api>, _: Operator) -> Result<HttpResponse, Problem> {
    let changed = api
        .for_others(|app| async move { flow::operate::guards::changes(&app).await })
        .await?;
    Ok(HttpResponse::Ok().json(Guards::of(&api, changed)))
}

/// A change of the guards. Kept as it came, because `null` and an absent member differ.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(with = "GuardChanges")]
pub struct GuardPatch(Map<String, Value>);

/// `PATCH /v1/admin/guards`: sets the members of the body, and removes those that are `null` (RFC 7396)
pub async fn change_guards(
    api: Data<Api>,
    _: Operator,
    Json(GuardPatch(changes)): Json<GuardPatch>,
) -> Result<HttpResponse, Problem> {
    let configured = api.guards;
    let is_right = move |settings| {
        let changes: GuardChanges = parse_value(settings)?;
        configured.with(&changes).check().map_err(|wrong| wrong.to_string())?;
        Ok(changes)
    };
    let changed = api
        .for_others(move |app| async move { flow::operate::guards::change(&app, changes, is_right).await })
        .await?;
    let changed = changed.map_err(|wrong: String| Problem::invalid(wrong))?;
    Ok(HttpResponse::Ok().json(Guards::of(&api, changed)))
}

/// Which guard warnings to list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlertsQuery {
    /// At most so many guard warnings; 100 by default.
    #[serde(default)]
    limit: PageSize,
    /// Lists only the guard warnings older than the one with this id.
    #[schemars(range(min = i64::MIN, max = i64::MAX))]
    starting_after: Option<i64>,
}

/// `GET /v1/admin/alerts`, newest first
pub async fn list_alerts(
    api: Data<Api>,
    _: Operator,
    Query(query): Query<AlertsQuery>,
) -> Result<HttpResponse, Problem> {
    let limit = query.limit.get();
    let before = query.starting_after;
    let alerts = api
        .for_others(move |app| async move { flow::operate::guards::warnings(&app, before, limit + 1).await })
        .await?;
    Ok(HttpResponse::Ok().json(Page::of(alerts, limit)))
}

/// The pattern of a reason: not only white space, no NUL.
const REASON_PATTERN: &str = concat!(
    r"^[^\u0000]*",
    r"[^\u0000\u0009-\u000d\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]",
    r"[^\u0000]*$"
);

/// The body of a ban.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BanBody {
    /// The account to ban.
    #[schemars(with = "UserId")]
    user: String,
    /// The reason: not only white space, no NUL.
    #[schemars(length(min = 1, max = REASON_MAX), regex(pattern = REASON_PATTERN))]
    reason: String,
    /// When the ban ends: a future time, at most in the year 9999. Without it, the ban has no end.
    until: Option<DateTime<Utc>>,
    /// Whether the account's tokens issued until now become invalid.
    #[serde(default)]
    end_sessions: bool,
}

impl BanBody {
    fn check(self) -> Result<NewBan, Problem> {
        let reason = self.reason.trim();
        if reason.is_empty() || self.reason.chars().count() > REASON_MAX || reason.contains('\0') {
            return Err(Problem::invalid(format!(
                "reason must have 1 to {REASON_MAX} characters"
            )));
        }
        // RFC 3339 cannot write later years.
        if self
            .until
            .is_some_and(|until| until <= Utc::now() || until.year() > 9999)
        {
            return Err(Problem::invalid(
                "until must lie ahead, in the years up to 9999; leave it out to ban for ever",
            ));
        }
        Ok(NewBan {
            user: user(&self.user)?,
            reason: reason.to_owned(),
            banned_by: BannedBy::Operator,
            until: self.until,
            end_sessions: self.end_sessions,
        })
    }
}

fn user(text: &str) -> Result<UserId, Problem> {
    text.parse().map_err(|wrong| Problem::invalid(format!("user: {wrong}")))
}

/// `POST /v1/admin/bans`
pub async fn ban(api: Data<Api>, _: Operator, Json(body): Json<BanBody>) -> Result<HttpResponse, Problem> {
    let new = body.check()?;
    let ban = api
        .for_others(|app| async move { flow::operate::bans::ban(&app, &new).await })
        .await?;
    Ok(HttpResponse::Created().json(ban))
}

/// The ban to lift.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LiftBody {
    /// The banned account.
    #[schemars(with = "UserId")]
    user: String,
}

/// `POST /v1/admin/bans/lift`
pub async fn lift_ban(api: Data<Api>, _: Operator, Json(body): Json<LiftBody>) -> Result<HttpResponse, Problem> {
    let user = user(&body.user)?;
    let lifted = api
        .for_others(|app| async move { flow::operate::bans::lift(&app, &user).await })
        .await?;
    let lifted = lifted.ok_or_else(|| Problem::not_found("ban of this account"))?;
    Ok(HttpResponse::Ok().json(lifted))
}

/// Which bans to list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BansQuery {
    /// At most so many bans; 100 by default.
    #[serde(default)]
    limit: PageSize,
    /// Lists only the bans after the one of this account.
    #[schemars(with = "Option<UserId>")]
    starting_after: Option<String>,
    /// `true` lists the newest bans first; otherwise they are sorted by account.
    #[serde(default)]
    newest_first: bool,
    /// Lists only the ban of this account, if it is in force. The other parameters are ignored then.
    #[schemars(with = "Option<UserId>")]
    user: Option<String>,
}

/// `GET /v1/admin/bans`: the bans in force, by account or the newest first
pub async fn list_bans(api: Data<Api>, _: Operator, Query(query): Query<BansQuery>) -> Result<HttpResponse, Problem> {
    let (limit, newest_first) = (query.limit.get(), query.newest_first);
    let after = query.starting_after.as_deref().map(user).transpose()?;
    let only = query.user.as_deref().map(user).transpose()?;
    let bans = api
        .for_others(move |app| async move {
            flow::operate::bans::list(&app, only.as_ref(), newest_first, after.as_ref(), limit + 1).await
        })
        .await?;
    Ok(HttpResponse::Ok().json(Page::of(bans, limit)))
}

/// Which payments to list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PaymentsQuery {
    /// Lists only the payments with this outcome; `refund_due` by default.
    #[schemars(extend("enum" = PaymentOutcome::RECORDED))]
    outcome: Option<String>,
    /// `true` lists only payments that an operator has marked as paid back, `false` only the others.
    settled: Option<bool>,
    /// At most so many payments; 100 by default.
    #[serde(default)]
    limit: PageSize,
    /// Lists only the payments after the one with this `payment_id`.
    #[schemars(length(min = 1, max = NAME_MAX), regex(pattern = NO_NUL))]
    starting_after: Option<String>,
}

/// `GET /v1/admin/payments?outcome=refund_due|unmatched|pending|applied`, newest first
pub async fn list_payments(
    api: Data<Api>,
    _: Operator,
    Query(query): Query<PaymentsQuery>,
) -> Result<HttpResponse, Problem> {
    let wanted = query.outcome.as_deref().unwrap_or("refund_due");
    let outcome = PaymentOutcome::from_name(wanted)
        .ok_or_else(|| Problem::invalid("outcome must be refund_due, unmatched, pending or applied".to_owned()))?;
    let (settled, limit, after) = (query.settled, query.limit.get(), query.starting_after);
    if after.as_ref().is_some_and(|id| !is_payment_id(id)) {
        return Err(Problem::invalid("starting_after must be a payment_id"));
    }
    let payments = api
        .for_others(move |app| async move {
            flow::settle::pay::list(&app, outcome, settled, after.as_deref(), limit + 1).await
        })
        .await?;
    Ok(HttpResponse::Ok().json(Page::of(payments, limit)))
}

fn is_payment_id(text: &str) -> bool {
    (1..=NAME_MAX).contains(&text.len()) && !text.contains('\0')
}

/// Marks a payment as paid back. The body names the payment, not the path, because the provider's id may have any
/// characters.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleBody {
    /// The payment that was paid back.
    #[schemars(length(min = 1, max = NAME_MAX), regex(pattern = NO_NUL))]
    payment_id: String,
    /// The provider's name for the refund: some words on one line.
    #[schemars(length(min = 1, max = REFERENCE_MAX), regex(pattern = PLAIN_PATTERN))]
    reference: String,
}

/// `POST /v1/admin/payments/settle`: records once that money was paid back
pub async fn settle_payment(
    api: Data<Api>,
    _: Operator,
    Json(body): Json<SettleBody>,
) -> Result<HttpResponse, Problem> {
    let SettleBody { payment_id, reference } = body;
    if !is_payment_id(&payment_id) {
        return Err(Problem::invalid(format!(
            "payment_id must be 1 to {NAME_MAX} bytes without NUL"
        )));
    }
    let reference: RefundReference = reference
        .parse()
        .map_err(|wrong| Problem::invalid(format!("reference {wrong}")))?;
    let refund = api
        .for_others(move |app| async move { flow::settle::pay::settle_refund(&app, &payment_id, &reference).await })
        .await?;
    match refund {
        Refund::Settled(payment) => Ok(HttpResponse::Ok().json(payment)),
        Refund::SettledAs(other) => Err(Problem::new(
            Code::InvalidTransition,
            format!("this payment was paid back already, as {other}"),
        )),
        Refund::NotDue(outcome) => Err(Problem::new(
            Code::InvalidTransition,
            format!("nothing of this payment is owed back: it is {}", outcome.as_str()),
        )),
        Refund::NoPayment => Err(Problem::not_found("such payment")),
    }
}

/// Which actions to list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionsQuery {
    /// Lists only the actions on this sale.
    sale_id: Option<SaleId>,
    /// At most so many actions; 100 by default.
    #[serde(default)]
    limit: PageSize,
    /// Lists only the actions older than the one with this id.
    #[schemars(range(min = i64::MIN, max = i64::MAX))]
    starting_after: Option<i64>,
}

/// `GET /v1/admin/actions`: the audit log, newest first
pub async fn list_actions(
    api: Data<Api>,
    _: Operator,
    Query(query): Query<ActionsQuery>,
) -> Result<HttpResponse, Problem> {
    let (sale, limit, before) = (query.sale_id, query.limit.get(), query.starting_after);
    let actions = api
        .for_others(move |app| async move { flow::operate::console::actions(&app, sale, before, limit + 1).await })
        .await?;
    Ok(HttpResponse::Ok().json(Page::of(actions, limit)))
}
