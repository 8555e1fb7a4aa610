//! What operators do.

use super::Api;
use super::extract::{Json, Key, Operator, OrderPath, SalePath};
use super::problem::{Code, Problem};
use super::views::{AdminSale, Page, PageQuery};
use crate::domain::ban::{BannedBy, NewBan, REASON_MAX};
use crate::domain::guard::{GuardChanges, GuardSettings};
use crate::domain::ids::{SaleId, UserId};
use crate::domain::order::Order;
use crate::domain::payment::PaymentOutcome;
use crate::domain::sale::{STOCK_MAX, Sale, SaleRequest, Transition};
use crate::flow;
use crate::flow::restock::RestockOutcome;
use crate::flow::sale_book::ChangeOutcome;
use crate::flow::transition::TransitionOutcome;
use actix_web::HttpResponse;
use actix_web::http::header::LOCATION;
use actix_web::web::{Data, Query};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

async fn view(api: &Api, sale: Sale) -> AdminSale {
    AdminSale::at(sale, flow::sale_book::clock(&api.app).await)
}

/// `POST /v1/admin/sales`
///
/// # Errors
/// The problem that is answered.
pub async fn create_sale(
    api: Data<Api>,
    _: Operator,
    Json(request): Json<SaleRequest>,
) -> Result<HttpResponse, Problem> {
    let new = request.check(api.sale_guards);
    let new = new.map_err(|wrong| Problem::invalid(wrong.to_string()))?;
    let created = api.for_others(|app| async move {
        Ok(match flow::durable::lacking(&app, new.durability).await? {
            Some(lacking) => Err(lacking),
            None => Ok(flow::sale_book::create(&app, &new).await?),
        })
    });
    let sale = created.await?.map_err(Problem::invalid)?;
    let location = format!("/v1/admin/sales/{}", sale.id);
    Ok(HttpResponse::Created()
        .insert_header((LOCATION, location))
        .json(view(&api, sale).await))
}

/// `PUT /v1/admin/sales/{id}`: makes a draft another one. Once it is preloaded, it stays as it is.
///
/// # Errors
/// The problem that is answered.
pub async fn change_sale(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Json(request): Json<SaleRequest>,
) -> Result<HttpResponse, Problem> {
    let new = request.check(api.sale_guards);
    let new = new.map_err(|wrong| Problem::invalid(wrong.to_string()))?;
    let changed = api.for_others(move |app| async move {
        Ok(match flow::durable::lacking(&app, new.durability).await? {
            Some(lacking) => Err(lacking),
            None => Ok(flow::sale_book::change(&app, id, &new).await?),
        })
    });
    match changed.await?.map_err(Problem::invalid)? {
        ChangeOutcome::Changed(sale) => Ok(HttpResponse::Ok().json(view(&api, sale).await)),
        ChangeOutcome::NoDraft(sale) => {
            let now = flow::sale_book::clock(&api.app).await;
            Err(Problem::not_a_draft(sale.state_at(now)))
        }
        ChangeOutcome::NotFound => Err(Problem::not_found("such sale")),
    }
}

/// `GET /v1/admin/sales`
///
/// # Errors
/// The problem that is answered.
pub async fn list_sales(
    api: Data<Api>,
    _: Operator,
    page: Result<Query<PageQuery>, actix_web::Error>,
) -> Result<HttpResponse, Problem> {
    let page = page.map_err(|wrong| Problem::invalid(format!("the query: {wrong}")))?;
    let limit = page.limit();
    let after = page.starting_after;
    let sales = api
        .for_others(move |app| async move { flow::sale_book::list(&app, limit + 1, after).await })
        .await?;
    let now = flow::sale_book::clock(&api.app).await;
    let sales = sales.into_iter().map(|sale| AdminSale::at(sale, now)).collect();
    Ok(HttpResponse::Ok().json(Page::of(sales, limit)))
}

/// `GET /v1/admin/sales/{id}`
///
/// # Errors
/// The problem that is answered.
pub async fn show_sale(api: Data<Api>, _: Operator, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
    let sale = api
        .for_others(move |app| async move { flow::sale_book::find(&app, id).await })
        .await?;
    let sale = sale.ok_or_else(|| Problem::not_found("such sale"))?;
    Ok(HttpResponse::Ok().json(view(&api, sale).await))
}

#[derive(Serialize)]
struct Preloaded {
    #[serde(flatten)]
    sale: AdminSale,
    shards: Vec<crate::domain::report::ShardStats>,
}

/// `POST /v1/admin/sales/{id}/preload`
///
/// # Errors
/// The problem that is answered.
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
    let mut body = serde_json::to_value(Preloaded { sale: view, shards }).unwrap_or_default();
    if let Some(fields) = body.as_object_mut() {
        fields.insert("sale_id".to_owned(), id.to_string().into());
    }
    Ok(HttpResponse::Ok().json(body))
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
        ///
        /// # Errors
        /// The problem that is answered.
        pub async fn $name(api: Data<Api>, _: Operator, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
            transition(&api, id, Transition::$to).await
        }
    )*};
}

transitions! { open Open pause Pause resume Resume close Close }

/// The body of a restock.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestockBody {
    sku: String,
    quantity: i64,
}

/// `POST /v1/admin/sales/{id}/restock`
///
/// # Errors
/// The problem that is answered.
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
///
/// # Errors
/// The problem that is answered.
pub async fn stats(api: Data<Api>, _: Operator, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
    let stats = api
        .for_others(move |app| async move { flow::stats::stats(&app, id).await })
        .await?;
    Ok(HttpResponse::Ok().json(stats.ok_or_else(|| Problem::not_found("such sale"))?))
}

/// `GET /v1/admin/sales/{id}/audit`
///
/// # Errors
/// The problem that is answered.
pub async fn audit(api: Data<Api>, _: Operator, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
    let audit = api
        .for_others(move |app| async move { flow::audit::audit(&app, id).await })
        .await?;
    Ok(HttpResponse::Ok().json(audit.ok_or_else(|| Problem::not_found("such sale"))?))
}

/// `POST /v1/admin/sales/{id}/rebuild`
///
/// # Errors
/// The problem that is answered.
pub async fn rebuild(api: Data<Api>, _: Operator, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
    let sale = api
        .for_others(move |app| async move { flow::sale_book::find(&app, id).await })
        .await?;
    let sale = sale.ok_or_else(|| Problem::not_found("such sale"))?;
    let rebuilt = api
        .for_long(move |app| async move { flow::permit::rebuild_sale(&app, id).await })
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

#[derive(Serialize)]
struct OwnedOrder {
    user: String,
    #[serde(flatten)]
    order: Order,
}

/// `GET /v1/admin/orders/{id}`
///
/// # Errors
/// The problem that is answered.
pub async fn show_order(api: Data<Api>, _: Operator, OrderPath(id): OrderPath) -> Result<HttpResponse, Problem> {
    let order = api
        .for_others(move |app| async move { flow::order::find_anywhere(&app, id).await })
        .await?;
    let order = order.ok_or_else(|| Problem::not_found("such order"))?;
    Ok(HttpResponse::Ok().json(OwnedOrder {
        user: order.user.as_str().to_owned(),
        order,
    }))
}

#[derive(Serialize)]
struct Guards {
    configured: GuardSettings,
    changed: GuardChanges,
    effective: GuardSettings,
    rate: u32,
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
///
/// # Errors
/// The problem that is answered.
pub async fn show_guards(api: Data<Api>, _: Operator) -> Result<HttpResponse, Problem> {
    let changed = api
        .for_others(|app| async move { app.ledger.guard_changes().await })
        .await?;
    Ok(HttpResponse::Ok().json(Guards::of(&api, changed)))
}

/// `PATCH /v1/admin/guards`: sets what the body has, and unsets what is null there (RFC 7396).
///
/// # Errors
/// The problem that is answered.
pub async fn change_guards(
    api: Data<Api>,
    _: Operator,
    Json(changes): Json<serde_json::Map<String, serde_json::Value>>,
) -> Result<HttpResponse, Problem> {
    let configured = api.guards;
    let is_right = move |settings| {
        let changes: GuardChanges = serde_json::from_value(settings).map_err(|wrong| wrong.to_string())?;
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
#[derive(Deserialize)]
pub struct AlertsQuery {
    limit: Option<u32>,
    starting_after: Option<i64>,
}

/// `GET /v1/admin/alerts`, newest first
///
/// # Errors
/// The problem that is answered.
pub async fn list_alerts(
    api: Data<Api>,
    _: Operator,
    query: Result<Query<AlertsQuery>, actix_web::Error>,
) -> Result<HttpResponse, Problem> {
    let query = query.map_err(|wrong| Problem::invalid(format!("the query: {wrong}")))?;
    let limit = query.limit.map_or(100, |limit| limit.clamp(1, 100) as usize);
    let before = query.starting_after;
    let alerts = api
        .for_others(move |app| async move {
            let max = i64::try_from(limit + 1).unwrap_or(i64::MAX);
            app.ledger.guard_alerts(before, max).await
        })
        .await?;
    Ok(HttpResponse::Ok().json(Page::of(alerts, limit)))
}

/// The body of a ban.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BanBody {
    user: String,
    reason: String,
    until: Option<DateTime<Utc>>,
    #[serde(default)]
    end_sessions: bool,
}

impl BanBody {
    fn check(self) -> Result<NewBan, Problem> {
        let reason = self.reason.trim();
        if reason.is_empty() || reason.chars().count() > REASON_MAX || reason.contains('\0') {
            return Err(Problem::invalid(format!(
                "reason must have 1 to {REASON_MAX} characters"
            )));
        }
        if self.until.is_some_and(|until| until <= Utc::now()) {
            return Err(Problem::invalid("until must lie ahead; leave it out to ban for ever"));
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
///
/// # Errors
/// The problem that is answered.
pub async fn ban(api: Data<Api>, _: Operator, Json(body): Json<BanBody>) -> Result<HttpResponse, Problem> {
    let new = body.check()?;
    let ban = api
        .for_others(|app| async move { flow::bans::ban(&app, &new).await })
        .await?;
    Ok(HttpResponse::Created().json(ban))
}

/// Whose ban is lifted.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiftBody {
    user: String,
}

/// `POST /v1/admin/bans/lift`
///
/// # Errors
/// The problem that is answered.
pub async fn lift_ban(api: Data<Api>, _: Operator, Json(body): Json<LiftBody>) -> Result<HttpResponse, Problem> {
    let user = user(&body.user)?;
    let lifted = api
        .for_others(|app| async move { flow::bans::lift(&app, &user).await })
        .await?;
    let lifted = lifted.ok_or_else(|| Problem::not_found("ban of this account"))?;
    Ok(HttpResponse::Ok().json(lifted))
}

/// Which bans are asked for.
#[derive(Deserialize)]
pub struct BansQuery {
    limit: Option<u32>,
    starting_after: Option<String>,
}

/// `GET /v1/admin/bans`, those that hold, by account
///
/// # Errors
/// The problem that is answered.
pub async fn list_bans(
    api: Data<Api>,
    _: Operator,
    query: Result<Query<BansQuery>, actix_web::Error>,
) -> Result<HttpResponse, Problem> {
    let query = query.map_err(|wrong| Problem::invalid(format!("the query: {wrong}")))?;
    let limit = query.limit.map_or(100, |limit| limit.clamp(1, 100) as usize);
    let after = query.starting_after.as_deref().map(user).transpose()?;
    let bans = api
        .for_others(move |app| async move {
            let max = i64::try_from(limit + 1).unwrap_or(i64::MAX);
            app.ledger.banned(after.as_ref(), max).await
        })
        .await?;
    Ok(HttpResponse::Ok().json(Page::of(bans, limit)))
}

/// Which payments are asked for.
#[derive(Deserialize)]
pub struct PaymentsQuery {
    outcome: Option<String>,
    limit: Option<u32>,
}

/// `GET /v1/admin/payments?outcome=refund_due|unmatched|pending|applied`, newest first
///
/// # Errors
/// The problem that is answered.
pub async fn list_payments(
    api: Data<Api>,
    _: Operator,
    query: Result<Query<PaymentsQuery>, actix_web::Error>,
) -> Result<HttpResponse, Problem> {
    let query = query.map_err(|wrong| Problem::invalid(format!("the query: {wrong}")))?;
    let wanted = query.outcome.as_deref().unwrap_or("refund_due");
    let known = [
        PaymentOutcome::RefundDue,
        PaymentOutcome::Unmatched,
        PaymentOutcome::Pending,
        PaymentOutcome::Applied,
    ];
    let outcome = known.into_iter().find(|outcome| outcome.as_str() == wanted);
    let outcome = outcome
        .ok_or_else(|| Problem::invalid("outcome must be refund_due, unmatched, pending or applied".to_owned()))?;
    let limit = query.limit.map_or(100, |limit| limit.clamp(1, 100) as usize);
    let payments = api
        .for_others(move |app| async move { flow::pay::list(&app, outcome, limit + 1).await })
        .await?;
    Ok(HttpResponse::Ok().json(Page::of(payments, limit)))
}

/// Which actions are asked for.
#[derive(Deserialize)]
pub struct ActionsQuery {
    sale_id: Option<String>,
    limit: Option<u32>,
    before: Option<i64>,
}

/// `GET /v1/admin/actions`: what operators did, newest first
///
/// # Errors
/// The problem that is answered.
pub async fn list_actions(
    api: Data<Api>,
    _: Operator,
    query: Result<Query<ActionsQuery>, actix_web::Error>,
) -> Result<HttpResponse, Problem> {
    let query = query
        .map_err(|wrong| Problem::invalid(format!("the query: {wrong}")))?
        .into_inner();
    let sale = query.sale_id.map(|id| id.parse::<SaleId>()).transpose();
    let sale = sale.map_err(|wrong| Problem::invalid(format!("sale_id: {wrong}")))?;
    let limit = query.limit.map_or(100, |limit| limit.clamp(1, 100) as usize);
    let before = query.before;
    let actions = api
        .for_others(move |app| async move { flow::console::actions(&app, sale, before, limit + 1).await })
        .await?;
    Ok(HttpResponse::Ok().json(Page::of(actions, limit)))
}
