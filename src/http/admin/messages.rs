//! The message of operators to the shoppers of a sale.

use crate::domain::sale::message::SaleMessage;
use crate::flow::operate::message;
use crate::http::admin::sales::{example, view};
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Json, Operator, SalePath};
use crate::http::problem::Problem;
use crate::http::views::AdminSale;
use crate::http::{Api, found};
use actix_web::HttpResponse;
use actix_web::web::Data;
use serde_json::json;

pub const ROUTES: &[Endpoint] = &[Endpoint::put("/v1/admin/sales/{id}/message", handler!(set), |it| {
    let message = json!({"en": "More of size M at 18:00.", "zh": "M 码 18:00 补货。"});
    let mut sale = example("open");
    sale["message"] = message.clone();
    it.of_operators("setMessage", "Set the message to a sale's shoppers")
        .says(
            "The sale's page and its waiting room show the message within seconds, in the reader's language if it has \
             that. It replaces the present one; an empty one removes it.",
        )
        .reads::<SaleMessage>(message)
        .answers::<AdminSale>(200, "The sale with its message.", sale)
})
.by_run()];

async fn set(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Json(message): Json<SaleMessage>,
) -> Result<HttpResponse, Problem> {
    let message = message.check();
    let message = message.map_err(|(language, wrong)| Problem::invalid(format!("{language} {wrong}")))?;
    let sale = api.for_operator(move |app| async move { message::set(&app, id, &message).await });
    let sale = found(sale.await?, "such sale")?;
    Ok(HttpResponse::Ok().json(view(&api, sale).await))
}
