//! The limits on shoppers, changed while instances run.

use crate::domain::guard::{GuardChanges, GuardSettings};
use crate::flow;
use crate::http::Api;
use crate::http::explain::parse_value;
use crate::http::extract::{Json, Operator};
use crate::http::problem::Problem;
use actix_web::HttpResponse;
use actix_web::web::Data;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The guards of the instance that answers.
#[derive(Serialize, JsonSchema)]
pub(in crate::http) struct Guards {
    /// The settings from the instance's configuration.
    configured: GuardSettings,
    /// The settings that operators have changed, for all instances.
    changed: GuardChanges,
    /// The settings in force: the configuration with the changes.
    effective: GuardSettings,
    /// Requests per second that this instance accepts now; 0 is no limit.
    rate: u32,
    /// Purchases that this instance is answering now.
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
pub async fn show_guards(api: Data<Api>, _: Operator) -> Result<HttpResponse, Problem> {
    let changed = api
        .for_others(|app| async move { flow::operate::guards::changes(&app).await })
        .await?;
    Ok(HttpResponse::Ok().json(Guards::of(&api, changed)))
}

/// A change of the guards. Kept as it came, because `null` and an absent member differ.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(with = "GuardChanges")]
pub struct GuardPatch(Map<String, Value>);

/// `PATCH /v1/admin/guards`: sets the members of the body, and removes those that are `null` (RFC 7396)
pub async fn change_guards(
    api: Data<Api>,
    _: Operator,
    Json(GuardPatch(changes)): Json<GuardPatch>,
) -> Result<HttpResponse, Problem> {
    let configured = api.guards;
    let is_right = move |settings| {
        let changes: GuardChanges = parse_value(settings)?;
        configured.with(&changes).check().map_err(|wrong| wrong.to_string())?;
        Ok(changes)
    };
    let changed = api
        .for_others(move |app| async move { flow::operate::guards::change(&app, changes, is_right).await })
        .await?;
    let changed = changed.map_err(|wrong: String| Problem::invalid(wrong))?;
    Ok(HttpResponse::Ok().json(Guards::of(&api, changed)))
}
