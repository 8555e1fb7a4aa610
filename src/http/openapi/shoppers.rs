//! The routes of shoppers, as the document describes them.

use super::operation::{IS_REPLAYED, LOCATION, ORDER_ID, Operation, SALE_ID, Who};
use super::schemas::Schemas;
use crate::domain::code::Code;
use crate::domain::order::Order;
use crate::domain::purchase::Refusal;
use crate::http::shop::challenges::{ChallengeBody, Posed};
use crate::http::shop::orders::{HandedOut, ListQuery, PurchaseBody, TokenBody};
use crate::http::shop::waiting_room::{Asking, Standing};
use crate::http::views::{Page, PageQuery, PublicSale};
use serde_json::{Value, json};

pub fn operations(schemas: &mut Schemas) -> Vec<Operation> {
    let mut all = sales(schemas);
    all.extend(purchases(schemas));
    all.extend(guards(schemas));
    all
}

fn sales(schemas: &mut Schemas) -> Vec<Operation> {
    vec![
        Operation::of_shoppers(Who::Visitor, ["get", "/v1/sales"], "listSales", "List sales")
            .says(
                "Newest first, without drafts. No token is needed. With a shopper's token, the page view is counted. \
                 Operators may set that very many page views of one account raise a guard warning or a ban.",
            )
            .query::<PageQuery>(&[("limit", 10.into())])
            .answers::<Page<PublicSale>>(
                schemas,
                200,
                "A page of sales.",
                json!({"data": [sale()], "has_more": false}),
            ),
        Operation::of_shoppers(Who::Visitor, ["get", "/v1/sales/{id}"], "showSale", "Show a sale")
            .says(
                "`server_time` is the clock that decides: use it for a countdown. An item is `low` if a tenth or less \
                 is free, and `sold_out` if nothing is. Held units may come back if they are not paid for.",
            )
            .answers::<PublicSale>(schemas, 200, "The sale.", sale()),
    ]
}

fn purchases(schemas: &mut Schemas) -> Vec<Operation> {
    let id = "/id";
    let refusals: Vec<Code> = Refusal::each().iter().map(Refusal::code).collect();
    let order_of_checks: Vec<String> = refusals.iter().map(|code| format!("`{}`", code.as_str())).collect();
    vec![
        Operation::of_shoppers(
            Who::Shopper,
            ["post", "/v1/sales/{id}/orders"],
            "buy",
            "Buy: reserve units of an item",
        )
        .says(format!(
            "Holds the units until `expires_at`; the shopper must pay before that. The same key with the same body \
             gets the same order again until a day after the sale's end, even if nothing is left. After a refusal, \
             the same key may succeed later. `sold_out` is never answered while the requested units are free. The \
             checks are made in this order: {}.",
            order_of_checks.join(", ")
        ))
        .with_key("cart-7f3a-1")
        .with_proofs()
        .reads::<PurchaseBody>(schemas, json!({"sku": "TSHIRT-M", "quantity": 1}))
        .answers::<Order>(schemas, 201, "The units are held.", order("reserved"))
        .with_header(LOCATION)
        .leads_to(&[("showOrder", "id", id), ("cancelOrder", "id", id)])
        .answers::<Order>(schemas, 200, "The order that this key made.", order("reserved"))
        .with_header(LOCATION)
        .with_header(IS_REPLAYED)
        .refuses(&refusals),
        Operation::of_shoppers(
            Who::Shopper,
            ["get", "/v1/orders"],
            "listOrders",
            "List one's own orders in a sale",
        )
        .query::<ListQuery>(&[("sale_id", SALE_ID.into())])
        .answers::<Page<Order>>(
            schemas,
            200,
            "Oldest first: the newest 1,000, and whether there are older ones.",
            json!({"data": [order("reserved")], "has_more": false}),
        )
        .refuses(&[Code::NotFound]),
        Operation::of_shoppers(
            Who::Shopper,
            ["get", "/v1/orders/{id}"],
            "showOrder",
            "Show one's own order",
        )
        .says("Works at once after the purchase. Another shopper's is 404.")
        .answers::<Order>(schemas, 200, "The order.", order("reserved")),
        Operation::of_shoppers(
            Who::Shopper,
            ["post", "/v1/orders/{id}/cancel"],
            "cancelOrder",
            "Cancel one's own order",
        )
        .says("The units are free again at once. Cancelling twice is no error.")
        .answers::<Order>(schemas, 200, "The order is cancelled.", order("cancelled"))
        .refuses(&[Code::OrderNotCancellable]),
    ]
}

fn guards(schemas: &mut Schemas) -> Vec<Operation> {
    let standing = || {
        json!({"state": "waiting", "position": 42, "waiting": 1200, "estimated_wait_seconds": 9,
            "ticket": "w1.MTc2MzcxMjAwMC00Mg.xQ2v", "ask_again_seconds": 2})
    };
    vec![
        Operation::of_shoppers(
            Who::Shopper,
            ["post", "/v1/sales/{id}/waiting-room"],
            "askWaitingRoom",
            "Take a place in the waiting room, or ask how one stands",
        )
        .says("For sales whose `guards.waiting_room` is true. Ask again after `ask_again_seconds`.")
        .reads::<Asking>(schemas, json!({}))
        .answers::<Standing>(schemas, 200, "The shopper's place.", standing())
        .refuses(&[Code::SaleNotOpen, Code::Banned]),
        Operation::of_shoppers(
            Who::Shopper,
            ["get", "/v1/sales/{id}/waiting-room/events"],
            "followWaitingRoom",
            "Be told how one stands",
        )
        .says(
            "The same as server-sent events, one for each change; the event's name is the `state`. The stream ends \
             with `admitted` or `closed`, or after five minutes: then open another.",
        )
        .query::<Asking>(&[])
        .answers_events::<Standing>(schemas, "The stream.", "waiting", &standing())
        .refuses(&[Code::SaleNotOpen, Code::Banned]),
        Operation::of_shoppers(
            Who::Shopper,
            ["post", "/v1/challenges"],
            "askChallenge",
            "Ask for a challenge",
        )
        .says("For sales whose `guards.challenge` is not `none`. An account may ask for a few within a minute.")
        .reads::<ChallengeBody>(schemas, json!({"sale_id": SALE_ID}))
        .answers::<Posed>(
            schemas,
            201,
            "The challenge.",
            json!({"kind": "captcha", "id": "019ac1f2-8d51-7b2c-a4f0-6e1d3c5b7a98",
                    "image": "data:image/png;base64,iVBORw0KGgo=", "expires_at": "2026-11-22T09:05:00.000Z"}),
        )
        .refuses(&[Code::NotFound]),
        Operation::of_shoppers(
            Who::Shopper,
            ["post", "/v1/sales/{id}/tokens"],
            "getPurchaseToken",
            "Get a purchase token",
        )
        .says(
            "For sales whose `guards.purchase_token` is true. The token lasts five minutes, for this shopper, sale \
             and key.",
        )
        .reads::<TokenBody>(schemas, json!({"idempotency_key": "cart-7f3a-1"}))
        .answers::<HandedOut>(
            schemas,
            201,
            "The token.",
            json!({"token": "p1.MTc2MzgwMjMwMA.9fK2", "expires_at": "2026-11-22T09:05:00.000Z"}),
        )
        .refuses(&[Code::ChallengeRequired, Code::ChallengeFailed]),
    ]
}

fn sale() -> Value {
    json!({
        "id": SALE_ID, "name": "Winter drop", "state": "open",
        "starts_at": "2026-11-22T09:00:00.000Z", "ends_at": "2026-11-22T10:00:00.000Z",
        "server_time": "2026-11-22T09:00:00.120Z", "payment_window_seconds": 900,
        "purchase_rate": {"limit": 5, "window_ms": 60000},
        "guards": {"waiting_room": false, "purchase_token": false, "challenge": "none", "captcha_proof": false},
        "items": [{"sku": "TSHIRT-M", "name": "T-shirt, medium", "price_minor": 2500, "currency": "EUR",
            "per_user_limit": 2, "availability": "available"}],
    })
}

pub fn order(state: &str) -> Value {
    json!({
        "id": ORDER_ID, "sale_id": SALE_ID, "sku": "TSHIRT-M", "quantity": 1, "amount_minor": 2500, "currency": "EUR",
        "state": state, "confirmed": false, "created_at": "2026-11-22T09:00:00.120Z",
        "expires_at": "2026-11-22T09:15:00.120Z", "paid_at": null,
    })
}
