//! Dead letters and refused messages: operators list them, and note that a dead letter is settled.

use crate::domain::code::Code;
use crate::domain::order::dead_letter::{DEAD_LETTER_PATTERN, DeadLetter, NOTE_MAX, Note, RefusedMessage, Settled};
use crate::domain::plain::PLAIN_PATTERN;
use crate::flow::settle::dead_letters;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Json, Operator, Query, SalePath, parsed};
use crate::http::openapi::ORDER_ID;
use crate::http::problem::Problem;
use crate::http::views::{Page, PageSize};
use crate::http::{Api, found};
use actix_web::HttpResponse;
use actix_web::web::Data;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

pub const ROUTES: &[Endpoint] = &[
    Endpoint::get("/v1/admin/sales/{id}/dead-letters", handler!(list_dead_letters), |it| {
        it.of_operators("listDeadLetters", "List dead letters")
            .says(
                "By shard, then in the order of the events. The order of a dead letter is revoked, if the event names \
                 it. `settled=false` leaves out settled ones.",
            )
            .query::<DeadLettersQuery>(&[("settled", false.into()), ("limit", 10.into())])
            .answers_page::<DeadLetter>("A page of dead letters.", example(false))
    }),
    Endpoint::post(
        "/v1/admin/sales/{id}/dead-letters/settle",
        handler!(settle_dead_letter),
        |it| {
            it.of_operators("settleDeadLetter", "Say that such an event is dealt with")
                .says(
                    "It is no longer counted, but stays in the list. The same note again gets the same answer; \
                     another note is refused.",
                )
                .reads::<SettleLetterBody>(json!({"position": "0:1-2", "note": "wrote to ada, who bought again"}))
                .answers::<DeadLetter>(200, "The settled dead letter.", example(true))
                .refuses(&[Code::InvalidTransition])
        },
    )
    .by_run(),
    Endpoint::get(
        "/v1/admin/sales/{id}/refused-messages",
        handler!(list_refused_messages),
        |it| {
            let message = json!({"id": 12, "shard": 0, "kind": "resolve", "order_id": ORDER_ID, "order_state": "cancelled",
        "user": "ada", "sku": "TSHIRT-M", "units": 1, "failure": "the shard does not know order 00000001-a3f7-8c21-8e55-0d9b4c6f1a37",
        "since": "2026-11-22T09:20:00.000Z"});
            it.of_operators("listRefusedMessages", "List decisions of the ledger that shards refuse")
                .says("Oldest first. Rebuilding the sale settles them: it writes the stock as the ledger has decided.")
                .query::<RefusedQuery>(&[("limit", 10.into())])
                .answers_page::<RefusedMessage>("A page of refused messages.", message)
        },
    ),
];

/// Which dead letters to list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadLettersQuery {
    /// `true` lists only settled dead letters, `false` only the others.
    settled: Option<bool>,
    /// At most so many dead letters; 100 by default.
    #[serde(default)]
    limit: PageSize,
    /// Lists only the dead letters after this `position`.
    #[schemars(regex(pattern = DEAD_LETTER_PATTERN))]
    starting_after: Option<String>,
}

async fn list_dead_letters(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Query(query): Query<DeadLettersQuery>,
) -> Result<HttpResponse, Problem> {
    let (settled, limit) = (query.settled, query.limit.get());
    let after = query.starting_after.as_deref();
    let after = after.map(|text| parsed("starting_after", text)).transpose()?;
    let letters = api
        .for_operator(move |app| async move { dead_letters::dead_letters(&app, id, settled, after, limit + 1).await });
    Ok(HttpResponse::Ok().json(Page::of(found(letters.await?, "such sale")?, limit)))
}

/// Settles a dead letter.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleLetterBody {
    /// The dead letter's `position` from the list: its shard, epoch and number.
    #[schemars(regex(pattern = DEAD_LETTER_PATTERN))]
    position: String,
    /// What the operator did about it: some words on one line.
    #[schemars(length(min = 1, max = NOTE_MAX), regex(pattern = PLAIN_PATTERN))]
    note: String,
}

/// Notes once that a dead letter is settled
async fn settle_dead_letter(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Json(body): Json<SettleLetterBody>,
) -> Result<HttpResponse, Problem> {
    let at = parsed("position", &body.position)?;
    let note: Note = parsed("note", &body.note)?;
    let settled = api.for_operator(move |app| async move { dead_letters::settle(&app, id, at, &note).await });
    match settled.await? {
        Settled::Noted(letter) => Ok(HttpResponse::Ok().json(letter)),
        Settled::NotedAs(other) => Err(Problem::wrong_state(format!(
            "this event was dealt with already: {other}"
        ))),
        Settled::NoLetter => Err(Problem::not_found("such dead letter")),
        Settled::NoSale => Err(Problem::not_found("such sale")),
    }
}

/// Which messages to list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RefusedQuery {
    /// At most so many messages; 100 by default.
    #[serde(default)]
    limit: PageSize,
    /// Lists only the messages after the one with this id.
    #[schemars(range(min = i64::MIN, max = i64::MAX))]
    starting_after: Option<i64>,
}

async fn list_refused_messages(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Query(query): Query<RefusedQuery>,
) -> Result<HttpResponse, Problem> {
    let (limit, after) = (query.limit.get(), query.starting_after);
    let messages = api.for_operator(move |app| async move { dead_letters::refused(&app, id, after, limit + 1).await });
    Ok(HttpResponse::Ok().json(Page::of(found(messages.await?, "such sale")?, limit)))
}

fn example(is_settled: bool) -> Value {
    let settled_at = is_settled.then_some("2026-11-22T10:00:00.000Z");
    json!({"position": "0:1-2", "shard": 0, "epoch": 1, "seq": 2, "order_id": ORDER_ID,
        "reason": "another order has its place", "bytes": null,
        "event": {"order_id": ORDER_ID, "user": "ada", "idempotency_key": "click-1", "sku": "TSHIRT-M", "quantity": 1,
            "created_at": "2026-11-22T09:00:10.000Z"},
        "created_at": "2026-11-22T09:00:10.050Z", "settled_at": settled_at,
        "note": settled_at.map(|_| "wrote to ada, who bought again")})
}
