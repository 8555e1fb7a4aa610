//! Sales for shoppers. They need no token.

use crate::flow::sell::browse::looked;
use crate::flow::sell::glance::{glance, glances};
use crate::http::Api;
use crate::http::extract::{Browser, Query, SalePath, Shopper};
use crate::http::problem::Problem;
use crate::http::views::{Page, PageQuery, PublicSale};
use actix_web::HttpResponse;
use actix_web::web::Data;
use std::sync::Arc;

/// `GET /v1/sales`
pub async fn list(api: Data<Api>, looks: Browser, Query(page): Query<PageQuery>) -> Result<HttpResponse, Problem> {
    counted(&api, looks);
    let limit = page.limit.get();
    let after = page.starting_after;
    let (found, has_more) = api
        .for_shopper(move |app| async move { glances(&app, limit, after).await })
        .await?;
    let data: Vec<PublicSale> = found.into_iter().map(PublicSale::from).collect();
    Ok(HttpResponse::Ok().json(Page { data, has_more }))
}

/// `GET /v1/sales/{id}`
pub async fn show(api: Data<Api>, looks: Browser, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
    counted(&api, looks);
    let found = api.for_shopper(|app| async move { glance(&app, id).await }).await?;
    let found = found.ok_or_else(|| Problem::not_found("such sale"))?;
    Ok(HttpResponse::Ok().json(PublicSale::from(found)))
}

/// Counts a page view of a signed-in shopper. The answer does not wait for it and does not depend on it.
fn counted(api: &Data<Api>, Browser(shopper): Browser) {
    let settings = api.gate.settings();
    let is_counted = settings.browsing_alert_above > 0 || settings.browsing_ban_above > 0;
    let Some(Shopper(user)) = shopper.filter(|_| is_counted) else {
        return;
    };
    let app = Arc::clone(&api.app);
    tokio::spawn(async move {
        if let Err(fault) = looked(&app, &user, &settings).await {
            tracing::debug!(%fault, "a page view was not counted");
        }
    });
}
