//! Dead letters and refused messages: operators list them, and note that a dead letter is settled.

use crate::domain::code::Code;
use crate::domain::dead_letter::{LETTER_PATTERN, LetterId, NOTE_MAX, Note, Settled};
use crate::domain::plain::PLAIN_PATTERN;
use crate::flow;
use crate::http::Api;
use crate::http::extract::{Json, Operator, Query, SalePath};
use crate::http::problem::Problem;
use crate::http::views::{Page, PageSize};
use actix_web::HttpResponse;
use actix_web::web::Data;
use schemars::JsonSchema;
use serde::Deserialize;

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
    #[schemars(regex(pattern = LETTER_PATTERN))]
    starting_after: Option<String>,
}

/// `GET /v1/admin/sales/{id}/dead-letters`, by shard, then in the order of the events
pub async fn list_dead_letters(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Query(query): Query<DeadLettersQuery>,
) -> Result<HttpResponse, Problem> {
    let (settled, limit) = (query.settled, query.limit.get());
    let after = query.starting_after.as_deref();
    let after = after.map(|text| letter("starting_after", text)).transpose()?;
    let letters = api
        .for_others(move |app| async move {
            flow::settle::dead_letters::dead_letters(&app, id, settled, after, limit + 1).await
        })
        .await?;
    let letters = letters.ok_or_else(|| Problem::not_found("such sale"))?;
    Ok(HttpResponse::Ok().json(Page::of(letters, limit)))
}

fn letter(member: &str, text: &str) -> Result<LetterId, Problem> {
    text.parse()
        .map_err(|wrong| Problem::invalid(format!("{member} {wrong}")))
}

/// Settles a dead letter.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleLetterBody {
    /// The dead letter's `position` from the list: its shard, epoch and number.
    #[schemars(regex(pattern = LETTER_PATTERN))]
    position: String,
    /// What the operator did about it: some words on one line.
    #[schemars(length(min = 1, max = NOTE_MAX), regex(pattern = PLAIN_PATTERN))]
    note: String,
}

/// `POST /v1/admin/sales/{id}/dead-letters/settle`: notes once that a dead letter is settled
pub async fn settle_dead_letter(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Json(body): Json<SettleLetterBody>,
) -> Result<HttpResponse, Problem> {
    let at = letter("position", &body.position)?;
    let note: Note = body
        .note
        .parse()
        .map_err(|wrong| Problem::invalid(format!("note {wrong}")))?;
    let settled = api
        .for_others(move |app| async move { flow::settle::dead_letters::settle(&app, id, at, &note).await })
        .await?;
    match settled {
        Settled::Noted(letter) => Ok(HttpResponse::Ok().json(letter)),
        Settled::NotedAs(other) => Err(Problem::new(
            Code::InvalidTransition,
            format!("this event was dealt with already: {other}"),
        )),
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

/// `GET /v1/admin/sales/{id}/refused-messages`, oldest first
pub async fn list_refused_messages(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Query(query): Query<RefusedQuery>,
) -> Result<HttpResponse, Problem> {
    let (limit, after) = (query.limit.get(), query.starting_after);
    let messages = api
        .for_others(move |app| async move { flow::settle::dead_letters::refused(&app, id, after, limit + 1).await })
        .await?;
    let messages = messages.ok_or_else(|| Problem::not_found("such sale"))?;
    Ok(HttpResponse::Ok().json(Page::of(messages, limit)))
}
