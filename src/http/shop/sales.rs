//! Sales for shoppers. They need no token.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::fairness::AccountHash;
use crate::domain::sale::guards::{SaleGuards, SaleStages};
use crate::flow::App;
use crate::flow::sell::browse::count_page_view;
use crate::flow::sell::glance::{Glance, glance, glances, next_releases, next_releases_each};
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Browser, Query, SalePath, Shopper};
use crate::http::openapi::{SALE_ID, Who};
use crate::http::problem::Problem;
use crate::http::views::{Page, PageQuery, PublicGuards, PublicSale};
use crate::http::{Api, found};
use actix_web::HttpResponse;
use actix_web::http::header::{CACHE_CONTROL, VARY};
use actix_web::web::Data;
use serde_json::{Value, json};
use std::sync::Arc;

pub const ROUTES: &[Endpoint] = &[
    Endpoint::get("/v1/sales", handler!(list), |it| {
        it.of_shoppers(Who::Visitor, "listSales", "List sales")
            .says(
                "Newest first, without drafts. No token is needed. With a shopper's token, the page view is counted. \
                 Operators may set that very many page views of one account raise a guard warning or a ban.",
            )
            .query::<PageQuery>(&[("limit", 10.into())])
            .answers_page::<PublicSale>("A page of sales.", example())
    }),
    Endpoint::get("/v1/sales/{id}", handler!(show), |it| {
        it.of_shoppers(Who::Visitor, "showSale", "Show a sale")
            .says(
                "A draft, which lists leave out, is shown to anybody with its id. Caches may keep the answer to a \
                 request without a token for a second. `server_time` is the clock that decides: use it for a \
                 countdown. An item is `low` if a tenth of its stock, rounded up, or less is free, and `sold_out` if \
                 nothing is. Then `on_hold` is whether unpaid orders hold units. The first of them may come back at \
                 `next_release_at`, or before.",
            )
            .answers::<PublicSale>(200, "The sale.", example())
    }),
];

async fn list(api: Data<Api>, browser: Browser, Query(page): Query<PageQuery>) -> Result<HttpResponse, Problem> {
    count_view(&api, browser, None);
    let (limit, after) = (page.limit.get(), page.starting_after);
    let (data, has_more) = api.for_shopper(move |app| newest(app, limit, after)).await?;
    Ok(HttpResponse::Ok().json(Page { data, has_more }))
}

async fn show(api: Data<Api>, browser: Browser, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
    let account = browser.0.as_ref().map(|Shopper(user)| AccountHash::of(id, user));
    count_view(&api, browser, Some(id));
    let sale = api.for_shopper(move |app| one(app, id));
    let sale = found(sale.await?, "such sale")?;
    let mut answer = HttpResponse::Ok();
    match account {
        Some(account) => api.app.fairness.viewed(account),
        // Nothing of a shopper is in it, and nobody's page view is missed.
        None => {
            answer
                .insert_header((CACHE_CONTROL, "public, max-age=1"))
                .insert_header((VARY, "Authorization"));
        }
    }
    Ok(answer.json(sale))
}

/// A page of the list.
pub async fn newest(app: Arc<App>, max: usize, after: Option<SaleId>) -> Result<(Vec<PublicSale>, bool), Fault> {
    let (sales, has_more) = glances(&app, max, after).await?;
    let releases = next_releases_each(&app, &sales).await;
    let none = Arc::default();
    let views = sales
        .iter()
        .map(|sale| PublicSale::of(sale, releases.get(&sale.sale.id).unwrap_or(&none)));
    Ok((views.collect(), has_more))
}

async fn one(app: Arc<App>, id: SaleId) -> Result<Option<PublicSale>, Fault> {
    let Some(sale) = glance(&app, id).await? else {
        return Ok(None);
    };
    Ok(Some(view(app, sale).await))
}

/// A sale as shoppers see it.
pub async fn view(app: Arc<App>, sale: Arc<Glance>) -> PublicSale {
    let releases = next_releases(&app, &sale).await;
    PublicSale::of(&sale, &releases)
}

/// Counts a page view of a signed-in shopper, of this sale or of all. The answer does not wait for it, nor depend on it.
fn count_view(api: &Data<Api>, Browser(shopper): Browser, sale: Option<SaleId>) {
    let Some(Shopper(user)) = shopper else { return };
    let limits = api.gate.page_view_limits(&user);
    if !limits.are_on() {
        return;
    }
    let app = Arc::clone(&api.app);
    tokio::spawn(async move {
        if let Err(fault) = count_page_view(&app, &user, sale, &limits).await {
            tracing::debug!(%fault, "a page view was not counted");
        }
    });
}

fn example() -> Value {
    json!({
        "id": SALE_ID, "name": "Winter drop", "description": "Warm things, once a year.",
        "image_url": "https://images.example/winter.jpg", "state": "open",
        "starts_at": "2026-11-22T09:00:00.000Z", "ends_at": "2026-11-22T10:00:00.000Z",
        "server_time": "2026-11-22T09:00:00.120Z", "payment_window_seconds": 900,
        "purchase_rate": {"limit": 5, "window_ms": 60000},
        "guards": PublicGuards::of(&SaleGuards::default(), &SaleStages::default()),
        "items": [{"sku": "TSHIRT-M", "name": "T-shirt, medium", "price_minor": 2500, "currency": "EUR",
            "per_user_limit": 2, "availability": "available", "description": "Organic cotton.\nWash at 30 °C.",
            "image_url": "https://images.example/t-shirt.jpg", "group": "T-shirt", "option": "M"},
            {"sku": "TSHIRT-L", "name": "T-shirt, large", "price_minor": 2500, "currency": "EUR", "per_user_limit": 2,
            "availability": "sold_out", "on_hold": true, "next_release_at": "2026-11-22T09:15:00.040Z"}],
    })
}
