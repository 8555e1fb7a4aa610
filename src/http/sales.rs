//! Sales, as shoppers see them. No token is needed.

use super::Api;
use super::extract::SalePath;
use super::problem::Problem;
use super::views::{Page, PageQuery, PublicSale};
use crate::flow::stats::{glance, glances};
use actix_web::HttpResponse;
use actix_web::web::{Data, Query};

/// `GET /v1/sales`
///
/// # Errors
/// The problem that is answered.
pub async fn list(api: Data<Api>, page: Result<Query<PageQuery>, actix_web::Error>) -> Result<HttpResponse, Problem> {
    let page = page.map_err(|wrong| Problem::invalid(format!("the query: {wrong}")))?;
    let limit = page.limit();
    let found = api
        .weather
        .observe(glances(&api.app, limit + 1, page.starting_after).await)?;
    let sales: Vec<PublicSale> = found.into_iter().map(PublicSale::from).collect();
    Ok(HttpResponse::Ok().json(Page::of(sales, limit)))
}

/// `GET /v1/sales/{id}`
///
/// # Errors
/// The problem that is answered.
pub async fn show(api: Data<Api>, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
    let found = api.for_shopper(|app| async move { glance(&app, id).await }).await?;
    let found = found.ok_or_else(|| Problem::not_found("such sale"))?;
    Ok(HttpResponse::Ok().json(PublicSale::from(found)))
}
