//! Sales: drafts, and the transitions of a sale.

use crate::domain::code::Code;
use crate::domain::ids::SaleId;
use crate::domain::sale::{Sale, SaleRequest, Transition};
use crate::flow;
use crate::flow::operate::transition::TransitionOutcome;
use crate::flow::sale_book::{ChangeOutcome, CreateOutcome, DeleteOutcome};
use crate::http::Api;
use crate::http::extract::{Json, MaybeKey, Operator, Query, SalePath, Versions};
use crate::http::problem::Problem;
use crate::http::shop::orders::REPLAYED;
use crate::http::views::{AdminSale, Page, PageQuery};
use actix_web::http::header::{ETag, EntityTag, LOCATION};
use actix_web::web::Data;
use actix_web::{HttpResponse, HttpResponseBuilder};
use schemars::JsonSchema;
use serde::Serialize;

pub(super) async fn view(api: &Api, sale: Sale) -> AdminSale {
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
pub(in crate::http) struct DeletedSale {
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
