//! Bans of accounts.

use crate::domain::code::Code;
use crate::domain::ids::UserId;
use crate::domain::operator::console::OperatorName;
use crate::domain::shopper::ban::{Ban, BanEnd, BannedBy, NewBan, REASON_MAX};
use crate::flow::operate::bans;
use crate::http::admin::operator::operator_name;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Json, Operator, Query, parsed};
use crate::http::problem::Problem;
use crate::http::views::{Page, PageSize};
use crate::http::{Api, found};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use chrono::{DateTime, Datelike as _, Utc};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

pub const ROUTES: &[Endpoint] = &[
    Endpoint::post("/v1/admin/bans", handler!(ban), |it| {
        it.of_operators("banAccount", "Ban an account")
            .says("The account cannot buy, but keeps its orders. Every instance knows within a second.")
            .reads::<BanBody>(json!({"user": "mallory", "reason": "resells", "end_sessions": true}))
            .answers::<Ban>(201, "The ban.", example(None))
            .refuses(&[Code::Overloaded])
    })
    .by_run(),
    Endpoint::get("/v1/admin/bans", handler!(list_bans), |it| {
        it.of_operators("listBans", "List bans that hold")
            .says(
                "By account, or with `newest_first` the newest bans first. Then a page begins after the latest \
                 decision on the account in `starting_after`. If that account was banned again meanwhile, the page \
                 begins among the newest bans. With `user`, whether that account is banned.",
            )
            .query::<BansQuery>(&[("limit", 10.into())])
            .answers_page::<Ban>("A page of bans.", example(None))
    }),
    Endpoint::post("/v1/admin/bans/lift", handler!(lift_ban), |it| {
        it.of_operators("liftBan", "Lift an account's ban")
            .reads::<LiftBody>(json!({"user": "mallory"}))
            .answers::<Ban>(
                200,
                "The ban as it was, and when it was lifted.",
                example(Some("2026-11-22T10:00:00.000Z")),
            )
            .refuses(&[Code::NotFound, Code::Overloaded])
    })
    .by_run(),
];

/// The pattern of a reason: not only white space, no NUL.
const REASON_PATTERN: &str = concat!(
    r"^[^\u0000]*",
    r"[^\u0000\u0009-\u000d\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]",
    r"[^\u0000]*$"
);

/// The body of a ban.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BanBody {
    /// The account to ban.
    #[schemars(with = "UserId")]
    user: String,
    /// The reason: not only white space, no NUL.
    #[schemars(length(min = 1, max = REASON_MAX), regex(pattern = REASON_PATTERN))]
    reason: String,
    /// When the ban ends: a future time, at most in the year 9999. Without it, the ban has no end.
    until: Option<DateTime<Utc>>,
    /// Whether the account's tokens issued until now become invalid.
    #[serde(default)]
    end_sessions: bool,
}

impl BanBody {
    fn check(self, operator: Option<OperatorName>) -> Result<NewBan, Problem> {
        let reason = self.reason.trim();
        if reason.is_empty() || self.reason.chars().count() > REASON_MAX || reason.contains('\0') {
            return Err(Problem::invalid(format!(
                "reason must have 1 to {REASON_MAX} characters"
            )));
        }
        // RFC 3339 cannot write later years.
        if self.until.is_some_and(|until| until.year() > 9999) {
            return Err(wrong_end());
        }
        Ok(NewBan {
            user: user(&self.user)?,
            reason: reason.to_owned(),
            banned_by: BannedBy::Operator,
            operator,
            end: self.until.map_or(BanEnd::Never, BanEnd::At),
            end_sessions: self.end_sessions,
        })
    }
}

fn wrong_end() -> Problem {
    Problem::invalid("until must lie ahead, in the years up to 9999; leave it out to ban for ever")
}

pub(super) fn user(text: &str) -> Result<UserId, Problem> {
    parsed("user:", text)
}

async fn ban(
    api: Data<Api>,
    operator: Operator,
    http: HttpRequest,
    Json(body): Json<BanBody>,
) -> Result<HttpResponse, Problem> {
    let new = body.check(operator_name(&operator, http.headers())?)?;
    let ban = api.for_operator(|app| async move { bans::ban(&app, &new).await });
    // The ledger refuses an operator only for an end that has passed by its clock.
    Ok(HttpResponse::Created().json(ban.await?.ok_or_else(wrong_end)?))
}

/// The ban to lift.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LiftBody {
    /// The banned account.
    #[schemars(with = "UserId")]
    user: String,
}

async fn lift_ban(api: Data<Api>, _: Operator, Json(body): Json<LiftBody>) -> Result<HttpResponse, Problem> {
    let user = user(&body.user)?;
    let lifted = api.for_operator(|app| async move { bans::lift(&app, &user).await });
    Ok(HttpResponse::Ok().json(found(lifted.await?, "ban of this account")?))
}

/// Which bans to list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BansQuery {
    /// At most so many bans; 100 by default.
    #[serde(default)]
    limit: PageSize,
    /// Lists only the bans after the one of this account.
    #[schemars(with = "Option<UserId>")]
    starting_after: Option<String>,
    /// `true` lists the newest bans first; otherwise they are sorted by account.
    #[serde(default)]
    newest_first: bool,
    /// Lists only the ban of this account, if it is in force. The other parameters are ignored then.
    #[schemars(with = "Option<UserId>")]
    user: Option<String>,
}

/// The bans in force, by account or the newest first
async fn list_bans(api: Data<Api>, _: Operator, Query(query): Query<BansQuery>) -> Result<HttpResponse, Problem> {
    let (limit, newest_first) = (query.limit.get(), query.newest_first);
    let after = query.starting_after.as_deref().map(user).transpose()?;
    let only = query.user.as_deref().map(user).transpose()?;
    let bans = api.for_operator(move |app| async move {
        bans::list(&app, only.as_ref(), newest_first, after.as_ref(), limit + 1).await
    });
    Ok(HttpResponse::Ok().json(Page::of(bans.await?, limit)))
}

fn example(lifted_at: Option<&str>) -> Value {
    json!({"user": "mallory", "reason": "resells", "banned_by": "operator", "operator": "ada",
        "banned_at": "2026-11-22T09:30:00.000Z", "banned_until": null, "lifted_at": lifted_at,
        "sessions_from": "2026-11-22T09:30:00.000Z"})
}
