//! What operators do.

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
use crate::flow::restock::RestockOutcome;
use crate::flow::sale_book::{ChangeOutcome, CreateOutcome, DeleteOutcome};
use crate::flow::transition::TransitionOutcome;
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

/// A sale, and in `ETag` the version of its terms.
async fn shown(api: &Api, mut answer: HttpResponseBuilder, sale: Sale) -> HttpResponse {
    answer.insert_header(ETag(EntityTag::new_strong(sale.version())));
    answer.json(view(api, sale).await)
}

/// `POST /v1/admin/sales`: once for each `Idempotency-Key`, if there is one.
pub async fn create_sale(
    api: Data<Api>,
    _: Operator,
    MaybeKey(key): MaybeKey,
    Json(request): Json<SaleRequest>,
) -> Result<HttpResponse, Problem> {
    let new = request.check(api.sale_guards);
    let new = new.map_err(|wrong| Problem::invalid(wrong.to_string()))?;
    let created = api.for_others(|app| async move {
        Ok(match flow::durable::lacking(&app, new.durability).await? {
            Some(lacking) => Err(lacking),
            None => Ok(flow::sale_book::create_once(&app, &new, key.as_ref()).await?),
        })
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
                "this key belongs to a sale that was asked for in another way",
            ));
        }
    };
    answer.insert_header((LOCATION, format!("/v1/admin/sales/{}", sale.id)));
    Ok(shown(&api, answer, sale).await)
}

/// `PUT /v1/admin/sales/{id}`: makes a draft another one, if it is still the one that `If-Match` names. Once it is preloaded,
/// it stays as it is.
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
        Ok(match flow::durable::lacking(&app, new.durability).await? {
            Some(lacking) => Err(lacking),
            None => Ok(flow::sale_book::change(&app, id, &new, versions.as_deref()).await?),
        })
    });
    match changed.await?.map_err(Problem::invalid)? {
        ChangeOutcome::Changed(sale) => Ok(shown(&api, HttpResponse::Ok(), sale).await),
        ChangeOutcome::Stale => Err(Problem::new(
            Code::InvalidTransition,
            "the draft has been changed since If-Match was its ETag: read it again, and change that",
        )),
        ChangeOutcome::NoDraft(sale) => {
            let now = flow::sale_book::clock(&api.app).await;
            Err(Problem::not_a_draft(sale.state_at(now)))
        }
        ChangeOutcome::NotFound => Err(Problem::not_found("such sale")),
    }
}

/// A draft that there is no more.
#[derive(Serialize, JsonSchema)]
pub(super) struct DeletedSale {
    /// Its id.
    id: SaleId,
    /// That it is gone.
    #[schemars(extend("const" = true))]
    deleted: bool,
}

/// `DELETE /v1/admin/sales/{id}`: of drafts. What has been loaded stays, with its orders and money.
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

/// A sale that has been preloaded: its own `shards`, how many there are, give way to what each of them holds.
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
        sale_id.insert("description".to_owned(), "The sale's id, once more.".into());
        let mut shards = generator.subschema_for::<Vec<ShardStats>>();
        shards.insert("description".to_owned(), "What each of its shards holds.".into());
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
        Ok(match flow::durable::lacking_for(&app, id).await? {
            Some(lacking) => Err(lacking),
            None => Ok(flow::preload::preload(&app, id).await?),
        })
    });
    let loaded = loaded.await?.map_err(Problem::invalid)?;
    let (sale, readings) = loaded.ok_or_else(|| Problem::not_found("such sale"))?;
    let shards = readings.iter().map(flow::stats::shard_stats).collect();
    let view = view(&api, (*sale).clone()).await;
    let preloaded = Preloaded {
        sale: view,
        sale_id: id,
        shards,
    };
    // As a value, where the later of two members of a name takes the place of the earlier.
    Ok(HttpResponse::Ok().json(serde_json::to_value(preloaded).unwrap_or_default()))
}

async fn transition(api: &Api, id: SaleId, to: Transition) -> Result<HttpResponse, Problem> {
    match api
        .for_others(move |app| async move { flow::transition::transition(&app, id, to).await })
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
    /// Which item.
    #[schemars(with = "Sku")]
    sku: String,
    /// Units to add, or, if negative, to take back. Not 0.
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
        .for_others(move |app| async move { flow::restock::restock(&app, id, &key, &sku, quantity).await })
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
        .for_others(move |app| async move { flow::stats::stats(&app, id).await })
        .await?;
    Ok(HttpResponse::Ok().json(stats.ok_or_else(|| Problem::not_found("such sale"))?))
}

/// The most differences that one answer lists.
const DIFFERENCES_MAX: u32 = 1000;

/// Which of an audit's differences are asked for.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// At most so many differences; 1000 if it is left out.
    #[serde(default)]
    limit: PageSize<DIFFERENCES_MAX>,
    /// Only the differences after this one, as an answer before had it last.
    starting_after: Option<String>,
}

/// An audit with one page of its differences.
#[derive(Serialize, JsonSchema)]
pub(super) struct AuditPage {
    #[serde(flatten)]
    audit: Audit,
    /// How many differences there are in all.
    differences_total: usize,
    /// Whether more follow; ask for them with `starting_after` and the last difference.
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

/// `GET /v1/admin/sales/{id}/audit`. Every page is counted anew: the differences are in the order of their text, so what
/// stays wrong is on one page.
pub async fn audit(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Query(query): Query<AuditQuery>,
) -> Result<HttpResponse, Problem> {
    let app = Arc::clone(&api.app);
    let next = api
        .audits
        .next(id, move || async move { flow::audit::audit(&app, id).await });
    let audit = api.for_long(AUDIT_WAIT, |_| next).await?;
    let audit = audit.ok_or_else(|| Problem::not_found("such sale"))?;
    Ok(HttpResponse::Ok().json(AuditPage::of(audit, &query)))
}

/// How a rebuild is asked for.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RebuildQuery {
    /// Whether to change nothing, and to say what a rebuild would change.
    #[serde(default)]
    dry_run: bool,
}

/// What a rebuild came to, or would.
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
                let preview = flow::rebuild::preview::preview(&app, id).await?;
                preview.map(RebuildAnswer::DryRun)
            } else {
                let rebuilt = flow::permit::rebuild_sale(&app, id).await?;
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

/// Which orders are asked for: of a sale, of an account, or of both.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OrdersQuery {
    /// Only those of this sale. It, or `user`, has to be there.
    sale_id: Option<SaleId>,
    /// Only those of this account.
    #[schemars(with = "Option<UserId>")]
    user: Option<String>,
    /// Only those in this state.
    #[schemars(extend("enum" = OrderState::ALL))]
    state: Option<String>,
    /// At most so many; 100 if it is left out.
    #[serde(default)]
    limit: PageSize,
    /// Only those after the one with this id.
    starting_after: Option<OrderId>,
}

/// `GET /v1/admin/orders`, by their ids and the last first
pub async fn list_orders(
    api: Data<Api>,
    _: Operator,
    Query(query): Query<OrdersQuery>,
) -> Result<HttpResponse, Problem> {
    let account = query.user.as_deref().map(user).transpose()?;
    let of = match (account, query.sale_id) {
        (Some(user), sale) => OrdersOf::User(user, sale),
        (None, Some(sale)) => OrdersOf::Sale(sale),
        (None, None) => return Err(Problem::invalid("say whose orders: sale_id, user, or both")),
    };
    let state = query.state.as_deref().map(str::parse::<OrderState>).transpose();
    let state = state.map_err(|wrong| Problem::invalid(format!("state: {wrong}")))?;
    let (limit, after) = (query.limit.get(), query.starting_after);
    let orders = api
        .for_others(move |app| async move { flow::order::list_for_operators(&app, &of, state, after, limit + 1).await })
        .await?;
    let orders = orders.ok_or_else(|| Problem::not_found("such sale"))?;
    Ok(HttpResponse::Ok().json(Page::of(orders, limit)))
}

/// `GET /v1/admin/orders/{id}`
pub async fn show_order(api: Data<Api>, _: Operator, OrderPath(id): OrderPath) -> Result<HttpResponse, Problem> {
    let order = api
        .for_others(move |app| async move { flow::order::find_anywhere(&app, id).await })
        .await?;
    let order = order.ok_or_else(|| Problem::not_found("such order"))?;
    Ok(HttpResponse::Ok().json(order))
}

/// The guards of the instance that answers.
#[derive(Serialize, JsonSchema)]
pub(super) struct Guards {
    /// As it was configured.
    configured: GuardSettings,
    /// What operators have set over that, for all instances.
    changed: GuardChanges,
    /// Both together.
    effective: GuardSettings,
    /// Requests a second that the instance takes now; 0 is all.
    rate: u32,
    /// Purchases that it is answering now.
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
        .for_others(|app| async move { app.ledger.guard_changes().await })
        .await?;
    Ok(HttpResponse::Ok().json(Guards::of(&api, changed)))
}

/// The body of a change of the guards, as it came: what is null in it is there, too.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(with = "GuardChanges")]
pub struct GuardPatch(Map<String, Value>);

/// `PATCH /v1/admin/guards`: sets what the body has, and unsets what is null there (RFC 7396).
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
        .for_others(move |app| async move { app.ledger.change_guards(changes, is_right).await })
        .await?;
    let changed = changed.map_err(|wrong: String| Problem::invalid(wrong))?;
    Ok(HttpResponse::Ok().json(Guards::of(&api, changed)))
}

/// Which alerts are asked for.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlertsQuery {
    /// At most so many; 100 if it is left out.
    #[serde(default)]
    limit: PageSize,
    /// Only those before the one with this id: the list begins with the newest.
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
        .for_others(move |app| async move {
            let max = i64::try_from(limit + 1).unwrap_or(i64::MAX);
            app.ledger.guard_alerts(before, max).await
        })
        .await?;
    Ok(HttpResponse::Ok().json(Page::of(alerts, limit)))
}

/// What a reason looks like: not only white space, no NUL.
const REASON_PATTERN: &str = concat!(
    r"^[^\u0000]*",
    r"[^\u0000\u0009-\u000d\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]",
    r"[^\u0000]*$"
);

/// The body of a ban.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BanBody {
    /// Whose account.
    #[schemars(with = "UserId")]
    user: String,
    /// Why: not only white space, no NUL.
    #[schemars(length(min = 1, max = REASON_MAX), regex(pattern = REASON_PATTERN))]
    reason: String,
    /// Until when, which must lie ahead, in the years up to 9999; for ever if it is left out.
    until: Option<DateTime<Utc>>,
    /// Whether the account's tokens are no longer taken.
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
        // Later years have no form in RFC 3339.
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
        .for_others(|app| async move { flow::bans::ban(&app, &new).await })
        .await?;
    Ok(HttpResponse::Created().json(ban))
}

/// Whose ban is lifted.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LiftBody {
    /// Whose account.
    #[schemars(with = "UserId")]
    user: String,
}

/// `POST /v1/admin/bans/lift`
pub async fn lift_ban(api: Data<Api>, _: Operator, Json(body): Json<LiftBody>) -> Result<HttpResponse, Problem> {
    let user = user(&body.user)?;
    let lifted = api
        .for_others(|app| async move { flow::bans::lift(&app, &user).await })
        .await?;
    let lifted = lifted.ok_or_else(|| Problem::not_found("ban of this account"))?;
    Ok(HttpResponse::Ok().json(lifted))
}

/// Which bans are asked for.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BansQuery {
    /// At most so many; 100 if it is left out.
    #[serde(default)]
    limit: PageSize,
    /// Only those after this account.
    #[schemars(with = "Option<UserId>")]
    starting_after: Option<String>,
    /// Whether the newest come first, and not by account.
    #[serde(default)]
    newest_first: bool,
    /// Only this account's, if it holds; the others say nothing then.
    #[schemars(with = "Option<UserId>")]
    user: Option<String>,
}

/// `GET /v1/admin/bans`, those that hold, by account or the newest first
pub async fn list_bans(api: Data<Api>, _: Operator, Query(query): Query<BansQuery>) -> Result<HttpResponse, Problem> {
    let (limit, newest_first) = (query.limit.get(), query.newest_first);
    let after = query.starting_after.as_deref().map(user).transpose()?;
    let only = query.user.as_deref().map(user).transpose()?;
    let bans = api
        .for_others(move |app| async move {
            let max = i64::try_from(limit + 1).unwrap_or(i64::MAX);
            if let Some(only) = only {
                let ban = app.ledger.ban_of(&only).await?;
                Ok(ban.filter(|ban| ban.holds(Utc::now())).into_iter().collect())
            } else if newest_first {
                app.ledger.banned_newest_first(after.as_ref(), max).await
            } else {
                app.ledger.banned(after.as_ref(), max).await
            }
        })
        .await?;
    Ok(HttpResponse::Ok().json(Page::of(bans, limit)))
}

/// Which payments are asked for.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PaymentsQuery {
    /// What became of them; `refund_due` if it is left out.
    #[schemars(extend("enum" = PaymentOutcome::RECORDED))]
    outcome: Option<String>,
    /// Only those of which an operator has said that they were paid back, or only the others.
    settled: Option<bool>,
    /// At most so many; 100 if it is left out.
    #[serde(default)]
    limit: PageSize,
    /// Only those after the one with this `payment_id`.
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
        .for_others(
            move |app| async move { flow::pay::list(&app, outcome, settled, after.as_deref(), limit + 1).await },
        )
        .await?;
    Ok(HttpResponse::Ok().json(Page::of(payments, limit)))
}

fn is_payment_id(text: &str) -> bool {
    (1..=NAME_MAX).contains(&text.len()) && !text.contains('\0')
}

/// The body that says that money was paid back. A payment is named here and not in the path: its id is the provider's, and may
/// be anything.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleBody {
    /// Which payment.
    #[schemars(length(min = 1, max = NAME_MAX), regex(pattern = NO_NUL))]
    payment_id: String,
    /// What the provider calls the refund: some words on one line.
    #[schemars(length(min = 1, max = REFERENCE_MAX), regex(pattern = PLAIN_PATTERN))]
    reference: String,
}

/// `POST /v1/admin/payments/settle`: notes, once, that money was paid back
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
        .for_others(move |app| async move { flow::pay::settle_refund(&app, &payment_id, &reference).await })
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

/// Which actions are asked for.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionsQuery {
    /// Only those that were done to this sale.
    sale_id: Option<SaleId>,
    /// At most so many; 100 if it is left out.
    #[serde(default)]
    limit: PageSize,
    /// Only those before the one with this id: the list begins with the newest.
    #[schemars(range(min = i64::MIN, max = i64::MAX))]
    starting_after: Option<i64>,
}

/// `GET /v1/admin/actions`: what operators did, newest first
pub async fn list_actions(
    api: Data<Api>,
    _: Operator,
    Query(query): Query<ActionsQuery>,
) -> Result<HttpResponse, Problem> {
    let (sale, limit, before) = (query.sale_id, query.limit.get(), query.starting_after);
    let actions = api
        .for_others(move |app| async move { flow::console::actions(&app, sale, before, limit + 1).await })
        .await?;
    Ok(HttpResponse::Ok().json(Page::of(actions, limit)))
}
